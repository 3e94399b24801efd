//! The set: what was kept, split by structure, and what can be said of all of it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use warpsmith_decontaminate::{Structure, validation_split};
use warpsmith_tasks::{SetSplit, SetTask, TaskError, write_set};

use crate::filter::{FilterStage, FilterStageSummary};
use crate::mix::TaskGroup;
use crate::record::{CandidateOutcome, CandidateRecord, SynthRow};

/// Upper ends of the histogram of eager times, in milliseconds.
const TIMES_MS: [f64; 8] = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];

/// How the set was kept clean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecontaminationSummary {
    /// `false` where somebody asked for it: the set may hold a benchmark's tasks.
    pub done: bool,
    /// How many tasks were compared with.
    pub excluded: usize,
}

/// All that was written down of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SynthSummary {
    pub wanted: usize,
    pub kept: usize,
    pub tried: usize,
    pub groups: BTreeMap<TaskGroup, GroupSummary>,
    /// By reason.
    pub dropped: BTreeMap<String, usize>,
    pub stages: BTreeMap<FilterStage, FilterStageSummary>,
    /// Tasks kept by milliseconds of an eager call, up to each bound.
    pub eager_ms: Vec<(String, usize)>,
    /// All candidates by how like the nearest task of a benchmark they are, in tenths.
    pub nearest: Vec<usize>,
    pub train: usize,
    pub validation: usize,
    pub decontamination: DecontaminationSummary,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSummary {
    pub wanted: usize,
    pub kept: usize,
    pub tried: usize,
    /// Dropped as too near a task of a benchmark.
    pub in_benchmark: usize,
}

/// The set of a run's records, in the order of candidates.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskSet {
    pub rows: Vec<SynthRow>,
}

impl TaskSet {
    /// `share` of the tasks are for validation, whole families only.
    pub fn new(records: &[CandidateRecord], share: f64, seed: u64) -> Self {
        let mut rows: Vec<SynthRow> = records
            .iter()
            .filter_map(|record| match &record.outcome {
                CandidateOutcome::Kept(row) => Some(row.as_ref().clone()),
                CandidateOutcome::Dropped(_) => None,
            })
            .collect();
        rows.sort_by_key(|row| row.index);
        let structures: Vec<(String, Structure)> = rows
            .iter()
            .filter_map(|row| Some((row.task.id.clone(), Structure::of(&row.task.code).ok()?)))
            .collect();
        let chosen = validation_split(&structures, share, seed);
        for row in &mut rows {
            row.task.split = Some(if chosen.contains(&row.task.id) {
                SetSplit::Validation
            } else {
                SetSplit::Train
            });
        }
        Self { rows }
    }

    /// `tasks.jsonl`, `train.jsonl` and `validation.jsonl`, each whole or as it was.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        for (name, rows) in self.files() {
            write_lines(&folder.join(name).with_extension("jsonl"), rows)?;
        }
        Ok(())
    }

    /// The same as Parquet, in the public columns and the most important of ours.
    pub fn write_parquet(&self, folder: &Path) -> Result<(), TaskError> {
        for (name, rows) in self.files() {
            let tasks: Vec<SetTask> = rows.map(|row| row.task.clone()).collect();
            write_set(&folder.join(name).with_extension("parquet"), &tasks)?;
        }
        Ok(())
    }

    /// All of it, and its two parts.
    fn files(&self) -> [(&'static str, impl Iterator<Item = &SynthRow>); 3] {
        let of = |wanted: Option<SetSplit>| {
            let belongs = move |row: &&SynthRow| wanted.is_none() || row.task.split == wanted;
            (
                wanted.map_or("tasks", SetSplit::name),
                self.rows.iter().filter(belongs),
            )
        };
        [None, Some(SetSplit::Train), Some(SetSplit::Validation)].map(of)
    }
}

fn write_lines<'a>(path: &Path, rows: impl Iterator<Item = &'a SynthRow>) -> io::Result<()> {
    let mut text = Vec::new();
    for row in rows {
        serde_json::to_writer(&mut text, row)?;
        text.push(b'\n');
    }
    replace(path, &text)
}

/// A file is never half written: readers find the old one or the new one.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
    temporary.write_all(content)?;
    let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o644);
    temporary.as_file().set_permissions(mode)?;
    temporary.persist(path).map_err(|error| error.error)?;
    Ok(())
}

impl SynthSummary {
    pub fn new(
        records: &[CandidateRecord],
        quotas: &BTreeMap<TaskGroup, usize>,
        set: &TaskSet,
        decontamination: DecontaminationSummary,
    ) -> Self {
        let mut groups: BTreeMap<TaskGroup, GroupSummary> = BTreeMap::new();
        for (group, wanted) in quotas {
            groups.entry(*group).or_default().wanted = *wanted;
        }
        let mut dropped: BTreeMap<String, usize> = BTreeMap::new();
        let mut nearest = vec![0; 11];
        for record in records {
            let group = groups.entry(record.group).or_default();
            group.tried += 1;
            match &record.outcome {
                CandidateOutcome::Kept(_) => group.kept += 1,
                CandidateOutcome::Dropped(why) => {
                    *dropped.entry(why.reason.clone()).or_default() += 1;
                    group.in_benchmark += usize::from(why.reason == "in_benchmark");
                }
            }
            if let Some(near) = &record.nearest {
                nearest[((near.similarity * 10.0) as usize).min(10)] += 1;
            }
        }
        let times: Vec<f64> = set
            .rows
            .iter()
            .filter_map(|row| Some(row.task.eager_us? / 1e3))
            .collect();
        let validation = set
            .rows
            .iter()
            .filter(|row| row.task.split == Some(SetSplit::Validation));
        let validation = validation.count();
        Self {
            wanted: quotas.values().sum(),
            kept: set.rows.len(),
            tried: records.len(),
            groups,
            dropped,
            stages: stages(records),
            eager_ms: histogram(&times),
            nearest,
            train: set.rows.len() - validation,
            validation,
            decontamination,
        }
    }
}

fn stages(records: &[CandidateRecord]) -> BTreeMap<FilterStage, FilterStageSummary> {
    // Whose place was taken while it was on its way was stopped by no filter.
    let late = |reason: &str| ["surplus", "near_duplicate"].contains(&reason);
    let mut seconds: BTreeMap<FilterStage, Vec<f64>> = BTreeMap::new();
    let mut stopped: BTreeMap<FilterStage, usize> = BTreeMap::new();
    for record in records {
        for (stage, spent) in record.seconds.stages() {
            seconds.entry(stage).or_default().push(spent);
        }
        if let (Some(last), CandidateOutcome::Dropped(why)) =
            (record.seconds.last(), &record.outcome)
            && !late(&why.reason)
        {
            *stopped.entry(last).or_default() += 1;
        }
    }
    seconds
        .into_iter()
        .map(|(stage, seconds)| {
            let stopped = stopped.get(&stage).copied().unwrap_or(0);
            (stage, FilterStageSummary::new(seconds, stopped))
        })
        .collect()
}

fn histogram(times: &[f64]) -> Vec<(String, usize)> {
    let mut low = 0.0;
    let mut bins = Vec::new();
    for high in TIMES_MS.into_iter().chain([f64::INFINITY]) {
        let count = times
            .iter()
            .filter(|time| **time > low && **time <= high)
            .count();
        let name = if high.is_finite() {
            format!("{low} to {high}")
        } else {
            format!("above {low}")
        };
        if count > 0 {
            bins.push((name, count));
        }
        low = high;
    }
    bins
}
