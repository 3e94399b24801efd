//! What a run has learnt so far, on disk: whole or not there.
//!
//! A checkpoint is a folder `step-000040`. It is written beside its place, flushed, and moved there in one step, so that a
//! run killed at any moment finds the one before. Its `checkpoint.json` names every file with its hash.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use safetensors::{SafeTensors, View};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use warpsmith_model::{HostTensor, SafetensorsFile};

use crate::{TrainError, packing};

/// Counted up when names of files or tensors change, or what a recipe remembers; older checkpoints are refused.
const FORMAT: u32 = 3;
const MANIFEST: &str = "checkpoint.json";
const BEGUN: &str = ".new-";
const STEP: &str = "step-";
const TENSORS: &str = ".safetensors";
/// Stands before that in the names of packed states.
const PACKED: &str = ".packed";
/// A folder in a checkpoint for what others read.
pub const PUBLISHED: &str = "published";

/// Everything that a run needs to go on as if it had never stopped.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// Steps that were done.
    pub step: u64,
    /// The state of each network, by its name.
    pub networks: BTreeMap<String, BTreeMap<String, HostTensor>>,
    /// What a recipe remembers beside them.
    pub memory: Value,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    format: u32,
    step: u64,
    memory: Value,
    /// Hash of each file, by its path in the folder.
    files: BTreeMap<String, String>,
}

/// A run's checkpoints.
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    /// So many are kept, the latest, and the best beside them.
    keep: usize,
}

impl Checkpoints {
    pub fn new(folder: PathBuf, keep: usize) -> Self {
        Self {
            folder,
            keep: keep.max(1),
        }
    }

    /// Writes one and removes the oldest but the one of step `best`. `publish` puts what others read into a folder of the
    /// checkpoint.
    pub fn save(
        &self,
        checkpoint: &Checkpoint,
        best: Option<u64>,
        publish: &mut dyn FnMut(&Path) -> Result<(), TrainError>,
    ) -> Result<PathBuf, TrainError> {
        let write_networks = &mut |folder: &Path| {
            let mut networks = checkpoint.networks.iter();
            networks.try_for_each(|(name, tensors)| {
                write_tensors(&folder.join(format!("{name}{TENSORS}")), tensors)
            })
        };
        self.write(checkpoint, best, write_networks, publish)
    }

    fn write(
        &self,
        checkpoint: &Checkpoint,
        best: Option<u64>,
        write_networks: &mut dyn FnMut(&Path) -> Result<(), TrainError>,
        publish: &mut dyn FnMut(&Path) -> Result<(), TrainError>,
    ) -> Result<PathBuf, TrainError> {
        let name = format!("{STEP}{:06}", checkpoint.step);
        let place = self.folder.join(&name);
        let begun = self.folder.join(format!("{BEGUN}{name}"));
        let written =
            Self::write_folder(checkpoint, &begun, write_networks, publish).and_then(|()| {
                // One of the same step says the same.
                remove(&place)?;
                fs_err::rename(&begun, &place).map_err(write_failed(&place))?;
                sync(&self.folder)
            });
        if let Err(error) = written {
            // What is left of it only takes room, and that may be what is missing.
            let _ = fs_err::remove_dir_all(&begun);
            return Err(error);
        }
        let steps = self.steps()?;
        let old = steps.iter().rev().skip(self.keep);
        for old in old.filter(|step| Some(**step) != best) {
            remove(&self.place(*old))?;
        }
        Ok(place)
    }

    fn write_folder(
        checkpoint: &Checkpoint,
        begun: &Path,
        write_networks: &mut dyn FnMut(&Path) -> Result<(), TrainError>,
        publish: &mut dyn FnMut(&Path) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        remove(begun)?;
        fs_err::create_dir_all(begun).map_err(write_failed(begun))?;
        write_networks(begun)?;
        let published = begun.join(PUBLISHED);
        fs_err::create_dir_all(&published).map_err(write_failed(&published))?;
        publish(&published)?;
        let mut files = BTreeMap::new();
        for path in files_below(begun).map_err(write_failed(begun))? {
            sync(&path)?;
            let name = path.strip_prefix(begun).unwrap_or(&path);
            files.insert(name.display().to_string(), hash(&path)?);
        }
        let manifest = Manifest {
            format: FORMAT,
            step: checkpoint.step,
            memory: checkpoint.memory.clone(),
            files,
        };
        let path = begun.join(MANIFEST);
        let text = serde_json::to_string_pretty(&manifest)
            .map_err(io::Error::from)
            .map_err(write_failed(&path))?;
        fs_err::write(&path, text + "\n").map_err(write_failed(&path))?;
        sync(&path)?;
        sync(begun)
    }

    /// The steps that there are checkpoints of, the first first.
    pub fn steps(&self) -> Result<Vec<u64>, TrainError> {
        let entries = match fs_err::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(read_failed(&self.folder)(error)),
        };
        let mut steps = Vec::new();
        for entry in entries {
            let name = entry.map_err(read_failed(&self.folder))?.file_name();
            let step = name.to_str().and_then(|name| name.strip_prefix(STEP));
            steps.extend(step.and_then(|step| step.parse::<u64>().ok()));
        }
        steps.sort_unstable();
        Ok(steps)
    }

    pub fn place(&self, step: u64) -> PathBuf {
        self.folder.join(format!("{STEP}{step:06}"))
    }

    /// Has a checkpoint publish what it did not bring along. True where there was something to do.
    pub fn publish(
        &self,
        step: u64,
        publish: &mut dyn FnMut(&Path) -> Result<(), TrainError>,
    ) -> Result<bool, TrainError> {
        let place = self.place(step).join(PUBLISHED);
        if has_files(&place) {
            return Ok(false);
        }
        let begun = self.folder.join(format!("{BEGUN}{PUBLISHED}"));
        remove(&begun)?;
        fs_err::create_dir_all(&begun).map_err(write_failed(&begun))?;
        publish(&begun)?;
        remove(&place)?;
        fs_err::rename(&begun, &place).map_err(write_failed(&place))?;
        Ok(true)
    }

    /// Writes the last one to another run's folder, packed. What it published is left out, because it can be made again from
    /// the packed state. What the best checkpoint published cannot, and is copied. Gives the step and the size of all that in
    /// bytes. `None` where there is no checkpoint.
    pub fn pack_into(&self, to: &Self) -> Result<Option<(u64, u64)>, TrainError> {
        let Some(checkpoint) = self.load()? else {
            return Ok(None);
        };
        let best = checkpoint.memory["best"]["step"].as_u64();
        let write_networks = &mut |folder: &Path| {
            let mut networks = checkpoint.networks.iter();
            networks.try_for_each(|(name, state)| {
                let path = folder.join(format!("{name}{PACKED}{TENSORS}"));
                write_tensors(&path, &packing::pack(state))
            })
        };
        to.write(&checkpoint, None, write_networks, &mut |_| Ok(()))?;
        if let Some(best) = best.filter(|best| *best != checkpoint.step) {
            let (from, to) = (self.place(best), to.place(best));
            for file in files_below(&from.join(PUBLISHED)).unwrap_or_default() {
                let copy = to.join(file.strip_prefix(&from).unwrap_or(&file));
                let folder = copy.parent().unwrap_or(&to);
                fs_err::create_dir_all(folder).map_err(write_failed(folder))?;
                fs_err::copy(&file, &copy).map_err(write_failed(&copy))?;
            }
        }
        let files = files_below(&to.folder).map_err(read_failed(&to.folder))?;
        let mut bytes = 0;
        for file in files {
            bytes += fs_err::metadata(&file).map_err(read_failed(&file))?.len();
        }
        Ok(Some((checkpoint.step, bytes)))
    }

    /// Where the last one is.
    pub fn last(&self) -> Result<Option<PathBuf>, TrainError> {
        Ok(self.steps()?.last().map(|step| self.place(*step)))
    }

    /// The last one, every file of it checked.
    pub fn load(&self) -> Result<Option<Checkpoint>, TrainError> {
        let Some(folder) = self.last()? else {
            return Ok(None);
        };
        let broken = |reason: String| TrainError::BrokenCheckpoint {
            path: folder.clone(),
            reason,
        };
        let path = folder.join(MANIFEST);
        let text = fs_err::read_to_string(&path)
            .map_err(|error| broken(format!("`{MANIFEST}` cannot be read: {error}")))?;
        let manifest: Manifest = serde_json::from_str(&text)
            .map_err(|error| broken(format!("`{MANIFEST}` is not what was written: {error}")))?;
        if manifest.format != FORMAT {
            return Err(TrainError::OtherCheckpointFormat {
                path: folder,
                found: manifest.format,
                reads: FORMAT,
            });
        }
        let mut networks = BTreeMap::new();
        for (name, expected) in &manifest.files {
            let path = folder.join(name);
            let found = hash(&path).map_err(|_| broken(format!("`{name}` cannot be read")))?;
            if found != *expected {
                return Err(broken(format!("`{name}` is not what was written")));
            }
            if let Some(network) = name.strip_suffix(TENSORS).filter(|it| !it.contains('/')) {
                let unreadable = |error: &dyn std::fmt::Display| {
                    broken(format!("`{name}` cannot be read: {error}"))
                };
                let (network, tensors) = if let Some(network) = network.strip_suffix(PACKED) {
                    let bytes = fs_err::read(&path).map_err(read_failed(&path))?;
                    let packed =
                        SafeTensors::deserialize(&bytes).map_err(|error| unreadable(&error))?;
                    let tensors = packing::unpack(&packed)
                        .ok_or_else(|| broken(format!("`{name}` is not as it was packed")))?;
                    (network, tensors)
                } else {
                    let tensors = SafetensorsFile::read(&path).and_then(|file| file.tensors());
                    (network, tensors.map_err(|error| unreadable(&error))?)
                };
                networks.insert(network.to_owned(), tensors);
            }
        }
        Ok(Some(Checkpoint {
            step: manifest.step,
            networks,
            memory: manifest.memory,
        }))
    }
}

/// A network's state for another run to begin with: its parameters, with the optimizer's moments at zero.
pub fn without_moments(mut state: BTreeMap<String, HostTensor>) -> BTreeMap<String, HostTensor> {
    for (name, tensor) in &mut state {
        if name.starts_with(crate::network::OPTIMIZER) {
            tensor.data_mut().fill(0.0);
        }
    }
    state
}

fn write_tensors<'a, T>(path: &Path, tensors: &'a BTreeMap<String, T>) -> Result<(), TrainError>
where
    &'a T: View,
{
    safetensors::serialize_to_file(tensors, None, path).map_err(|error| {
        let source = match error {
            safetensors::SafeTensorError::IoError(error) => error,
            other => io::Error::other(other),
        };
        write_failed(path)(source)
    })
}

pub(crate) fn write_failed(path: &Path) -> impl Fn(io::Error) -> TrainError {
    move |source| TrainError::Write {
        path: path.to_path_buf(),
        source,
    }
}

pub(crate) fn read_failed(path: &Path) -> impl Fn(io::Error) -> TrainError {
    move |source| TrainError::Read {
        path: path.to_path_buf(),
        source,
    }
}

fn remove(folder: &Path) -> Result<(), TrainError> {
    match fs_err::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(write_failed(folder)(error)),
        _ => Ok(()),
    }
}

/// A file's content or a folder's names, so that they survive a power cut.
fn sync(path: &Path) -> Result<(), TrainError> {
    fs_err::File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(write_failed(path))
}

fn hash(path: &Path) -> Result<String, TrainError> {
    let mut hasher = blake3::Hasher::new();
    fs_err::File::open(path)
        .and_then(|mut file| io::copy(&mut file, &mut hasher))
        .map_err(read_failed(path))?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Whether there is anything in a folder.
pub(crate) fn has_files(folder: &Path) -> bool {
    fs_err::read_dir(folder).is_ok_and(|mut files| files.next().is_some())
}

fn files_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs_err::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}
