//! Reinforcement: sample, judge, update; PPO with a critic, GRPO without.

pub(super) mod batch;
mod collect;
mod critic;
mod learn;
mod numbers;

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::collect::CutReplies;
use super::progress::{Keeping, Kept, OptimizerSettings, Progress, RecipeOutcome, Watch};
use crate::algorithms::{Aggregation, Clip, Gae, GroupAdvantages, Kl, LossMode};
use crate::data::TokenEpisode;
use crate::metrics::Numbers;
use crate::network::{Actor, Critic, Published, Trainable};
use crate::{Alarm, TrainError};

/// Where episodes come from.
pub trait Collector {
    /// Episodes of the policy as it is now, several of each task. `round` counts from zero: a later one is asked for where
    /// the earlier ones of the same step taught too little.
    fn collect(
        &mut self,
        step: u64,
        round: u32,
        policy: &Published,
    ) -> Result<Vec<TokenEpisode>, TrainError>;

    /// Episodes of the policy as it is after so many steps, of tasks that it never learns from. `None` where there are none.
    fn examine(
        &mut self,
        _step: u64,
        _policy: &Published,
    ) -> Result<Option<Vec<TokenEpisode>>, TrainError> {
        Ok(None)
    }

    /// Learning begins: until the next collection nobody speaks, and memory for that is not needed.
    fn rest(&mut self) {}

    /// What there is to say of the episodes since this was last asked, and of how quickly they came.
    fn numbers(&mut self) -> Numbers {
        Numbers::new()
    }

    /// What it needs to go on where a checkpoint was.
    fn memory(&self) -> Value {
        Value::Null
    }

    fn recall(&mut self, _memory: Value) -> Result<(), serde_json::Error> {
        Ok(())
    }
}

/// How an advantage is found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Advantages {
    /// PPO: by a critic.
    Critic(CriticSettings),
    /// GRPO and RLOO: by the other episodes of the same task.
    Group { rule: GroupAdvantages },
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CriticSettings {
    pub gae: Gae,
    pub optimizer: OptimizerSettings,
    /// Passes over what was collected: more than the policy's do not wear it out.
    pub epochs: u64,
    /// How far a value may move before it is no longer pushed.
    pub value_clip: Option<f32>,
    /// Brings advantages to mean 0 and variance 1 over the batch.
    pub whiten: bool,
}

/// Keeps the policy near a reference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Penalty {
    pub kl: Kl,
    pub coefficient: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PolicySettings {
    pub steps: u64,
    pub optimizer: OptimizerSettings,
    pub advantages: Advantages,
    /// Whose ratio is clipped.
    pub loss_mode: LossMode,
    /// Without it, plain policy gradient.
    pub clip: Option<Clip>,
    /// Of the importance weight that makes up for the sampler's arithmetic.
    pub importance_cap: f32,
    pub penalty: Option<Penalty>,
    /// Paid for entropy; 0 for none.
    pub entropy_coeff: f64,
    pub aggregation: Aggregation,
    /// Passes over what was collected.
    pub epochs: u64,
    /// No further update of a step is made once the policy has moved further than this from where the step began.
    pub target_kl: Option<f64>,
    /// How often to collect again where groups without a difference were dropped.
    pub refills: u32,
    /// Updates in each pass.
    pub minibatches: usize,
    pub cut_replies: CutReplies,
    pub tokens_per_microbatch: usize,
    /// Of the order within a step.
    pub seed: u64,
    /// Steps between looks at tasks that are held out.
    pub evaluate_every: u64,
}

/// A run and those who take part in it.
pub struct PolicyRun<'a> {
    pub actor: &'a mut dyn Actor,
    /// For [`Advantages::Critic`].
    pub critic: Option<&'a mut dyn Critic>,
    /// For a penalty: the policy as it was.
    pub reference: Option<&'a dyn Actor>,
    pub collector: &'a mut dyn Collector,
    pub settings: PolicySettings,
}

/// What is kept beside the networks.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Counters {
    /// Updates that were made: a step may have several.
    updates: u64,
    critic_updates: u64,
}

impl PolicyRun<'_> {
    pub fn run(
        &mut self,
        keeping: &Keeping,
        watch: &mut dyn Watch,
    ) -> Result<RecipeOutcome, TrainError> {
        let steps = self.settings.steps;
        let mut networks: Vec<(&'static str, &mut dyn Trainable)> =
            vec![("actor", &mut *self.actor)];
        if let Some(critic) = &mut self.critic {
            networks.push(("critic", &mut **critic));
        }
        let (mut progress, recalled) = Progress::open(keeping, steps, &mut networks)?;
        drop(networks);
        progress.arrived(&|| self.actor.publish())?;
        let mut counters = Counters::default();
        if let Some(mut recalled) = recalled {
            let collector = recalled.memory["collector"].take();
            counters = serde_json::from_value(recalled.memory["counters"].take())
                .and_then(|counters| self.collector.recall(collector).map(|()| counters))
                .map_err(|error| progress.broken(&error))?;
        }
        if progress.step == 0
            && let Some(found) = self.examine(0)?
        {
            progress.begun(&found, watch)?;
        }
        while progress.step < steps {
            watch.begins(progress.step + 1, steps);
            let step = progress.step + 1;
            let begun = Instant::now();
            let collected = self.collect(step)?;
            let collecting = begun.elapsed().as_secs_f64();
            let mut numbers = collected.numbers.clone();
            numbers.extend(self.collector.numbers());
            self.collector.rest();
            self.learn(&collected, &mut counters, step, &mut numbers)?;
            let learning = begun.elapsed().as_secs_f64() - collecting;
            numbers.insert("seconds_collect", collecting);
            numbers.insert("seconds_learn", learning);
            let trained = collected.taught().into_iter();
            let tokens: usize = trained.map(|place| collected.batch.length(place)).sum();
            numbers.insert("tokens_per_second", tokens as f64 / learning.max(1e-9));
            let due = step.is_multiple_of(self.settings.evaluate_every.max(1)) || step == steps;
            let found = if due { self.examine(step)? } else { None };
            let merit = found
                .as_ref()
                .map(|found| found[numbers::VALIDATION_REWARD]);
            numbers.extend(found.into_iter().flatten());
            let mut networks: Vec<(&'static str, &dyn Trainable)> = vec![("actor", &*self.actor)];
            if let Some(critic) = &self.critic {
                networks.push(("critic", &**critic));
            }
            let kept = Kept {
                networks: &networks,
                tensors: BTreeMap::new(),
                memory: json!({ "counters": counters, "collector": self.collector.memory() }),
                merit,
                published: Some(&|| self.actor.publish()),
            };
            if progress.stepped(&numbers, &guarded(&numbers), &kept, watch)? {
                return Ok(progress.outcome(true));
            }
        }
        Ok(progress.outcome(false))
    }
}

/// Numbers that tell a run gone wrong.
fn guarded(numbers: &Numbers) -> Vec<(&'static str, Alarm)> {
    /// A policy that is right so often may be certain of it.
    const CERTAIN: f64 = 0.9;
    let mut guarded = vec![
        ("entropy", Alarm::Rise),
        ("value_loss", Alarm::Rise),
        ("mismatch_mean", Alarm::Rise),
        ("kl_step", Alarm::Spike),
    ];
    if numbers.get("pass_rate").is_none_or(|rate| *rate < CERTAIN) {
        guarded.push((numbers::SAMPLED_ENTROPY, Alarm::Collapse));
    }
    guarded
}

impl PolicyRun<'_> {
    /// How the policy does on tasks that are held out, after so many steps.
    fn examine(&mut self, step: u64) -> Result<Option<Numbers>, TrainError> {
        let begun = Instant::now();
        let policy = self.actor.publish()?;
        let Some(found) = self.collector.examine(step, &policy)? else {
            return Ok(None);
        };
        let mut numbers =
            numbers::of_validation(&found).ok_or_else(|| TrainError::NothingToLearn {
                why: "no episode of the validation tasks came to an end".into(),
            })?;
        numbers.insert("seconds_validate", begun.elapsed().as_secs_f64());
        // Not of the step that comes next.
        self.collector.numbers();
        Ok(Some(numbers))
    }
}
