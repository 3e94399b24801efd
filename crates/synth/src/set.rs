//! The set: what was kept, split by structure, and what can be said of all of it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use warpsmith_tasks::{Structure, validation};

use crate::mix::Group;
use crate::record::{Fate, Record, Row};

/// Upper ends of the histogram of eager times, in milliseconds.
const TIMES_MS: [f64; 8] = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];

/// Which part of the set a task is in. No near relative of it is in the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    Train,
    Validation,
}

/// A row as it is in the files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetRow {
    #[serde(flatten)]
    pub row: Row,
    pub split: Split,
}

/// How the set was kept clean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decontamination {
    /// `false` where somebody asked for it: the set may hold a benchmark's tasks.
    pub done: bool,
    /// How many tasks were compared with.
    pub excluded: usize,
}

/// All that was written down of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub wanted: usize,
    pub kept: usize,
    pub tried: usize,
    pub groups: BTreeMap<Group, GroupCount>,
    /// By reason, in the order of the filters.
    pub dropped: BTreeMap<String, usize>,
    /// Tasks kept by milliseconds of an eager call, up to each bound.
    pub eager_ms: Vec<(String, usize)>,
    /// All candidates by how like the nearest task of a benchmark they are, in tenths.
    pub nearest: Vec<usize>,
    pub train: usize,
    pub validation: usize,
    pub decontamination: Decontamination,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCount {
    pub wanted: usize,
    pub kept: usize,
    pub tried: usize,
    /// Dropped as too near a task of a benchmark.
    pub in_benchmark: usize,
}

/// The set of a run's records, in the order of candidates.
#[derive(Debug, Clone, PartialEq)]
pub struct Set {
    pub rows: Vec<SetRow>,
}

impl Set {
    /// `share` of the tasks are for validation, whole families only.
    pub fn new(records: &[Record], share: f64, seed: u64) -> Self {
        let mut kept: Vec<&Row> = records
            .iter()
            .filter_map(|record| match &record.fate {
                Fate::Kept(row) => Some(row.as_ref()),
                Fate::Dropped(_) => None,
            })
            .collect();
        kept.sort_by_key(|row| row.index);
        let structures: Vec<(String, Structure)> = kept
            .iter()
            .filter_map(|row| Some((row.name.clone(), Structure::of(&row.code).ok()?)))
            .collect();
        let chosen = validation(&structures, share, seed);
        let split = |row: &Row| match chosen.contains(&row.name) {
            true => Split::Validation,
            false => Split::Train,
        };
        Self {
            rows: kept
                .into_iter()
                .map(|row| SetRow {
                    split: split(row),
                    row: row.clone(),
                })
                .collect(),
        }
    }

    /// `tasks.jsonl`, `train.jsonl` and `validation.jsonl`, each whole or as it was.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let all = |_: &SetRow| true;
        let of = |split: Split| move |row: &SetRow| row.split == split;
        self.write_lines(&folder.join("tasks.jsonl"), all)?;
        self.write_lines(&folder.join("train.jsonl"), of(Split::Train))?;
        self.write_lines(&folder.join("validation.jsonl"), of(Split::Validation))
    }

    fn write_lines(&self, path: &Path, wanted: impl Fn(&SetRow) -> bool) -> io::Result<()> {
        let mut text = Vec::new();
        for row in self.rows.iter().filter(|row| wanted(row)) {
            serde_json::to_writer(&mut text, row)?;
            text.push(b'\n');
        }
        replace(path, &text)
    }
}

/// A file is never half written: readers find the old one or the new one.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
    temporary.write_all(content)?;
    temporary.as_file().sync_all()?;
    let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o644);
    temporary.as_file().set_permissions(mode)?;
    temporary.persist(path).map_err(|error| error.error)?;
    Ok(())
}

impl Summary {
    pub fn new(
        records: &[Record],
        quotas: &BTreeMap<Group, usize>,
        set: &Set,
        decontamination: Decontamination,
    ) -> Self {
        let mut groups: BTreeMap<Group, GroupCount> = BTreeMap::new();
        for (group, wanted) in quotas {
            groups.entry(*group).or_default().wanted = *wanted;
        }
        let mut dropped: BTreeMap<String, usize> = BTreeMap::new();
        let mut nearest = vec![0; 11];
        for record in records {
            let group = groups.entry(record.group).or_default();
            group.tried += 1;
            match &record.fate {
                Fate::Kept(_) => group.kept += 1,
                Fate::Dropped(why) => {
                    *dropped.entry(why.reason.clone()).or_default() += 1;
                    group.in_benchmark += usize::from(why.reason == "in_benchmark");
                }
            }
            if let Some(near) = &record.nearest {
                nearest[((near.similarity * 10.0) as usize).min(10)] += 1;
            }
        }
        let times: Vec<f64> = set.rows.iter().map(|row| row.row.facts.eager_ms).collect();
        let validation = set.rows.iter().filter(|row| row.split == Split::Validation);
        let validation = validation.count();
        Self {
            wanted: quotas.values().sum(),
            kept: set.rows.len(),
            tried: records.len(),
            groups,
            dropped,
            eager_ms: histogram(&times),
            nearest,
            train: set.rows.len() - validation,
            validation,
            decontamination,
        }
    }
}

fn histogram(times: &[f64]) -> Vec<(String, usize)> {
    let mut low = 0.0;
    let mut bins = Vec::new();
    for high in TIMES_MS.into_iter().chain([f64::INFINITY]) {
        let count = times.iter().filter(|time| **time > low && **time <= high).count();
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
