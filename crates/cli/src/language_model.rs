//! Language models of this process: fetched with a bar, and run where the flags say.

use warpsmith_machine::Caches;
use warpsmith_model::catalogue::Network;
use warpsmith_model::policy::{ChatModel, RunsOn};
use warpsmith_model::trained::{FOLDER_VARIABLE, TrainedAdapter};
use warpsmith_model::{LocatedModel, ModelError, ModelSource};

use crate::args::{LocalModelOptions, ModelOn};
use crate::failure::Stop;
use crate::printer::Printer;
use crate::render::size;

/// Finds out what can be known without reading the model.
pub(crate) fn check(name: &str) -> Result<(), Stop> {
    Ok(ModelSource::parse(name)?.check()?)
}

/// Fetches it if it must.
pub(crate) fn locate(name: &str, offline: bool, printer: &Printer) -> Result<LocatedModel, Stop> {
    let source = ModelSource::parse(name)?;
    let caches = Caches::locate()?;
    let network = if offline {
        Network::Offline
    } else {
        Network::Allowed
    };
    if let (Network::Allowed, Some(model)) = (network, source.missing(&caches)) {
        let (about, size) = (model.description, size(model.bytes));
        printer.note(&format!("fetching {about}: {size}"));
    }
    Ok(source.locate(&caches, network, printer.progress().as_ref())?)
}

/// Whether a policy of this name has an adapter of ours on it.
pub(crate) fn is_trained(name: &str) -> Result<bool, Stop> {
    let Some(adapter) = TrainedAdapter::of(name) else {
        return Ok(false);
    };
    let models = Caches::locate()?.models();
    Ok(adapter.locate(&models)?.is_some())
}

/// As a policy: a model of the catalogue has the adapter on it that was trained for it. Fetches weights if it must.
pub(crate) fn load(
    name: &str,
    model_options: LocalModelOptions,
    printer: &Printer,
) -> Result<ChatModel, Stop> {
    let mut located = locate(name, model_options.offline, printer)?;
    if let Some(adapter) = TrainedAdapter::of(name) {
        let models = Caches::locate()?.models();
        match adapter.locate(&models)? {
            Some(folder) => located.adapters.push(folder),
            None => printer.note(&format!(
                "the adapter that was trained for `{name}` is not here, so the model answers without it: copy `adapters/{name}` \
                 of the source tree (sha256 {}) to `{}`, or name its folder's parent in {FOLDER_VARIABLE}",
                adapter.sha256,
                adapter.usual_folder(&models).display()
            )),
        }
    }
    let load = |on| located.load(name, on);
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
