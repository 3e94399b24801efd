//! What a run came to, for a person and for a script.

use std::path::Path;

use serde_json::{Value, json};
use warpsmith_report::Report;
use warpsmith_rollout::RolloutOutcome;
use warpsmith_schema::{FORMAT, RunHeader};

use crate::failure::Stop;
use crate::highlights::rates;
use crate::printer::Printer;
use crate::render::Table;

/// More tasks than these are for the report.
const LISTED: usize = 20;

pub(super) fn report(
    head: &RunHeader,
    outcome: &RolloutOutcome,
    run: &Path,
    printer: &Printer,
) -> Result<(), Stop> {
    // A benchmark is run for its numbers.
    let runs = match head.verb.as_str() {
        "bench" => vec![warpsmith_report::read(run)?],
        _ => Vec::new(),
    };
    let numbers = Report::of(&runs, None, 0);
    if printer.json() {
        let mut object = object(head, outcome, run);
        object["metrics"] = json!(numbers.runs.first().map(|run| &run.metrics));
        return printer.object(&object);
    }
    let mut text = table(head, outcome, run);
    if !runs.is_empty() {
        text += "\n";
        text += &crate::commands::report::text(&numbers);
    }
    Ok(printer.data(&text)?)
}

fn object(head: &RunHeader, outcome: &RolloutOutcome, run: &Path) -> Value {
    let tally = &outcome.tally;
    let left_out: Vec<Value> = outcome
        .left_out
        .iter()
        .map(|(task, why)| json!({ "task": task, "why": why }))
        .collect();
    json!({
        "format": FORMAT, "verb": head.verb, "run": run, "policy": head.policy, "target": head.target,
        "device": head.device, "mode": head.mode, "samples": head.samples, "counts": head.counts, "scale": head.scale,
        "episodes": {
            "planned": outcome.planned, "ended": tally.episodes, "unfinished": outcome.unfinished,
            "passed": tally.passed,
        },
        "attempts": tally.attempts, "endings": tally.endings, "usage": tally.usage, "tasks": tally.tasks,
        "left_out": left_out, "gauges": outcome.gauges, "interrupted": outcome.interrupted, "failure": outcome.failure,
    })
}

fn table(head: &RunHeader, outcome: &RolloutOutcome, run: &Path) -> String {
    let tally = &outcome.tally;
    let mut table = Table::titled(&format!(
        "{} of {} on {}, {}",
        head.verb,
        head.policy.name,
        head.target.name(),
        head.device
    ));
    if let Some(scale) = head.scale {
        let text = format!("divided by {scale}: these are not the benchmark's tasks");
        table.row("shapes", &text);
    }
    let ended = format!("{} of {} ended", tally.episodes, outcome.planned);
    let unfinished = match outcome.unfinished {
        0 => String::new(),
        some => format!(", {some} to be gone on with"),
    };
    table.row("episodes", &format!("{ended}{unfinished}"));
    let solved = tally.tasks.values().filter(|task| task.passed > 0).count();
    let passed = format!(
        "{} episodes, {solved} of {} tasks",
        tally.passed,
        head.tasks.len()
    );
    table.row("passed", &passed);
    let faster = tally.tasks.values().filter(|task| {
        let best = task.best.as_ref().and_then(|best| best.speedup);
        best.is_some_and(|speedup| speedup > 1.0)
    });
    table.row(
        "faster",
        &format!("{} tasks, than eager in the same precision", faster.count()),
    );
    let gauges = &outcome.gauges;
    let judged = format!(
        "{} verdicts this time, {}",
        gauges.judgements,
        rates(gauges)
    );
    table.row("judged", &judged);
    // A benchmark's numbers list them too.
    if !outcome.left_out.is_empty() && head.verb != "bench" {
        let lines = outcome.left_out.iter().take(LISTED);
        let mut lines: Vec<String> = lines
            .map(|(task, why)| format!("{task}: {}", why.message))
            .collect();
        if outcome.left_out.len() > LISTED {
            lines.push(format!("and {} more", outcome.left_out.len() - LISTED));
        }
        table.row("left out", &lines.join("\n"));
    }
    table.row("run", &run.display().to_string());
    let next = match outcome.unfinished {
        0 => format!(
            "warpsmith report {0}\nwarpsmith report {0} --html report.html",
            run.display()
        ),
        _ => format!("the same command with `--out {}` goes on", run.display()),
    };
    table.row("next", &next);
    table.text()
}
