//! What `--policy` means.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use warpsmith_compiler::SolutionFiles;
use warpsmith_machine::SharedDevice;
use warpsmith_model::policy::{OpenAiPolicy, Policy, PolicyError, ScriptPolicy, SharedPolicy};
use warpsmith_schema::{EpisodeMode, Task};
use warpsmith_synth::teacher::{self, Teacher};
use warpsmith_tasks::{CaptureError, capture_graphs};

use crate::args::LocalModelOptions;
use crate::engine::Engine;
use crate::failure::Stop;
use crate::printer::Printer;

const KINDS: &str =
    "policies are `local:MODEL`, `openai:MODEL`, `compiler`, `teacher` and `script:FILE`";

/// Who writes where nobody is named.
pub(crate) const DEFAULT: &str = "local:qwen2.5-coder-1.5b";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Local,
    OpenAi,
    Script,
    Teacher,
    Compiler,
}

/// What a policy is asked about: one that reads more of a task than its text is told beforehand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PolicyContext<'a> {
    pub(crate) tasks: &'a [Task],
    pub(crate) engine: &'a Engine,
    pub(crate) mode: EpisodeMode,
    /// Solutions for the policy `compiler` that measuring found, by task.
    pub(crate) tuned: Option<&'a HashMap<String, SolutionFiles>>,
}

/// How many conversations a model of this process holds at the same time.
pub(crate) fn conversations(model_options: LocalModelOptions) -> usize {
    local::concurrency(model_options)
}

/// A language model in memory.
pub(crate) struct Weights(local::Model);

/// A policy by name, and where it may come from.
#[derive(Debug, Clone)]
pub(crate) struct PolicySpec {
    pub(crate) kind: Kind,
    name: String,
    base_url: String,
    model_options: LocalModelOptions,
}

impl PolicySpec {
    /// Finds out what can be known at once: a name that is none, a server's address that is none, a broken script.
    pub(crate) fn parse(
        policy: &str,
        base_url: &str,
        model_options: LocalModelOptions,
    ) -> Result<Self, Stop> {
        let (kind, name) = match policy.split_once(':') {
            Some(("local", name)) if !name.is_empty() => (Kind::Local, name),
            Some(("openai", name)) if !name.is_empty() => (Kind::OpenAi, name),
            Some(("script", name)) if !name.is_empty() => (Kind::Script, name),
            None if policy == teacher::NAME => (Kind::Teacher, policy),
            None if policy == teacher::COMPILER => (Kind::Compiler, policy),
            _ => {
                return Err(Stop::config(
                    "policy",
                    format!("there is no policy `{policy}`"),
                    Some(KINDS.to_owned()),
                ));
            }
        };
        let spec = Self {
            kind,
            name: name.to_owned(),
            base_url: base_url.to_owned(),
            model_options,
        };
        match kind {
            Kind::Local => local::check(name)?,
            Kind::OpenAi => drop(spec.endpoint()?),
            Kind::Script => drop(spec.script()?),
            Kind::Teacher | Kind::Compiler => {}
        }
        Ok(spec)
    }

    /// The model or the script, without its kind.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is a model with an adapter of ours, which was trained with the short prompt.
    pub(crate) fn is_trained(&self) -> Result<bool, Stop> {
        match self.kind {
            Kind::Local => local::is_trained(&self.name),
            Kind::OpenAi | Kind::Script | Kind::Teacher | Kind::Compiler => Ok(false),
        }
    }

    /// How many conversations to hold at the same time, with so many judges.
    pub(crate) fn concurrency(&self, judges: usize) -> usize {
        match self.kind {
            Kind::OpenAi => 16,
            Kind::Local => conversations(self.model_options),
            // It answers at once: one is judged, one waits.
            Kind::Script | Kind::Teacher | Kind::Compiler => 2 * judges,
        }
    }

    /// Fetches weights if it must.
    pub(crate) fn fetch(&self, printer: &Printer) -> Result<Option<Box<dyn Policy>>, Stop> {
        match self.kind {
            Kind::Local => {
                let model = local::load(&self.name, self.model_options, printer)?;
                Ok(Some(Box::new(local::start(model, None)?)))
            }
            Kind::OpenAi | Kind::Script | Kind::Teacher | Kind::Compiler => Ok(None),
        }
    }

    /// A policy that needs no weights, to be asked for tasks rather than about one. A script goes on after the replies that it
    /// gave to the run before.
    pub(crate) fn ready_to_compose(&self, replies: usize) -> Result<Box<dyn Policy>, Stop> {
        Ok(match self.kind {
            Kind::Script => Box::new(self.script()?.after(replies)),
            Kind::Local | Kind::OpenAi => Box::new(self.endpoint()?),
            Kind::Teacher | Kind::Compiler => {
                let message = format!("`{}` solves tasks, it does not compose them", self.name);
                let hint = "leave out `--policy` to have the grammar compose";
                return Err(Stop::config("policy", message, Some(hint.to_owned())));
            }
        })
    }

    /// Fetches and loads weights, where the policy has any. The longest part of having a policy.
    pub(crate) fn load_weights(&self, printer: &Printer) -> Result<Option<Weights>, Stop> {
        match self.kind {
            Kind::Local => Ok(Some(Weights(local::load(
                &self.name,
                self.model_options,
                printer,
            )?))),
            Kind::OpenAi | Kind::Script | Kind::Teacher | Kind::Compiler => Ok(None),
        }
    }

    /// For many episodes at once, with weights that were loaded before. A model of this process rests while `guest`'s device is
    /// somebody's alone.
    pub(crate) fn share(
        &self,
        weights: Option<Weights>,
        context: PolicyContext<'_>,
        guest: SharedDevice,
        printer: &Printer,
    ) -> Result<Arc<dyn SharedPolicy>, Stop> {
        Ok(match (self.kind, weights) {
            (_, Some(Weights(model))) => Arc::new(local::start(model, Some(guest))?),
            (Kind::Script, None) => Arc::new(self.script()?),
            (Kind::Teacher | Kind::Compiler, None) => {
                let (tasks, reasons) = with_graphs(context.tasks, context.engine, printer)?;
                let teacher = Teacher::new(&tasks, context.engine.target, context.mode);
                let teacher = teacher.with_reasons(reasons);
                Arc::new(match self.kind {
                    Kind::Compiler => teacher
                        .without_bugs()
                        .with_tuned(context.tuned.cloned().unwrap_or_default()),
                    _ => teacher,
                })
            }
            (Kind::OpenAi | Kind::Local, None) => Arc::new(self.endpoint()?),
        })
    }

    /// The same, loading weights first where there are any.
    pub(crate) fn shared(
        &self,
        context: PolicyContext<'_>,
        guest: SharedDevice,
        printer: &Printer,
    ) -> Result<Arc<dyn SharedPolicy>, Stop> {
        let weights = self.load_weights(printer)?;
        self.share(weights, context, guest, printer)
    }

    fn script(&self) -> Result<ScriptPolicy, Stop> {
        ScriptPolicy::open(Path::new(&self.name)).map_err(|error| stop(&error))
    }

    fn endpoint(&self) -> Result<OpenAiPolicy, Stop> {
        let key = std::env::var("OPENAI_API_KEY").ok();
        let key = key.filter(|key| !key.is_empty());
        Ok(OpenAiPolicy::new(&self.name, &self.base_url, key)?)
    }
}

/// Tasks that came without a graph get the one of their module. One whose module has none stays as it is, which is said: it is not
/// covered.
fn with_graphs(
    tasks: &[Task],
    engine: &Engine,
    printer: &Printer,
) -> Result<(Vec<Task>, HashMap<String, String>), Stop> {
    let (mut tasks, mut reasons) = (tasks.to_vec(), HashMap::new());
    for (id, reason) in capture_graphs(&mut tasks, &engine.python, &engine.caches)? {
        let reason = match reason {
            CaptureError::NotCaptured(reason) => match reason.line {
                Some(line) => format!("line {line}: {reason}"),
                None => reason.to_string(),
            },
            other => other.to_string(),
        };
        printer.note(&format!("`{id}` has no graph: {reason}"));
        reasons.insert(id, reason);
    }
    Ok((tasks, reasons))
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
    use warpsmith_machine::SharedDevice;
    use warpsmith_model::policy::{LocalPolicy, RunsOn};

    use crate::args::{LocalModelOptions, ModelOn};
    use crate::failure::Stop;

    pub(super) use crate::language_model::{check, is_trained, load};
    pub(super) use warpsmith_model::policy::ChatModel as Model;

    pub(super) fn start(model: Model, guest: Option<SharedDevice>) -> Result<LocalPolicy, Stop> {
        Ok(LocalPolicy::start(model, guest)?)
    }

    /// Each conversation has its keys and values in memory.
    pub(super) fn concurrency(model_options: LocalModelOptions) -> usize {
        match model_options.on {
            ModelOn::Gpu => 48,
            ModelOn::Auto if RunsOn::may_have_gpu() => 48,
            ModelOn::Auto | ModelOn::Cpu => 8,
        }
    }
}

#[cfg(not(feature = "local-models"))]
mod local {
    use warpsmith_machine::SharedDevice;
    use warpsmith_model::policy::ScriptPolicy;

    use crate::args::LocalModelOptions;
    use crate::failure::Stop;
    use crate::printer::Printer;

    pub(super) fn check(name: &str) -> Result<(), Stop> {
        Err(absent(name))
    }

    pub(super) fn is_trained(name: &str) -> Result<bool, Stop> {
        Err(absent(name))
    }

    pub(super) fn concurrency(_: LocalModelOptions) -> usize {
        1
    }

    /// There is never one.
    pub(super) type Model = std::convert::Infallible;

    pub(super) fn load(name: &str, _: LocalModelOptions, _: &Printer) -> Result<Model, Stop> {
        Err(absent(name))
    }

    /// A script has the place of the type that is not there.
    pub(super) fn start(model: Model, _: Option<SharedDevice>) -> Result<ScriptPolicy, Stop> {
        match model {}
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
