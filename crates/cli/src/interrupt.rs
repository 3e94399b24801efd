//! Ctrl-C. Nothing we started may outlive us, and what we left half done is removed.
//!
//! A signal kills every descendant, again and again while the main thread, whose calls now fail, cleans up and leaves.
//! If it does not leave in time, this ends the process. Verbs that can drain what they are at (`drain_first`) are only
//! asked to by the first signal; those that drain for SIGTERM alone (`drain_on_terminate`) by the first that is one.

use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use warpsmith_sandbox::descendants;

use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;

static HAPPENED: AtomicBool = AtomicBool::new(false);
static KILLING: AtomicBool = AtomicBool::new(false);
static DRAINS: AtomicBool = AtomicBool::new(false);
static TERMINATED: AtomicBool = AtomicBool::new(false);
static DRAINS_ON_TERMINATE: AtomicBool = AtomicBool::new(false);

const ROUND: Duration = Duration::from_millis(20);
const ROUNDS: u32 = 150;

pub(crate) fn happened() -> bool {
    HAPPENED.load(Ordering::SeqCst)
}

/// Whether what we started was killed, so that its failures mean nothing.
pub(crate) fn killing() -> bool {
    KILLING.load(Ordering::SeqCst)
}

/// From now on the first signal kills nothing: whoever asks whether it happened comes to an end by himself.
pub(crate) fn drain_first() {
    DRAINS.store(true, Ordering::SeqCst);
}

/// From now on a first SIGTERM kills nothing: whoever asks whether it came ends what is under way, and ends well.
pub(crate) fn drain_on_terminate() {
    DRAINS_ON_TERMINATE.store(true, Ordering::SeqCst);
}

/// Whether such a SIGTERM came.
pub(crate) fn terminated() -> bool {
    TERMINATED.load(Ordering::SeqCst)
}

pub(crate) fn listen(printer: Printer) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || {
        let mut signals = signals.forever();
        let mut signal = signals.next();
        if signal == Some(SIGTERM) && DRAINS_ON_TERMINATE.load(Ordering::SeqCst) {
            printer.note("asked to end: finishing what is under way; once more stops at once");
            TERMINATED.store(true, Ordering::SeqCst);
            signal = signals.next();
        }
        if signal.is_some() {
            HAPPENED.store(true, Ordering::SeqCst);
            if DRAINS.load(Ordering::SeqCst) {
                printer.note("interrupted: finishing what is under way; once more stops at once");
                let _ = signals.next();
                printer.note("interrupted again: stopping at once");
            } else {
                printer.note("interrupted: stopping");
            }
            KILLING.store(true, Ordering::SeqCst);
            for _ in 0..ROUNDS {
                kill_descendants();
                thread::sleep(ROUND);
            }
            kill_descendants();
            say(&printer);
            leave();
        }
    });
    Ok(())
}

/// From now on the end of standard input is a signal too: the kernel closes it however the one who holds it ends.
pub(crate) fn when_stdin_closes() -> io::Result<()> {
    let watch = || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = kill_process(getpid(), Signal::INT);
    };
    thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(watch)?;
    Ok(())
}

/// Says it once, whoever comes to it first: this may be a moment when both do.
pub(crate) fn say(printer: &Printer) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::SeqCst) {
        let mut stop = Stop::interrupted();
        stop.0.hint = RESUME.get().map(|command| format!("to go on: {command}"));
        printer.failure(&stop);
    }
}

/// The command that goes on with the run, for verbs that have one.
static RESUME: OnceLock<String> = OnceLock::new();

/// This process works in this run's folder. Whether it is the first that it names: the run itself, and no stage of it.
pub(crate) fn resume_in(folder: &Path) -> bool {
    let mut words: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let named = |word: &String| word == "--out" || word.starts_with("--out=");
    if !words.iter().any(named) {
        words.extend(["--out".to_owned(), folder.display().to_string()]);
    }
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let command = format!("warpsmith {}", words.join(" "));
    RESUME.set(command).is_ok()
}

/// As a shell reads it back.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,+@%#".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[expect(clippy::exit, reason = "the main thread did not leave when it could")]
fn leave() -> ! {
    std::process::exit(Exit::INTERRUPTED.code().into())
}

/// Who exits between the look and the kill is gone, which is all we want.
pub(crate) fn kill_descendants() {
    // Orphans of what is killed come to us instead of slipping away to init.
    let _ = set_child_subreaper(Some(getpid()));
    for process in descendants(getpid().as_raw_nonzero().get()) {
        if let Some(pid) = Pid::from_raw(process) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_pasted_into_a_shell() {
        let words = ["runs/a-b", "a b", "it's", "", "set.jsonl#level1/19"].map(quoted);
        let expected = [
            "runs/a-b",
            "'a b'",
            "'it'\\''s'",
            "''",
            "set.jsonl#level1/19",
        ];
        assert_eq!(words, expected);
    }
}
