//! The runs of a folder, and an index of each that was asked about.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use warpsmith_store::{RunIndex, is_held};

/// A log is looked at again after this long.
const FRESH: Duration = Duration::from_millis(500);

pub(crate) struct Shelf {
    folder: PathBuf,
    known: Mutex<HashMap<String, Arc<Mutex<Kept>>>>,
}

struct Kept {
    index: RunIndex,
    looked: Option<Instant>,
}

/// What a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Running,
    Done,
    /// It has episodes without an end, and nobody is at it.
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

    /// The latest first: names begin with the time.
    pub(super) fn names(&self) -> Vec<String> {
        let entries = fs_err::read_dir(&self.folder).into_iter().flatten();
        let mut names: Vec<String> = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| is_run(&self.folder.join(name)))
            .collect();
        names.sort_unstable_by(|one, other| other.cmp(one));
        names
    }

    /// Looks at a run's index. `None` where there is no such run or its log cannot be read.
    pub(super) fn look<T>(&self, name: &str, at: impl FnOnce(&RunIndex) -> T) -> Option<T> {
        // One name, no path, and in one way only: each is kept under its name.
        let plain = Path::new(name).file_name() == Some(OsStr::new(name));
        let run = self.folder.join(name);
        if !plain || !is_run(&run) {
            return None;
        }
        let kept = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known
                .entry(name.to_owned())
                .or_insert_with(|| {
                    Arc::new(Mutex::new(Kept {
                        index: RunIndex::new(&run),
                        looked: None,
                    }))
                })
                .clone()
        };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.looked.is_none_or(|looked| looked.elapsed() >= FRESH) {
            kept.index.refresh().ok()?;
            kept.looked = Some(Instant::now());
        }
        Some(at(&kept.index))
    }

    pub(super) fn doing(&self, name: &str, index: &RunIndex) -> Doing {
        let planned = index.metrics.map_or(0, |metrics| metrics.episodes_planned);
        let left = index.ended.as_ref().map(|end| end.unfinished);
        if is_held(&self.folder.join(name)) {
            Doing::Running
        } else if left == Some(0)
            || (left.is_none() && planned <= index.totals.ended && index.totals.ended > 0)
        {
            Doing::Done
        } else {
            Doing::Unfinished
        }
    }
}

fn is_run(folder: &Path) -> bool {
    folder.join("config.json").is_file()
}
