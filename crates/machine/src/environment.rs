//! Our own Python environment: for a user who has no torch, or not one we have tested.
//!
//! It is made by `uv`, itself fetched from the package index by hash, from a list in which every
//! file is pinned by hash. A marker written last says that it is whole; whatever lacks it is made
//! again, from what `uv` had already fetched.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::caches::folder_size;
use crate::download::hex;
use crate::python::{Facts, inspect, own};
use crate::torch::major_minor;
use crate::{
    Caches, MachineError, Progress, Python, PythonChoice, command, find_python, free_disk, uv,
};

const REQUIREMENTS: &str = include_str!("requirements.txt");
const TORCH: &str = "2.11.0";

/// What fetching our own environment costs, as measured on x86-64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Estimate {
    pub download_bytes: u64,
    pub disk_bytes: u64,
    pub folder: PathBuf,
}

/// The cost of our own environment, for asking before it is paid.
pub fn estimate(caches: &Caches) -> Estimate {
    Estimate {
        download_bytes: 2_740_000_000,
        disk_bytes: 4_880_000_000,
        folder: folder(caches),
    }
}

/// Room beyond the result for the wheel being unpacked and for other programs.
const SPARE_BYTES: u64 = 1_000_000_000;

/// Finds a Python with torch or makes our own; `offline` only finds.
pub fn ensure_python(
    choice: &PythonChoice,
    caches: &Caches,
    progress: &dyn Progress,
    offline: bool,
) -> Result<Python, MachineError> {
    if let Some(python) = find_python(choice, caches)? {
        return Ok(python);
    }
    if offline {
        return Err(MachineError::Offline);
    }
    let base = base_python()?;
    fs_err::create_dir_all(caches.python()).map_err(MachineError::Cache)?;
    let lock = lock(caches, progress)?;
    // Whoever held the lock may have done the work.
    if let Some(python) = own(caches) {
        return Ok(python);
    }
    announce(caches, progress)?;
    let begun = Instant::now();
    let installer = Installer {
        caches,
        progress,
        base: &base,
        lock: &lock,
    };
    installer.install()?;
    let python =
        own(caches).ok_or_else(|| installer.failed("check", "torch is not where it should be"))?;
    progress.say(&format!(
        "PyTorch {} is ready after {} s: {}",
        python.torch.version,
        begun.elapsed().as_secs(),
        python.executable.display()
    ));
    Ok(python)
}

fn folder(caches: &Caches) -> PathBuf {
    caches.python().join(format!("torch-{TORCH}"))
}

fn marker(caches: &Caches) -> PathBuf {
    folder(caches).join("warpsmith-complete")
}

/// What the marker must say, so that another list of packages means another installation.
fn fingerprint() -> String {
    hex(&Sha256::digest(REQUIREMENTS.as_bytes()))
}

/// Our environment's interpreter, if it was installed to the end.
pub(crate) fn installed(caches: &Caches) -> Option<PathBuf> {
    let written = fs_err::read_to_string(marker(caches)).ok()?;
    (written.trim() == fingerprint()).then(|| folder(caches).join("bin/python"))
}

/// One installation at a time. The kernel frees the lock with its last holder, so none is ever stale.
fn lock(caches: &Caches, progress: &dyn Progress) -> Result<std::fs::File, MachineError> {
    let path = caches.python().join("install.lock");
    let file = fs_err::File::options()
        .create(true)
        .append(true)
        .open(path)
        .map_err(MachineError::Cache)?
        .into_file();
    if file.try_lock().is_err() {
        progress.say("another process is installing PyTorch: waiting for it");
        file.lock().map_err(MachineError::Cache)?;
    }
    Ok(file)
}

/// A Python new enough to build the environment on, and not too new for torch's wheels.
fn base_python() -> Result<Facts, MachineError> {
    [
        "python3",
        "python3.13",
        "python3.12",
        "python3.11",
        "python3.10",
        "python3.14",
        "python",
    ]
    .iter()
    .flat_map(|name| command::on_path(name))
    .filter_map(|program| inspect(&program).ok())
    .find(|facts| {
        major_minor(&facts.version).is_some_and(|version| ((3, 10)..=(3, 14)).contains(&version))
    })
    .ok_or(MachineError::NoBasePython)
}

/// Says what is about to happen, and refuses where it cannot fit.
fn announce(caches: &Caches, progress: &dyn Progress) -> Result<(), MachineError> {
    let cost = estimate(caches);
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let (kept, _) = folder_size(&uv::cache(caches)).map_err(MachineError::Cache)?;
    let free = free_disk(&caches.python()).map_err(MachineError::Cache)? + kept;
    let needed = cost.disk_bytes + SPARE_BYTES;
    if free < needed {
        return Err(MachineError::DiskFull {
            folder: caches.python(),
            free_gb: gb(free),
            needed_gb: gb(needed),
        });
    }
    progress.say(&format!(
        "no Python with a tested PyTorch found: fetching PyTorch {TORCH} ({:.1} GB, then {:.1} GB in `{}`); \
         half a minute to a few minutes on a fast line",
        gb(cost.download_bytes),
        gb(cost.disk_bytes),
        cost.folder.display()
    ));
    Ok(())
}

struct Installer<'a> {
    caches: &'a Caches,
    progress: &'a dyn Progress,
    base: &'a Facts,
    lock: &'a std::fs::File,
}

impl Installer<'_> {
    fn install(&self) -> Result<(), MachineError> {
        let log = self.log();
        fs_err::write(&log, "").map_err(MachineError::Cache)?;
        let uv = uv::program(self.caches, &self.base.executable, self.progress, &log)?;
        let environment = folder(self.caches);
        remove(&environment)?;
        let requirements = self.caches.python().join("requirements.txt");
        fs_err::write(&requirements, REQUIREMENTS).map_err(MachineError::Cache)?;

        self.run(
            "uv venv",
            uv::command(&uv, self.caches)
                .arg("venv")
                .arg("--python")
                .arg(&self.base.executable)
                .arg(&environment),
        )?;
        self.progress
            .start("installing PyTorch", Some(estimate(self.caches).disk_bytes));
        let outcome = self.run(
            "uv pip install",
            uv::command(&uv, self.caches)
                .args([
                    "pip",
                    "install",
                    "--require-hashes",
                    "--only-binary",
                    ":all:",
                    "--compile-bytecode",
                ])
                .arg("--python")
                .arg(environment.join("bin/python"))
                .arg("-r")
                .arg(&requirements),
        );
        self.progress.finish();
        outcome?;

        let mut file = fs_err::File::create(marker(self.caches)).map_err(MachineError::Cache)?;
        writeln!(file, "{}", fingerprint())
            .and_then(|()| file.sync_all())
            .map_err(MachineError::Cache)?;
        // The files themselves are hard links into the environment: this frees names, and what was not linked.
        remove(&uv::cache(self.caches))
    }

    fn log(&self) -> PathBuf {
        self.caches.python().join("install.log")
    }

    fn failed(&self, step: &'static str, tail: &str) -> MachineError {
        MachineError::Install {
            step,
            tail: tail.to_owned(),
            log: self.log(),
        }
    }

    /// Runs a step to its end; the bar follows the growth of what `uv` unpacks.
    fn run(&self, step: &'static str, command: &mut Command) -> Result<(), MachineError> {
        let program = PathBuf::from(command.get_program());
        let log = self.log();
        let output = fs_err::File::options()
            .append(true)
            .open(&log)
            .map_err(MachineError::Cache)?
            .into_file();
        let errors = output.try_clone().map_err(MachineError::Cache)?;
        // The child shares the lock through its stdin: if we are killed, nobody installs beside it.
        let held = self.lock.try_clone().map_err(MachineError::Cache)?;
        let start = |source: io::Error| MachineError::Start {
            program: program.clone(),
            source,
        };
        let mut child = command
            .stdin(Stdio::from(held))
            .stdout(Stdio::from(output))
            .stderr(Stdio::from(errors))
            .spawn()
            .map_err(start)?;
        let mut seen = 0;
        let mut looked = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(start)? {
                break status;
            }
            thread::sleep(Duration::from_millis(100));
            if looked.elapsed() > Duration::from_secs(1) {
                // Files come and go while we look; a failed look is only a bar that stands still.
                let (bytes, _) = folder_size(&uv::cache(self.caches)).unwrap_or((seen, 0));
                self.progress.advance(bytes.saturating_sub(seen));
                seen = seen.max(bytes);
                looked = Instant::now();
            }
        };
        if status.success() {
            return Ok(());
        }
        Err(self.failed(
            step,
            &last_lines(&fs_err::read_to_string(&log).unwrap_or_default()),
        ))
    }
}

fn remove(folder: &Path) -> Result<(), MachineError> {
    match fs_err::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(MachineError::Cache(error)),
        _ => Ok(()),
    }
}

/// The end of a log, where the reason is, on one line.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines[lines.len().saturating_sub(4)..].join(" ")
}
