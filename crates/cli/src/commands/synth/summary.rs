//! What a run of synthesis came to, for a person and for a script.

use std::path::Path;

use serde_json::json;
use warpsmith_schema::FORMAT;
use warpsmith_synth::{SynthPlan, SynthSummary};

use crate::failure::Stop;
use crate::printer::Printer;
use crate::render::Table;

use super::show::Pace;

const BAR: usize = 40;

pub(super) fn report(
    summary: &SynthSummary,
    plan: &SynthPlan,
    pace: &Pace,
    run: &Path,
    printer: &Printer,
) -> Result<(), Stop> {
    if printer.json() {
        let object = json!({
            "format": FORMAT, "verb": "synth", "run": run, "target": plan.target, "device": plan.device,
            "set": run.join("tasks.jsonl"), "summary": summary, "pace": pace,
        });
        printer.object(&object)
    } else {
        Ok(printer.data(&table(summary, plan, pace, run))?)
    }
}

fn table(summary: &SynthSummary, plan: &SynthPlan, pace: &Pace, run: &Path) -> String {
    let mut table = Table::titled(&format!(
        "{} tasks for {}, {}",
        summary.kept,
        plan.target.name(),
        plan.device
    ));
    let now = format!(
        "{}; {} this time in {:.0} s, {:.0} a minute",
        summary.tried, pace.candidates, pace.seconds, pace.candidates_a_minute
    );
    table.row("candidates", &now);
    let mut dropped: Vec<(&String, &usize)> = summary.dropped.iter().collect();
    dropped.sort_by_key(|(reason, count)| (std::cmp::Reverse(**count), reason.as_str()));
    let lines: Vec<String> = dropped
        .iter()
        .map(|(reason, count)| format!("{count:>6}  {reason}"))
        .collect();
    table.row("dropped", &lines.join("\n"));
    let mut lines = vec![format!(
        "{:<14}{:>7}{:>7}{:>11}{:>13}",
        "filter", "came", "left", "s, median", "s, together"
    )];
    for (stage, count) in &summary.stages {
        let (name, came, left) = (stage.name(), count.came, count.left);
        let (median, all) = (count.median_seconds, count.seconds);
        lines.push(format!(
            "{name:<14}{came:>7}{left:>7}{median:>11.2}{all:>13.1}"
        ));
    }
    table.row("filters", &lines.join("\n"));
    let mut lines = vec![format!(
        "{:<14}{:>7}{:>7}{:>7}{:>14}",
        "operators", "kept", "tried", "share", "in benchmark"
    )];
    for (group, count) in &summary.groups {
        let share = 100.0 * count.kept as f64 / summary.kept.max(1) as f64;
        let (kept, tried, near) = (count.kept, count.tried, count.in_benchmark);
        let group = group.to_string();
        lines.push(format!(
            "{group:<14}{kept:>7}{tried:>7}{share:>6.1}%{near:>14}"
        ));
    }
    table.row("mix", &lines.join("\n"));
    table.row("eager, ms", &bars(&summary.eager_ms));
    if summary.decontamination.done {
        let bins: Vec<(String, usize)> = summary
            .nearest
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(tenth, count)| (format!("{:.1} up", tenth as f64 / 10.0), *count))
            .collect();
        let text = format!(
            "to the nearest of {} tasks, all candidates",
            summary.decontamination.excluded
        );
        table.row("similarity", &format!("{text}\n{}", bars(&bins)));
    } else {
        table.row(
            "similarity",
            "not looked at: the set may hold tasks of benchmarks",
        );
    }
    let split = format!("{} train, {} validation", summary.train, summary.validation);
    table.row("split", &split);
    let set = run.join("tasks.jsonl").display().to_string();
    table.row("set", &set);
    let next = format!("warpsmith rollout --tasks {set} --policy teacher");
    table.row("next", &next);
    table.text()
}

fn bars(bins: &[(String, usize)]) -> String {
    let most = bins
        .iter()
        .map(|(_, count)| *count)
        .max()
        .unwrap_or(1)
        .max(1);
    let line = |(name, count): &(String, usize)| {
        let length = (count * BAR).div_ceil(most);
        format!("{name:<11}{count:>6}  {}", "#".repeat(length))
    };
    bins.iter().map(line).collect::<Vec<_>>().join("\n")
}
