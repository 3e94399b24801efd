//! The sentences around the code of a reply. Each has several variants, so that a student learns what is said and not one
//! wording. The sentences are training text: changing one changes demonstrations.

use super::bug::{BugKind, InjectedBug};
use super::plan::{AppliedOperator, SolutionAttempt, TaskFacts};
use crate::splitmix::SplitMix64;
use warpsmith_compiler::Strategy;

pub(super) fn opening(facts: &TaskFacts, rng: &mut SplitMix64) -> String {
    let ops = operator_chain(facts);
    let bytes = byte_count(facts.bytes);
    let begin = rng.choose_of([
        "The module computes",
        "What `forward` does:",
        "In order, this applies",
        "Operators, one after the other:",
    ]);
    let end = rng.choose_of([
        "Before writing anything I look at where the original spends its time.",
        "First a profile of the original.",
        "I profile it to see which operator matters.",
        "Let me see how the time is shared out.",
    ]);
    format!("{begin} {ops}. At least {bytes} must be read and written. {end}")
}

fn operator_chain(facts: &TaskFacts) -> String {
    let described = |applied: &AppliedOperator| {
        let of = match &applied.operands[..] {
            [] => String::new(),
            operands => format!(" of {}", listed(operands)),
        };
        let with = |settings: &String| format!(" with {settings}");
        // Before the shape: who writes it first has to guess it.
        let by = |sums: &String| format!(" by {sums}");
        format!(
            "`{}`{of}{}{} to {}",
            applied.name,
            applied.settings.as_ref().map(with).unwrap_or_default(),
            applied.extents.as_ref().map(by).unwrap_or_default(),
            shape_text(&applied.shape)
        )
    };
    listed(&facts.ops.iter().map(described).collect::<Vec<_>>())
}

fn shape_text(shape: &[u64]) -> String {
    let extents: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("({})", extents.join(", "))
}

fn listed(all: &[String]) -> String {
    match all.split_last() {
        None => "nothing".to_owned(),
        Some((only, [])) => only.clone(),
        Some((last, before)) => format!("{} and {last}", before.join(", ")),
    }
}

/// The shapes that everything follows from. In a task they stand behind names; a model that has said them does not guess them.
fn given_shapes(facts: &TaskFacts) -> String {
    let inputs = facts.inputs.iter().map(|shape| shape_text(shape));
    let states = facts.states.iter();
    let states = states.map(|(name, shape)| format!("`{name}` {}", shape_text(shape)));
    let inputs = listed(&inputs.collect::<Vec<_>>());
    let states: Vec<String> = states.collect();
    let constants = match &facts.constants[..] {
        [] => String::new(),
        constants => format!("{}. ", constants.join(", ")),
    };
    if states.is_empty() {
        format!("{constants}Input {inputs}.")
    } else {
        format!("{constants}Input {inputs}; {}.", states.join(", "))
    }
}

fn byte_count(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} kB", bytes / 1000),
        10_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} GB", bytes / 1_000_000_000),
    }
}

/// Introduces the only solution of a conversation. The shapes come first: they decide what can be fused.
pub(super) fn introduce_with_shapes(facts: &TaskFacts, attempt: &SolutionAttempt) -> String {
    let begin = "In order:";
    let shapes = operator_chain(facts);
    let given = given_shapes(facts);
    // A short reply has one wording: what varies without a reason cannot be learnt.
    let outline = attempt.solution.outline.join("; ");
    format!("{given} {begin} {shapes}. Kernels: {outline}.")
}

/// Introduces a solution before its code.
pub(super) fn introduce(attempt: &SolutionAttempt, rng: &mut SplitMix64) -> String {
    let launches = attempt.solution.launches;
    let what = match attempt.strategy {
        Strategy::Plain => rng.choose_of([
            "First the simplest thing that is right: a kernel for every operator.",
            "I start plainly, one kernel an operator, to have something correct to compare with.",
            "A direct translation first; speed comes after correctness.",
        ]),
        Strategy::Fused if launches == 1 => rng.choose_of([
            "Everything fits into one pass: each input is read once and the result written once.",
            "No intermediate result needs to reach memory, so all of it goes into one kernel.",
            "The operators can be fused completely.",
        ]),
        Strategy::Fused => rng.choose_of([
            "Elementwise work belongs where its values are needed; what must be whole before others can begin is a kernel of its own.",
            "I fuse what can be fused; what remains are steps that need a whole result before them.",
            "Not everything fits into one pass: some values are needed whole before others can be computed.",
        ]),
        Strategy::Tuned => rng.choose_of([
            "Now the details: wide loads, values kept in registers, enough work for all cores.",
            "The traffic is minimal; what is left is to move it at full speed.",
            "This version keeps the structure and tunes the loops.",
        ]),
    };
    let library = if attempt.solution.calls_library {
        rng.choose_of([
            " The matrix work goes to the library, which is hard to beat at it.",
            " For the product itself the library is called; around it are kernels of my own.",
            " Multiplying matrices is the library's part.",
        ])
    } else {
        ""
    };
    // A model that has stated how many rows each kernel handles is less likely to miscount them in the code.
    let outline = attempt.solution.outline.join("; ");
    format!("{what}{library} {outline}.")
}

/// Explains an injected bug after its error message was read.
pub(super) fn explain_bug(bug: &InjectedBug, observed: &str, rng: &mut SplitMix64) -> String {
    let seen = first_error(observed);
    let begin = rng.choose_of(["It says", "The message is", "What came back:"]);
    let quoted = if seen.is_empty() {
        String::new()
    } else {
        format!("{begin} `{seen}`. ")
    };
    let cause = match bug.kind {
        BugKind::MissingSemicolon => "A semicolon is missing at the end of that declaration.",
        BugKind::MisspeltName => {
            "I used a name that was never declared; the value has another one."
        }
        BugKind::OffByOne => "The loop stops one element early, so the last one is never computed.",
        BugKind::MissingEpsilon => {
            "I left out the epsilon under the root: small variances are off."
        }
        BugKind::MissingBias => "The bias is missing from the sum.",
        BugKind::WrongLauncher => {
            "Python calls a launcher by a name that the library does not export."
        }
        BugKind::MissingExternC => {
            "Without `extern \"C\"` the launcher's name is mangled and cannot be found."
        }
    };
    let end = rng.choose_of([
        "I mend that line.",
        "One line to change.",
        "The rest stands.",
    ]);
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

/// Announces a simpler solution after one without a bug failed.
pub(super) fn fall_back(observed: &str, rng: &mut SplitMix64) -> String {
    let seen = first_error(observed);
    let begin = rng.choose_of(["That did not work", "This version fails", "Not right"]);
    let quoted = if seen.is_empty() {
        String::new()
    } else {
        format!(": `{seen}`")
    };
    format!("{begin}{quoted}. I go back to a simpler version.")
}

pub(super) fn passed(rng: &mut SplitMix64) -> String {
    rng.choose_of([
        "The results are right. Now the time that counts.",
        "Correct. I judge it, and look at where its time goes.",
        "It holds; now how fast is it?",
    ])
    .to_owned()
}

/// Leads from one judged solution to the next.
pub(super) fn improve(before_us: Option<f64>, rng: &mut SplitMix64) -> String {
    let time = before_us.map_or_else(String::new, |time| format!("{time:.0} us so far. "));
    let next = rng.choose_of([
        "There is room for more.",
        "The next step.",
        "That can be made faster.",
    ]);
    format!("{time}{next} ")
}

pub(super) fn finish(best_us: Option<f64>, restores: bool, rng: &mut SplitMix64) -> String {
    let time = best_us.map_or_else(String::new, |time| format!(" at {time:.0} us"));
    if restores {
        return format!("The version before was the fastest{time}: I put it back and hand it in.");
    }
    let words = rng.choose_of([
        "This is the fastest of them",
        "No other idea gains enough",
        "I stop here, with the best",
    ]);
    format!("{words}{time}.")
}
