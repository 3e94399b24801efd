//! What `--policy` means.

use std::path::Path;

use warpsmith_model::policy::{OpenAi, Policy, PolicyError, Script};

use crate::failure::Stop;

const KINDS: &str = "policies are `openai:MODEL` and `script:FILE`";

pub(super) fn open(name: &str, base_url: &str) -> Result<Box<dyn Policy>, Stop> {
    match name.split_once(':') {
        Some(("openai", model)) if !model.is_empty() => {
            let key = std::env::var("OPENAI_API_KEY").ok();
            let key = key.filter(|key| !key.is_empty());
            Ok(Box::new(OpenAi::new(model, base_url, key)?))
        }
        Some(("script", path)) if !path.is_empty() => Script::open(Path::new(path))
            .map(|script| Box::new(script) as Box<dyn Policy>)
            .map_err(|error| stop(&error)),
        _ => Err(Stop::config(
            "policy",
            format!("there is no policy `{name}`"),
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
