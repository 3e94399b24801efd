//! A language model by name or path, with adapters on it: `MODEL+ADAPTER+…`.

use std::io;
use std::path::{Path, PathBuf};

use warpsmith_machine::{Caches, ProgressReporter};

use crate::catalogue::{self, KnownModel, ModelReference, Network};
use crate::policy::{ChatModel, RunsOn};
use crate::trained;
use crate::{Adapter, ModelConfig, ModelError};

/// Where a model is to come from; nothing of it need be here yet.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSource {
    base: ModelReference,
    /// The first lies lowest.
    adapters: Vec<PathBuf>,
}

/// A model that is on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocatedModel {
    pub path: PathBuf,
    /// Of the file, where it is known.
    pub hash: Option<String>,
    pub adapters: Vec<PathBuf>,
}

impl ModelSource {
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        let mut parts = text.split('+');
        let base = ModelReference::parse(parts.next().unwrap_or_default())?;
        let named = parts.filter(|part| *part != trained::NONE);
        let adapters = named.map(PathBuf::from).collect();
        Ok(Self { base, adapters })
    }

    /// Finds out what can be known without reading the base: an adapter that cannot be read, or one in the base's place.
    pub fn check(&self) -> Result<(), ModelError> {
        for adapter in &self.adapters {
            Adapter::load(adapter)?;
        }
        match &self.base {
            ModelReference::Path(path)
                if path.join("adapter_config.json").is_file()
                    && !path.join("config.json").is_file() =>
            {
                Err(ModelError::AdapterAlone { path: path.clone() })
            }
            ModelReference::Path(_) | ModelReference::Known(_) => Ok(()),
        }
    }

    /// Shape and size in bytes of the base.
    pub fn shape(&self) -> Result<(ModelConfig, u64), ModelError> {
        match &self.base {
            ModelReference::Known(model) => Ok((model.config.clone(), model.bytes)),
            ModelReference::Path(path) => {
                let bytes = bytes(path).map_err(|source| read_error(path, source))?;
                Ok((ModelConfig::read(path)?, bytes))
            }
        }
    }

    /// The model that would have to be fetched first.
    pub fn missing(&self, caches: &Caches) -> Option<&KnownModel> {
        match &self.base {
            ModelReference::Known(model) if !model.is_present(caches) => Some(model),
            ModelReference::Known(_) | ModelReference::Path(_) => None,
        }
    }

    /// Fetches the base if it must.
    pub fn locate(
        self,
        caches: &Caches,
        network: Network,
        progress: &dyn ProgressReporter,
    ) -> Result<LocatedModel, ModelError> {
        let (path, hash) = match self.base {
            ModelReference::Path(path) => (path, None),
            ModelReference::Known(model) => {
                let path = catalogue::pull(&model, caches, network, progress)?;
                (path, Some(model.sha256))
            }
        };
        Ok(LocatedModel {
            path,
            hash,
            adapters: self.adapters,
        })
    }
}

impl LocatedModel {
    /// What tells it from others, whatever they are called: of the model, then of each adapter.
    pub fn identity(&self) -> Result<Vec<String>, ModelError> {
        let of = |path: &Path| fingerprint(path).map_err(|source| read_error(path, source));
        let model = match &self.hash {
            Some(hash) => hash[..16].to_owned(),
            None => of(&self.path)?,
        };
        let mut all = vec![model];
        for adapter in &self.adapters {
            all.push(of(adapter)?);
        }
        Ok(all)
    }

    pub fn load(&self, name: &str, on: RunsOn) -> Result<ChatModel, ModelError> {
        ChatModel::load(name, &self.path, self.hash.clone(), &self.adapters, on)
    }
}

fn read_error(path: &Path, source: io::Error) -> ModelError {
    ModelError::Read {
        path: path.to_path_buf(),
        source,
    }
}

/// A file, or what a folder has of a model or an adapter: whatever else lies beside it changes nothing.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut files: Vec<PathBuf> = fs_err::read_dir(path)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<_>>()?;
    files.retain(|file| {
        let kind = file.extension().and_then(|kind| kind.to_str());
        file.is_file() && matches!(kind, Some("json" | "safetensors"))
    });
    files.sort();
    Ok(files)
}

fn bytes(path: &Path) -> io::Result<u64> {
    let sizes = files(path)?.into_iter();
    sizes.map(|file| Ok(fs_err::metadata(file)?.len())).sum()
}

fn fingerprint(path: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    for file in files(path)? {
        let mut read = fs_err::File::open(&file)?;
        hasher.update(&read.metadata()?.len().to_le_bytes());
        io::copy(&mut read, &mut hasher)?;
    }
    Ok(hasher.finalize().to_hex()[..16].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_alone_is_no_model() {
        let folder = tempfile::tempdir().unwrap();
        fs_err::write(folder.path().join("adapter_config.json"), "{}").unwrap();
        let source = ModelSource::parse(folder.path().to_str().unwrap()).unwrap();
        let refused = source.check().unwrap_err();
        let hint = format!("MODEL+{}", folder.path().display());
        assert!(refused.hint().unwrap().contains(&hint), "{refused}");
        // A merged model may keep its adapter's settings.
        fs_err::write(folder.path().join("config.json"), "{}").unwrap();
        assert!(source.check().is_ok());
    }

    #[test]
    fn identity_is_of_content_not_of_names() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, text).unwrap();
        };
        let identity = |name: &str| {
            let located = LocatedModel {
                path: folder.path().join(name),
                hash: None,
                adapters: Vec::new(),
            };
            located.identity().unwrap()
        };
        write("a/config.json", "{}");
        write("a/model.safetensors", "weights");
        write("b/config.json", "{}");
        write("b/model.safetensors", "weights");
        write("b/README.md", "about it");
        assert_eq!(identity("a"), identity("b"));
        write("b/model.safetensors", "others");
        assert_ne!(identity("a"), identity("b"));
    }
}
