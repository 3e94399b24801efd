//! Language models of this process, by name or path.

use std::path::PathBuf;

use warpsmith_machine::Caches;
use warpsmith_model::catalogue::{self, Network, Reference};
use warpsmith_model::policy::{ChatModel, RunsOn};
use warpsmith_model::{Adapter, ModelError};

use crate::args::{Means, ModelOn};
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
    Ok(Reference::parse(model).map(drop)?)
}

/// A model that is on this machine.
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    /// Of the file, where it is known.
    pub(crate) hash: Option<String>,
    pub(crate) adapters: Vec<PathBuf>,
}

impl Found {
    /// The file's or folder's, for people.
    pub(crate) fn name(&self) -> String {
        let stem = self.path.file_stem().unwrap_or_default();
        stem.to_string_lossy().into_owned()
    }
}

/// Fetches it if it must.
pub(crate) fn find(name: &str, offline: bool, printer: &Printer) -> Result<Found, Stop> {
    let (model, adapters) = parts(name);
    let (path, hash) = match Reference::parse(model)? {
        Reference::Path(path) => (path, None),
        Reference::Known(model) => {
            let caches = Caches::locate()?;
            if !model.is_present(&caches) {
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
            (path, Some(model.sha256))
        }
    };
    Ok(Found {
        path,
        hash,
        adapters,
    })
}

/// Fetches it if it must.
pub(crate) fn load(name: &str, means: Means, printer: &Printer) -> Result<ChatModel, Stop> {
    let Found {
        path,
        hash,
        adapters,
    } = find(name, means.offline, printer)?;
    let load = |on| ChatModel::load(name, &path, hash.clone(), &adapters, on);
    let gpu = RunsOn::Gpu(means.device as usize);
    let loaded = match means.on {
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
