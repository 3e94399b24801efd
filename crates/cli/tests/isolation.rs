//! A machine on which the sandbox cannot hide the files: what `--isolation` then means.
//!
//! Such a machine is made, not pretended: the binary is started the way a container with a system-call filter on an old
//! kernel starts it, and everything it finds out is true there.
#![expect(
    unsafe_code,
    reason = "a filter is put on between fork and exec, by the C library"
)]

use std::ffi::{c_int, c_ulong};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::common::{Context, code, json, judged};

#[repr(C)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

unsafe extern "C" {
    fn prctl(option: c_int, ...) -> c_int;
}

const SET_SECCOMP: c_int = 22;
const DROP_CAPABILITY: c_int = 24;
const NO_NEW_PRIVILEGES: c_int = 38;
const FILTER_MODE: c_ulong = 2;

const LANDLOCK_CREATE_RULESET: u32 = 444;
#[cfg(target_arch = "x86_64")]
const UNSHARE: u32 = 272;
#[cfg(target_arch = "aarch64")]
const UNSHARE: u32 = 97;

const ALLOW: u32 = 0x7fff_0000;
const FAIL_WITH: u32 = 0x0005_0000;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

const fn step(code: u16, if_false: u8, value: u32) -> Instruction {
    Instruction {
        code,
        if_true: 0,
        if_false,
        value,
    }
}

const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// No namespaces, and a kernel from before landlock.
static FILTER: [Instruction; 6] = [
    step(LOAD, 0, 0),
    step(IF_EQUAL, 1, UNSHARE),
    step(RETURN, 0, FAIL_WITH | EPERM),
    step(IF_EQUAL, 1, LANDLOCK_CREATE_RULESET),
    step(RETURN, 0, FAIL_WITH | ENOSYS),
    step(RETURN, 0, ALLOW),
];

/// Makes no allocation and takes no lock: it runs in a forked child.
fn give_up_protections() -> io::Result<()> {
    const NOTHING: c_ulong = 0;
    let program = Program {
        length: FILTER.len() as u16,
        instructions: FILTER.as_ptr(),
    };
    // SAFETY: every option takes the arguments it is given here; the program and its instructions outlive the call.
    unsafe {
        for capability in 0..64 as c_ulong {
            // An ordinary user has none to drop, and is refused.
            prctl(DROP_CAPABILITY, capability, NOTHING, NOTHING, NOTHING);
        }
        let done = prctl(NO_NEW_PRIVILEGES, 1 as c_ulong, NOTHING, NOTHING, NOTHING) == 0
            && prctl(SET_SECCOMP, FILTER_MODE, &raw const program) == 0;
        if done {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

fn on_a_poor_machine(mut command: Command) -> Command {
    // SAFETY: nothing but system calls between fork and exec.
    unsafe { command.pre_exec(give_up_protections) };
    command
}

const QUICK: [&str; 7] = [
    "judge",
    "--target",
    "cpu",
    "--profile",
    "rl",
    "--no-compile",
    "-q",
];

#[test]
fn strict_refuses_to_run_and_says_what_is_missing() {
    let context = Context::new();
    // It is the default.
    for isolation in [&[][..], &["--isolation", "strict"]] {
        let arguments = [&QUICK, isolation, &["--json", "--out", "evidence"]].concat();
        let output = on_a_poor_machine(context.command(&arguments))
            .output()
            .unwrap();
        let failure = &json(&output)["failure"];
        assert_eq!(code(&output), 3, "{failure:#}");
        assert_eq!(failure["kind"], "infrastructure");
        assert_eq!(failure["code"], "isolation");
        let text = |key: &str| failure[key].as_str().unwrap().to_owned();
        let message = text("message");
        assert!(
            message.contains("required protections cannot be had on this machine")
                && message.contains("filesystem (this kernel has no landlock)"),
            "{message}"
        );
        let hint = text("hint");
        assert!(
            hint.contains("warpsmith doctor") && hint.contains("--isolation weak"),
            "{hint}"
        );
        // For people, too, although asked to be quiet.
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said, format!("error: {message}\nhint: {hint}\n"));
        assert!(!context.path("evidence").exists());
    }
}

#[test]
fn weak_judges_anyway_and_the_verdict_says_so() {
    let context = Context::new();
    let arguments = [&QUICK[..], &["--isolation", "weak", "--json"]].concat();
    let output = judged(|| on_a_poor_machine(context.command(&arguments)));
    let verdict = json(&output);
    assert_eq!(code(&output), 0, "{verdict:#}");
    assert_eq!(verdict["status"], "passed");
    assert_eq!(verdict["trust"]["contained"], false);
    let isolation = &verdict["isolation"];
    assert_eq!(
        isolation["filesystem"],
        "missing: this kernel has no landlock"
    );
    // What can still be had is still there.
    for held in ["network", "memory", "seccomp"] {
        let by = isolation[held].as_str().unwrap();
        assert!(!by.starts_with("missing"), "{held}: {by}");
    }
}

#[test]
fn the_same_machine_without_the_filter_is_contained() {
    let context = Context::new();
    let contained = |mut command: Command| json(&command.output().unwrap())["contained"].clone();
    let doctor = || context.bare(&["doctor", "--json"]);
    assert_eq!(contained(doctor()), true);
    assert_eq!(contained(on_a_poor_machine(doctor())), false);
}
