//! `warpsmith replay`

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use warpsmith_judge::LocalJudge;
use warpsmith_schema::{FORMAT, Status, Target, Task, Verdict};
use warpsmith_store::evidence;

use crate::args::{IsolationChoice, MachineArgs, PythonArgs, TargetChoice};
use crate::engine::{Engine, JudgingOptions};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::interrupt;
use crate::printer::{Printer, Tone};
use crate::render::{Table, time};

/// Judge again from an evidence bundle and compare the verdicts
///
/// Exit code 0 if the status is the same and, on the same hardware, the times agree: they differ by no more than
/// three times both spreads together, or by 10 % where that is more. 1 if not. 2 if the evidence was changed.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The folder that a verdict names under `evidence`
    evidence: PathBuf,
    /// What to do where a required protection cannot be had
    #[arg(long, value_enum, default_value_t)]
    isolation: IsolationChoice,
    /// Which GPU
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Machine")]
    device: u32,
    #[command(flatten)]
    python: PythonArgs,
}

/// Times that differ by less than this always agree.
const LEAST_TOLERANCE: f64 = 0.10;

/// The old verdict beside the new one.
#[derive(Debug)]
struct Comparison {
    same_status: bool,
    /// Null where the hardware differs or there is nothing to compare.
    times_agree: Option<bool>,
    /// Why times are not compared.
    not_comparable: Option<String>,
}

pub(crate) fn run(args: &ReplayArgs, printer: &Printer) -> Result<Exit, Stop> {
    let recorded = evidence::read(&args.evidence)?;
    let old = recorded.verdict;
    let machine = MachineArgs {
        target: match old.target {
            Target::Cuda => TargetChoice::Cuda,
            Target::Cpu => TargetChoice::Cpu,
        },
        device: args.device,
        python: args.python.clone(),
    };
    let engine = Engine::prepare(&machine, printer)?;
    let mut judge = LocalJudge::start(engine.options(JudgingOptions {
        profile: old.profile,
        rules: old.rules,
        isolation: args.isolation.into(),
        compile_mode: recorded.compile_mode,
        seed: Some(recorded.seed),
    }))?;
    let task = Task::of_source(recorded.task_name, recorded.task_source);
    let new = judge.judge_unrecorded(&task, &recorded.submission)?.verdict;
    if interrupt::happened() {
        return Err(Stop::interrupted());
    }
    let comparison = compare(&old, &new);
    let agrees = comparison.same_status && comparison.times_agree != Some(false);
    if printer.json() {
        printer.object(&json!({
            "format": FORMAT,
            "agrees": agrees,
            "same_status": comparison.same_status,
            "times_agree": comparison.times_agree,
            "not_comparable": comparison.not_comparable,
            "recorded": old,
            "replayed": new,
        }))?;
    } else {
        printer.data(&render(
            &task.name,
            (&old, &new),
            &comparison,
            agrees,
            printer,
        ))?;
    }
    Ok(if agrees { Exit::DONE } else { Exit::NO })
}

fn compare(old: &Verdict, new: &Verdict) -> Comparison {
    let not_comparable = (old.device != new.device).then(|| {
        format!(
            "not comparable: recorded on {}, this is {}",
            old.device, new.device
        )
    });
    let times_agree = match (&old.times_us, &new.times_us, &not_comparable) {
        (Some(before), Some(after), None) => Some(agree(
            (before.candidate.0, before.spread.0),
            (after.candidate.0, after.spread.0),
        )),
        _ => None,
    };
    Comparison {
        same_status: old.status == new.status,
        times_agree,
        not_comparable,
    }
}

/// Two times, each with its relative spread.
fn agree((before, spread_before): (f64, f64), (after, spread_after): (f64, f64)) -> bool {
    let tolerance = (3.0 * (spread_before + spread_after)).max(LEAST_TOLERANCE);
    ((after - before) / before).abs() <= tolerance
}

fn render(
    task: &str,
    (old, new): (&Verdict, &Verdict),
    comparison: &Comparison,
    agrees: bool,
    printer: &Printer,
) -> String {
    let word = if agrees {
        printer.paint(Tone::Good, "agrees")
    } else {
        printer.paint(Tone::Bad, "differs")
    };
    let mut table = Table::titled(&format!(
        "{word}  {task} on {}, {}",
        new.target.name(),
        new.device
    ));
    let mut row = |name: &str, before: String, after: String| {
        table.row(name, &format!("{before:<22} {after}"));
    };
    row("", "recorded".to_owned(), "replayed".to_owned());
    row(
        "status",
        old.status.name().to_owned(),
        new.status.name().to_owned(),
    );
    let times = |verdict: &Verdict| {
        verdict.times_us.as_ref().map_or_else(
            || "-".to_owned(),
            |times| {
                format!(
                    "{} +-{:.1} %",
                    time(times.candidate.0),
                    times.spread.0 * 100.0
                )
            },
        )
    };
    row("candidate", times(old), times(new));
    let over = |verdict: &Verdict| {
        let eager = verdict.speedup.map_or_else(
            || "-".to_owned(),
            |speedup| format!("{:.2}x", speedup.eager.0),
        );
        let compile = verdict.speedup.and_then(|speedup| speedup.compile);
        (
            eager,
            compile.map_or_else(|| "-".to_owned(), |compile| format!("{:.2}x", compile.0)),
        )
    };
    let (before, after) = (over(old), over(new));
    row("over eager", before.0, after.0);
    row("over compile", before.1, after.1);
    if let Some(why) = &comparison.not_comparable {
        table.row("times", why);
    }
    if new.status != Status::Passed {
        table.row("reason", new.reason.as_deref().unwrap_or_default());
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::agree;

    #[test]
    fn times_agree_within_their_spreads_and_ten_percent_at_least() {
        assert!(agree((100.0, 0.001), (109.0, 0.001)));
        assert!(!agree((100.0, 0.001), (111.0, 0.001)));
        assert!(agree((100.0, 0.05), (129.0, 0.05)));
        assert!(!agree((100.0, 0.05), (131.0, 0.05)));
        assert!(!agree((100.0, 0.0), (f64::NAN, 0.0)));
    }
}
