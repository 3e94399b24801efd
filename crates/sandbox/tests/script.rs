//! A policy for a small Python program, and its output.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use warpsmith_sandbox::{Command, Exit, Isolation, Output, ResourceLimits, SandboxPolicy, run};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn limits() -> ResourceLimits {
    ResourceLimits {
        memory_bytes: 256 * MIB,
        processes: 24,
        wall_time: Duration::from_secs(20),
        file_bytes: 64 * MIB,
        output_bytes: 16 << 10,
    }
}

/// The interpreter, and what must be readable for it.
pub(crate) fn python() -> (PathBuf, Vec<PathBuf>) {
    let system = PathBuf::from("/usr/bin/python3");
    let mut read: Vec<PathBuf> = ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache"]
        .iter()
        .map(PathBuf::from)
        .collect();
    if system.exists() {
        return (system, read);
    }
    let asked = std::process::Command::new("python3")
        .args([
            "-c",
            "import sys; print(sys.executable, sys.prefix, sys.base_prefix, sep='\\n')",
        ])
        .output()
        .expect("python3 on the PATH");
    let text = String::from_utf8(asked.stdout).expect("paths in UTF-8");
    let paths: Vec<PathBuf> = text.lines().map(PathBuf::from).collect();
    read.extend(paths[1..].iter().cloned());
    (paths[0].clone(), read)
}

pub(crate) fn policy() -> SandboxPolicy {
    SandboxPolicy {
        read: python().1,
        write: Vec::new(),
        devices: Vec::new(),
        scratch_bytes: 16 * MIB,
        limits: limits(),
        nested: false,
        isolation: Isolation::Strict,
    }
}

pub(crate) fn script(source: &str, arguments: &[&Path]) -> Command {
    let mut args: Vec<OsString> = ["-I", "-S", "-c", source].map(OsString::from).to_vec();
    args.extend(arguments.iter().map(|path| path.as_os_str().to_owned()));
    Command {
        program: python().0,
        args,
        env: Vec::new(),
        cwd: PathBuf::from("/"),
        fds: Vec::new(),
        stderr_to: None,
    }
}

pub(crate) fn run_script(source: &str, arguments: &[&Path], policy: &SandboxPolicy) -> Output {
    run(script(source, arguments), policy).unwrap_or_else(|error| {
        panic!(
            "did not start: {error}: {:?}",
            std::error::Error::source(&error)
        )
    })
}

/// The output of a script that must succeed.
pub(crate) fn says(source: &str, arguments: &[&Path], policy: &SandboxPolicy) -> String {
    let output = run_script(source, arguments, policy);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.exit, stderr.as_str()), (Exit::Code(0), ""));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A script that prints the value of each expression, or the name of its error.
pub(crate) fn attempts(setup: &str, expressions: &[&str]) -> String {
    let mut source = format!("import errno, os, sys, socket, ctypes\n{setup}\n");
    for expression in expressions {
        source.push_str("try:\n    print(repr(");
        source.push_str(expression);
        source.push_str("))\nexcept OSError as error:\n    print(errno.errorcode[error.errno])\n");
    }
    source
}

/// Whether a process whose command line contains `marker` still exists.
pub(crate) fn is_alive(marker: &str) -> bool {
    let entries = std::fs::read_dir("/proc").expect("proc");
    entries
        .filter_map(|entry| std::fs::read(entry.ok()?.path().join("cmdline")).ok())
        .any(|line| String::from_utf8_lossy(&line).contains(marker))
}
