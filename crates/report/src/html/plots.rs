use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use crate::metrics::Curve;
use crate::page::{anchor, duration};
use crate::plot::{Axis, Bar, Bars, Length, Lines, Scale, Series, Stack, StackPart};
use crate::{Report, RunReport, TaskReport, TaskRow, TrainingStep, curves};

use super::tasks::place;

pub(super) fn plots(report: &Report<'_>) -> Markup {
    let eager = |run: &RunReport<'_>| Some(run.metrics.fast_p.eager.clone());
    let compile = |run: &RunReport<'_>| run.metrics.fast_p.compile.clone();
    // Where all is fp32 it is the same once more.
    let matched = |run: &RunReport<'_>| {
        let found = run.metrics.fast_p.matched_eager.clone();
        found.filter(|curve| *curve != run.metrics.fast_p.eager)
    };
    html! {
        div.plots {
            @if let Some(plot) = fast_p(report, "fast_p over eager", eager) { (plot) }
            @if let Some(plot) = fast_p(report, "fast_p over torch.compile", compile) { (plot) }
            @if let Some(plot) = fast_p(report, "fast_p over eager at matched precision", matched) { (plot) }
        }
        @if let Some(bars) = speedups(report, "Speed-up over eager by task", |task| task.speedup_eager) { (bars) }
        @if let Some(bars) = speedups(report, "Speed-up over torch.compile by task", |task| task.speedup_compile) { (bars) }
        (budget(report))
    }
}

fn fast_p<'a>(
    report: &'a Report<'_>,
    name: &'a str,
    curve: impl Fn(&RunReport<'_>) -> Option<Curve>,
) -> Option<Lines<'a>> {
    let series: Vec<Series<'a>> = report
        .runs
        .iter()
        .filter_map(|run| {
            let points = curve(run).filter(|points| !points.is_empty())?;
            Some(Series {
                name: run.name,
                points,
            })
        })
        .collect();
    (!series.is_empty()).then_some(Lines {
        name,
        x: Axis {
            name: "p, times as fast",
            scale: Scale::Linear { from: 0.0, to: 3.0 },
        },
        y: Axis {
            name: "share of episodes",
            scale: Scale::Linear { from: 0.0, to: 1.0 },
        },
        series,
    })
}

/// Sorted by the first run that solved each; `None` where there is nothing to measure.
fn speedups<'a>(
    report: &'a Report<'_>,
    name: &'a str,
    speedup: fn(&TaskReport<'_>) -> Option<f64>,
) -> Option<Markup> {
    let first = |row: &TaskRow<'_, '_>| row.cells.iter().flatten().find_map(|task| speedup(task));
    let mut tasks = report.by_task();
    tasks.iter().find_map(first)?;
    tasks.sort_by(|one, other| {
        let [one, other] = [one, other].map(|row| first(row).unwrap_or(0.0));
        other.total_cmp(&one)
    });
    let length = |task: Option<&'a TaskReport<'_>>| match task {
        None => Length::Word("not in this run"),
        Some(task) => match (speedup(task), task.status) {
            (Some(ratio), _) => Length::Ratio(ratio),
            (None, Some("passed")) => Length::Word("not measured"),
            (None, status) => Length::Word(status.unwrap_or("nothing judged")),
        },
    };
    let bars = Bars {
        name,
        series: report.runs.iter().map(|run| run.name).collect(),
        groups: tasks
            .iter()
            .map(|row| Bar {
                name: &row.title,
                anchor: place(row.id),
                lengths: row.cells.iter().copied().map(length).collect(),
            })
            .collect(),
    };
    Some(html! { (bars) })
}

fn budget<'a>(report: &'a Report<'_>) -> Stack<'a> {
    let parts = |run: &RunReport<'_>| -> Vec<StackPart> {
        let parts = run.metrics.seconds.parts();
        parts
            .map(|(name, value)| StackPart {
                name,
                value,
                told: duration(Some(value)),
            })
            .into()
    };
    Stack {
        name: "Where the time went",
        wholes: report
            .runs
            .iter()
            .map(|run| (run.name, parts(run)))
            .collect(),
    }
}

/// Numbers of training in the order in which they are asked for: is it learning, how far does the policy move, how quick is
/// it. Others follow by name.
const ASKED_FIRST: [(&str, &[&str]); 3] = [
    (
        "Is it learning?",
        &[
            "loss",
            "validation_loss",
            "reward",
            "pass_rate",
            "faster_rate",
            "validation_reward",
            "validation_pass_rate",
            "validation_faster_rate",
            "value_loss",
            "explained_variance",
        ],
    ),
    (
        "How far does the policy move?",
        &[
            "entropy",
            "sampled_entropy",
            "kl",
            "kl_step",
            "clip_fraction_low",
            "clip_fraction_high",
            "mismatch_mean",
            "grad_norm",
            "learning_rate",
        ],
    ),
    (
        "How fast is it, and what does it write?",
        &[
            "tokens_per_second",
            "tokens_per_second_generate",
            "seconds_collect",
            "seconds_learn",
            "judgements_per_minute",
            "length",
            "cut_share",
            "gpu_memory_gb",
        ],
    ),
];

/// One plot for each number that any run has; runs lie over each other.
pub fn training_plots(runs: &[(&str, &[TrainingStep])]) -> Option<Markup> {
    let of_runs: Vec<_> = runs
        .iter()
        .map(|(run, steps)| (*run, curves(steps)))
        .collect();
    let mut names: BTreeSet<&str> = of_runs
        .iter()
        .flat_map(|(_, curves)| curves.keys().copied())
        .collect();
    if names.is_empty() {
        return None;
    }
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for (title, wanted) in ASKED_FIRST {
        groups.push((
            title,
            wanted
                .iter()
                .copied()
                .filter(|name| names.remove(name))
                .collect(),
        ));
    }
    groups.push(("Everything else", names.into_iter().collect()));
    Some(html! {
        @for (title, names) in &groups {
            @if !names.is_empty() {
                h3 { (title) }
                div.plots { @for name in names { (training_plot(name, &of_runs)) } }
            }
        }
    })
}

type Curves<'a> = BTreeMap<&'a str, Vec<(f64, f64)>>;

fn training_plot(name: &str, of_runs: &[(&str, Curves<'_>)]) -> Markup {
    let series: Vec<Series<'_>> = of_runs
        .iter()
        .filter_map(|(run, curves)| {
            Some(Series {
                name: run,
                points: curves.get(name)?.clone(),
            })
        })
        .collect();
    let points = || series.iter().flat_map(|series| &series.points);
    let (x, y) = (
        Scale::linear(points().map(|point| point.0)),
        Scale::linear(points().map(|point| point.1)),
    );
    html! {
        div id=(format!("training-{}", anchor(name))) {
            (Lines { name, x: Axis { name: "step", scale: x }, y: Axis { name, scale: y }, series })
        }
    }
}

pub(super) fn training(report: &Report<'_>) -> Option<Markup> {
    let runs: Vec<(&str, &[TrainingStep])> = report
        .runs
        .iter()
        .map(|run| (run.name, run.training))
        .collect();
    training_plots(&runs)
}
