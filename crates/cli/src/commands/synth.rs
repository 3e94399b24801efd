//! `warpsmith synth`

mod show;
mod summary;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use warpsmith_decontaminate::FingerprintIndex;
use warpsmith_judge::{Judge, JudgeConfig, JudgePool, LocalJudge};
use warpsmith_machine::memory_bytes;
use warpsmith_schema::{CONFIG_FORMAT, Failure, FailureKind, Profile, Rules, Target};
use warpsmith_store::{EventLog, RunFolder};
use warpsmith_synth::{
    CandidateRecord, DecontaminationSummary, FilterEnvironment, FilterError, GrammarComposer,
    LlmComposer, SeedCatalogue, SynthError, SynthPlan, SynthResources, SynthStopRequest,
    SynthSummary, TaskComposer, TaskGroup, TaskMix, TaskSet, transformer_layers,
};
use warpsmith_tasks::load_all;

use crate::args::{self, Count, IsolationChoice, MachineArgs, ModelOn, Positive, ShareBelowOne};
use crate::config::{ConfigArgs, Settings};
use crate::engine::{Engine, JudgingOptions};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::interrupt;
use crate::policy::{self, PolicySpec};
use crate::printer::Printer;
use show::Show;

/// The most memory a task may use on a GPU, where nothing else is said.
const GPU_BYTES: u64 = 24_000_000_000;
/// Judges that try tasks out side by side where a GPU is what they share.
const JUDGES_ON_A_GPU: u32 = 4;
const LOG: &str = "candidates";

/// Compose tasks that no benchmark contains
///
/// Candidates are composed, compared with `KernelBench`, run, compiled and timed; what is left is the set. The same command
/// with the same `--out` goes on where the run stopped, whatever stopped it. Ctrl-C finishes what is in hand; a second one
/// stops at once.
#[derive(Debug, Args)]
pub(crate) struct SynthArgs {
    // Before all other flags: it looks at which of them were given.
    #[command(flatten)]
    config: ConfigArgs,
    /// The run's folder, begun or resumed; else a new one below `runs/`
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    settings: SynthSettings,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(crate) struct SynthSettings {
    /// How many tasks to keep
    #[arg(long, value_name = "N", default_value = "200")]
    count: Count,
    /// The same seed composes the same candidates
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Shares by number of stacked operators, and of classes of transformers
    #[arg(long, value_name = "GROUP:SHARE,…", default_value_t)]
    mix: TaskMix,
    /// Share of tasks held out for validation, in whole families
    #[arg(long, value_name = "SHARE", default_value = "0.1")]
    validation: ShareBelowOne,
    /// Who composes
    #[arg(long, value_enum, default_value_t)]
    composer: ComposerChoice,
    /// The policy that `llm` asks: `local:MODEL`, `openai:MODEL` or `script:FILE`
    #[arg(long, value_name = "POLICY", default_value = policy::DEFAULT)]
    policy: String,
    /// Where an `openai:` policy is served, up to `/chat/completions`
    #[arg(
        long,
        value_name = "URL",
        env = "OPENAI_BASE_URL",
        default_value = "https://api.openai.com/v1"
    )]
    base_url: String,
    /// Where a `local:` policy runs
    #[arg(long, value_enum, default_value_t)]
    model_on: ModelOn,
    /// Milliseconds of an eager call, least and most
    #[arg(long, value_name = "LEAST..MOST", default_value_t)]
    window_ms: Window,
    /// The most memory a task may use; else 24 on a GPU, an eighth of the machine's on a CPU
    #[arg(long, value_name = "GB")]
    memory_gb: Option<Positive>,
    /// Do not check each task with the judge
    #[arg(long)]
    no_survey: bool,
    /// Also drop near-duplicates of these tasks: a folder or a JSONL
    #[arg(long, value_name = "DIR")]
    exclude: Vec<PathBuf>,
    /// Keep what is in `KernelBench` too; the set says so
    #[arg(long, conflicts_with = "exclude")]
    no_decontaminate: bool,
    /// Processes that screen and compile; else one for each core
    #[arg(long, value_name = "N")]
    workers: Option<Count>,
    /// What to do where a required protection cannot be had
    #[arg(long, value_enum, default_value_t)]
    isolation: IsolationChoice,
    #[command(flatten)]
    #[serde(flatten)]
    machine: MachineArgs,
}

impl Settings for SynthSettings {
    const VERB: &'static str = "synth";
    const TEXT: &'static str = include_str!("synth/default.toml");
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ComposerChoice {
    /// Stacks operators that fit, and writes down what the module computes
    #[default]
    Grammar,
    /// Asks a policy; what it writes is run in the sandbox only
    Llm,
}

/// Milliseconds, least and most.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Window {
    least: f64,
    most: f64,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            least: 1.0,
            most: 100.0,
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}..{}", self.least, self.most)
    }
}

impl FromStr for Window {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "must be two numbers such as `1..100`";
        let (least, most) = text.split_once("..").ok_or(wrong)?;
        let number = |text: &str| text.trim().parse::<f64>().map_err(|_| wrong);
        let (least, most) = (number(least)?, number(most)?);
        if least >= 0.0 && least < most && most.is_finite() {
            Ok(Self { least, most })
        } else {
            Err("must begin below its end")
        }
    }
}

impl From<Window> for String {
    fn from(window: Window) -> Self {
        window.to_string()
    }
}

impl TryFrom<String> for Window {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

pub(crate) fn run(args: &SynthArgs, printer: &Printer) -> Result<Exit, Stop> {
    let resolved = args.config.resolve(&args.settings)?;
    let settings = &resolved.settings;
    if let Some(exit) = args.config.print(settings, printer)? {
        return Ok(exit);
    }
    // What cannot be read is said before anything is fetched or begun.
    let excluded = settings.excluded()?;
    let spec = settings.policy_spec()?;
    let seeds = SeedCatalogue::torch().map_err(|error| broken_seeds(&error))?;
    let layers = transformer_layers().map_err(|error| broken_seeds(&error))?;
    let engine = Engine::prepare(&settings.machine, printer)?;
    let folder = folder(args, settings, &excluded, &engine)?;
    crate::runs::say_where(&folder, args.out.as_deref(), printer);

    let plan = settings.plan(&engine);
    let quotas = plan.mix.quotas(plan.count);
    let mut log = folder.log(LOG)?;
    let path = folder.path().join(format!("{LOG}.jsonl"));
    let before = EventLog::read_lines::<CandidateRecord>(&path)?.lines;
    let decontamination = DecontaminationSummary {
        done: !settings.no_decontaminate,
        excluded: excluded.len(),
    };
    let workshop = FilterEnvironment::new(
        engine.python.clone(),
        engine.target,
        settings.machine.device,
        &seeds,
    )
    .map_err(|error| synth_stop(SynthError::Filter(error)))?;
    let judges = match (settings.no_survey, engine.target) {
        (true, _) => 0,
        (false, Target::Cuda) => JUDGES_ON_A_GPU,
        (false, Target::Cpu) => 1,
    };
    let options = JudgeConfig {
        pool: Some(JudgePool::of(judges as usize)),
        ..engine.options(settings.judging_options())
    };
    let judges: Vec<Box<dyn Judge>> = (0..judges)
        .map(|_| Ok(Box::new(LocalJudge::start(options.clone())?) as Box<dyn Judge>))
        .collect::<Result<_, Stop>>()?;
    let mut composer: Box<dyn TaskComposer> = match &spec {
        None => Box::new(GrammarComposer {
            seeds: &seeds,
            layers: &layers,
            seed: settings.seed,
        }),
        Some(spec) => Box::new(LlmComposer {
            policy: match spec.fetch(printer)? {
                Some(policy) => policy,
                None => spec.ready_to_compose(before.len())?,
            },
            seeds: &seeds,
            seed: settings.seed,
        }),
    };
    let resources = SynthResources {
        composer: composer.as_mut(),
        environment: &workshop,
        isolation: settings.isolation.into(),
        judges,
        excluded,
        lease: engine.lease(),
        stop_requested,
    };
    interrupt::drain_first();
    let mut records = before.clone();
    let mut show = Show::new(printer, plan.count, &before);
    let outcome = warpsmith_synth::run(&plan, resources, &before, &mut |record, progress| {
        log.append(record).map_err(|error| error.failure())?;
        records.push(record.clone());
        show.update(record, progress);
        Ok(())
    });
    let pace = show.finish();

    // Whatever ended the run, the set is what was kept so far.
    let set = TaskSet::new(&records, settings.validation.into(), settings.seed);
    let summary = SynthSummary::new(&records, &quotas, &set, decontamination);
    let written = write(&set, &summary, folder.path());
    let stopped = match outcome {
        Ok(_) => None,
        Err(SynthError::Interrupted) => Some(Stop::interrupted()),
        Err(error) => Some(synth_stop(error)),
    };
    let stopped = stopped.or_else(|| written.err());
    if let Some(stop) = stopped {
        let kept = summary.kept;
        printer.note(&format!(
            "{kept} of {} tasks are in {}; the same command with `--out {}` goes on",
            summary.wanted,
            folder.path().join("tasks.jsonl").display(),
            folder.path().display()
        ));
        return Err(stop);
    }
    summary::report(&summary, &plan, &pace, folder.path(), printer)?;
    Ok(Exit::DONE)
}

fn stop_requested() -> SynthStopRequest {
    match (interrupt::killing(), interrupt::happened()) {
        (true, _) => SynthStopRequest::Abandon,
        (false, true) => SynthStopRequest::Drain,
        (false, false) => SynthStopRequest::GoOn,
    }
}

impl SynthSettings {
    /// What the set must not hold.
    fn excluded(&self) -> Result<FingerprintIndex, Stop> {
        if self.no_decontaminate {
            return Ok(FingerprintIndex::default());
        }
        let mut excluded = FingerprintIndex::kernelbench()?;
        for path in &self.exclude {
            excluded.extend(FingerprintIndex::of(&load_all(path)?)?);
        }
        Ok(excluded)
    }

    /// The policy that composes, if one does.
    fn policy_spec(&self) -> Result<Option<PolicySpec>, Stop> {
        if self.composer == ComposerChoice::Grammar {
            return Ok(None);
        }
        let model_options = args::LocalModelOptions {
            offline: self.machine.python.offline,
            on: self.model_on,
            device: self.machine.device,
        };
        PolicySpec::parse(&self.policy, &self.base_url, model_options).map(Some)
    }

    fn plan(&self, engine: &Engine) -> SynthPlan {
        let memory_bytes = match (self.memory_gb, engine.target) {
            (Some(memory), _) => (f64::from(memory) * 1e9) as u64,
            (None, Target::Cuda) => GPU_BYTES,
            (None, Target::Cpu) => memory_bytes() / 8,
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        SynthPlan {
            seed: self.seed,
            count: u32::from(self.count) as usize,
            mix: match self.composer {
                ComposerChoice::Grammar => self.mix.clone(),
                // Layers of libraries stay alone: there is nothing to compose.
                ComposerChoice::Llm => self.mix.clone().without(TaskGroup::Transformers),
            },
            window_ms: (self.window_ms.least, self.window_ms.most),
            memory_bytes,
            target: engine.target,
            device: engine.device_name(),
            workers: self
                .workers
                .map_or(cores, |workers| u32::from(workers) as usize),
        }
    }

    /// Nothing is compiled where a task is only tried out.
    fn judging_options(&self) -> JudgingOptions {
        JudgingOptions {
            profile: Profile::Rl,
            rules: Rules::Own,
            isolation: self.isolation.into(),
            compile_mode: None,
            seed: None,
        }
    }
}

/// Everything that decides what comes out names the run; how many processes work at it does not. Nor does how many tasks are
/// wanted: a set can grow.
fn folder(
    args: &SynthArgs,
    settings: &SynthSettings,
    excluded: &FingerprintIndex,
    engine: &Engine,
) -> Result<RunFolder, Stop> {
    let mut config = serde_json::to_value(settings)?;
    if let Value::Object(config) = &mut config {
        for name in ["count", "workers", "python", "offline", "model_on"] {
            config.remove(name);
        }
        config.insert("format".into(), json!(CONFIG_FORMAT));
        config.insert("verb".into(), json!("synth"));
        config.insert("target".into(), json!(engine.target));
        config.insert("excluded_tasks".into(), json!(excluded.len()));
    }
    let name = format!("{}-{}", engine.target.name(), u32::from(settings.count));
    Ok(match &args.out {
        Some(out) => RunFolder::at(out, &config)?,
        None => RunFolder::create_or_resume("runs".as_ref(), "synth", &name, &config)?,
    })
}

pub(super) fn broken_seeds(error: &warpsmith_synth::SeedError) -> Stop {
    let source = std::error::Error::source(error).map(ToString::to_string);
    let message = format!("{error}: {}", source.unwrap_or_default());
    Stop::config("seeds", message, None)
}

fn write(set: &TaskSet, summary: &SynthSummary, folder: &Path) -> Result<(), Stop> {
    let unwritten = |error: &dyn std::error::Error| {
        let message = format!(
            "the set could not be written to `{}`: {error}",
            folder.display()
        );
        let hint =
            "make room; what was kept is in the log, and the same command writes the set again";
        Stop(Failure {
            kind: FailureKind::Infrastructure,
            code: "io".into(),
            message,
            hint: Some(hint.into()),
        })
    };
    let text = serde_json::to_string_pretty(summary)? + "\n";
    set.write(folder)
        .and_then(|()| fs_err::write(folder.join("summary.json"), text))
        .map_err(|error| unwritten(&error))?;
    if cfg!(feature = "parquet") {
        set.write_parquet(folder)
            .map_err(|error| unwritten(&error))?;
    }
    Ok(())
}

fn synth_stop(error: SynthError) -> Stop {
    match error {
        SynthError::Judge(error) => error.into(),
        SynthError::Record(failure) => Stop(failure),
        SynthError::Exhausted(..) => Stop(Failure {
            kind: FailureKind::Config,
            code: "exhausted".into(),
            message: error.to_string(),
            hint: Some("widen `--window-ms` or `--memory-gb`, ask for fewer tasks, or use another `--seed`".into()),
        }),
        other => {
            let mut message = other.to_string();
            let mut source = std::error::Error::source(&other);
            while let Some(cause) = source {
                message = format!("{message}: {cause}");
                source = cause.source();
            }
            let code = match other {
                SynthError::Composer(_) => "policy",
                SynthError::Filter(FilterError::Lease(_)) => "lease",
                _ => "filter",
            };
            Stop(Failure {
                kind: FailureKind::Infrastructure,
                code: code.into(),
                message,
                hint: None,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_the_defaults() {
        crate::config::assert_text_says_the_defaults::<SynthSettings>();
    }

    #[test]
    fn windows() {
        let window: Window = "0.5..20".parse().unwrap();
        assert_eq!(window.to_string(), "0.5..20");
        for (text, why) in [
            ("5", "must be two numbers such as `1..100`"),
            ("a..b", "must be two numbers such as `1..100`"),
            ("20..1", "must begin below its end"),
        ] {
            assert_eq!(text.parse::<Window>(), Err(why), "{text}");
        }
    }
}
