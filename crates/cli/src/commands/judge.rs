//! `warpsmith judge`

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use warpsmith_compiler::GraphMutants;
use warpsmith_judge::{Cancellation, EvidencePlace, Judge, LocalJudge};
use warpsmith_schema::{FORMAT, Task, Verdict};
use warpsmith_tasks::{CaptureError, capture};

use crate::args::{JudgingArgs, Positive};
use crate::engine::{Engine, choose};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::source::Source;
use crate::{examples, interrupt, render};

/// Compile, verify and time one solution; no argument: an embedded example
///
/// Exit code 0: passed. 1: not passed, or below `--min-speedup`. 2: wrong usage or a broken task. 3: this machine.
#[derive(Debug, Args)]
pub(crate) struct JudgeArgs {
    /// A `KernelBench` module, `FILE.jsonl#level1/19`, or an example's name
    #[arg(conflicts_with = "example")]
    task: Option<String>,
    /// A folder with `model_new.py` and `kernels/`, or one file; else TASK's folder
    solution: Option<String>,
    /// Judge an embedded example
    #[arg(long, value_name = "NAME")]
    example: Option<String>,
    /// List the embedded examples
    #[arg(long)]
    list_examples: bool,
    /// Exit 1 below this speed-up
    ///
    /// Over `torch.compile` where that was measured, else over eager; in the solution's own precision class.
    #[arg(long, value_name = "X")]
    min_speedup: Option<Positive>,
    /// Compare with `torch.compile` in mode `max-autotune`
    #[arg(long, conflicts_with = "no_compile")]
    max_autotune: bool,
    /// Where the evidence goes; must not exist yet
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// First try wrong variants of the task itself: `trust.kill_rate` says what share of them is refused
    ///
    /// Takes seconds to minutes, once per task and target.
    #[arg(long)]
    kill_rate: bool,
    /// Judge N times, to see the spread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    #[command(flatten)]
    judging: JudgingArgs,
}

pub(crate) fn run(args: &JudgeArgs, printer: &Printer) -> Result<Exit, Stop> {
    if args.list_examples {
        return list_examples(printer);
    }
    let source = match (&args.example, &args.task) {
        (Some(name), _) => Source::example(name)?,
        (None, Some(task)) => Source::given(task, args.solution.as_deref())?,
        (None, None) => Source::example(examples::DEFAULT)?,
    };
    if let Some(place) = args.out.as_deref().filter(|place| place.exists()) {
        return Err(warpsmith_store::StoreError::Exists {
            path: place.to_path_buf(),
        }
        .into());
    }
    // A typing error should not cost an installation of PyTorch.
    let task = source.task()?;
    source.solution(choose(args.judging.machine.target, None).0)?;

    let engine = Engine::prepare(&args.judging.machine, printer)?;
    let submission = source.solution(engine.target)?;
    if !engine.caches.baselines().exists() {
        printer.note("judging for the first time here: building the support library and measuring baselines takes a minute or two");
    }
    let mut judging_options = args.judging.judging_options();
    if args.max_autotune {
        judging_options.compile_mode = Some("max-autotune-no-cudagraphs".to_owned());
    }
    let mut judge = LocalJudge::start(engine.options(judging_options))?
        .keeping_evidence(EvidencePlace::Cache)
        .cancelled_by(Cancellation::when(interrupt::happened));
    if args.kill_rate {
        measure_kill_rate(&task, &engine, &mut judge, printer)?;
    }
    let mut verdicts = Vec::new();
    for number in 1..=args.repeat {
        let verdict = match &args.out {
            Some(out) if args.repeat == 1 => judge.judge_into(&task, &submission, out)?,
            Some(out) => judge.judge_into(&task, &submission, &out.join(number.to_string()))?,
            None => judge.judge_afresh(&task, &submission)?,
        };
        if args.repeat > 1 && !printer.json() {
            printer.data(&line(number, &verdict))?;
        }
        verdicts.push(verdict);
    }
    report(&task, &verdicts, printer)?;
    Ok(exit(&verdicts, args.min_speedup.map(f64::from), printer))
}

/// A task whose module has no graph is judged without.
fn measure_kill_rate(
    task: &Task,
    engine: &Engine,
    judge: &mut LocalJudge,
    printer: &Printer,
) -> Result<(), Stop> {
    let graph = match &task.graph {
        Some(graph) => graph.clone(),
        None => match capture(task, &engine.python, &engine.caches) {
            Ok(graph) => graph,
            Err(error @ CaptureError::NotCaptured(_)) => {
                printer.note(&format!("no kill rate: {error}"));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        },
    };
    let found = judge.kill_rate(task, &graph, &GraphMutants)?;
    let count = found.count();
    match (&found.objection, found.rate()) {
        (Some(objection), _) => printer.note(&format!("no kill rate: {objection}")),
        (None, Some(_)) => printer.note(&format!(
            "{} of {} wrong variants of the task are refused",
            count.killed,
            count.killed + count.survived
        )),
        (None, None) => {
            printer.note("no kill rate: there is no wrong variant to try, or too little time");
        }
    }
    Ok(())
}

fn report(task: &Task, verdicts: &[Verdict], printer: &Printer) -> Result<(), Stop> {
    match (verdicts, printer.json()) {
        ([only], true) => printer.object(only),
        ([only], false) => Ok(printer.data(&render::verdict(&task.name, only, printer))?),
        (several, true) => printer.object(&json!({ "format": FORMAT, "verdicts": several })),
        (several, false) => Ok(printer.data(&summary(several))?),
    }
}

/// One judgement of several.
fn line(number: u32, verdict: &Verdict) -> String {
    let times = verdict.times_us.as_ref().map_or_else(String::new, |times| {
        format!(
            "{:>11}  +-{:.1} %",
            render::time(times.candidate.0),
            times.spread.0 * 100.0
        )
    });
    let over = speedup(verdict).map_or_else(String::new, |over| format!("  {over:.2}x"));
    let mut line = format!(
        "{number:>4}  {:<14} {times}{over}  {:.1} s\n",
        verdict.status.name(),
        verdict.seconds.total
    );
    for note in &verdict.notes {
        let told = [
            "      note: ",
            note.lines().last().unwrap_or_default(),
            "\n",
        ];
        line.extend(told);
    }
    line
}

/// How far apart the medians of several judgements lie.
fn summary(verdicts: &[Verdict]) -> String {
    let mut times: Vec<f64> = verdicts
        .iter()
        .filter_map(|verdict| verdict.times_us.as_ref())
        .map(|times| times.candidate.0)
        .collect();
    times.sort_by(f64::total_cmp);
    let (Some(low), Some(high)) = (times.first(), times.last()) else {
        return "\nnone of them was timed\n".to_owned();
    };
    let middle = times[times.len() / 2];
    format!(
        "\nmedian {}, from {} to {} ({:.1} % apart)\n",
        render::time(middle),
        render::time(*low),
        render::time(*high),
        (high - low) / middle * 100.0
    )
}

/// What `--min-speedup` looks at: `torch.compile` where known, else eager, in the solution's own precision class.
pub(crate) fn speedup(verdict: &Verdict) -> Option<f64> {
    let speedup = verdict.matched_precision?.speedup;
    Some(speedup.compile.unwrap_or(speedup.eager).0)
}

fn exit(verdicts: &[Verdict], least: Option<f64>, printer: &Printer) -> Exit {
    if !verdicts.iter().all(Verdict::passed) {
        return Exit::NO;
    }
    match least {
        Some(least)
            if !verdicts
                .iter()
                .all(|verdict| speedup(verdict).is_some_and(|over| over >= least)) =>
        {
            printer.note(&format!("below --min-speedup {least}"));
            Exit::NO
        }
        _ => Exit::DONE,
    }
}

fn list_examples(printer: &Printer) -> Result<Exit, Stop> {
    let examples: Vec<(&str, String)> = examples::names()
        .into_iter()
        .map(|name| (name, examples::summary(name)))
        .collect();
    if printer.json() {
        let list: Vec<_> = examples
            .iter()
            .map(|(name, summary)| json!({ "name": name, "summary": summary }))
            .collect();
        printer.object(&json!({ "format": FORMAT, "examples": list }))?;
    } else {
        let lines: Vec<String> = examples
            .iter()
            .map(|(name, summary)| format!("{name:<18} {summary}"))
            .collect();
        printer.lines(&lines)?;
    }
    Ok(Exit::DONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpsmith_schema::{Profile, Status, Target};

    #[test]
    fn one_of_several_says_what_a_single_one_would() {
        let device = "cpu".to_owned();
        let mut verdict = Verdict::unreached(Status::Passed, Target::Cpu, Profile::Full, device);
        verdict.notes = vec!["work was batched or put off".to_owned()];
        assert!(line(3, &verdict).ends_with("      note: work was batched or put off\n"));
        verdict.notes.clear();
        assert_eq!(line(3, &verdict).lines().count(), 1);
    }
}
