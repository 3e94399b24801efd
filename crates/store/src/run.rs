//! The folder of a run.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::Value;
use warpsmith_schema::OtherFormat;

use crate::difference::differences;
use crate::lock::RunLock;
use crate::{EventLog, StoreError};

const CONFIG: &str = "config.json";
/// The configuration until it is complete.
const CONFIG_DRAFT: &str = ".config.json.new";
/// Runs of one verb that start within the same second are numbered; nobody starts this many.
const SAME_SECOND: u32 = 1000;

/// A run's folder, locked for this process until it is dropped.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    resumed: bool,
    _lock: RunLock,
}

impl RunFolder {
    /// A new folder `<base>/<utc>-<verb>-<name>` with the link `<base>/latest` to it. Where `base`
    /// is itself a run's folder, that run is resumed.
    pub fn create_or_resume(
        base: &Path,
        verb: &str,
        name: &str,
        config: &Value,
    ) -> Result<Self, StoreError> {
        if base.join(CONFIG).is_file() {
            return Self::at(base, config);
        }
        make_folder(base)?;
        let now = jiff::Timestamp::now()
            .strftime("%Y%m%dT%H%M%SZ")
            .to_string();
        let stem = format!("{now}-{}-{}", safe_name(verb), safe_name(name));
        for number in 1..SAME_SECOND {
            let folder = base.join(if number == 1 {
                stem.clone()
            } else {
                format!("{stem}-{number}")
            });
            match fs_err::create_dir(&folder) {
                Ok(()) => {
                    let run = Self::enter(folder, config)?;
                    point_latest(base, &run.path)?;
                    return Ok(run);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => {
                    return Err(StoreError::Write {
                        path: folder,
                        source,
                    });
                }
            }
        }
        Err(StoreError::Exists {
            path: base.join(stem),
        })
    }

    /// Exactly that folder (`--out`): begun, or resumed where it holds a run with the same configuration.
    pub fn at(folder: &Path, config: &Value) -> Result<Self, StoreError> {
        if !folder.join(CONFIG).is_file() {
            if folder.is_file() {
                return Err(StoreError::NotARun {
                    folder: folder.to_path_buf(),
                });
            }
            make_folder(folder)?;
            refuse_other_content(folder)?;
        }
        Self::enter(folder.to_path_buf(), config)
    }

    /// Whether there is a run can be told only under the lock: another process may be beginning one.
    fn enter(path: PathBuf, config: &Value) -> Result<Self, StoreError> {
        let lock = RunLock::take(&path)?;
        let file = path.join(CONFIG);
        let mut resumed = file.is_file();
        if resumed {
            let text = fs_err::read_to_string(&file).map_err(|source| StoreError::Read {
                path: file.clone(),
                source,
            })?;
            let before: Value =
                serde_json::from_str(&text).map_err(|source| StoreError::BrokenRun {
                    path: file.clone(),
                    source,
                })?;
            let differences = differences(&before, config);
            // A run that did nothing yet may be begun again with another configuration, as after a mistake in it. A
            // file that is not a run's configuration is never replaced.
            let ours = before.get("verb").is_some_and(Value::is_string);
            resumed = differences.is_empty() || !ours || !has_no_results(&path)?;
            if resumed && !differences.is_empty() {
                return Err(match other_format(&before, config) {
                    Some(format) if ours => StoreError::OtherFormat {
                        path: file,
                        line: None,
                        format,
                    },
                    _ => StoreError::OtherConfig {
                        folder: path,
                        differences,
                    },
                });
            }
        }
        if !resumed {
            let mut text =
                serde_json::to_string_pretty(config).map_err(|source| StoreError::Json {
                    path: file.clone(),
                    source,
                })?;
            text.push('\n');
            // Renamed once it is complete: its presence is what makes the folder a run.
            let temporary = path.join(CONFIG_DRAFT);
            fs_err::write(&temporary, text)
                .and_then(|()| fs_err::rename(&temporary, &file))
                .map_err(|source| StoreError::Write { path: file, source })?;
        }
        Ok(Self {
            path,
            resumed,
            _lock: lock,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Points `<base>/latest` here, also where the run lies elsewhere.
    pub fn become_latest(&self, base: &Path) -> Result<(), StoreError> {
        make_folder(base)?;
        point_latest(base, &self.path)
    }

    /// Whether an earlier process began the run.
    pub fn resumed(&self) -> bool {
        self.resumed
    }

    /// The log of this run's events.
    pub fn events(&self) -> Result<EventLog, StoreError> {
        EventLog::open(&event_log(&self.path)?)
    }

    /// A log in this folder, such as `events` for `events.jsonl`.
    pub fn log(&self, name: &str) -> Result<EventLog, StoreError> {
        EventLog::open(&self.path.join(format!("{}.jsonl", safe_name(name))))
    }
}

/// The log in which a run keeps its events, without its ending.
const EVENTS: &str = "events";
/// Where earlier versions kept the episodes of `optimize`.
pub(crate) const OLD_EPISODES: &str = "trajectories.jsonl";

/// The event log of a run's folder, which may not be there yet. A folder that an earlier version wrote is refused.
pub fn event_log(run: &Path) -> Result<PathBuf, StoreError> {
    let log = run.join(format!("{EVENTS}.jsonl"));
    if !log.exists() && run.join(OLD_EPISODES).exists() {
        return Err(StoreError::OldRun {
            folder: run.to_path_buf(),
        });
    }
    Ok(log)
}

/// The format of a configuration, where it is not the one this program writes.
fn other_format(before: &Value, now: &Value) -> Option<OtherFormat> {
    let format = |config: &Value| config.get("format").and_then(Value::as_u64);
    let reads = format(now)? as u32;
    let found = format(before).map(|format| format as u32);
    (found != Some(reads)).then_some(OtherFormat {
        document: "a run configuration",
        found,
        reads,
    })
}

/// Whether a process works in this run's folder now. Does not take the lock.
pub fn is_held(folder: &Path) -> bool {
    RunLock::is_taken(folder)
}

/// Files that every run has before it has results.
fn is_run_file(entry: &Path) -> bool {
    let name = entry.file_name().unwrap_or_default();
    ["lock", CONFIG_DRAFT, CONFIG]
        .iter()
        .any(|ours| name == *ours)
}

/// A run that was interrupted before its configuration was written leaves only a lock. Anything else is not a run's.
fn refuse_other_content(folder: &Path) -> Result<(), StoreError> {
    if entries(folder)?.iter().all(|entry| is_run_file(entry)) {
        return Ok(());
    }
    Err(StoreError::NotARun {
        folder: folder.to_path_buf(),
    })
}

/// Whether a run has no results yet: every file in its folder is empty, apart from the configurations of the run and of
/// runs inside it.
fn has_no_results(folder: &Path) -> Result<bool, StoreError> {
    let mut rest: Vec<PathBuf> = entries(folder)?;
    while let Some(path) = rest.pop() {
        if is_run_file(&path) {
            continue;
        }
        let found = fs_err::symlink_metadata(&path).map_err(|source| StoreError::Read {
            path: path.clone(),
            source,
        })?;
        if found.is_dir() {
            rest.extend(entries(&path)?);
        } else if !found.is_file() || found.len() > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    fs_err::read_dir(folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(|source| StoreError::Read {
            path: folder.to_path_buf(),
            source,
        })
}

fn make_folder(path: &Path) -> Result<(), StoreError> {
    fs_err::create_dir_all(path).map_err(|source| StoreError::Write {
        path: path.to_path_buf(),
        source,
    })
}

/// Names come from users and models: only characters that are safe in any shell and file system stay.
fn safe_name(name: &str) -> String {
    let kept: String = name
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() || "._".contains(letter) {
                letter
            } else {
                '-'
            }
        })
        .take(64)
        .collect();
    let kept = kept.trim_matches(['-', '.']);
    if kept.is_empty() {
        "run".to_owned()
    } else {
        kept.to_owned()
    }
}

/// The link is replaced atomically, so that a reader never finds it missing.
fn point_latest(base: &Path, folder: &Path) -> Result<(), StoreError> {
    let latest = base.join("latest");
    // A file of the user's own with that name is not replaced.
    if fs_err::symlink_metadata(&latest).is_ok_and(|found| !found.is_symlink()) {
        return Ok(());
    }
    let write = |source| StoreError::Write {
        path: latest.clone(),
        source,
    };
    let temporary = base.join(format!(
        ".latest-{}",
        folder.file_name().unwrap_or_default().to_string_lossy()
    ));
    let whole = |path: &Path| fs_err::canonicalize(path).map_err(write);
    let (whole_base, whole_folder) = (whole(base)?, whole(folder)?);
    // Relative where it lies there, so that the runs can be moved or copied together.
    let to = match whole_folder.strip_prefix(&whole_base) {
        Ok(name) => name,
        Err(_) => &whole_folder,
    };
    // Left by a process that was killed between the two.
    let _ = fs_err::remove_file(&temporary);
    symlink(to, &temporary).map_err(write)?;
    fs_err::rename(&temporary, &latest).map_err(write)
}
