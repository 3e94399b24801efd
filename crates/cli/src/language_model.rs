//! Language models of this process: fetched with a bar, and run where the flags say.

use warpsmith_machine::Caches;
use warpsmith_model::catalogue::Network;
use warpsmith_model::policy::{ChatModel, RunsOn};
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

/// Fetches it if it must.
pub(crate) fn load(
    name: &str,
    model_options: LocalModelOptions,
    printer: &Printer,
) -> Result<ChatModel, Stop> {
    let located = locate(name, model_options.offline, printer)?;
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
