//! Words around code. Several ways to say the same, so that a student learns what is said and not how.

use super::course::{Course, Draft, Facts};
use super::luck::Luck;
use super::mistake::{Kind, Mistake};
use warpsmith_compiler::Strategy;

pub(super) fn opening(course: &Course, luck: &mut Luck) -> String {
    let ops = chain(&course.facts);
    let bytes = amount(course.facts.bytes);
    let begin = luck.of(&[
        "The module computes",
        "What `forward` does:",
        "In order, this applies",
        "Operators, one after the other:",
    ]);
    let end = luck.of(&[
        "Before writing anything I look at where the original spends its time.",
        "First a profile of the original.",
        "I profile it to see which operator matters.",
        "Let me see how the time is shared out.",
    ]);
    format!(
        "{} {ops}. At least {bytes} must be read and written. {}",
        begin.unwrap_or_default(),
        end.unwrap_or_default()
    )
}

fn chain(facts: &Facts) -> String {
    let said = |(op, shape): &(String, Vec<u64>)| {
        let extents: Vec<String> = shape.iter().map(ToString::to_string).collect();
        format!("`{op}` to ({})", extents.join(", "))
    };
    let ops: Vec<String> = facts.ops.iter().map(said).collect();
    match ops.split_last() {
        None => "nothing".to_owned(),
        Some((only, [])) => only.clone(),
        Some((last, before)) => format!("{} and {last}", before.join(", ")),
    }
}

fn amount(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} kB", bytes / 1000),
        10_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} GB", bytes / 1_000_000_000),
    }
}

/// What a draft is about when nothing was said before: whoever has gone through the shapes decides better what can be fused.
pub(super) fn about_all(facts: &Facts, draft: &Draft, luck: &mut Luck) -> String {
    let begin = luck.of(&["Step by step:", "The shapes:", "In order:"]);
    let begin = begin.unwrap_or_default();
    format!("{begin} {}. {}", chain(facts), about(draft, luck))
}

/// What a draft is about, before its code.
pub(super) fn about(draft: &Draft, luck: &mut Luck) -> String {
    let launches = draft.solution.launches;
    let what = match draft.strategy {
        Strategy::Plain => luck.of(&[
            "First the simplest thing that is right: a kernel for every operator.",
            "I start plainly, one kernel an operator, to have something correct to compare with.",
            "A direct translation first; speed comes after correctness.",
        ]),
        Strategy::Fused if launches == 1 => luck.of(&[
            "Everything fits into one pass: each input is read once and the result written once.",
            "No intermediate result needs to reach memory, so all of it goes into one kernel.",
            "The operators can be fused completely.",
        ]),
        Strategy::Fused => luck.of(&[
            "Elementwise work belongs where its values are needed; what must be whole before others can begin is a kernel of its own.",
            "I fuse what can be fused; what remains are steps that need a whole result before them.",
            "Not everything fits into one pass: some values are needed whole before others can be computed.",
        ]),
        Strategy::Tuned => luck.of(&[
            "Now the details: wide loads, values kept in registers, enough work for all cores.",
            "The traffic is minimal; what is left is to move it at full speed.",
            "This version keeps the structure and tunes the loops.",
        ]),
    };
    let library = if draft.solution.library {
        luck.of(&[
            " The matrix work goes to the library, which is hard to beat at it.",
            " For the product itself the library is called; around it are kernels of my own.",
            " Multiplying matrices is the library's part.",
        ])
    } else {
        None
    };
    // Whoever has said what is done to how many of what hardly loses count on the way.
    format!(
        "{}{} {}.",
        what.unwrap_or_default(),
        library.unwrap_or_default(),
        draft.solution.outline.join("; ")
    )
}

/// What was wrong, in the words of whoever reads the error.
pub(super) fn repair(mistake: &Mistake, observed: &str, luck: &mut Luck) -> String {
    let seen = first_error(observed);
    let begin = luck
        .of(&["It says", "The message is", "What came back:"])
        .unwrap_or_default();
    let quoted = if seen.is_empty() {
        String::new()
    } else {
        format!("{begin} `{seen}`. ")
    };
    let cause = match mistake.kind {
        Kind::Semicolon => "A semicolon is missing at the end of that declaration.",
        Kind::Misspelt => "I used a name that was never declared; the value has another one.",
        Kind::OffByOne => "The loop stops one element early, so the last one is never computed.",
        Kind::Epsilon => "I left out the epsilon under the root: small variances are off.",
        Kind::Term => "The bias is missing from the sum.",
        Kind::Launcher => "Python calls a launcher by a name that the library does not export.",
        Kind::Linkage => {
            "Without `extern \"C\"` the launcher's name is mangled and cannot be found."
        }
    };
    let end = luck
        .of(&[
            "I mend that line.",
            "One line to change.",
            "The rest stands.",
        ])
        .unwrap_or_default();
    format!("{quoted}{cause} {end}")
}

/// The line of a message that names the error.
fn first_error(observed: &str) -> String {
    let lines = || {
        observed
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
    };
    let marked = lines().find(|line| line.contains("error:") || line.contains("Error"));
    let differs = || {
        lines().find(|line| {
            line.contains("differ") || line.contains("worst") || line.contains("tolerance")
        })
    };
    let line = marked.or_else(differs).unwrap_or_default();
    let line = line.split_once("error: ").map_or(line, |(_, rest)| rest);
    line.chars()
        .filter(|letter| *letter != '`')
        .take(160)
        .collect()
}

/// An attempt failed that should not have.
pub(super) fn fall_back(observed: &str, luck: &mut Luck) -> String {
    let seen = first_error(observed);
    let begin = luck
        .of(&["That did not work", "This version fails", "Not right"])
        .unwrap_or_default();
    let quoted = if seen.is_empty() {
        String::new()
    } else {
        format!(": `{seen}`")
    };
    format!("{begin}{quoted}. I go back to a simpler version.")
}

pub(super) fn passed(luck: &mut Luck) -> String {
    luck.of(&[
        "The results are right. Now the time that counts.",
        "Correct. I judge it, and look at where its time goes.",
        "It holds; now how fast is it?",
    ])
    .unwrap_or_default()
    .to_owned()
}

/// Between one judged draft and the next.
pub(super) fn improve(before_us: Option<f64>, luck: &mut Luck) -> String {
    let time = before_us
        .map(|time| format!("{time:.0} us so far. "))
        .unwrap_or_default();
    let next = luck
        .of(&[
            "There is room for more.",
            "The next step.",
            "That can be made faster.",
        ])
        .unwrap_or_default();
    format!("{time}{next} ")
}

pub(super) fn done(best_us: Option<f64>, back: bool, luck: &mut Luck) -> String {
    let time = best_us
        .map(|time| format!(" at {time:.0} us"))
        .unwrap_or_default();
    if back {
        return format!("The version before was the fastest{time}: I put it back and hand it in.");
    }
    let words = luck
        .of(&[
            "This is the fastest of them",
            "No other idea gains enough",
            "I stop here, with the best",
        ])
        .unwrap_or_default();
    format!("{words}{time}.")
}
