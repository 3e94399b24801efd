//! What a policy is told about an attempt.

use std::fmt::Write;

use warpsmith_schema::{Status, Verdict};

use crate::clip::clip_middle;
use crate::{StartingPoint, UnusableReply, WireFormat};

/// Enough for the first errors of a compiler; a small context must hold several of these.
const REASON_CHARACTERS: usize = 1500;

/// What a single turn is told of a failed attempt.
pub(crate) fn on_verdict(verdict: &Verdict) -> String {
    format!(
        "{}\n\nWrite the files again, whole and mended.",
        describe(verdict)
    )
}

/// What a single turn is told of an attempt that passes and is no faster than what it started from.
pub(crate) fn on_slower(verdict: &Verdict, start: &StartingPoint) -> String {
    format!(
        "{}\n\nThe best solution so far takes {:.1} us. Write files that are faster than both, whole.",
        describe(verdict),
        start.us
    )
}

/// A verdict in words.
pub fn describe(verdict: &Verdict) -> String {
    let what = match verdict.status {
        Status::Passed => return passed(verdict),
        Status::Rejected => "It was refused before it ran",
        Status::CompileFailed => "It does not compile",
        Status::Crashed => "It crashed",
        Status::TimedOut => "It took too long",
        Status::Mismatch => "Its results are wrong",
        Status::Cheating => "It broke a rule while it ran",
    };
    let reason = verdict.reason.as_deref().unwrap_or("no reason was given");
    let mut text = format!(
        "{what}:\n\n{}",
        clip_middle(reason, REASON_CHARACTERS).trim_end()
    );
    for hint in hints(reason) {
        text.push_str("\n\n");
        text.push_str(hint);
    }
    text
}

/// What usually mends what compilers and Python say: small models do not infer it from the error.
fn hints(reason: &str) -> Vec<&'static str> {
    const KNOWN: [(&str, &str); 6] = [
        (
            "is not a member of 'std'",
            "Add `#include <algorithm>` and `#include <cmath>`.",
        ),
        (
            "__init__() missing",
            "`ModelNew.__init__` must take exactly the arguments of the original's `__init__`.",
        ),
        (
            "__init__() takes",
            "`ModelNew.__init__` must take exactly the arguments of the original's `__init__`.",
        ),
        (
            "no extern \"C\" launcher",
            "The name in `kernels.NAME(...)` must be that of an `extern \"C\"` function.",
        ),
        (
            "instead of a kernel of its own",
            "`forward` may allocate, reshape and view; everything else belongs in a kernel.",
        ),
        (
            "state_dict",
            "Keep the original's parameters and buffers, under the same names, as attributes of the same modules.",
        ),
    ];
    let mut found: Vec<&str> = KNOWN
        .iter()
        .filter(|(sign, _)| reason.contains(sign))
        .map(|(_, hint)| *hint)
        .collect();
    found.dedup();
    found
}

fn passed(verdict: &Verdict) -> String {
    let (Some(times), Some(speedup)) = (&verdict.times_us, &verdict.speedup) else {
        return "It passes.".to_owned();
    };
    let mut text = format!(
        "It passes: {:.1} us; eager {:.1} us, {:.2}x",
        times.candidate.0, times.eager.0, speedup.eager.0
    );
    if let (Some(time), Some(speedup)) = (&times.compile, &speedup.compile) {
        let _ = write!(text, "; torch.compile {:.1} us, {:.2}x", time.0, speedup.0);
    }
    for note in &verdict.notes {
        text.push('\n');
        text.push_str(note);
    }
    text
}

pub(crate) fn on_unusable(why: &UnusableReply) -> String {
    format!(
        "Your reply could not be used: {why}. Write each file as a line `write PATH` followed by a fenced block: \
         `model_new.py` and the kernels."
    )
}

pub(crate) fn on_no_call(why: &UnusableReply, wire: WireFormat) -> String {
    let how = match wire {
        WireFormat::Json => "Call a tool; when you are done, call `submit`.",
        WireFormat::Fenced => {
            "Write a file as a line `write PATH` followed by a fenced block, then `judge` on a line of its own; when you are \
             done, `submit`."
        }
    };
    format!("Nothing was done: {why}. {how}")
}
