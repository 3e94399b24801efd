//! What `--policy` means.

use std::path::Path;

use warpsmith_model::policy::{OpenAi, Policy, PolicyError, Script};

use crate::failure::Stop;
use crate::printer::Printer;

const KINDS: &str = "policies are `local:MODEL`, `openai:MODEL` and `script:FILE`";

/// A policy by name, and where it may come from.
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) base_url: &'a str,
    pub(super) offline: bool,
}

pub(super) fn open(wanted: &Wanted<'_>, printer: &Printer) -> Result<Box<dyn Policy>, Stop> {
    match wanted.name.split_once(':') {
        Some(("local", model)) if !model.is_empty() => local::open(model, wanted.offline, printer),
        Some(("openai", model)) if !model.is_empty() => {
            let key = std::env::var("OPENAI_API_KEY").ok();
            let key = key.filter(|key| !key.is_empty());
            Ok(Box::new(OpenAi::new(model, wanted.base_url, key)?))
        }
        Some(("script", path)) if !path.is_empty() => Script::open(Path::new(path))
            .map(|script| Box::new(script) as Box<dyn Policy>)
            .map_err(|error| stop(&error)),
        _ => Err(Stop::config(
            "policy",
            format!("there is no policy `{}`", wanted.name),
            Some(KINDS.to_owned()),
        )),
    }
}

fn stop(error: &PolicyError) -> Stop {
    let mut message = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        message = format!("{message}: {source}");
    }
    Stop::config("policy", message, error.hint().map(str::to_owned))
}

#[cfg(feature = "local-models")]
mod local {
    use warpsmith_machine::Caches;
    use warpsmith_model::catalogue::{self, Network, Reference};
    use warpsmith_model::policy::{Local, Policy};

    use crate::failure::Stop;
    use crate::printer::Printer;
    use crate::render::size;

    pub(super) fn open(
        name: &str,
        offline: bool,
        printer: &Printer,
    ) -> Result<Box<dyn Policy>, Stop> {
        let (path, hash) = match Reference::parse(name)? {
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
        Ok(Box::new(Local::load(name, &path, hash)?))
    }
}

#[cfg(not(feature = "local-models"))]
mod local {
    use warpsmith_model::policy::Policy;

    use crate::failure::Stop;
    use crate::printer::Printer;

    pub(super) fn open(name: &str, _: bool, _: &Printer) -> Result<Box<dyn Policy>, Stop> {
        Err(Stop::config(
            "policy",
            format!(
                "this program was built without models of its own, so there is no `local:{name}`"
            ),
            Some("build it with `--features local-models`, or use an `openai:` policy".to_owned()),
        ))
    }
}
