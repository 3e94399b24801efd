//! Reinforcement: the policy tries, is paid, and learns what paid (PPO with a critic, GRPO without).

pub(super) mod batch;
mod learn;
mod numbers;

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::batch::Batch;
use super::progress::{Keeping, Kept, Progress, Rates, RecipeOutcome, Watch};
use crate::TrainError;
use crate::algorithms::{Aggregation, Clip, Gae, GroupAdvantages, Kl};
use crate::data::TokenEpisode;
use crate::metrics::Numbers;
use crate::network::{Actor, Critic, Published, Trainable};

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

    fn recall(&mut self, _memory: Value) {}
}

/// How an advantage is found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Advantages {
    /// PPO: by a critic.
    Critic(CriticSettings),
    /// GRPO: by the other episodes of the same task.
    Group {
        rule: GroupAdvantages,
        /// How often to collect again where groups without a difference were dropped.
        refills: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CriticSettings {
    pub gae: Gae,
    pub rates: Rates,
    /// How far a value may move before it is no longer pushed.
    pub value_clip: Option<f32>,
    /// Brings advantages to mean 0 and variance 1 over the batch.
    pub whiten: bool,
}

/// What becomes of an episode that ended for want of room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutReplies {
    /// It is not learnt from.
    Mask,
    /// It is paid −1, whatever it was worth.
    Penalise,
    /// It is paid and learnt from like any other.
    Keep,
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
    pub rates: Rates,
    pub advantages: Advantages,
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
            counters =
                serde_json::from_value(recalled.memory["counters"].take()).unwrap_or_default();
            self.collector.recall(recalled.memory["collector"].take());
        }
        if progress.step == 0
            && let Some(found) = self.examine(0)?
        {
            progress.begun(&found, watch)?;
        }
        while progress.step < steps {
            let step = progress.step + 1;
            let begun = Instant::now();
            let collected = self.collect(step)?;
            let collecting = begun.elapsed().as_secs_f64();
            let mut numbers = collected.numbers;
            numbers.extend(self.collector.numbers());
            self.collector.rest();
            if collected.batch.len() > 0 {
                self.learn(&collected.batch, &mut counters, step, &mut numbers)?;
            }
            let learning = begun.elapsed().as_secs_f64() - collecting;
            numbers.insert("seconds_collect", collecting);
            numbers.insert("seconds_learn", learning);
            let tokens: usize = (0..collected.batch.len())
                .map(|episode| collected.batch.length(episode))
                .sum();
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
            let guarded = ["entropy", "value_loss", "mismatch_mean"];
            if progress.stepped(&numbers, &guarded, &kept, watch)? {
                return Ok(progress.outcome(true));
            }
        }
        Ok(progress.outcome(false))
    }
}

/// What a step learns from, and what it was like.
struct Collected {
    batch: Batch,
    numbers: Numbers,
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

    /// Episodes for one step. Groups that teach nothing are left out, and others collected in their place.
    fn collect(&mut self, step: u64) -> Result<Collected, TrainError> {
        let policy = self.actor.publish()?;
        let mut all: Vec<TokenEpisode> = Vec::new();
        let mut useful: Vec<TokenEpisode> = Vec::new();
        let (mut wanted, mut dropped) = (0, 0);
        let refills = match self.settings.advantages {
            Advantages::Critic(_) => 0,
            Advantages::Group { refills, .. } => refills,
        };
        for round in 0..=refills {
            let mut found = self.collector.collect(step, round, &policy)?;
            if found.iter().any(|one| !one.reward.is_finite()) {
                return Err(TrainError::NotFinite { what: "a reward" });
            }
            if self.settings.cut_replies == CutReplies::Penalise {
                for episode in found.iter_mut().filter(|episode| episode.cut) {
                    episode.reward = -1.0;
                }
            }
            all.extend(found.iter().cloned());
            let groups = groups(found);
            if round == 0 {
                wanted = groups.len();
            }
            let mut have = groups_of(&useful);
            for (_, group) in groups {
                if have == wanted {
                    break;
                }
                if self.settings.advantages.teaches(&group) {
                    useful.extend(group);
                    have += 1;
                } else {
                    dropped += 1;
                }
            }
            if have == wanted {
                break;
            }
        }
        if all.is_empty() {
            return Err(TrainError::NothingToLearn {
                why: format!("no episode of step {step} came to an end"),
            });
        }
        let mut numbers = numbers::of_episodes(&all);
        numbers.insert("groups", groups_of(&useful) as f64);
        numbers.insert("groups_dropped", f64::from(dropped));
        Ok(Collected {
            batch: Batch::new(useful),
            numbers,
        })
    }
}

/// Episodes by task; a task's are neighbours from here on.
fn groups(episodes: Vec<TokenEpisode>) -> BTreeMap<String, Vec<TokenEpisode>> {
    let mut groups: BTreeMap<String, Vec<TokenEpisode>> = BTreeMap::new();
    for episode in episodes {
        groups
            .entry(episode.task.clone())
            .or_default()
            .push(episode);
    }
    groups
}

fn groups_of(episodes: &[TokenEpisode]) -> usize {
    episodes
        .chunk_by(|one, other| one.task == other.task)
        .count()
}

impl Advantages {
    fn teaches(&self, group: &[TokenEpisode]) -> bool {
        match self {
            Self::Critic(_) => true,
            Self::Group { rule, .. } => rule.of(&replies(group)).is_some(),
        }
    }
}

fn replies(group: &[TokenEpisode]) -> Vec<(f64, usize)> {
    let reply = |episode: &TokenEpisode| (episode.reward, episode.tokens.said());
    group.iter().map(reply).collect()
}
