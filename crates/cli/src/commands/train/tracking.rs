//! Numbers of training for Weights & Biases and `MLflow`, by their own packages in a Python of the user's.
//!
//! A program reads a line a step from its standard input. What goes wrong there is said once and ends no training.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use warpsmith_train::metrics::Numbers;

use crate::failure::Stop;
use crate::printer::Printer;

const PROGRAM: &str = include_str!("tracker.py");
/// How long a tracker may take for its last words, which may go over a network.
const LAST_WORDS: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(50);

/// Where numbers of a run go besides its folder.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct TrackArgs {
    /// Log every step to this project of Weights & Biases, by its package in `--tracker-python`
    #[arg(long, value_name = "PROJECT")]
    wandb: Option<String>,
    /// Log every step to this experiment of `MLflow`, by its package in `--tracker-python`
    #[arg(long, value_name = "EXPERIMENT")]
    mlflow: Option<String>,
    /// The Python that has wandb or mlflow; else `python3`
    #[arg(long, value_name = "PATH")]
    tracker_python: Option<PathBuf>,
}

/// A service to log to, whose package is there.
#[derive(Debug, Clone)]
pub(super) struct Tracker {
    package: &'static str,
    /// The project or experiment.
    place: String,
    python: PathBuf,
}

impl TrackArgs {
    /// Finds out whether the packages are there, before anything is learnt.
    pub(super) fn trackers(&self) -> Result<Vec<Tracker>, Stop> {
        let python = self.tracker_python.clone();
        let python = python.unwrap_or_else(|| PathBuf::from("python3"));
        let wanted = [("wandb", &self.wandb), ("mlflow", &self.mlflow)];
        let mut found = Vec::new();
        for (package, place) in wanted {
            let Some(place) = place.clone() else {
                continue;
            };
            let tried = Command::new(&python)
                // The folder here is no place for packages: wandb keeps its runs in one of its own name.
                .args([
                    "-c",
                    &format!("import sys; sys.path[:] = filter(None, sys.path); import {package}"),
                ])
                .stdin(Stdio::null())
                .output();
            if !tried.is_ok_and(|tried| tried.status.success()) {
                let message = format!("`{}` cannot import {package}", python.display());
                let hint = format!(
                    "`pip install {package}` there, or name another Python with `--tracker-python`"
                );
                return Err(Stop::config("tracker", message, Some(hint)));
            }
            let python = python.clone();
            found.push(Tracker {
                package,
                place,
                python,
            });
        }
        Ok(found)
    }
}

/// Trackers of a run under way.
#[derive(Default)]
pub(super) struct Tracking {
    running: Vec<Running>,
}

struct Running {
    package: &'static str,
    process: Child,
    lines: Option<ChildStdin>,
}

impl Tracking {
    pub(super) fn start(trackers: &[Tracker], run: &Path, printer: &Printer) -> Self {
        let mut running = Vec::new();
        for tracker in trackers {
            match tracker.start(run) {
                Ok(one) => running.push(one),
                Err(error) => {
                    printer.note(&format!("nothing goes to {}: {error}", tracker.package));
                }
            }
        }
        Self { running }
    }

    pub(super) fn step(&mut self, step: u64, numbers: &Numbers, printer: &Printer) {
        let finite = numbers.iter().filter(|(_, number)| number.is_finite());
        let values: serde_json::Map<_, _> = finite
            .map(|(name, number)| ((*name).to_owned(), json!(number)))
            .collect();
        let line = json!({ "step": step, "values": values }).to_string() + "\n";
        for one in &mut self.running {
            let Some(lines) = &mut one.lines else {
                continue;
            };
            if lines.write_all(line.as_bytes()).is_err() {
                one.lines = None;
                let package = one.package;
                printer.note(&format!("{package} has ended: nothing more goes there"));
            }
        }
    }
}

impl Tracker {
    fn start(&self, run: &Path) -> std::io::Result<Running> {
        let mut process = Command::new(&self.python)
            .args(["-c", PROGRAM, self.package, &self.place])
            .arg(run)
            .stdin(Stdio::piped())
            // Standard output is ours.
            .stdout(Stdio::null())
            // Ctrl-C in a terminal is for the learner, which ends with whole steps.
            .process_group(0)
            .spawn()?;
        Ok(Running {
            package: self.package,
            lines: process.stdin.take(),
            process,
        })
    }
}

/// The end of its lines is the end of its run, which it may have yet to tell over a network.
impl Drop for Running {
    fn drop(&mut self) {
        self.lines = None;
        let until = Instant::now() + LAST_WORDS;
        while Instant::now() < until {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(LOOK);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
