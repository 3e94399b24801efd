//! What a command can consume, and what is left of it afterwards.

use std::time::{Duration, Instant};

use crate::script::{MIB, is_alive, policy, run_script, says, script};
use warpsmith_sandbox::{ControlGroup, Exit, effective, spawn};

#[test]
fn a_fork_bomb_fizzles_out() {
    let source = "
import os
made = 0
while True:
    try:
        if os.fork() == 0:
            import time
            time.sleep(60)
            os._exit(0)
    except OSError:
        break
    made += 1
    if made > 500:
        break
print(made)
";
    assert!(
        effective().processes.is_held(),
        "{:?}",
        effective().processes
    );
    let begin = Instant::now();
    let made: u32 = says(source, &[], &policy()).trim().parse().unwrap();
    assert!((5..=24).contains(&made), "{made} processes were made");
    assert!(begin.elapsed() < Duration::from_secs(10));
    // The machine is unharmed: the next command runs as usual.
    assert_eq!(says("print('fine')", &[], &policy()), "fine\n");
}

#[test]
fn a_memory_hog_is_killed() {
    let source = "
held = []
while True:
    held.append(bytearray(b'x') * (8 << 20))
";
    assert!(effective().memory.is_held(), "{:?}", effective().memory);
    let output = run_script(source, &[], &policy());
    assert_eq!(
        output.exit,
        Exit::OutOfMemory,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_hog_in_a_child_is_found_too() {
    let source = "
import os, sys
pid = os.fork()
if pid == 0:
    held = []
    while True:
        held.append(bytearray(b'x') * (8 << 20))
sys.exit(0 if os.waitpid(pid, 0)[1] == 0 else 1)
";
    assert_eq!(run_script(source, &[], &policy()).exit, Exit::OutOfMemory);
}

#[test]
fn time_runs_out_even_without_signals() {
    let mut policy = policy();
    policy.limits.wall_time = Duration::from_millis(700);
    let source = "
import signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print('begun', flush=True)
while True:
    time.sleep(1)
";
    let begin = Instant::now();
    let output = run_script(source, &[], &policy);
    assert_eq!(output.exit, Exit::TimedOut);
    assert_eq!(output.stdout, b"begun\n");
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
}

const DAEMON: &str = "
import ctypes, os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(300)', 'MARKER'])
    os._exit(0)
os.wait()
time.sleep(0.3)
print('done', flush=True)
HANG
";

#[test]
fn a_daemon_does_not_survive_its_command() {
    assert!(
        effective().process_tree.is_held(),
        "{:?}",
        effective().process_tree
    );
    for (name, hang) in [("ends", ""), ("hangs", "time.sleep(300)")] {
        let marker = format!("daemon-{name}-{}", std::process::id());
        let mut policy = policy();
        policy.limits.wall_time = Duration::from_secs(2);
        let source = DAEMON.replace("MARKER", &marker).replace("HANG", hang);
        let output = run_script(&source, &[], &policy);
        assert_eq!(output.stdout, b"done\n");
        assert!(!is_alive(&marker), "{marker} is still there");
    }
}

#[test]
fn the_scratch_folder_is_bounded() {
    let source = "
import errno
try:
    with open('/tmp/fill', 'wb', buffering=0) as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    print('all written')
except OSError as error:
    print(errno.errorcode[error.errno])
";
    let mut policy = policy();
    policy.scratch_bytes = 4 * MIB;
    assert_eq!(says(source, &[], &policy), "ENOSPC\n");
    policy.scratch_bytes = 128 * MIB;
    policy.limits.file_bytes = 2 * MIB;
    assert_eq!(says(source, &[], &policy), "EFBIG\n");
}

#[test]
fn a_flood_is_clipped_and_does_not_block() {
    let source = "
import sys
print('first', flush=True)
block = b'x' * 65536
for _ in range(4096):
    sys.stdout.buffer.write(block)
    sys.stderr.buffer.write(block)
print('last')
";
    let mut policy = policy();
    policy.limits.output_bytes = 4096;
    let output = run_script(source, &[], &policy);
    assert_eq!((output.exit, output.clipped), (Exit::Code(0), true));
    assert!(output.stdout.len() < 4300 && output.stderr.len() < 4300);
    assert!(output.stdout.starts_with(b"first\n"));
    assert!(output.stdout.ends_with(b"xlast\n"));
    assert!(
        output.elapsed < Duration::from_secs(10),
        "{:?}",
        output.elapsed
    );
}

#[test]
fn the_end_is_told_as_it_was() {
    assert_eq!(
        run_script("import sys; sys.exit(7)", &[], &policy()).exit,
        Exit::Code(7)
    );
    let signal = "import os, signal; os.kill(os.getpid(), signal.SIGUSR1)";
    assert_eq!(run_script(signal, &[], &policy()).exit, Exit::Signal(10));
    assert_eq!(
        run_script("import os; os.abort()", &[], &policy()).exit,
        Exit::Signal(6)
    );
}

#[test]
fn a_spawned_child_answers_until_it_is_killed() {
    let marker = format!("spawned-{}", std::process::id());
    let source = "
import sys, time
print('noise' * 10000)
print('ready', flush=True)
time.sleep(300)
";
    let mut child = spawn(script(source, &[marker.as_ref()]), &policy()).unwrap();
    assert!(child.effective().contained());
    let deadline = Instant::now() + Duration::from_secs(10);
    while !child.tail().ends_with("ready\n") {
        assert!(Instant::now() < deadline, "{}", child.tail());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(child.tail().len(), 8 << 10);
    assert_eq!(child.try_wait().unwrap(), None);
    let line = std::fs::read(format!("/proc/{}/cmdline", child.pid())).unwrap();
    assert!(String::from_utf8_lossy(&line).contains(&marker));
    child.kill();
    assert_eq!(child.try_wait().unwrap(), Some(Exit::Signal(9)));
    assert!(!is_alive(&marker));
}

#[test]
fn a_spawned_child_outlives_the_thread_that_made_it_and_dies_with_its_handle() {
    let marker = format!("threaded-{}", std::process::id());
    let command = script("import time; time.sleep(300)", &[marker.as_ref()]);
    let mut child = std::thread::spawn(move || spawn(command, &policy()).unwrap())
        .join()
        .unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(child.try_wait().unwrap(), None);
    assert!(is_alive(&marker));
    drop(child);
    assert!(!is_alive(&marker));
}

const ORPHAN: &str = "WARPSMITH_TEST_ORPHAN";

/// Not a test: the supervisor that `a_child_dies_with_a_killed_supervisor` kills.
#[test]
#[ignore = "started by another test"]
fn supervisor_to_be_killed() {
    let marker = std::env::var(ORPHAN).unwrap();
    let command = script("import time; time.sleep(300)", &[marker.as_ref()]);
    let _child = spawn(command, &policy()).unwrap();
    std::thread::sleep(Duration::from_mins(5));
}

#[test]
fn a_child_dies_with_a_killed_supervisor() {
    let marker = format!("orphan-{}", std::process::id());
    let mut supervisor = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "limits::supervisor_to_be_killed"])
        .env(ORPHAN, &marker)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let wait_until = |alive: bool| {
        while is_alive(&marker) != alive {
            assert!(Instant::now() < deadline, "{marker} alive: {}", !alive);
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait_until(true);
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    wait_until(false);
}

#[test]
fn many_at_once_do_not_disturb_each_other() {
    let threads: Vec<_> = (0..6)
        .map(|number| std::thread::spawn(move || says(&format!("print({number})"), &[], &policy())))
        .collect();
    for (number, thread) in threads.into_iter().enumerate() {
        assert_eq!(thread.join().unwrap(), format!("{number}\n"));
    }
}

#[test]
fn a_group_limits_and_kills_what_is_added() {
    let Some(group) = ControlGroup::create(&policy().limits) else {
        assert!(
            !effective().cgroup.is_held(),
            "a group cannot be made, yet {:?}",
            effective().cgroup
        );
        return;
    };
    let mut sleeper = std::process::Command::new("sleep")
        .arg("300")
        .spawn()
        .unwrap();
    group.add(sleeper.id()).unwrap();
    assert!(!group.out_of_memory());
    group.kill();
    let status = sleeper.wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9)
    );
}
