//! Language models of this process, by name or path.

use std::io;
use std::path::{Path, PathBuf};

use warpsmith_machine::Caches;
use warpsmith_model::catalogue::{self, ModelReference, Network};
use warpsmith_model::policy::{ChatModel, RunsOn};
use warpsmith_model::{Adapter, ModelConfig, ModelError};

use crate::args::{LocalModelOptions, ModelOn};
use crate::failure::Stop;
use crate::printer::Printer;
use crate::render::size;

/// `MODEL+ADAPTER+…`
fn parts(name: &str) -> (&str, Vec<PathBuf>) {
    let mut parts = name.split('+');
    let model = parts.next().unwrap_or_default();
    (model, parts.map(PathBuf::from).collect())
}

/// Finds out what can be known without reading the model.
pub(crate) fn check(name: &str) -> Result<(), Stop> {
    let (model, adapters) = parts(name);
    for adapter in adapters {
        Adapter::load(&adapter)?;
    }
    if let ModelReference::Path(path) = ModelReference::parse(model)?
        && path.join("adapter_config.json").is_file()
        && !path.join("config.json").is_file()
    {
        let message = format!("`{}` is an adapter, not a model", path.display());
        let hint = format!("name the model before it: `MODEL+{}`", path.display());
        return Err(Stop::config("model", message, Some(hint)));
    }
    Ok(())
}

/// A model that is on this machine.
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    /// Of the file, where it is known.
    pub(crate) hash: Option<String>,
    pub(crate) adapters: Vec<PathBuf>,
}

impl Found {
    /// What tells it from others, whatever they are called: of the model, then of each adapter.
    pub(crate) fn identity(&self) -> Result<Vec<String>, Stop> {
        let model = match &self.hash {
            Some(hash) => hash[..16].to_owned(),
            None => fingerprint(&self.path)?,
        };
        let mut all = vec![model];
        for adapter in &self.adapters {
            all.push(fingerprint(adapter)?);
        }
        Ok(all)
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

fn fingerprint(path: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    for file in files(path)? {
        let mut read = fs_err::File::open(&file)?;
        hasher.update(&read.metadata()?.len().to_le_bytes());
        io::copy(&mut read, &mut hasher)?;
    }
    Ok(hasher.finalize().to_hex()[..16].to_owned())
}

/// Its shape, and its size in bytes, as far as they can be known without reading or fetching it.
pub(crate) fn shape(name: &str) -> Result<(ModelConfig, u64), Stop> {
    match ModelReference::parse(parts(name).0)? {
        ModelReference::Known(model) => Ok((model.config.clone(), model.bytes)),
        ModelReference::Path(path) => Ok((ModelConfig::read(&path)?, bytes(&path)?)),
    }
}

fn bytes(path: &Path) -> io::Result<u64> {
    let sizes = files(path)?.into_iter();
    sizes.map(|file| Ok(fs_err::metadata(file)?.len())).sum()
}

/// Fetches it if it must.
pub(crate) fn find(name: &str, offline: bool, printer: &Printer) -> Result<Found, Stop> {
    let (model, adapters) = parts(name);
    let (path, hash) = match ModelReference::parse(model)? {
        ModelReference::Path(path) => (path, None),
        ModelReference::Known(model) => {
            let caches = Caches::locate()?;
            if !offline && !model.is_present(&caches) {
                printer.note(&format!(
                    "fetching {}: {}",
                    model.description,
                    size(model.bytes)
                ));
            }
            let network = if offline {
                Network::Offline
            } else {
                Network::Allowed
            };
            let path = catalogue::pull(&model, &caches, network, printer.progress().as_ref())?;
            (path, Some(model.sha256.clone()))
        }
    };
    Ok(Found {
        path,
        hash,
        adapters,
    })
}

/// Fetches it if it must.
pub(crate) fn load(
    name: &str,
    model_options: LocalModelOptions,
    printer: &Printer,
) -> Result<ChatModel, Stop> {
    let Found {
        path,
        hash,
        adapters,
    } = find(name, model_options.offline, printer)?;
    let load = |on| ChatModel::load(name, &path, hash.clone(), &adapters, on);
    let gpu = RunsOn::Gpu(model_options.device as usize);
    let loaded = match model_options.on {
        ModelOn::Gpu => load(gpu),
        ModelOn::Auto if RunsOn::may_have_gpu() => load(gpu).or_else(|error| match error {
            ModelError::Gpu(_) | ModelError::GpuMemory { .. } => {
                printer.note(&format!("`{name}` runs on the processor: {error}"));
                load(RunsOn::Processor)
            }
            other => Err(other),
        }),
        ModelOn::Cpu | ModelOn::Auto => load(RunsOn::Processor),
    };
    Ok(loaded?)
}
