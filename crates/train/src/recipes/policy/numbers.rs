//! What is written down of a step.

use crate::algorithms::{Mismatch, PolicyLoss, ValueLoss};
use crate::data::{Standings, TokenEpisode};
use crate::metrics::Numbers;

/// What the best checkpoint is best at.
pub(super) const VALIDATION_REWARD: &str = "validation_reward";

/// Also of episodes that teach nothing: a policy that says the same every time has no others.
pub(super) const SAMPLED_ENTROPY: &str = "sampled_entropy";

/// The mean surprise at tokens that were sampled, which is an estimate of the entropy.
fn sampled_entropy(episodes: &[TokenEpisode]) -> f64 {
    let tokens = || episodes.iter().flat_map(|one| &one.tokens.sampled);
    let sum: f64 = tokens().map(|logprob| -f64::from(*logprob)).sum();
    sum / tokens().count().max(1) as f64
}

/// What the policy did.
pub(super) fn of_episodes(episodes: &[TokenEpisode]) -> Numbers {
    let count = episodes.len().max(1) as f64;
    let mean = |of: &dyn Fn(&TokenEpisode) -> f64| episodes.iter().map(of).sum::<f64>() / count;
    let share = |of: &dyn Fn(&TokenEpisode) -> bool| mean(&|one| f64::from(u8::from(of(one))));
    let mut rewards: Vec<f64> = episodes.iter().map(|one| one.reward).collect();
    rewards.sort_by(f64::total_cmp);
    let quantile = |share: f64| {
        let place = (share * (rewards.len().saturating_sub(1)) as f64).round();
        rewards.get(place as usize).copied().unwrap_or_default()
    };
    let mut numbers = Numbers::from([
        ("episodes", episodes.len() as f64),
        ("reward", mean(&|one| one.reward)),
        ("reward_p10", quantile(0.1)),
        ("reward_p50", quantile(0.5)),
        ("reward_p90", quantile(0.9)),
        ("length", mean(&|one| one.tokens.said() as f64)),
        ("cut_share", share(&|one| one.cut)),
        (SAMPLED_ENTROPY, sampled_entropy(episodes)),
    ]);
    if let Some(standings) = standings(episodes) {
        numbers.extend([
            ("robust_reward", standings.reward),
            ("pass_rate", standings.passed),
            ("faster_rate", standings.faster),
            ("unreadable_share", standings.unreadable),
            ("cheating_share", standings.cheated),
        ]);
    }
    // The robust reward has four values: these are its histogram.
    for (name, value) in [
        ("robust_wrong", -1.0),
        ("robust_correct", 1.0),
        ("robust_faster_than_eager", 2.0),
        ("robust_faster_than_compile", 3.0),
    ] {
        let near = |one: &TokenEpisode| (one.finding.robust - value).abs() < 0.5;
        numbers.insert(name, share(&near));
    }
    numbers
}

fn standings(episodes: &[TokenEpisode]) -> Option<Standings> {
    Standings::of(episodes.iter().map(|one| (one.task.as_str(), one.finding)))
}

/// What the policy did on tasks that are held out. Always by the robust reward, whichever reward is trained on.
pub(super) fn of_validation(episodes: &[TokenEpisode]) -> Option<Numbers> {
    let standings = standings(episodes)?;
    let lengths = episodes.iter().map(|one| one.tokens.said() as f64);
    Some(Numbers::from([
        (VALIDATION_REWARD, standings.reward),
        ("validation_pass_rate", standings.passed),
        ("validation_pass_at_k", standings.solved),
        ("validation_faster_rate", standings.faster),
        ("validation_unreadable_share", standings.unreadable),
        ("validation_cheating_share", standings.cheated),
        (
            "validation_length",
            lengths.sum::<f64>() / episodes.len() as f64,
        ),
        ("validation_episodes", episodes.len() as f64),
    ]))
}

pub(super) fn of_mismatch(mismatch: &Mismatch, numbers: &mut Numbers) {
    numbers.insert("mismatch_mean", mismatch.mean_difference);
    numbers.insert("mismatch_usual", mismatch.usual_deviation);
    numbers.insert("mismatch_largest", mismatch.largest_deviation);
    numbers.insert("importance_truncated", mismatch.truncated);
    let healthy = f64::from(u8::from(mismatch.is_healthy()));
    numbers.insert("mismatch_healthy", healthy);
}

/// Means over the parts of what one network learns in a step, by the tokens they have.
#[derive(Default)]
pub(super) struct Means {
    tokens: f64,
    sums: Numbers,
    ratios: Option<(f64, f64)>,
}

impl Means {
    pub(super) fn policy(&mut self, part: &PolicyLoss) {
        let tokens = part.loss.gradient.len() as f64;
        self.tokens += tokens;
        for (name, value) in [
            ("clip_fraction_low", part.clipped_low),
            ("clip_fraction_high", part.clipped_high),
            ("clip_fraction_c", part.clipped_c),
        ] {
            *self.sums.entry(name).or_default() += tokens * value;
        }
        let (low, high) = self.ratios.unwrap_or(part.ratios);
        self.ratios = Some((low.min(part.ratios.0), high.max(part.ratios.1)));
    }

    pub(super) fn value(&mut self, part: &ValueLoss) {
        let tokens = part.loss.gradient.len() as f64;
        self.tokens += tokens;
        *self.sums.entry("value_clip").or_default() += tokens * part.clipped;
    }

    pub(super) fn into(self, numbers: &mut Numbers) {
        for (name, sum) in self.sums {
            numbers.insert(name, sum / self.tokens.max(1.0));
        }
        if let Some((low, high)) = self.ratios {
            numbers.insert("ratio_min", low);
            numbers.insert("ratio_max", high);
        }
    }
}
