//! The adapters that we trained for models of the catalogue, and where they are looked for.
//!
//! They come with the source tree, in `adapters/MODEL/`. A policy `local:MODEL` has its adapter on it where it is found;
//! `local:MODEL+none` is the model as its makers left it. What is found is checked by its hash, like any weights we fetch.

use std::io;
use std::path::{Path, PathBuf};

use crate::ModelError;
use sha2::{Digest, Sha256};

/// The environment variable that names a folder of adapters.
pub const FOLDER_VARIABLE: &str = "WARPSMITH_ADAPTERS";

/// The word after `+` that asks for the model alone.
pub(crate) const NONE: &str = "none";

const TENSORS: &str = "adapter_model.safetensors";

/// An adapter of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainedAdapter {
    pub model: &'static str,
    /// Of `adapter_model.safetensors`.
    pub sha256: &'static str,
    pub bytes: u64,
}

/// All of them.
const TRAINED: &[TrainedAdapter] = &[TrainedAdapter {
    model: "qwen2.5-coder-1.5b",
    sha256: "403f8e41c208e47f3d12580db19f399b8026736d62af3147da0181edbdcfed1d",
    bytes: 18_588_272,
}];

impl TrainedAdapter {
    pub fn of(model: &str) -> Option<Self> {
        TRAINED
            .iter()
            .copied()
            .find(|adapter| adapter.model == model)
    }

    /// Where to put it by hand, below the folder of models.
    pub fn usual_folder(&self, models: &Path) -> PathBuf {
        models.join("adapters").join(self.model)
    }

    /// The folder it lies in, checked; `None` where it is nowhere.
    pub fn locate(&self, models: &Path) -> Result<Option<PathBuf>, ModelError> {
        let program = std::env::current_exe().ok();
        let named = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty());
        let beside = program.iter().flat_map(|path| path.ancestors().skip(1));
        // A build lies three folders below its checkout: `target/release/warpsmith`, its tests one deeper.
        let checkouts = beside.take(4).map(|folder| folder.join("adapters"));
        let folders = named.map(PathBuf::from).into_iter().chain(checkouts);
        let candidates = folders.map(|folder| folder.join(self.model));
        for folder in candidates.chain([self.usual_folder(models)]) {
            if folder.join(TENSORS).is_file() {
                self.check(&folder)?;
                return Ok(Some(folder));
            }
        }
        Ok(None)
    }

    fn check(&self, folder: &Path) -> Result<(), ModelError> {
        let path = folder.join(TENSORS);
        let found = sha256(&path).map_err(|source| ModelError::Read {
            path: path.clone(),
            source,
        })?;
        if found == self.sha256 {
            return Ok(());
        }
        Err(ModelError::Altered {
            path,
            model: self.model,
            expected: self.sha256,
        })
    }
}

fn sha256(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut fs_err::File::open(path)?, &mut hasher)?;
    Ok(format!("{:x}", hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_altered_adapter_is_refused_and_an_absent_one_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let adapter = TrainedAdapter {
            model: "a-model",
            // Of the bytes `abc`.
            sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            bytes: 3,
        };
        let models = folder.path();
        assert_eq!(adapter.locate(models).unwrap(), None);
        let place = adapter.usual_folder(models);
        fs_err::create_dir_all(&place).unwrap();
        fs_err::write(place.join(TENSORS), "abc").unwrap();
        assert_eq!(adapter.locate(models).unwrap(), Some(place.clone()));
        fs_err::write(place.join(TENSORS), "abd").unwrap();
        let refused = adapter.locate(models).unwrap_err();
        assert!(matches!(refused, ModelError::Altered { .. }));
        assert!(refused.hint().unwrap().contains("a-model+none"));
    }

    #[test]
    fn the_adapters_of_this_tree_are_the_ones_that_are_named() {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../adapters");
        for adapter in TRAINED {
            let folder = tree.join(adapter.model);
            adapter.check(&folder).unwrap();
            let file = fs_err::metadata(folder.join(TENSORS)).unwrap();
            assert_eq!(file.len(), adapter.bytes);
            crate::catalogue::find(adapter.model).unwrap();
        }
    }
}
