//! The real binary in an empty folder, its output with what differs from run to run filtered out.
#![allow(dead_code, reason = "each test file uses its part")]

mod core;
pub(crate) mod endpoint;
pub(crate) mod processes;
pub(crate) mod scale_relu;
pub(crate) mod server;
pub(crate) mod venv;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) struct Context {
    folder: TempDir,
}

impl Context {
    /// Pins the test and all that it starts to a core of its own, where what is timed is disturbed by no other test.
    pub(crate) fn new() -> Self {
        core::pin_to_own();
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, content).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs_err::read_to_string(self.path(name)).unwrap()
    }

    /// Episodes that ended in a run, in the order of their ends.
    pub(crate) fn trajectories(&self, run: &str) -> Vec<Value> {
        let log = self.read(&format!("{run}/events.jsonl"));
        let events = log.lines().map(|line| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            line["event"].take()
        });
        events
            .filter(|event| event["kind"] == "episode_ended")
            .map(|mut event| event["trajectory"].take())
            .collect()
    }

    pub(crate) fn edit(&self, name: &str, from: &str, to: &str) {
        let text = fs_err::read_to_string(self.path(name)).unwrap();
        assert!(text.contains(from), "`{name}` has no `{from}`");
        self.write(name, &text.replace(from, to));
    }

    /// With the user's own caches and torch, which the binary fetches where there is none.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warpsmith"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("COLUMNS")
            .env("NO_COLOR", "1");
        command
    }

    /// The Python that the program itself uses.
    pub(crate) fn python(&self) -> String {
        let doctor = self.command(&["doctor", "--json"]).output().unwrap();
        let found = json(&doctor)["python"]["executable"].clone();
        found.as_str().unwrap().to_owned()
    }

    /// A user's own program, which knows nothing of Warpsmith, in this folder.
    pub(crate) fn run_as_a_user(&self, python: &str, program: &str) {
        let output = Command::new(python)
            .args(["-I", "-c", program])
            .current_dir(self.folder.path())
            .env("XDG_CACHE_HOME", self.path("user-cache"))
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
    }

    /// For what needs no torch: an empty cache, and none of the user's settings.
    pub(crate) fn bare(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command
            .env("WARPSMITH_CACHE", self.path("cache"))
            .env_remove("WARPSMITH_PYTHON");
        command
    }

    /// Exit code, stdout and stderr, filtered.
    pub(crate) fn shown(&self, output: &Output) -> String {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let here = fs_err::canonicalize(self.folder.path()).unwrap();
        let whole = format!(
            "exit_code: {}\n----- stdout -----\n{}----- stderr -----\n{}",
            output.status.code().unwrap(),
            text(&output.stdout),
            text(&output.stderr)
        );
        // Clap's help has spaces at the ends of lines, which editors do not keep.
        let lines: Vec<&str> = whole.lines().map(str::trim_end).collect();
        lines
            .join("\n")
            .replace(&here.display().to_string(), "[HERE]")
            .replace(&self.folder.path().display().to_string(), "[HERE]")
    }
}

/// An example's task with a quarter of its rows: as much to check, in a quarter of the time.
pub(crate) fn with_fewer_rows(task: &str) -> String {
    // `ROWS, COLS = 2048, 4096`: rows, or the batch, come first.
    let named = |line: &&str| line.starts_with(char::is_uppercase) && line.contains(" = ");
    let line = task.lines().find(named).unwrap();
    let (names, numbers) = line.split_once(" = ").unwrap();
    let (rows, others) = numbers.split_once(", ").unwrap();
    let rows: usize = rows.parse().unwrap();
    task.replace(line, &format!("{names} = {}, {others}", rows / 4))
}

/// Runs a judgement; one that the judge itself calls too noisy is tried again, later and later.
pub(crate) fn judged(make: impl Fn() -> Command) -> Output {
    for tries in 0..6 {
        std::thread::sleep(std::time::Duration::from_secs(5 * tries));
        let output = make().output().unwrap();
        // The code is in the object, the words are for a person.
        let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        let noisy = said.iter().any(|text| {
            text.contains("noisy_machine") || text.contains("the spread of timed calls")
        });
        let noisy = noisy && output.status.code() == Some(3);
        if !noisy {
            return output;
        }
    }
    panic!("the machine stayed too noisy to time anything");
}

pub(crate) fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        panic!("stdout is not one object ({error}):\n{text}\n{stderr}")
    })
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

pub(crate) fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs_err::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(
                    path.strip_prefix(folder)
                        .unwrap()
                        .to_string_lossy()
                        .into_owned(),
                );
            }
        }
    }
    found.sort();
    found
}

/// Numbers with a unit, and everything a machine decides.
pub(crate) const FILTERS: [(&str, &str); 13] = [
    (r"on cpu, .*", "on cpu, [DEVICE]"),
    (r" *[0-9.]+ (us|ms)\b", " [TIME]"),
    (r"\+-[0-9.]+ %", "+-[SPREAD]"),
    (r"over [0-9]+ calls", "over [N] calls"),
    (r"[0-9.]+x\b", "[RATIO]"),
    (r"[0-9.]+e-?[0-9]+", "[ERROR]"),
    (r"(robust|raw|composite|ladder) -?[0-9.]+", "$1 [REWARD]"),
    (r"(compile|verify|time|total) [0-9.]+", "$1 [SECONDS]"),
    (r"[0-9]+ of [0-9]+ protections", "[N] of [N] protections"),
    // One more where perf events may be had.
    (r"(6 of 6|7 of 7) checks held", "all checks held"),
    // What a busy machine adds.
    (r"(?m)^  note +the candidate's calls differ widely.*\n", ""),
    (
        r"(?m)^  note +calls were answered sooner.*\n( {10,}\S.*\n)*",
        "",
    ),
    // Every compiler has words of its own.
    (r"(?s)reason +== kernels.*?\n  next", "reason [LOG]\n  next"),
];

/// An inline snapshot of a filtered run.
#[macro_export]
macro_rules! snapshot {
    ($text:expr, @$expected:literal) => {
        insta::with_settings!({ filters => $crate::common::FILTERS.to_vec() }, {
            insta::assert_snapshot!($text, @$expected)
        })
    };
}
