use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use crate::metrics::Curve;
use crate::page::{anchor, count, duration};
use crate::plot::{Axis, Bar, Bars, ColumnChart, Length, Lines, Scale, Series, Stack, StackPart};
use crate::training::ASKED_FIRST;
use crate::{Report, RunReport, TaskReport, TaskRow, TrainingStep, curves};

use super::tasks::place;

pub(super) fn plots(report: &Report<'_>) -> Markup {
    let eager = |run: &RunReport<'_>| {
        let timed = run.metrics.overall.strict.eager.is_some();
        timed.then(|| run.metrics.fast_p.eager.clone())
    };
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
                band: Vec::new(),
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
    // Drawn together, not one by one.
    for (_, parts) in SHARES_OF_REWARDS.iter().chain(&PARTS_OF_A_STEP) {
        names.remove(parts);
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
    Some(html! {
        @for (title, names) in &groups {
            @if !names.is_empty() {
                h3 { (title) }
                div.plots { @for name in names { (training_plot(name, &of_runs)) } }
            }
        }
        (made_up(&of_runs))
        @if !names.is_empty() {
            details {
                summary { "Everything else: " (count(names.len(), "number")) }
                div.plots { @for name in &names { (training_plot(name, &of_runs)) } }
            }
        }
    })
}

/// The robust reward has four values. Their shares, step by step, are its histogram over time.
const SHARES_OF_REWARDS: [(&str, &str); 4] = [
    ("wrong", "robust_wrong"),
    ("correct, not faster", "robust_correct"),
    ("faster than eager", "robust_faster_than_eager"),
    ("faster than torch.compile", "robust_faster_than_compile"),
];
const PARTS_OF_A_STEP: [(&str, &str); 3] = [
    ("generate and judge", "seconds_collect"),
    ("learn", "seconds_learn"),
    ("validate", "seconds_validate"),
];

/// What is a whole of several numbers: one plot a run, as columns of two runs cannot lie over each other.
fn made_up(of_runs: &[(&str, Curves<'_>)]) -> Markup {
    let wholes = [
        (
            "Replies by what they earned",
            "share",
            &SHARES_OF_REWARDS[..],
        ),
        (
            "Where the time of a step goes",
            "seconds",
            &PARTS_OF_A_STEP[..],
        ),
    ];
    let mut plots = Vec::new();
    for (title, y, parts) in wholes {
        for (run, curves) in of_runs {
            let columns = columns_of(curves, parts);
            if !columns.is_empty() {
                let name = match of_runs {
                    [_] => title.to_owned(),
                    _ => format!("{title}: {run}"),
                };
                let parts = parts.iter().map(|(words, _)| *words).collect();
                plots.push(html! { div { (ColumnChart { name: &name, y, parts, columns }) } });
            }
        }
    }
    html! {
        @if !plots.is_empty() {
            h3 { "What is each step made of?" }
            div.plots { @for plot in &plots { (plot) } }
        }
    }
}

/// Steps that have the first part; the others are nothing where they are missing.
fn columns_of(curves: &Curves<'_>, parts: &[(&str, &str)]) -> Vec<(f64, Vec<f64>)> {
    let Some(steps) = parts.first().and_then(|(_, name)| curves.get(name)) else {
        return Vec::new();
    };
    let at = |name: &str, x: f64| {
        let found = curves.get(name).into_iter().flatten();
        let mut found = found.filter(|point| point.0.to_bits() == x.to_bits());
        found.next().map_or(0.0, |point| point.1)
    };
    let values = |x: f64| parts.iter().map(|(_, name)| at(name, x)).collect();
    steps.iter().map(|(x, _)| (*x, values(*x))).collect()
}

type Curves<'a> = BTreeMap<&'a str, Vec<(f64, f64)>>;

fn training_plot(name: &str, of_runs: &[(&str, Curves<'_>)]) -> Markup {
    let series: Vec<Series<'_>> = of_runs
        .iter()
        .filter_map(|(run, curves)| {
            Some(Series {
                name: run,
                points: curves.get(name)?.clone(),
                band: band(name, curves),
            })
        })
        .collect();
    let points = || series.iter().flat_map(|series| &series.points);
    let ends = || series.iter().flat_map(|series| &series.band);
    let ends = ends().flat_map(|(_, low, high)| [*low, *high]);
    let (x, y) = (
        Scale::linear(points().map(|point| point.0)),
        Scale::linear(points().map(|point| point.1).chain(ends)),
    );
    // A legend is for several; of one curve among several runs the title says whose it is.
    let title = match &series[..] {
        [one] if of_runs.len() > 1 => format!("{name}: {}", one.name),
        _ => name.to_owned(),
    };
    html! {
        div id=(format!("training-{}", anchor(name))) {
            (Lines { name: &title, x: Axis { name: "step", scale: x }, y: Axis { name, scale: y }, series })
            @if let Some(words) = about(name) { p.quiet { (words) } }
        }
    }
}

/// What a number is, and which way is good, for whoever meets its name for the first time.
fn about(name: &str) -> Option<&'static str> {
    Some(match name {
        "loss" => "Cross-entropy per token of the replies learned from: less is better.",
        "validation_loss" => {
            "The same on data that is not learned from. Where it rises while the loss falls, the model overfits."
        }
        "reward" => {
            "Mean reward of a step's replies, from -1 (wrong) to 3 (faster than torch.compile); the band holds four in five."
        }
        "pass_rate" => "Share of a step's replies that were correct, with a 95 % interval.",
        "faster_rate" => {
            "Share that was correct and 5 % faster than the baseline, with a 95 % interval."
        }
        "validation_pass_rate" | "validation_faster_rate" => "The same on tasks that are held out.",
        "explained_variance" => {
            "How much of the rewards' variance the value model predicts: 1 is all of it, 0 nothing."
        }
        "entropy" | "sampled_entropy" => {
            "How undecided the policy is, per token. A fall to 0 means that it says one thing only."
        }
        "kl" => "Distance from the frozen reference policy.",
        "kl_step" => "How far one step moved the policy; a step ends early past `target_kl`.",
        "clip_fraction_low" | "clip_fraction_high" => {
            "Share of tokens whose update was cut off at the clip range."
        }
        "mismatch_mean" => {
            "Difference between the sampler's and the learner's log-probabilities: near 0 is healthy."
        }
        "grad_norm" => "Norm of the gradient before clipping.",
        "tokens_per_second" => "Tokens learned from in a second.",
        "tokens_per_second_generate" => "Tokens written in a second.",
        "judgements_per_minute" => "Verdicts in a minute, over all judges.",
        "length" => "Tokens of a reply.",
        "cut_share" => "Share of the replies that were cut off at the limit.",
        _ => return None,
    })
}

/// What lies around a curve: for rewards four in five of them, for shares where they would lie in 95 of 100 repetitions.
fn band(name: &str, curves: &Curves<'_>) -> Vec<(f64, f64, f64)> {
    let at = |of: &str, x: f64| {
        let found = curves
            .get(of)?
            .iter()
            .find(|point| point.0.to_bits() == x.to_bits())?;
        Some(found.1)
    };
    let Some(points) = curves.get(name) else {
        return Vec::new();
    };
    let around = |(x, y): &(f64, f64)| {
        let (low, high) = match name {
            "reward" => (at("reward_p10", *x)?, at("reward_p90", *x)?),
            "pass_rate" | "faster_rate" => wilson(*y, at("episodes", *x)?),
            "validation_pass_rate" | "validation_faster_rate" => {
                wilson(*y, at("validation_episodes", *x)?)
            }
            _ => return None,
        };
        Some((*x, low, high))
    };
    points.iter().filter_map(around).collect()
}

/// Wilson's interval of a share of so many.
fn wilson(share: f64, count: f64) -> (f64, f64) {
    const Z: f64 = 1.96;
    let spread = Z * (share * (1.0 - share) / count + Z * Z / (4.0 * count * count)).sqrt();
    let middle = share + Z * Z / (2.0 * count);
    let whole = 1.0 + Z * Z / count;
    ((middle - spread) / whole, (middle + spread) / whole)
}

pub(super) fn training(report: &Report<'_>) -> Option<Markup> {
    let runs: Vec<(&str, &[TrainingStep])> = report
        .runs
        .iter()
        .map(|run| (run.name, run.training))
        .collect();
    training_plots(&runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_intervals_by_their_number() {
        // R: prop.test(8, 10, correct = FALSE) gives 0.4901625 0.9433178.
        let (low, high) = wilson(0.8, 10.0);
        assert!((low - 0.490_162).abs() < 1e-4 && (high - 0.943_318).abs() < 1e-4);
        let curves = Curves::from([
            ("reward", vec![(1.0, 0.5), (2.0, 0.6)]),
            ("reward_p10", vec![(1.0, -1.0)]),
            ("reward_p90", vec![(1.0, 1.0)]),
            ("loss", vec![(1.0, 2.0)]),
        ]);
        assert_eq!(band("reward", &curves), [(1.0, -1.0, 1.0)]);
        assert_eq!(band("loss", &curves), []);
    }

    #[test]
    fn rewards_are_a_histogram_over_time() {
        let step = |step: u64, wrong: f64| TrainingStep {
            step,
            steps: None,
            at: None,
            values: [
                ("robust_wrong".to_owned(), wrong),
                ("robust_correct".to_owned(), 1.0 - wrong),
                ("seconds_collect".to_owned(), 3.0),
            ]
            .into(),
        };
        let steps = [step(1, 1.0), step(2, 0.25)];
        let page = training_plots(&[("a", &steps)]).unwrap().into_string();
        assert!(
            page.contains("step 2: wrong 0.25, correct, not faster 0.75"),
            "{page}"
        );
        assert!(page.contains("Where the time of a step goes"), "{page}");
        // Of two runs one has it.
        let page = training_plots(&[("a", &steps), ("b", &[])]).unwrap();
        let page = page.into_string();
        assert!(page.contains("Replies by what they earned: a"), "{page}");
        // Every number that is asked for first and is a judgement on the run says what it is.
        for name in ASKED_FIRST[0].1 {
            let told = about(name).is_some();
            assert!(
                told || ["validation_reward", "value_loss"].contains(name),
                "{name}"
            );
        }
        assert!(!page.contains("training-robust-wrong"), "{page}");
    }
}
