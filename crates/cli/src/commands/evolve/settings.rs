//! What `evolve` can be told.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use warpsmith_model::policy::SamplingParams;
use warpsmith_schema::{CONFIG_FORMAT, Profile, Target, Task};
use warpsmith_search::{SearchBudget, SearchStart, TokenPrice};
use warpsmith_store::RunFolder;
use warpsmith_tasks::load_solution;

use crate::args::{
    Count, IsolationChoice, LocalModelOptions, MachineArgs, ModelOn, NotNegative, Positive,
    RulesChoice, TargetChoice,
};
use crate::config::{Settings, object};
use crate::engine::JudgingOptions;
use crate::failure::Stop;
use crate::policy::{Kind, PolicySpec};

const COMPILER: &str = "compiler";
const NOTHING: &str = "none";
/// Candidates of a batch where policies write: fewer would leave judges without work.
const USUAL_BATCH: u32 = 4;

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(super) struct EvolveSettings {
    /// What to start from: `compiler`, `none`, or the folder of a solution of your own
    #[arg(long, value_name = "START", default_value = COMPILER)]
    start: String,
    /// Who writes beside the tuning of parameters: `local:MODEL`, `openai:MODEL` or `script:FILE`; may be repeated
    #[arg(long, value_name = "POLICY")]
    pub(super) policy: Vec<String>,
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
    /// Stop after so many judgements; the finish comes on top
    #[arg(
        long,
        value_name = "N",
        default_value = "100",
        allow_negative_numbers = true,
        help_heading = "Budget"
    )]
    pub(super) judgements: Count,
    /// Stop after this many minutes, all processes together; the finish comes on top
    #[arg(
        long,
        value_name = "M",
        allow_negative_numbers = true,
        help_heading = "Budget"
    )]
    minutes: Option<Positive>,
    /// Stop once the policies have cost this much
    #[arg(
        long,
        value_name = "D",
        allow_negative_numbers = true,
        help_heading = "Budget"
    )]
    dollars: Option<Positive>,
    /// Dollars for a million prompt and completion tokens of a policy; may be repeated
    #[arg(long, value_name = "POLICY=IN,OUT", help_heading = "Budget")]
    price: Vec<String>,
    /// Parts of the archive that see one another only by migration
    #[arg(
        long,
        value_name = "N",
        default_value = "3",
        allow_negative_numbers = true,
        help_heading = "Search"
    )]
    pub(super) islands: Count,
    /// The best of an island goes on to the next after so many candidates of each
    #[arg(
        long,
        value_name = "N",
        default_value = "10",
        allow_negative_numbers = true,
        help_heading = "Search"
    )]
    pub(super) migrate_every: Count,
    /// Candidates made from the same archive; else as many as judges, and at least 4 with a policy
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        help_heading = "Search"
    )]
    batch: Option<Count>,
    /// Judges side by side; else 4 that share a GPU, and 1 on a CPU
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        help_heading = "Search"
    )]
    pub(super) judges: Option<Count>,
    /// How many of the best are measured afresh in the end
    #[arg(
        long,
        value_name = "N",
        default_value = "3",
        allow_negative_numbers = true,
        help_heading = "Search"
    )]
    pub(super) finalists: Count,
    /// How often each of them is measured
    #[arg(
        long,
        value_name = "N",
        default_value = "3",
        allow_negative_numbers = true,
        help_heading = "Search"
    )]
    pub(super) rounds: Count,
    /// Every choice follows from it
    #[arg(long, value_name = "S", default_value_t = 0, help_heading = "Search")]
    pub(super) seed: u64,
    /// Sampling temperature; 0 is greedy
    #[arg(
        long,
        value_name = "T",
        default_value = "0.7",
        allow_negative_numbers = true,
        help_heading = "Search"
    )]
    temperature: NotNegative,
    /// Maximum tokens of a reply
    #[arg(
        long,
        value_name = "N",
        default_value = "4096",
        help_heading = "Search"
    )]
    max_tokens: Count,
    /// `own`: kernels compute all of `forward`; `mixed`: PyTorch may compute the rest
    #[arg(long, value_enum, default_value_t)]
    rules: RulesChoice,
    /// Do not measure `torch.compile`
    #[arg(long)]
    no_compile: bool,
    /// What to do where a required protection cannot be had
    #[arg(long, value_enum, default_value_t)]
    isolation: IsolationChoice,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) machine: MachineArgs,
}

impl Settings for EvolveSettings {
    const VERB: &'static str = "evolve";
    const TEXT: &'static str = include_str!("default.toml");
}

impl EvolveSettings {
    /// The policies, each with what it costs.
    pub(super) fn policies(&self) -> Result<Vec<(PolicySpec, TokenPrice)>, Stop> {
        let prices = self.prices()?;
        let options = LocalModelOptions {
            offline: self.machine.python.offline,
            on: self.model_on,
            device: self.machine.device,
        };
        let mut found = Vec::new();
        for (place, name) in self.policy.iter().enumerate() {
            if self.policy[..place].contains(name) {
                let message = format!("policy `{name}` is given twice");
                return Err(Stop::config("policy", message, None));
            }
            let spec = PolicySpec::parse(name, &self.base_url, options)?;
            if matches!(spec.kind, Kind::Teacher | Kind::Compiler) {
                let message = format!(
                    "`{name}` writes the compiler's solutions, which the search starts from"
                );
                let hint = "leave it out: `--start compiler` is the default".to_owned();
                return Err(Stop::config("policy", message, Some(hint)));
            }
            let price = prices
                .iter()
                .find(|(policy, _)| policy == name)
                .map(|(_, price)| *price);
            if self.dollars.is_some() && spec.kind == Kind::OpenAi && price.is_none() {
                let message = format!("`--dollars` needs the price of `{name}`");
                let hint = format!("give `--price {name}=IN,OUT`, dollars for a million tokens");
                return Err(Stop::config("price", message, Some(hint)));
            }
            found.push((spec, price.unwrap_or_default()));
        }
        if let Some((policy, _)) = prices
            .iter()
            .find(|(policy, _)| !self.policy.contains(policy))
        {
            let message = format!("`--price` names `{policy}`, which is no `--policy`");
            return Err(Stop::config("price", message, None));
        }
        Ok(found)
    }

    fn prices(&self) -> Result<Vec<(String, TokenPrice)>, Stop> {
        let one = |text: &String| {
            let (policy, price) = text.rsplit_once('=')?;
            let (prompt, completion) = price.split_once(',')?;
            let number = |text: &str| {
                let number: f64 = text.trim().parse().ok()?;
                (number.is_finite() && number >= 0.0).then_some(number)
            };
            let price = TokenPrice {
                prompt: number(prompt)?,
                completion: number(completion)?,
            };
            Some((policy.to_owned(), price))
        };
        let read = |text| {
            one(text).ok_or_else(|| {
                let message = format!("`{text}` is no price");
                let hint = "say `POLICY=IN,OUT`, such as `openai:MODEL=0.15,0.60`".to_owned();
                Stop::config("price", message, Some(hint))
            })
        };
        self.price.iter().map(read).collect()
    }

    pub(super) fn starts_from_compiler(&self) -> bool {
        self.start == COMPILER
    }

    /// A solution of the user's to start from. The folder is read here, once.
    pub(super) fn own_start(&self, target: Target) -> Result<SearchStart, Stop> {
        if self.start == NOTHING {
            return Ok(SearchStart::default());
        }
        let solution = load_solution(Path::new(&self.start), target == Target::Cuda)?;
        SearchStart::from_submission(&solution).map_err(|error| Stop(error.failure()))
    }

    pub(super) fn budget(&self) -> SearchBudget {
        let seconds = self.minutes.map(|minutes| 60.0 * f64::from(minutes));
        SearchBudget {
            judgements: Some(self.judgements.into()),
            // Longer than a duration can be is no limit.
            time: seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            dollars: self.dollars.map(f64::from),
        }
    }

    pub(super) fn batch(&self, judges: usize) -> u32 {
        let least = if self.policy.is_empty() {
            1
        } else {
            USUAL_BATCH
        };
        self.batch.map_or((judges as u32).max(least), u32::from)
    }

    pub(super) fn sampling(&self) -> SamplingParams {
        SamplingParams {
            temperature: f64::from(self.temperature) as f32,
            max_tokens: self.max_tokens.into(),
            ..SamplingParams::default()
        }
    }

    pub(super) fn judging_options(&self, profile: Profile) -> JudgingOptions {
        JudgingOptions {
            profile,
            rules: self.rules.into(),
            isolation: self.isolation.into(),
            compile_mode: (!self.no_compile).then(|| "default".to_owned()),
            seed: None,
        }
    }

    /// With the target that was found.
    pub(super) fn decided(&self, target: Target) -> Self {
        let mut decided = self.clone();
        decided.machine.target = match target {
            Target::Cpu => TargetChoice::Cpu,
            Target::Cuda => TargetChoice::Cuda,
        };
        decided
    }

    /// What decides which candidates are made, by name. Limits only decide how many: a search may go on with larger ones.
    pub(super) fn config(&self) -> Result<Map<String, Value>, Stop> {
        let mut config = object(self)?;
        for key in [
            "python",
            "offline",
            "judgements",
            "minutes",
            "dollars",
            "judges",
        ] {
            config.remove(key);
        }
        let has = |start: &str| self.policy.iter().any(|policy| policy.starts_with(start));
        if !has("openai:") {
            config.remove("base_url");
        }
        if !has("local:") {
            config.remove("model_on");
        }
        Ok(config)
    }
}

/// The same settings resume, others are refused with the difference.
pub(super) fn folder(
    out: Option<&PathBuf>,
    task: &Task,
    settings: &EvolveSettings,
    batch: u32,
    start: &SearchStart,
) -> Result<RunFolder, Stop> {
    let mut config = settings.config()?;
    config.insert("batch".to_owned(), json!(batch));
    // Not the place of a folder: what is in it.
    if !settings.starts_from_compiler() {
        let files = start.solutions.iter().map(|(_, files)| files);
        let hashes = files.map(warpsmith_search::normalized_hash);
        config.insert("start".to_owned(), json!(hashes.collect::<Vec<_>>()));
    }
    config.insert("format".to_owned(), json!(CONFIG_FORMAT));
    config.insert("verb".to_owned(), json!("evolve"));
    config.insert("task".to_owned(), json!(task.name));
    config.insert("source".to_owned(), json!(task.source));
    let config = Value::Object(config);
    Ok(match out {
        Some(out) => RunFolder::at(out, &config)?,
        None => RunFolder::create_or_resume("runs".as_ref(), "evolve", &task.name, &config)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_the_defaults() {
        crate::config::assert_text_says_the_defaults::<EvolveSettings>();
    }
}
