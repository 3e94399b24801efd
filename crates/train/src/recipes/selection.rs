//! Which recorded trajectories an actor imitates: those worth it, and demonstrations among them.

use std::collections::BTreeMap;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use warpsmith_agent::tool_schemas;
use warpsmith_schema::{Message, Trajectory};

use crate::TrainError;
use crate::algorithms::{
    Flaw, ImitationCandidate, ImitationChoice, PerTask, Rejection, Rejections,
};
use crate::data::{RewardRule, counted};

/// Which trajectories are worth imitating.
#[derive(Debug, Clone, Copy)]
pub struct Selection {
    pub rule: Rejection,
    pub reward_rule: RewardRule,
    pub per_task: PerTask,
    /// Share of demonstrations in what is learnt, where there are some: they keep a policy from forgetting what it was taught.
    pub demonstration_share: f64,
}

impl Selection {
    /// Those that are imitated in their order, and how many are left out for which reason.
    pub(super) fn select<'a>(
        &self,
        trajectories: &'a [Trajectory],
    ) -> Result<(Vec<&'a Trajectory>, Rejections), TrainError> {
        let tools = tool_schemas();
        let mut rejections = Rejections::default();
        let mut kept: Vec<(&Trajectory, f64)> = Vec::new();
        let mut counts: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for trajectory in trajectories {
            let reward = self.reward_rule.reward(trajectory);
            let flaw = self.rule.flaw(trajectory, reward, &tools);
            if let Some(reward) = reward {
                let (solved, tried) = counts.entry(&trajectory.task.id).or_default();
                *tried += 1.0;
                *solved += f64::from(u8::from(flaw != Some(Flaw::Outcome)));
                if flaw.is_none() {
                    kept.push((trajectory, reward));
                }
            }
            rejections.count(flaw.as_ref());
        }
        let solved = counts.into_iter();
        let solved = solved.map(|(task, (solved, tried))| (task, solved / tried));
        let candidates: Vec<ImitationCandidate<'_>> = kept
            .iter()
            .map(|(trajectory, reward)| self.candidate(trajectory, *reward))
            .collect();
        let choices = self.per_task.choose(&candidates, &solved.collect());
        let mut chosen = Vec::new();
        for ((trajectory, _), choice) in kept.iter().zip(choices) {
            rejections.count_choice(choice);
            if choice == ImitationChoice::Imitated {
                chosen.push(*trajectory);
            }
        }
        if chosen.is_empty() {
            let why = format!(
                "of {} trajectories {} are left out by outcome, {} as loops, {} by their tool calls",
                trajectories.len(),
                rejections.outcome,
                rejections.loops,
                rejections.tool_schema
            );
            return Err(TrainError::NothingRewarded { why });
        }
        Ok((chosen, rejections))
    }

    fn candidate<'a>(&self, trajectory: &'a Trajectory, reward: f64) -> ImitationCandidate<'a> {
        let attempt = counted(trajectory, self.reward_rule.counts);
        let files = attempt.map(|attempt| &attempt.files);
        let replies = trajectory
            .messages
            .iter()
            .filter(|message| matches!(message, Message::Assistant { .. }));
        let said: Vec<String> = match files.filter(|files| !files.is_empty()) {
            Some(files) => files.values().cloned().collect(),
            None => replies.clone().map(|one| format!("{one:?}")).collect(),
        };
        let words = said.iter().flat_map(|text| text.split_whitespace());
        ImitationCandidate {
            task: &trajectory.task.id,
            solution: words.collect::<Vec<_>>().join(" "),
            reward,
            length: replies.map(|message| message.text().len()).sum(),
        }
    }

    /// As many demonstrations as make up their share beside so many others, by a draw.
    pub(super) fn demonstrations<'a>(
        &self,
        all: &'a [Trajectory],
        beside: usize,
        seed: u64,
    ) -> Vec<&'a Trajectory> {
        let share = self.demonstration_share;
        let wanted = (share / (1.0 - share) * beside as f64).round() as usize;
        let mut drawn: Vec<&Trajectory> = all.iter().collect();
        drawn.shuffle(&mut StdRng::seed_from_u64(seed));
        drawn.truncate(wanted);
        drawn
    }
}
