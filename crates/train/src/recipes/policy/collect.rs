//! What a step learns from: groups of episodes, and others in place of those that teach nothing.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::batch::Batch;
use super::{Advantages, PolicyRun, numbers};
use crate::TrainError;
use crate::algorithms::GroupAdvantages;
use crate::data::TokenEpisode;
use crate::metrics::Numbers;

/// What becomes of an episode that ended for want of room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutReplies {
    /// It is not learnt from while many are cut, as their number says that the room is too small. Once few are, it is paid
    /// −1: else the policy is free to run on where it knows no answer.
    Auto,
    /// It is not trained on.
    Mask,
    /// It is rewarded −1, whatever it was worth.
    Penalise,
    /// It is rewarded and trained on like any other.
    Keep,
}

/// Few are cut where at most this share is.
const FEW: f64 = 0.1;

/// What becomes of the cut episodes of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Treatment {
    Mask,
    Penalise,
    Keep,
}

impl CutReplies {
    fn treatment(self, episodes: &[TokenEpisode]) -> Treatment {
        let cut = episodes.iter().filter(|episode| episode.cut).count();
        match self {
            Self::Auto if cut as f64 <= FEW * episodes.len() as f64 => Treatment::Penalise,
            Self::Auto | Self::Mask => Treatment::Mask,
            Self::Penalise => Treatment::Penalise,
            Self::Keep => Treatment::Keep,
        }
    }
}

/// What a step learns from, and what it was like.
pub(super) struct Collected {
    /// All episodes: a critic learns from every one.
    pub(super) batch: Batch,
    /// Where the groups are that teach the policy something. Episodes of a group are neighbours.
    pub(super) groups: Vec<Range<usize>>,
    pub(super) numbers: Numbers,
    treatment: Treatment,
}

impl Collected {
    /// Episodes that the policy learns from.
    pub(super) fn taught(&self) -> Vec<usize> {
        let masked =
            |place: &usize| self.treatment == Treatment::Mask && self.batch.episodes()[*place].cut;
        let places = self.groups.iter().cloned().flatten();
        places.filter(|place| !masked(place)).collect()
    }
}

impl PolicyRun<'_> {
    /// Episodes for one step.
    pub(super) fn collect(&mut self, step: u64) -> Result<Collected, TrainError> {
        let policy = self.actor.publish()?;
        let mut all: Vec<TokenEpisode> = Vec::new();
        let mut useful: Vec<Range<usize>> = Vec::new();
        let (mut wanted, mut dropped) = (0, 0);
        let mut treatment = None;
        for round in 0..=self.settings.refills {
            let mut found = self.collector.collect(step, round, &policy)?;
            if found.iter().any(|one| !one.reward.is_finite()) {
                return Err(TrainError::NotFinite { what: "a reward" });
            }
            // The same for all of a step, whatever its later rounds are like.
            let treatment =
                *treatment.get_or_insert_with(|| self.settings.cut_replies.treatment(&found));
            if treatment == Treatment::Penalise {
                for episode in found.iter_mut().filter(|episode| episode.cut) {
                    episode.reward = -1.0;
                }
            }
            let groups = groups(found);
            if round == 0 {
                wanted = groups.len();
            }
            for group in groups.into_values() {
                let place = all.len()..all.len() + group.len();
                if useful.len() < wanted {
                    if self.settings.advantages.teaches(&group) {
                        useful.push(place);
                    } else {
                        dropped += 1;
                    }
                }
                all.extend(group);
            }
            if useful.len() == wanted {
                break;
            }
        }
        if all.is_empty() {
            return Err(TrainError::NothingToLearn {
                why: format!("no episode of step {step} came to an end"),
            });
        }
        let mut numbers = numbers::of_episodes(&all);
        numbers.insert("groups", useful.len() as f64);
        numbers.insert("groups_dropped", f64::from(dropped));
        Ok(Collected {
            batch: Batch::new(all),
            groups: useful,
            numbers,
            treatment: treatment.unwrap_or(Treatment::Keep),
        })
    }
}

/// Episodes by task.
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

impl Advantages {
    /// Whether a policy can learn from a group. Where all replies earn the same, a critic's advantages are only its own
    /// errors; of a single reply nobody knows.
    fn teaches(&self, group: &[TokenEpisode]) -> bool {
        let differ = |rule: &GroupAdvantages| rule.of(&replies(group)).is_some();
        match self {
            Self::Critic(_) => group.len() == 1 || differ(&GroupAdvantages::PLAIN),
            Self::Group { rule } => differ(rule),
        }
    }
}

/// Reward and length of each.
pub(super) fn replies(group: &[TokenEpisode]) -> Vec<(f64, usize)> {
    let reply = |episode: &TokenEpisode| (episode.reward, episode.tokens.said());
    group.iter().map(reply).collect()
}
