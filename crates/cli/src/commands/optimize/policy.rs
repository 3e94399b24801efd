//! What `--policy` means.

use std::path::Path;

use warpsmith_model::policy::{OpenAi, Policy, PolicyError, Script};

use crate::args::Means;
use crate::failure::Stop;
use crate::printer::Printer;

const KINDS: &str = "policies are `local:MODEL`, `openai:MODEL` and `script:FILE`";

/// Who writes where nobody is named.
pub(super) const DEFAULT: &str = "local:qwen2.5-coder-1.5b";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Local,
    OpenAi,
    Script,
}

/// A policy by name, and where it may come from.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) kind: Kind,
    name: String,
    base_url: String,
    means: Means,
}

impl Wanted {
    /// Finds out what can be known at once: a name that is none, a server's address that is none, a broken script.
    pub(super) fn parse(policy: &str, base_url: &str, means: Means) -> Result<Self, Stop> {
        let (kind, name) = match policy.split_once(':') {
            Some(("local", name)) if !name.is_empty() => (Kind::Local, name),
            Some(("openai", name)) if !name.is_empty() => (Kind::OpenAi, name),
            Some(("script", name)) if !name.is_empty() => (Kind::Script, name),
            _ => {
                return Err(Stop::config(
                    "policy",
                    format!("there is no policy `{policy}`"),
                    Some(KINDS.to_owned()),
                ));
            }
        };
        let wanted = Self {
            kind,
            name: name.to_owned(),
            base_url: base_url.to_owned(),
            means,
        };
        match kind {
            Kind::Local => local::check(name)?,
            Kind::OpenAi | Kind::Script => drop(wanted.ready(0)?),
        }
        Ok(wanted)
    }

    /// Fetches weights if it must.
    pub(super) fn fetch(&self, printer: &Printer) -> Result<Option<Box<dyn Policy>>, Stop> {
        match self.kind {
            Kind::Local => local::open(&self.name, self.means, printer).map(Some),
            Kind::OpenAi | Kind::Script => Ok(None),
        }
    }

    /// A policy that needs no weights. A script goes on after the replies that it gave to the run before.
    pub(super) fn ready(&self, replies: usize) -> Result<Box<dyn Policy>, Stop> {
        if self.kind == Kind::Script {
            return match Script::open(Path::new(&self.name)) {
                Ok(script) => Ok(Box::new(script.after(replies))),
                Err(error) => Err(stop(&error)),
            };
        }
        let key = std::env::var("OPENAI_API_KEY").ok();
        let key = key.filter(|key| !key.is_empty());
        Ok(Box::new(OpenAi::new(&self.name, &self.base_url, key)?))
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
    use warpsmith_model::policy::{Local, Policy};

    use crate::args::Means;
    use crate::failure::Stop;
    use crate::language_model;
    use crate::printer::Printer;

    pub(super) use crate::language_model::check;

    pub(super) fn open(
        name: &str,
        means: Means,
        printer: &Printer,
    ) -> Result<Box<dyn Policy>, Stop> {
        let model = language_model::load(name, means, printer)?;
        Ok(Box::new(Local::new(model)))
    }
}

#[cfg(not(feature = "local-models"))]
mod local {
    use warpsmith_model::policy::Policy;

    use crate::args::Means;
    use crate::failure::Stop;
    use crate::printer::Printer;

    pub(super) fn check(name: &str) -> Result<(), Stop> {
        Err(absent(name))
    }

    pub(super) fn open(name: &str, _: Means, _: &Printer) -> Result<Box<dyn Policy>, Stop> {
        Err(absent(name))
    }

    fn absent(name: &str) -> Stop {
        Stop::config(
            "policy",
            format!(
                "this program was built without models of its own, so there is no `local:{name}`"
            ),
            Some("build it with `--features local-models`, or use an `openai:` policy".to_owned()),
        )
    }
}
