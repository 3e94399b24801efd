//! What came out, for a person and for a script.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use warpsmith_judge::ImportCheck;
use warpsmith_rollout::optimize::{
    Author, OptimizeOutcome, PACKAGE_FOLDER, PackageOptions, Start, TunedStart, package_name,
};
use warpsmith_schema::{FORMAT, Failure, Precision, StartAuthor, Task, Trajectory, Usage};

use super::words::{describe_author, describe_ending, why};
use crate::commands::judge::speedup;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::render::{Table, against_tf32, import_check, time};

pub(super) fn exit(outcome: &OptimizeOutcome, required: Option<f64>, printer: &Printer) -> Exit {
    let reached = outcome.verdict().and_then(speedup);
    match required {
        Some(required) if !reached.is_some_and(|reached| reached >= required) => {
            printer.note(&format!("below --require-speedup {required}"));
            Exit::NO
        }
        _ => Exit::DONE,
    }
}

/// What is told at the end.
pub(super) struct OptimizeReport<'a> {
    pub(super) task: &'a Task,
    pub(super) start: &'a Start,
    pub(super) outcome: &'a OptimizeOutcome,
    /// Of the package, where there is one.
    pub(super) imported: Option<&'a ImportCheck>,
    pub(super) package: &'a PackageOptions,
    /// Why the policy never said anything, where the result is from elsewhere.
    pub(super) unanswered: Option<&'a Failure>,
    /// How many were asked for.
    pub(super) samples: u32,
    pub(super) run: &'a Path,
}

impl OptimizeReport<'_> {
    pub(super) fn print(&self, printer: &Printer) -> Result<(), Stop> {
        if printer.json() {
            printer.object(&self.object())
        } else {
            Ok(printer.data(&self.table())?)
        }
    }
}

fn attempts(outcome: &OptimizeOutcome) -> usize {
    let trajectories = outcome.trajectories.iter();
    trajectories.map(|one| one.attempts.len()).sum()
}

impl OptimizeReport<'_> {
    fn object(&self) -> Value {
        let Self {
            task, outcome, run, ..
        } = *self;
        let trajectories = &outcome.trajectories;
        let mut usage = Usage::default();
        for one in trajectories {
            usage += one.usage;
        }
        let author = outcome.winner.as_ref().map(|winner| winner.author);
        let sample = author.and_then(Author::sample);
        // Of the sample that the result is from, else of the last.
        let winning = trajectories.iter().find(|one| Some(one.sample) == sample);
        let shown = winning.or(trajectories.last());
        let samples: Vec<Value> = trajectories
        .iter()
        .map(|one| {
            let passed = one.attempts.iter().filter(|attempt| attempt.verdict.passed());
            json!({
                "sample": one.sample, "id": one.id, "ending": one.ending, "attempts": one.attempts.len(),
                "passed": passed.count(), "usage": one.usage, "seconds": one.seconds,
            })
        })
        .collect();
        json!({
            "format": FORMAT, "task": task.name, "policy": shown.map(|one| &one.policy),
            "ending": shown.map(|one| &one.ending), "sample": sample, "samples": samples, "attempts": attempts(outcome),
            "usage": usage, "verdict": outcome.verdict(), "improved": outcome.improved(), "result": outcome.result, "run": run,
            "start": start(self.start), "author": author.map(Author::name), "import": self.imported.map(import),
            "policy_failure": self.unanswered, "guard": self.package.guard, "shapes": 1 + self.package.shapes.len(),
        })
    }

    fn table(&self) -> String {
        let Self {
            task,
            outcome,
            samples,
            ..
        } = *self;
        let mut table = Table::titled(&task.name);
        let verdict = outcome.verdict();
        if let Some(times) = verdict.and_then(|verdict| verdict.times_us.as_ref()) {
            let over = |us: f64| format!("{:>12}  {:.2}x", time(us), us / times.candidate.0);
            table.row("eager", &over(times.eager.0));
            if let Some(compile) = &times.compile {
                table.row("torch.compile", &over(compile.0));
            }
            table.row("ours", &format!("{:>12}", time(times.candidate.0)));
            let matched = verdict.and_then(|verdict| verdict.matched_precision.as_ref());
            if let Some(matched) = matched.filter(|matched| matched.mode == Precision::Tf32) {
                table.row("precision", &against_tf32(matched));
            }
            if !outcome.improved() {
                let slower = "the best that passed is no quicker than the original, which is kept";
                table.row("result", slower);
            }
        } else {
            let result = match endings(&outcome.trajectories) {
                why if why.is_empty() => "nothing passed; the original module is kept".to_owned(),
                why => format!("no attempt passed ({why}); the original module is kept"),
            };
            table.row("result", &result);
        }
        if let Some(winner) = &outcome.winner {
            table.row("written by", &describe_author(winner.author));
        }
        let tuned = self.start.solution.as_ref();
        if let Some(tuned) = tuned.and_then(|start| start.tuned.as_ref()) {
            table.row("tuned", &tuned_words(tuned));
        }
        if let Some(absent) = &self.start.absent {
            table.row("compiler", &format!("does not cover it: {}", why(absent)));
        }
        if let Some(why) = self.unanswered {
            table.row("policy", &format!("never answered: {}", why.message));
        }
        table.row("attempts", &attempts(outcome).to_string());
        if samples > 1 {
            table.row("samples", &describe_samples(outcome, samples));
        }
        table.row("folder", &outcome.result.display().to_string());
        if outcome.improved() {
            let package = outcome.result.join(PACKAGE_FOLDER);
            table.row("install", &format!("pip install {}", package.display()));
            let name = package_name(&task.name);
            table.row("import", &format!("from {name} import ModelNew"));
        }
        if let Some(check) = self.imported {
            table.row("checked", &import_check(check));
        }
        if outcome.improved() && !self.package.shapes.is_empty() {
            let all = 1 + self.package.shapes.len();
            let own = 1 + self.package.shapes.iter().flatten().count();
            table.row(
                "shapes",
                &format!("kernels for {own} of {all}, the original for the others"),
            );
        }
        table.row("next", &format!("warpsmith report {}", self.run.display()));
        table.text()
    }
}

/// What came of the import, for a script.
fn import(check: &ImportCheck) -> Value {
    match check {
        ImportCheck::Works { seconds, .. } => {
            json!({ "works": true, "seconds": seconds, "message": null })
        }
        ImportCheck::Fails { message } => {
            json!({ "works": false, "seconds": null, "message": message })
        }
    }
}

/// What measuring changed in the compiler's solution, for a script.
fn tuned(tuned: &TunedStart) -> Value {
    json!({
        "changes": tuned.changes, "tried": tuned.tried, "dropped": tuned.failed, "exhausted": tuned.exhausted,
        "usual_us": tuned.times.usual_us, "tuned_us": tuned.times.tuned_us,
    })
}

/// The same for a person.
fn tuned_words(tuned: &TunedStart) -> String {
    let ending = if tuned.exhausted {
        ", all there were"
    } else {
        ""
    };
    format!(
        "{:.2}x over the usual kernels, the best of {} variants{ending}: {}",
        tuned.times.usual_us / tuned.times.tuned_us,
        tuned.tried,
        tuned.changes.join("; ")
    )
}

/// What the policy started from; null where that was nothing.
fn start(start: &Start) -> Option<Value> {
    if let Some(absent) = &start.absent {
        return Some(json!({
            "author": Author::Start(StartAuthor::Compiler).name(), "verdict": null, "reason": why(absent),
            "operator": absent.operator(), "line": absent.line(), "tuned": null,
        }));
    }
    start.solution.as_ref().map(|solution| {
        json!({
            "author": Author::Start(solution.author).name(), "verdict": solution.verdict, "reason": null, "operator": null,
            "line": null, "tuned": solution.tuned.as_ref().map(tuned),
        })
    })
}

fn describe_samples(outcome: &OptimizeOutcome, samples: u32) -> String {
    let passed = |one: &&Trajectory| one.best.is_some();
    let passed = outcome.trajectories.iter().filter(passed).count();
    let begun = match outcome.trajectories.len() as u32 {
        all if all == samples => all.to_string(),
        some => format!("{some} of {samples} begun"),
    };
    let best = outcome.winner.as_ref();
    let best = best.and_then(|winner| winner.author.sample());
    let best = best.map(|sample| format!(", the best is of sample {sample}"));
    format!(
        "{begun}, {passed} with a passed attempt{}",
        best.unwrap_or_default()
    )
}

/// Every kind of ending once, with how often it came.
fn endings(trajectories: &[Trajectory]) -> String {
    let mut kinds: BTreeMap<String, u32> = BTreeMap::new();
    for one in trajectories {
        *kinds.entry(describe_ending(&one.ending)).or_default() += 1;
    }
    let described = kinds.into_iter().map(|(ending, count)| match count {
        1 => ending,
        count => format!("{count} times: {ending}"),
    });
    described.collect::<Vec<_>>().join("; ")
}
