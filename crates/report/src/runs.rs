//! Runs that were read, counted and put beside each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;
use warpsmith_schema::{
    CountedAttempt, EpisodeMode, FORMAT, Failure, FailureKind, Profile, Rules, StartAuthor,
    Trajectory, Verdict,
};

use crate::compared::ComparedMode;
use crate::metrics::{
    Baseline, Comparison, Counting, EpisodeMetrics, Group, PrecisionClass, ReportMetrics,
    TaskFamily, Way, best_of_samples, by_name, by_task, compare, episodes,
};
use crate::page;
use crate::read::Run;
use crate::search::SearchHistory;
use crate::training::TrainingStep;

/// Several runs, the first of which the others are compared with.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    pub format: u32,
    pub runs: Vec<RunReport<'a>>,
    /// Of every run but the first, in order.
    pub comparisons: Vec<Comparison>,
}

/// One run, counted.
#[derive(Debug, Serialize)]
pub struct RunReport<'a> {
    pub name: &'a str,
    pub folder: &'a Path,
    pub policies: BTreeSet<&'a str>,
    pub modes: BTreeSet<&'static str>,
    pub targets: BTreeSet<&'static str>,
    pub devices: BTreeSet<&'a str>,
    /// What a reader of the numbers should know, in sentences.
    pub notes: Vec<String>,
    pub metrics: ReportMetrics,
    /// By the part of a split, `train` and `test`; empty where there was none.
    pub by_part: Vec<Group>,
    /// The best submissions beside other modes of `torch.compile`; empty where nobody asked for them.
    pub compared: Vec<ComparedMode>,
    pub tasks: Vec<TaskReport<'a>>,
    /// Tasks that could not be judged, and why. They count in nothing.
    pub left_out: &'a BTreeMap<String, String>,
    /// What the policy started from, and who wrote it (`optimize`).
    pub start: Option<ReportedStart<'a>>,
    /// The measurement that `optimize` reports: of the best submission, made afresh.
    pub result: Option<&'a Verdict>,
    /// What a search left; null where there was none (`evolve`).
    pub search: Option<&'a SearchHistory>,
    #[serde(skip)]
    pub training: &'a [TrainingStep],
}

#[derive(Debug, Serialize)]
pub struct ReportedStart<'a> {
    pub author: StartAuthor,
    pub verdict: &'a Verdict,
}

/// A task in one run: its best sample, and how the others fared.
#[derive(Debug, Serialize)]
pub struct TaskReport<'a> {
    pub id: &'a str,
    pub name: &'a str,
    pub level: Option<u32>,
    pub family: TaskFamily,
    pub samples: usize,
    pub correct: usize,
    /// The sample that the rest is of.
    pub sample: u32,
    pub attempts: usize,
    /// Of the attempt that counts; null where nothing was judged.
    pub status: Option<&'static str>,
    pub runtime_us: Option<f64>,
    pub speedup_eager: Option<f64>,
    pub speedup_compile: Option<f64>,
    pub matched_speedup_eager: Option<f64>,
    pub matched_speedup_compile: Option<f64>,
    pub evidence: Option<&'a str>,
    #[serde(skip)]
    pub best: EpisodeMetrics<'a>,
    #[serde(skip)]
    pub episodes: Vec<EpisodeMetrics<'a>>,
}

impl ReportedStart<'_> {
    pub fn words(&self) -> &'static str {
        start_words(self.author)
    }
}

/// Who wrote what a policy starts from.
pub fn start_words(author: StartAuthor) -> &'static str {
    match author {
        StartAuthor::Compiler => "the compiler's solution",
        StartAuthor::User => "a solution of the user's",
    }
}

/// Nobody compares what was judged by different rules, nor counts it together.
pub fn same_rules(runs: &[Run]) -> Result<(), Failure> {
    let of = |rules: Rules| {
        runs.iter().find(|run| {
            let mut attempts = run.trajectories.iter().flat_map(|one| &one.attempts);
            attempts.any(|attempt| attempt.verdict.rules == rules)
        })
    };
    let (Some(own), Some(mixed)) = (of(Rules::Own), of(Rules::Mixed)) else {
        return Ok(());
    };
    Err(Failure {
        kind: FailureKind::Config,
        code: "two_rules".to_owned(),
        message: format!(
            "`{}` was judged by the rules `own` and `{}` by `mixed`: their numbers are not comparable",
            own.name, mixed.name
        ),
        hint: Some("report each on its own, or judge again with the same `--rules`".to_owned()),
    })
}

impl<'a> Report<'a> {
    /// `counts` is what somebody asked for, instead of what each run says itself.
    pub fn of(runs: &'a [Run], counts: Option<CountedAttempt>, seed: u64) -> Self {
        let counting = |run: &Run| Counting {
            counted: counts.unwrap_or(run.counts),
            seed,
        };
        let counted = |run: &'a Run| episodes(&run.trajectories, counting(run).counted);
        let comparisons = match runs {
            [first, others @ ..] => {
                let first = counted(first);
                others
                    .iter()
                    .map(|other| compare(&first, &counted(other), seed))
                    .collect()
            }
            [] => Vec::new(),
        };
        Self {
            format: FORMAT,
            runs: runs
                .iter()
                .map(|run| RunReport::of(run, counting(run)))
                .collect(),
            comparisons,
        }
    }

    /// Whether there is more than training or a search to report: such a run has no episodes of its own.
    pub fn has_episodes(&self) -> bool {
        let has_other = |run: &RunReport<'_>| !run.training.is_empty() || run.search.is_some();
        let has_none = |run: &RunReport<'_>| has_other(run) && run.metrics.overall.episodes == 0;
        !self.runs.iter().all(has_none)
    }

    /// Every task of any run, in the order of the first run that has it.
    pub fn by_task(&self) -> Vec<TaskRow<'_, 'a>> {
        let mut rows: Vec<TaskRow<'_, 'a>> = Vec::new();
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        for (number, run) in self.runs.iter().enumerate() {
            for task in &run.tasks {
                let place = *places.entry(task.id).or_insert(rows.len());
                if place == rows.len() {
                    rows.push(TaskRow {
                        id: task.id,
                        title: task.title(),
                        cells: vec![None; self.runs.len()],
                    });
                }
                rows[place].cells[number] = Some(task);
            }
        }
        rows
    }
}

/// A task over all runs.
#[derive(Debug)]
pub struct TaskRow<'r, 'a> {
    pub id: &'a str,
    pub title: String,
    /// What each run has of it.
    pub cells: Vec<Option<&'r TaskReport<'a>>>,
}

impl<'a> RunReport<'a> {
    fn of(run: &'a Run, counting: Counting) -> Self {
        let trajectories = &run.trajectories;
        let metrics = ReportMetrics::of(trajectories, counting);
        let verdicts = trajectories
            .iter()
            .flat_map(|one| &one.attempts)
            .map(|attempt| &attempt.verdict);
        Self {
            name: &run.name,
            folder: &run.folder,
            policies: trajectories
                .iter()
                .map(|one| one.policy.name.as_str())
                .collect(),
            modes: trajectories.iter().map(|one| mode(one.mode)).collect(),
            targets: trajectories.iter().map(|one| one.target.name()).collect(),
            devices: verdicts.map(|verdict| verdict.device.as_str()).collect(),
            notes: notes(run, &metrics),
            metrics,
            by_part: by_name(&episodes(trajectories, counting.counted), |episode| {
                run.parts.get(episode.task()).map(String::as_str)
            }),
            compared: crate::compared::by_mode(&run.compared),
            left_out: &run.left_out,
            tasks: tasks(trajectories, counting.counted),
            start: run.start.as_ref().map(|(author, verdict)| ReportedStart {
                author: *author,
                verdict,
            }),
            result: run.remeasured.reported(),
            search: (!run.search.is_empty()).then_some(&run.search),
            training: &run.training,
        }
    }
}

fn mode(mode: EpisodeMode) -> &'static str {
    match mode {
        EpisodeMode::Single => "single",
        EpisodeMode::Agent => "agent",
    }
}

fn tasks(trajectories: &[Trajectory], counted: CountedAttempt) -> Vec<TaskReport<'_>> {
    let all = by_task(&episodes(trajectories, counted));
    all.iter()
        .filter_map(|of_one| TaskReport::of(of_one))
        .collect()
}

impl<'a> TaskReport<'a> {
    /// Its id, and its name where that says more.
    pub fn title(&self) -> String {
        if self.id == self.name {
            self.id.to_owned()
        } else {
            format!("{} {}", self.id, self.name)
        }
    }

    fn of(episodes: &[EpisodeMetrics<'a>]) -> Option<Self> {
        let best = *best_of_samples(episodes).first()?;
        let task = &best.trajectory.task;
        let measured = best.measured();
        let speedup = |way, class| measured.and_then(|one| one.speedup(Baseline::new(way, class)));
        Some(Self {
            id: &task.id,
            name: &task.name,
            level: task.level,
            family: TaskFamily::of(task),
            samples: episodes.len(),
            correct: episodes.iter().filter(|one| one.correct()).count(),
            sample: best.trajectory.sample,
            attempts: best.trajectory.attempts.len(),
            status: best.attempt.map(|attempt| attempt.verdict.status.name()),
            runtime_us: measured.map(|one| one.runtime_us),
            speedup_eager: speedup(Way::Eager, PrecisionClass::Strict),
            speedup_compile: speedup(Way::Compile, PrecisionClass::Strict),
            matched_speedup_eager: speedup(Way::Eager, PrecisionClass::Matched),
            matched_speedup_compile: speedup(Way::Compile, PrecisionClass::Matched),
            evidence: best
                .attempt
                .and_then(|attempt| attempt.verdict.evidence.as_deref()),
            best,
            episodes: episodes.to_vec(),
        })
    }
}

fn notes(run: &Run, metrics: &ReportMetrics) -> Vec<String> {
    let attempts = run.trajectories.iter().flat_map(|one| &one.attempts);
    let verdicts: Vec<_> = attempts.map(|attempt| &attempt.verdict).collect();
    let count = |holds: fn(&warpsmith_schema::Verdict) -> bool| {
        verdicts.iter().filter(|one| holds(one)).count()
    };
    let devices: BTreeSet<&str> = verdicts.iter().map(|one| one.device.as_str()).collect();
    let weak = count(|one| one.isolation.is_some() && !one.trust.contained);
    let quick = count(|one| one.profile == Profile::Rl);
    let by_mixed = count(|one| one.rules == Rules::Mixed);
    let untimed = count(|one| one.profile == Profile::Verify);
    let mut notes = Vec::new();
    let mut note = |applies: bool, text: String| {
        if applies {
            notes.push(text);
        }
    };
    note(
        metrics.overall.episodes == 0 && run.training.is_empty() && run.search.is_empty(),
        "no episode has ended".to_owned(),
    );
    note(
        metrics.unfinished > 0,
        format!(
            "{} episodes were interrupted or their policy failed: they count in nothing",
            metrics.unfinished
        ),
    );
    note(
        weak > 0,
        format!(
            "{weak} verdicts are from weak isolation: not to be used for training or benchmarks"
        ),
    );
    note(
        quick > 0,
        format!(
            "{quick} verdicts are of profile `rl`: their times are rougher than those of `full`"
        ),
    );
    note(
        by_mixed > 0,
        format!(
            "{by_mixed} verdicts are by the rules `mixed`: PyTorch computed what was not replaced"
        ),
    );
    note(
        untimed > 0,
        format!("{untimed} verdicts are of profile `verify`: nothing was timed"),
    );
    note(
        devices.len() > 1,
        format!(
            "attempts ran on {} devices: runtimes are not comparable throughout",
            devices.len()
        ),
    );
    note(
        !run.left_out.is_empty(),
        format!(
            "{} could not be judged: see the list",
            page::count(run.left_out.len(), "task")
        ),
    );
    if let Some(scale) = run.scale {
        note(
            true,
            format!("shapes were divided by {scale}: not to be compared with KernelBench"),
        );
    }
    notes
}
