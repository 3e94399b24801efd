//! The runs of a folder, and what each that was asked about says of itself.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use serde::Deserialize;
use warpsmith_report::{TrainingProgress, TrainingStep, training_steps};
use warpsmith_store::{RunIndex, StoreError, is_held};

/// A log is looked at again after this long.
const FRESH: Duration = Duration::from_millis(500);

pub(crate) struct Shelf {
    folder: PathBuf,
    known: Mutex<HashMap<String, Arc<Mutex<Kept>>>>,
}

struct Kept {
    run: ShelvedRun,
    looked: Option<Instant>,
}

/// A run, as its folder tells it.
pub(super) struct ShelvedRun {
    folder: PathBuf,
    pub(super) index: RunIndex,
    /// What was trained: one stage under no name, or those of a pipeline in the order in which they began.
    pub(super) stages: Vec<TrainingStage>,
    pub(super) config: RunConfig,
    /// When its settings were written down, which is done once.
    begun: Option<Timestamp>,
}

pub(super) struct TrainingStage {
    pub(super) name: String,
    folder: PathBuf,
    pub(super) steps: Vec<TrainingStep>,
    /// Bytes of the log that `steps` are from.
    covered: u64,
}

/// Settings that say what a run is. Those of verbs that name none are empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunConfig {
    verb: Option<String>,
    pub(super) model: Option<String>,
    policy: Option<String>,
}

/// What a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Running,
    Done,
    /// Episodes have no end or steps are left, and nobody is at it.
    Unfinished,
}

impl Doing {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Unfinished => "unfinished",
        }
    }
}

impl Shelf {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            known: Mutex::default(),
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The latest first.
    pub(super) fn names(&self) -> Vec<String> {
        let entries = fs_err::read_dir(&self.folder).into_iter().flatten();
        let mut names: Vec<(Option<SystemTime>, String)> = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| is_run(&self.folder.join(name)))
            .map(|name| (written(&self.folder.join(&name).join(CONFIG)), name))
            .collect();
        names.sort_unstable_by(|one, other| other.cmp(one));
        names.into_iter().map(|(_, name)| name).collect()
    }

    /// Looks at a run. `None` where there is no such run or its log cannot be read.
    pub(super) fn look<T>(&self, name: &str, at: impl FnOnce(&ShelvedRun) -> T) -> Option<T> {
        // One name, no path, and in one way only: each is kept under its name.
        let plain = Path::new(name).file_name() == Some(OsStr::new(name));
        let folder = self.folder.join(name);
        if !plain || !is_run(&folder) {
            return None;
        }
        let kept = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known
                .entry(name.to_owned())
                .or_insert_with(|| {
                    Arc::new(Mutex::new(Kept {
                        run: ShelvedRun::new(folder),
                        looked: None,
                    }))
                })
                .clone()
        };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.looked.is_none_or(|looked| looked.elapsed() >= FRESH) {
            kept.run.refresh().ok()?;
            kept.looked = Some(Instant::now());
        }
        Some(at(&kept.run))
    }
}

impl ShelvedRun {
    fn new(folder: PathBuf) -> Self {
        Self {
            index: RunIndex::new(&folder),
            stages: Vec::new(),
            config: RunConfig::default(),
            begun: None,
            folder,
        }
    }

    fn refresh(&mut self) -> Result<(), StoreError> {
        self.index.refresh()?;
        if self.begun.is_none() {
            let place = self.folder.join(CONFIG);
            // Settings that cannot be read name nothing; what came of the run is shown all the same.
            let text = fs_err::read(&place).unwrap_or_default();
            self.config = serde_json::from_slice(&text).unwrap_or_default();
            self.begun = written(&place).and_then(|at| Timestamp::try_from(at).ok());
        }
        self.find_stages();
        self.stages.iter_mut().try_for_each(TrainingStage::refresh)
    }

    /// A pipeline has its stages in folders of their own.
    fn find_stages(&mut self) {
        let own = (String::new(), self.folder.clone());
        let inside = fs_err::read_dir(&self.folder).into_iter().flatten();
        let inside = inside
            .flatten()
            .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())));
        for (name, folder) in std::iter::once(own).chain(inside) {
            let known = self.stages.iter().any(|stage| stage.name == name);
            if !known && folder.join(METRICS).is_file() {
                self.stages.push(TrainingStage {
                    name,
                    folder,
                    steps: Vec::new(),
                    covered: 0,
                });
            }
        }
        let begun = |stage: &TrainingStage| written(&stage.folder.join(CONFIG));
        self.stages.sort_by_key(begun);
    }

    pub(super) fn doing(&self) -> Doing {
        let index = &self.index;
        let planned = index.metrics.map_or(0, |metrics| metrics.episodes_planned);
        let left = index.ended.as_ref().map(|end| end.unfinished);
        let trained = self.progress().is_some_and(|progress| progress.is_done());
        if is_held(&self.folder) {
            Doing::Running
        } else if trained
            || left == Some(0)
            || (left.is_none() && planned <= index.totals.ended && index.totals.ended > 0)
        {
            Doing::Done
        } else {
            Doing::Unfinished
        }
    }

    /// Of the stage that began last.
    pub(super) fn progress(&self) -> Option<TrainingProgress> {
        TrainingProgress::of(&self.stages.last()?.steps)
    }

    pub(super) fn begun(&self) -> Option<Timestamp> {
        let logged = self.index.started.as_ref().and_then(|at| at.parse().ok());
        logged.or(self.begun)
    }

    /// When it was last heard of.
    pub(super) fn latest(&self) -> Option<Timestamp> {
        let logged = self.index.latest.as_ref().and_then(|at| at.parse().ok());
        let steps = self
            .stages
            .iter()
            .filter_map(|stage| stage.steps.last()?.at);
        steps.chain(logged).max()
    }

    /// What wrote its episodes, or what is trained.
    pub(super) fn policy(&self) -> Option<&str> {
        let index = &self.index;
        let head = index.head.as_ref().map(|head| head.policy.name.as_str());
        let first = || {
            Some(
                index
                    .episodes
                    .first()?
                    .result
                    .as_ref()?
                    .policy
                    .name
                    .as_str(),
            )
        };
        let config = &self.config;
        head.or_else(first)
            .or(config.model.as_deref())
            .or(config.policy.as_deref())
    }

    pub(super) fn verb(&self) -> Option<&str> {
        let head = self.index.head.as_ref();
        let config = self.config.verb.as_deref();
        config.or_else(|| Some(head?.verb.as_str()))
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl TrainingStage {
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads the log again where it has another length: a resumed run may have dropped steps.
    fn refresh(&mut self) -> Result<(), StoreError> {
        let length = fs_err::metadata(self.folder.join(METRICS)).map_or(0, |found| found.len());
        if length != self.covered {
            self.steps = training_steps(&self.folder)?;
            self.covered = length;
        }
        Ok(())
    }
}

const CONFIG: &str = "config.json";
const METRICS: &str = "metrics.jsonl";

fn is_run(folder: &Path) -> bool {
    folder.join(CONFIG).is_file()
}

fn written(file: &Path) -> Option<SystemTime> {
    fs_err::metadata(file).ok()?.modified().ok()
}
