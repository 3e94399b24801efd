//! The only place that prints. Data goes to stdout, everything else to stderr; with `--json` data is one object.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use serde::Serialize;
use warpsmith_machine::{NoProgress, ProgressBars, ProgressReporter};
use warpsmith_schema::FailureReport;

use crate::failure::Stop;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Print exactly one JSON object on stdout
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print only errors to stderr
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Show every protection, check and version, and logs; `-vv` for more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Volume {
    Quiet,
    Normal,
    Verbose,
}

#[derive(Debug)]
pub(crate) struct Printer {
    stdout: io::Stdout,
    stderr: io::Stderr,
    json: bool,
    /// Whether the one object of `--json` was printed.
    answered: Arc<AtomicBool>,
    volume: Volume,
    color: bool,
}

/// For a thread of its own; the streams are the same.
impl Clone for Printer {
    fn clone(&self) -> Self {
        Self {
            stdout: io::stdout(),
            stderr: io::stderr(),
            answered: self.answered.clone(),
            ..*self
        }
    }
}

/// What a word means, for those who see colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Bad,
}

impl Printer {
    pub(crate) fn new(args: &OutputArgs) -> Self {
        let set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            stdout: io::stdout(),
            stderr: io::stderr(),
            json: args.json,
            answered: Arc::default(),
            volume: match (args.quiet, args.verbose > 0) {
                (true, _) => Volume::Quiet,
                (false, true) => Volume::Verbose,
                (false, false) => Volume::Normal,
            },
            color: io::stdout().is_terminal() && !set("NO_COLOR") && !dumb,
        }
    }

    pub(crate) fn json(&self) -> bool {
        self.json
    }

    pub(crate) fn verbose(&self) -> bool {
        self.volume == Volume::Verbose
    }

    pub(crate) fn quiet(&self) -> bool {
        self.volume == Volume::Quiet
    }

    /// A table or a document, ending in a newline of its own.
    pub(crate) fn data(&self, text: &str) -> io::Result<()> {
        let mut out = self.stdout.lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    pub(crate) fn lines(&self, lines: &[String]) -> io::Result<()> {
        self.data(&(lines.join("\n") + "\n"))
    }

    /// The one object of `--json`.
    pub(crate) fn object<T: Serialize + ?Sized>(&self, value: &T) -> Result<(), Stop> {
        let mut text = serde_json::to_string_pretty(value)?;
        text.push('\n');
        self.answered.store(true, Ordering::SeqCst);
        Ok(self.data(&text)?)
    }

    /// A line for the person who waits.
    pub(crate) fn note(&self, line: &str) {
        if self.volume != Volume::Quiet {
            self.complain(line);
        }
    }

    /// Errors are said even to those who asked for quiet. A closed stderr is no reason to fail.
    fn complain(&self, line: &str) {
        let _ = writeln!(self.stderr.lock(), "{line}");
    }

    pub(crate) fn failure(&self, stop: &Stop) {
        let failure = &stop.0;
        // What answers first and goes on, as `serve` does, has said its object when it is interrupted.
        if self.json && !self.answered.load(Ordering::SeqCst) {
            // Stdout may be what failed; the message below is then all there is.
            let _ = self.object(&FailureReport::new(failure.clone()));
        }
        self.complain(&format!("error: {}", failure.message));
        if let Some(hint) = &failure.hint {
            self.complain(&format!("hint: {hint}"));
        }
    }

    /// The object for wrong usage; clap has told the person already.
    pub(crate) fn failed_usage(&self, error: &clap::Error) {
        let text = error.render().to_string();
        // All of what is wrong; how it is used is in the hint.
        let ends = |line: &str| line.starts_with("Usage:") || line.starts_with("For more");
        let said = text.lines().take_while(|line| !ends(line));
        let said: Vec<&str> = said
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        let message = said.join(" ");
        let message = message.strip_prefix("error: ").unwrap_or(&message);
        let hint = "`warpsmith help` lists the verbs, `warpsmith VERB --help` its flags".to_owned();
        let stop = Stop::config("usage", message, Some(hint));
        let _ = self.object(&FailureReport::new(stop.0));
    }

    pub(crate) fn progress(&self) -> Box<dyn ProgressReporter> {
        match self.volume {
            Volume::Quiet => Box::new(NoProgress),
            _ => Box::new(ProgressBars::new()),
        }
    }

    pub(crate) fn paint(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => 32,
            Tone::Bad => 31,
        };
        if self.color {
            format!("\x1b[1;{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
