//! A run of PPO or GRPO from a model, tasks and judges: networks, a collector, and the recipe.

use std::path::Path;

use serde_json::Map;
use warpsmith_machine::SharedDevice;
use warpsmith_model::policy::{LocalPolicy, SamplingParams};
use warpsmith_rollout::{EpisodeKind, Judge, StopRequest};
use warpsmith_schema::{Event, Failure, RunHeader, RunMetrics, Task};
use warpsmith_store::RunFolder;

use super::learning::{BaseModel, LearningOptions, RunHost, TrainedRun};
use super::networks::NetworkFactory;
use super::policy::{Advantages, PolicyRun, PolicySettings};
use super::rollouts::{CollectSettings, Rollouts, Voice};
use crate::TrainError;
use crate::checkpoint::{Checkpoints, without_moments};
use crate::network::Critic;

/// Starts the judges. They come last: a model that learns has taken its memory by then.
pub type StartJudges<'a> = dyn Fn() -> Result<Vec<Box<dyn Judge>>, Failure> + 'a;

/// A run that tries, is judged, and learns.
pub struct ReinforceRun<'a> {
    pub verb: &'static str,
    pub folder: &'a RunFolder,
    pub base: &'a BaseModel,
    pub learning: &'a LearningOptions,
    pub settings: PolicySettings,
    pub collect: CollectSettings,
    /// What the log of each collection says of it, but for the policy and the tasks.
    pub head: RunHeader,
    /// A run whose critic goes on, for those who have one.
    pub critic: Option<&'a Path>,
    /// The name under which the device is leased: a policy rests while somebody is judged there.
    pub lease: String,
    pub judges: &'a StartJudges<'a>,
    pub stop_request: fn() -> StopRequest,
}

const TOLD: [&str; 7] = [
    "reward",
    "pass_rate",
    "entropy",
    "mismatch_mean",
    "explained_variance",
    "validation_pass_rate",
    "validation_reward",
];

impl ReinforceRun<'_> {
    pub fn run(self, host: &dyn RunHost) -> Result<TrainedRun, TrainError> {
        let (learning, folder) = (self.learning, self.folder);
        require_on_policy(match &self.collect.kind {
            EpisodeKind::Single(settings) => &settings.sampling,
            EpisodeKind::Agent(settings) => &settings.sampling,
        })?;
        let model_to_train = learning.load(self.base)?;
        let networks = NetworkFactory::open(&model_to_train, learning, host)?;
        let mut actor = networks.actor()?;
        let held_near = self.settings.penalty.is_some();
        let reference = held_near.then(|| networks.actor()).transpose()?;
        let mut critic = match self.settings.advantages {
            Advantages::Group { .. } => None,
            Advantages::Critic(_) => {
                let mut critic = networks.critic(0.0)?;
                let kept = Checkpoints::new(folder.path().join("checkpoints"), 1).last()?;
                // A run that goes on has its own.
                if let (Some(before), None) = (self.critic, kept) {
                    take_over(&mut *critic, before)?;
                }
                Some(critic)
            }
        };
        let judges = (self.judges)().map_err(TrainError::Around)?;
        let lease = self.lease;
        let mut unheard = |_: Option<&Event>, _: &RunMetrics| {};
        let mut collector = Rollouts::new(
            folder.path().join("rollouts"),
            Voice {
                name: format!("local:{}", learning.model),
                path: self.base.path.clone(),
                hash: self.base.hash.clone(),
                weights: model_to_train.weights.clone(),
                on: networks.runs_on(),
                start: Box::new(move |model| {
                    LocalPolicy::start(model, Some(SharedDevice::open(&lease)?))
                }),
            },
            self.collect,
            judges,
            self.head,
            self.stop_request,
            &mut unheard,
        );
        let mut watch = host.watch(&TOLD);
        let keeping = learning.keeping(folder, self.base);
        let outcome = PolicyRun {
            actor: &mut *actor,
            critic: critic.as_mut().map(|critic| &mut **critic as _),
            reference: reference.as_deref(),
            collector: &mut collector,
            settings: self.settings,
        }
        .run(&keeping, &mut *watch)?;
        Ok(TrainedRun {
            verb: self.verb,
            policy: learning.policy(self.base, outcome.published.as_deref()),
            outcome,
            folder: folder.path().to_path_buf(),
            about: Map::new(),
        })
    }
}

/// What learns is the distribution of the model itself. Replies drawn from another, sharper or flatter or cut off, are those of
/// another policy: their probabilities would have to be that policy's, and neither the sampler nor the learner computes them.
pub fn require_on_policy(sampling: &SamplingParams) -> Result<(), TrainError> {
    let settings = [
        ("temperature", sampling.temperature),
        ("top_p", sampling.top_p),
    ];
    match settings
        .into_iter()
        .find(|(_, value)| (value - 1.0).abs() > f32::EPSILON)
    {
        None => Ok(()),
        Some((setting, value)) => Err(TrainError::OffPolicy { setting, value }),
    }
}

/// Validation tasks must not be trained on.
pub fn require_disjoint(tasks: &[Task], held_out: &[Task]) -> Result<(), TrainError> {
    let trained_on = |one: &&Task| tasks.iter().any(|task| task.source == one.source);
    match held_out.iter().find(trained_on) {
        None => Ok(()),
        Some(task) => Err(TrainError::NotHeldOut {
            task: task.id.clone(),
        }),
    }
}

/// Goes on with a critic that was pretrained.
fn take_over(critic: &mut dyn Critic, run: &Path) -> Result<(), TrainError> {
    let checkpoints = Checkpoints::new(run.join("checkpoints"), 1);
    let state = checkpoints
        .load()?
        .and_then(|mut checkpoint| checkpoint.networks.remove("critic"))
        .ok_or_else(|| TrainError::NoCritic {
            run: run.to_path_buf(),
        })?;
    critic
        .restore(&without_moments(state))
        .map_err(|error| TrainError::OtherCritic {
            run: run.to_path_buf(),
            reason: error.to_string(),
        })
}
