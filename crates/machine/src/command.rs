//! Short runs of other programs. Each has a time limit: a program that hangs must not hang us.

use std::env;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::MachineError;

/// What a program printed, and whether it exited with 0.
#[derive(Debug)]
pub struct CommandAnswer {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command to its end or kills it at the limit.
pub fn run_briefly(command: &mut Command, limit: Duration) -> Result<CommandAnswer, MachineError> {
    let program = PathBuf::from(command.get_program());
    let failed = |source: io::Error| MachineError::Start {
        program: program.clone(),
        source,
    };
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = spawn(command).map_err(failed)?;
    let stdout = read_in_thread(child.stdout.take());
    let stderr = read_in_thread(child.stderr.take());
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if Instant::now() >= deadline {
            let _ = child.kill();
            let _ = child.wait();
            return Err(MachineError::TimedOut { program, limit });
        }
        thread::sleep(Duration::from_millis(5));
    };
    // A grandchild may keep the pipe open after the child has exited: what was read until then is the answer.
    let rest = Duration::from_secs(1);
    Ok(CommandAnswer {
        success: status.success(),
        stdout: stdout.recv_timeout(rest).unwrap_or_default(),
        stderr: stderr.recv_timeout(rest).unwrap_or_default(),
    })
}

/// A program that was written a moment ago is busy while any fork of another thread still holds it open.
fn spawn(command: &mut Command) -> io::Result<Child> {
    for _ in 0..20 {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
    command.spawn()
}

fn read_in_thread(stream: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _ = stream.read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

/// Every executable file of that name on the PATH, in order, each folder once.
pub(crate) fn on_path(name: &str) -> Vec<PathBuf> {
    let Some(path) = env::var_os("PATH") else {
        return Vec::new();
    };
    let mut seen = Vec::new();
    let mut found = Vec::new();
    for folder in env::split_paths(&path).filter(|folder| folder.is_absolute()) {
        // Only the folder is resolved: `venv/bin/python3` is a link to the base Python, yet another environment.
        let Ok(resolved) = fs_err::canonicalize(&folder) else {
            continue;
        };
        let file = folder.join(name);
        if !seen.contains(&resolved) && is_executable(&file) {
            found.push(file);
        }
        seen.push(resolved);
    }
    found
}

pub(crate) fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs_err::metadata(path)
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_whole() {
        let answer = run_briefly(
            Command::new("sh").args([
                "-c",
                "head -c 300000 /dev/zero | tr '\\0' x; echo no >&2; exit 3",
            ]),
            Duration::from_secs(20),
        )
        .unwrap();
        assert_eq!(
            (answer.success, answer.stdout.len(), answer.stderr.as_str()),
            (false, 300_000, "no\n")
        );
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let begun = Instant::now();
        let error = run_briefly(Command::new("sleep").arg("60"), Duration::from_millis(200))
            .err()
            .unwrap();
        assert!(matches!(error, MachineError::TimedOut { .. }));
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
