//! Every mode of starting a command keeps the required protections, also the modes this machine does not need.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::cgroup::ControlGroup;
use crate::child::run_to_end;
use crate::effective::Mode;
use crate::identity;
use crate::landlock;
use crate::policy::{Command, Exit, Isolation, Output, ResourceLimits, SandboxPolicy};
use crate::running::start_with;

const PYTHON: &str = "/usr/bin/python3";

fn policy() -> SandboxPolicy {
    SandboxPolicy {
        read: ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache"]
            .iter()
            .map(PathBuf::from)
            .collect(),
        write: Vec::new(),
        devices: Vec::new(),
        scratch_bytes: 8 << 20,
        limits: ResourceLimits {
            memory_bytes: 200 << 20,
            processes: 12,
            wall_time: Duration::from_secs(10),
            file_bytes: 8 << 20,
            output_bytes: 8 << 10,
        },
        nested: false,
        isolation: Isolation::Strict,
    }
}

/// The modes that can be tried here, each without and with a control group. [`Mode::Root`] needs root.
fn modes() -> Vec<(Mode, bool)> {
    let root = identity::other_id().is_some();
    let grouped = ControlGroup::create(&policy().limits).is_some();
    let modes = [(root, Mode::Root), (true, Mode::User), (true, Mode::Plain)];
    modes
        .into_iter()
        .filter(|(possible, _)| *possible)
        .flat_map(|(_, mode)| [(mode, false), (mode, true)])
        .filter(|(_, with_group)| grouped || !*with_group)
        .collect()
}

fn run_in(mode: (Mode, bool), source: &str, policy: &SandboxPolicy) -> Output {
    assert!(
        landlock::abi().is_some(),
        "no landlock: nothing to fall back to"
    );
    let command = Command {
        program: PathBuf::from(PYTHON),
        args: ["-I", "-S", "-c", source].map(OsString::from).to_vec(),
        env: Vec::new(),
        cwd: PathBuf::from("/"),
        fds: Vec::new(),
        stderr_to: None,
    };
    let group = mode
        .1
        .then(|| ControlGroup::create(&policy.limits))
        .flatten();
    let started = start_with(mode.0, Some(command), policy, group);
    let started = started.unwrap_or_else(|error| panic!("{mode:?} did not start: {error:?}"));
    run_to_end(started, policy).unwrap()
}

#[test]
fn files_network_and_processes_outside_are_out_of_reach() {
    let secret = tempfile::tempdir().unwrap();
    std::fs::write(secret.path().join("file"), "secret").unwrap();
    let source = format!(
        "
import os, socket
def refused(action):
    try:
        action()
        return False
    except OSError:
        return True
print([
    refused(lambda: open('{secret}/file')),
    refused(lambda: open('{secret}/new', 'w')),
    refused(lambda: open('/etc/passwd')),
    refused(lambda: os.listdir('/home')),
    refused(lambda: socket.socket(socket.AF_INET)),
    refused(lambda: os.kill({own}, 9)),
    refused(lambda: os.kill(os.getppid(), 9) if os.getppid() > 1 else os.kill({own}, 9)),
    refused(lambda: open('/proc/{own}/environ').read()),
    refused(lambda: open(f'/proc/{{max(1, os.getppid())}}/environ').read()),
])
",
        secret = secret.path().display(),
        own = std::process::id(),
    );
    for mode in modes() {
        let output = run_in(mode, &source, &policy());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let wanted = format!("[{}]\n", ["True"; 9].join(", "));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.exit, said),
            (Exit::Code(0), wanted),
            "{mode:?} {stderr}"
        );
    }
}

#[test]
fn daemons_die() {
    let source = "
import ctypes, os, sys, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
            os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(300)', 'MARKER'])
        os._exit(0)
time.sleep(0.5)
HANG
";
    for mode in modes() {
        for hang in ["", "time.sleep(300)"] {
            let marker = format!("mode-daemon-{}", std::process::id());
            let source = source.replace("MARKER", &marker).replace("HANG", hang);
            let mut policy = policy();
            policy.limits.wall_time = Duration::from_millis(1500);
            let exit = run_in(mode, &source, &policy).exit;
            let wanted = if hang.is_empty() {
                Exit::Code(0)
            } else {
                Exit::TimedOut
            };
            assert_eq!(exit, wanted, "{mode:?}");
            let alive = std::fs::read_dir("/proc")
                .unwrap()
                .filter_map(|entry| std::fs::read(entry.ok()?.path().join("cmdline")).ok())
                .any(|line| String::from_utf8_lossy(&line).contains(&marker));
            assert!(!alive, "{mode:?}");
        }
    }
}

#[test]
fn memory_is_limited() {
    let source = "
held = []
while True:
    held.append(bytearray(b'x') * (4 << 20))
";
    for mode in modes() {
        let exit = run_in(mode, source, &policy()).exit;
        assert_eq!(exit, Exit::OutOfMemory, "{mode:?}");
    }
}

#[test]
fn processes_are_limited() {
    let source = "
import os, time
made = 0
try:
    while made < 300:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made)
";
    for mode in modes() {
        let output = run_in(mode, source, &policy());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let made: u32 = said
            .trim()
            .parse()
            .unwrap_or_else(|_| panic!("{mode:?} {output:?}"));
        // Without a namespace tests beside this one count too, when they start under the same uid.
        assert!((4..=40).contains(&made), "{mode:?} made {made}");
    }
}
