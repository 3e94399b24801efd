//! `warpsmith train ppo` and `warpsmith train grpo`: the policy tries, is paid, and learns what paid.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::Map;
use warpsmith_agent::Settings as SingleSettings;
use warpsmith_machine::Guest;
use warpsmith_model::policy::{Local, Sampling};
use warpsmith_rollout::{JudgePool, Way};
use warpsmith_schema::{Counts, Mode, RunHead, Task};
use warpsmith_tasks::load_all;
use warpsmith_train::algorithms::{
    Band, Clip, Difficulty, Gae, GroupAdvantages, Kl, LengthPenalty, Spread,
};
use warpsmith_train::checkpoint::{Checkpoints, without_moments};
use warpsmith_train::data::Paid;
use warpsmith_train::network::Critic;
use warpsmith_train::recipes::{
    Advantages, CriticSettings, CutReplies, Penalty, PolicyRun, PolicySettings, Practice, Rollouts,
    Voice,
};

use super::learning::{self, LearningSettings};
use super::networks::Networks;
use super::sft::RewardChoice;
use super::show::{self, Show};
use crate::args::{Count, MachineArgs, Positive, ProfileChoice};
use crate::config::{ConfigArgs, Settings};
use crate::engine::{Engine, Manner};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::runs;

/// Proximal policy optimisation, with a critic
///
/// At every step the policy writes modules for some tasks, is judged, and learns. Single-turn episodes.
#[derive(Debug, Args)]
pub(crate) struct PpoArgs {
    // Before all other flags: it looks at which of them were given.
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    places: Tried,
    /// A run of `train value` whose critic is to go on; else one is begun
    #[arg(long, value_name = "RUN")]
    critic: Option<PathBuf>,
    #[command(flatten)]
    settings: PpoSettings,
}

/// Group-relative policy optimisation, without a critic
///
/// At every step the policy writes several modules for each of some tasks, is judged, and learns from how they differ.
/// Single-turn episodes.
#[derive(Debug, Args)]
pub(crate) struct GrpoArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    places: Tried,
    #[command(flatten)]
    settings: GrpoSettings,
}

/// What is tried, and where the run goes.
#[derive(Debug, Args)]
struct Tried {
    /// A JSONL of `name`, `code` and, where known, `level` and `problem_id`, or a folder of modules
    #[arg(long, value_name = "FILE")]
    tasks: PathBuf,
    /// The run's folder, begun or resumed; else a new one below `runs/`
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
struct PpoSettings {
    /// The critic's learning rate at its peak
    #[arg(long, value_name = "X", default_value = "0.0001")]
    critic_rate: Positive,
    /// How much of later values counts
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    gamma: f64,
    /// How far ahead advantages look
    #[arg(long, value_name = "X", default_value_t = 0.95)]
    actor_lambda: f64,
    /// How far ahead the critic's targets look
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    critic_lambda: f64,
    /// How far a value may move before it is no longer pushed; else no limit
    #[arg(long, value_name = "X")]
    value_clip: Option<Positive>,
    /// Leave advantages as they are, instead of bringing them to mean 0 and variance 1
    #[arg(long)]
    no_whitening: bool,
    #[command(flatten)]
    #[serde(flatten)]
    trying: TryingSettings,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
struct GrpoSettings {
    /// Divide advantages by the deviation within their group
    #[arg(long)]
    by_deviation: bool,
    /// How much less a reply that passed is worth for being long; else nothing
    #[arg(long, value_name = "X")]
    length_alpha: Option<Positive>,
    /// Have rare successes and rare failures count more
    #[arg(long)]
    by_difficulty: bool,
    /// How often to collect again in place of groups that teach nothing
    #[arg(long, value_name = "N", default_value_t = 1)]
    refills: u32,
    #[command(flatten)]
    #[serde(flatten)]
    trying: TryingSettings,
}

/// What both have in common.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
struct TryingSettings {
    /// Times that the policy tries and learns
    #[arg(long, value_name = "N", default_value = "50")]
    steps: Count,
    /// Tasks of a step
    #[arg(long, value_name = "N", default_value = "16")]
    tasks_per_step: Count,
    /// Episodes of each task in a step
    #[arg(long, value_name = "K", default_value = "8")]
    samples: Count,
    /// Attempts after a failed one, each told what was wrong
    #[arg(long, value_name = "N", default_value_t = 0)]
    repairs: u32,
    /// How freely to sample
    #[arg(long, value_name = "T", default_value = "1")]
    temperature: Positive,
    /// Most tokens of one reply
    #[arg(long, value_name = "N", default_value = "1024")]
    max_tokens: Count,
    /// Which reward is paid
    #[arg(long, value_enum, default_value_t)]
    reward: RewardChoice,
    /// What becomes of episodes that ended for want of room
    #[arg(long, value_enum, default_value_t)]
    cut_replies: CutChoice,
    /// Tasks whose running pass rate is lower are left for later
    #[arg(long, value_name = "X", default_value_t = 0.1)]
    lowest_pass_rate: f64,
    /// Tasks whose running pass rate is higher are done
    #[arg(long, value_name = "X", default_value_t = 0.9)]
    highest_pass_rate: f64,
    /// Tasks with this many operators (levels, where they are not known) or fewer are open from the beginning
    #[arg(long, value_name = "N", default_value_t = 2)]
    open_operators: u32,
    /// The learning rate at its peak
    #[arg(long, value_name = "X", default_value = "0.00003")]
    rate: Positive,
    /// How much less likely a token may become before it is no longer pushed
    #[arg(long, value_name = "X", default_value_t = 0.2)]
    clip_low: f64,
    /// How much likelier a token may become before it is no longer pushed
    #[arg(long, value_name = "X", default_value_t = 0.28)]
    clip_high: f64,
    /// Largest weight that makes up for the sampler's arithmetic
    #[arg(long, value_name = "X", default_value_t = 2.0)]
    importance_cap: f64,
    /// How strongly the policy is held near where it began; 0 for not at all
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    kl: f64,
    /// What is paid for entropy
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    entropy_bonus: f64,
    /// Passes over what a step collected
    #[arg(long, value_name = "N", default_value = "1")]
    passes: Count,
    /// Updates in each pass
    #[arg(long, value_name = "N", default_value = "1")]
    minibatches: Count,
    /// Episodes that run at the same time
    #[arg(long, value_name = "N", default_value = "8")]
    at_once: Count,
    /// Judges side by side; else 4 that share a GPU, and 1 on a CPU
    #[arg(long, value_name = "N")]
    judges: Option<Count>,
    /// How thoroughly to judge
    #[arg(long, value_enum, default_value = "rl")]
    profile: ProfileChoice,
    /// Do not measure `torch.compile`
    #[arg(long)]
    no_compile: bool,
    #[command(flatten)]
    #[serde(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    #[serde(flatten)]
    learning: LearningSettings,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CutChoice {
    /// They are not learnt from
    #[default]
    Mask,
    /// They are paid −1
    Penalise,
}

impl Settings for PpoSettings {
    const TEXT: &'static str = include_str!("ppo.toml");
}

impl Settings for GrpoSettings {
    const TEXT: &'static str = include_str!("grpo.toml");
}

pub(crate) fn run_ppo(args: &PpoArgs, printer: &Printer) -> Result<Exit, Stop> {
    let settings = args.config.resolve(&args.settings)?.settings;
    settings.trying.check()?;
    if let Some(exit) = args.config.print(&settings, printer)? {
        return Ok(exit);
    }
    let advantages = Advantages::Critic(CriticSettings {
        gae: Gae {
            gamma: settings.gamma,
            actor_lambda: settings.actor_lambda,
            critic_lambda: settings.critic_lambda,
        },
        rates: settings.trying.learning.rates(settings.critic_rate),
        value_clip: settings.value_clip.map(|clip| f64::from(clip) as f32),
        whiten: !settings.no_whitening,
    });
    let config = serde_json::to_value(&settings)?;
    let job = Job {
        verb: "ppo",
        places: &args.places,
        settings: &settings.trying,
        advantages,
        critic: args.critic.as_deref(),
    };
    job.run(&config, printer)
}

pub(crate) fn run_grpo(args: &GrpoArgs, printer: &Printer) -> Result<Exit, Stop> {
    let settings = args.config.resolve(&args.settings)?.settings;
    settings.trying.check()?;
    if let Some(exit) = args.config.print(&settings, printer)? {
        return Ok(exit);
    }
    let advantages = Advantages::Group {
        rule: GroupAdvantages {
            spread: if settings.by_deviation {
                Spread::Deviation
            } else {
                Spread::Absolute
            },
            length: settings.length_alpha.map(|alpha| LengthPenalty {
                alpha: alpha.into(),
            }),
            difficulty: settings.by_difficulty.then(Difficulty::default),
        },
        refills: settings.refills,
    };
    let config = serde_json::to_value(&settings)?;
    let job = Job {
        verb: "grpo",
        places: &args.places,
        settings: &settings.trying,
        advantages,
        critic: None,
    };
    job.run(&config, printer)
}

struct Job<'a> {
    verb: &'static str,
    places: &'a Tried,
    settings: &'a TryingSettings,
    advantages: Advantages,
    /// Where a critic goes on from, for those who have one.
    critic: Option<&'a Path>,
}

impl Job<'_> {
    fn run(&self, config: &serde_json::Value, printer: &Printer) -> Result<Exit, Stop> {
        let settings = self.settings;
        let learning = &settings.learning;
        let tasks = load_all(&self.places.tasks)?;
        let found = learning.find(settings.machine.python.offline, printer)?;
        let model = found.name();
        let known = ("tasks", runs::known(&tasks));
        let out = self.places.out.as_deref();
        let folder = learning::folder(out, self.verb, config, known, &model, printer)?;
        let engine = Engine::prepare(&settings.machine, printer)?;
        let manner = Manner {
            profile: settings.profile.into(),
            isolation: warpsmith_sandbox::Isolation::Strict,
            compile_mode: (!settings.no_compile).then(|| "default".to_owned()),
            seed: None,
        };
        let pupil = learning.load(&found)?;
        let networks = Networks::open(&pupil, learning, settings.machine.device, printer)?;
        let mut actor = networks.actor()?;
        let reference = (settings.kl > 0.0).then(|| networks.actor()).transpose()?;
        let mut critic = match self.advantages {
            Advantages::Group { .. } => None,
            Advantages::Critic(_) => {
                let mut critic = networks.critic(0.0)?;
                if let Some(before) = self.critic {
                    take_over(&mut *critic, before)?;
                }
                Some(critic)
            }
        };
        let lease = engine.lease();
        let judges = runs::judges(&engine, &manner, settings.judges, &folder)?;
        let mut unheard = |_: Option<&warpsmith_schema::Event>, _: &warpsmith_schema::Gauges| {};
        let mut collector = Rollouts::new(
            folder.path().join("rollouts"),
            Voice {
                name: format!("local:{}", learning.model),
                path: found.path.clone(),
                hash: found.hash.clone(),
                weights: pupil.weights.clone(),
                on: networks.runs_on(),
                start: Box::new(move |model| Local::start(model, Some(Guest::of(&lease)?))),
            },
            settings.practice(tasks, &engine),
            JudgePool::new(judges),
            self.head(&engine, &manner, config),
            runs::wish,
            &mut unheard,
        );
        let told = [
            "reward",
            "pass_rate",
            "entropy",
            "mismatch_mean",
            "explained_variance",
        ];
        let mut show = Show::new(printer, &told);
        let keeping = learning.keeping(folder.path(), &pupil.origin);
        let outcome = PolicyRun {
            actor: &mut *actor,
            critic: critic.as_mut().map(|critic| &mut **critic as _),
            reference: reference.as_deref(),
            collector: &mut collector,
            settings: settings.recipe(self.advantages),
        }
        .run(&keeping, &mut show)?;
        show::report(self.verb, &outcome, folder.path(), &Map::new(), printer)
    }

    /// What a collection's log says of it.
    fn head(&self, engine: &Engine, manner: &Manner, config: &serde_json::Value) -> RunHead {
        RunHead {
            verb: format!("train {}", self.verb),
            resumed: false,
            // Of each collection.
            policy: warpsmith_schema::PolicyVersion {
                name: String::new(),
                hash: None,
                step: None,
            },
            target: engine.target,
            device: engine.device_name(),
            mode: Mode::Single,
            profile: manner.profile,
            compile_mode: manner.compile_mode.clone(),
            tasks: Vec::new(),
            samples: self.settings.samples.into(),
            counts: Counts::Best,
            scale: None,
            settings: serde_json::from_value(config.clone()).unwrap_or_default(),
        }
    }
}

/// Goes on with a critic that was pretrained.
fn take_over(critic: &mut dyn Critic, run: &Path) -> Result<(), Stop> {
    let checkpoints = Checkpoints::new(run.join("checkpoints"), 1);
    let state = checkpoints
        .load()?
        .and_then(|mut checkpoint| checkpoint.networks.remove("critic"))
        .ok_or_else(|| {
            Stop::config(
                "checkpoint",
                format!("`{}` has no critic", run.display()),
                Some("name the folder of a run of `train value`".to_owned()),
            )
        })?;
    critic.restore(&without_moments(state)?)?;
    Ok(())
}

impl TryingSettings {
    fn check(&self) -> Result<(), Stop> {
        let refuse = |message: &str| Err(Stop::config("config", message, None));
        if !(0.0..=self.highest_pass_rate).contains(&self.lowest_pass_rate) {
            return refuse("`lowest_pass_rate` must be between 0 and `highest_pass_rate`");
        }
        if !(0.0..1.0).contains(&self.clip_low) || self.clip_high.is_nan() || self.clip_high < 0.0 {
            return refuse("`clip_low` must be between 0 and 1, `clip_high` 0 or more");
        }
        if !(self.kl >= 0.0 && self.entropy_bonus >= 0.0 && self.importance_cap > 0.0) {
            return refuse("`kl` and `entropy_bonus` must be 0 or more, `importance_cap` above 0");
        }
        self.learning.check()
    }

    fn practice(&self, tasks: Vec<Task>, engine: &Engine) -> Practice {
        Practice {
            tasks: tasks.into_iter().map(Arc::new).collect(),
            tasks_per_step: u32::from(self.tasks_per_step) as usize,
            samples: self.samples.into(),
            way: Way::Single(SingleSettings {
                target: engine.target,
                repairs: self.repairs,
                wall: None,
                // All of the distribution: what is cut off could not be learnt about.
                sampling: Sampling {
                    temperature: f64::from(self.temperature) as f32,
                    top_p: 1.0,
                    seed: Some(self.learning.seed),
                    max_tokens: self.max_tokens.into(),
                },
            }),
            at_once: u32::from(self.at_once) as usize,
            paid: Paid {
                kind: self.reward.into(),
                counts: Counts::Best,
            },
            band: Band {
                lowest: self.lowest_pass_rate,
                highest: self.highest_pass_rate,
                ..Band::default()
            },
            open: self.open_operators,
            seed: self.learning.seed,
        }
    }

    fn recipe(&self, advantages: Advantages) -> PolicySettings {
        PolicySettings {
            steps: u32::from(self.steps).into(),
            rates: self.learning.rates(self.rate),
            advantages,
            clip: Some(Clip {
                low: self.clip_low as f32,
                high: self.clip_high as f32,
            }),
            importance_cap: self.importance_cap as f32,
            penalty: (self.kl > 0.0).then_some(Penalty {
                kl: Kl::K3,
                coefficient: self.kl,
            }),
            entropy_bonus: self.entropy_bonus,
            aggregation: self.learning.aggregation(),
            epochs: u32::from(self.passes).into(),
            minibatches: u32::from(self.minibatches) as usize,
            cut_replies: match self.cut_replies {
                CutChoice::Mask => CutReplies::Mask,
                CutChoice::Penalise => CutReplies::Penalise,
            },
            tokens_at_once: self.learning.tokens_at_once(),
            seed: self.learning.seed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_the_defaults() {
        crate::config::assert_text_says_the_defaults::<PpoSettings>();
        crate::config::assert_text_says_the_defaults::<GrpoSettings>();
    }
}
