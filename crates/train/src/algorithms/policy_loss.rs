//! The loss of PPO and of GRPO: what went better than expected becomes likelier, but not by much at a time.

use serde::{Deserialize, Serialize};

use super::Loss;

/// How far a token's probability may move before it is no longer pushed: the ratio of new to old stays within
/// `1 − low` and `1 + high`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Clip {
    pub low: f32,
    pub high: f32,
    /// Dual clip, above 1: a token that was bad and became more than `c` times as likely is not pushed either. Without it
    /// such a token has an unbounded loss, and a single one decides an update.
    pub c: Option<f32>,
}

/// The loss and what it was like on the way; shares are of the tokens that count.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyLoss {
    /// The gradient is with respect to the new log-probabilities.
    pub loss: Loss,
    /// Became too unlikely to be pushed further down.
    pub clipped_low: f64,
    /// Became too likely to be pushed further up.
    pub clipped_high: f64,
    /// Was bad and became so much likelier that the dual clip bounds its loss.
    pub clipped_c: f64,
    /// The smallest and the largest ratio of new to old probability; both 1 where nothing counts.
    pub ratios: (f64, f64),
}

/// `−min(r·A, clip(r)·A)` for each token, with `r` the ratio of its new to its old probability and `A` its advantage. With a
/// dual clip no more than `−c·A` where `A` is negative.
///
/// `importance` makes up for a sampler that is not quite the old policy (see
/// [`truncated_importance`](super::truncated_importance)). Without a clip it is plain policy gradient.
pub fn policy_loss(
    logprobs: &[f32],
    old: &[f32],
    advantages: &[f32],
    importance: Option<&[f32]>,
    weights: &[f32],
    clip: Option<Clip>,
) -> PolicyLoss {
    for numbers in [logprobs, old, advantages].into_iter().chain(importance) {
        assert_eq!(numbers.len(), weights.len());
    }
    let (mut low, mut high, mut bounded, mut counted) = (0_usize, 0_usize, 0_usize, 0_usize);
    let mut ratios = (f64::INFINITY, 0.0_f64);
    let loss = Loss::weighted(weights, |token| {
        let ratio = (f64::from(logprobs[token]) - f64::from(old[token])).exp();
        let advantage = f64::from(advantages[token]);
        let importance = importance.map_or(1.0, |all| f64::from(all[token]));
        counted += 1;
        ratios = (ratios.0.min(ratio), ratios.1.max(ratio));
        let allowed = clip.map_or(ratio, |clip| {
            ratio.clamp(1.0 - f64::from(clip.low), 1.0 + f64::from(clip.high))
        });
        if allowed * advantage < ratio * advantage {
            if ratio < allowed {
                low += 1;
            } else {
                high += 1;
            }
            return (-importance * allowed * advantage, 0.0);
        }
        if let Some(c) = clip.and_then(|clip| clip.c).map(f64::from)
            && advantage < 0.0
            && ratio > c
        {
            bounded += 1;
            return (-importance * c * advantage, 0.0);
        }
        let loss = -importance * ratio * advantage;
        // The ratio is its own derivative.
        (loss, loss)
    });
    let share = |count: usize| count as f64 / counted.max(1) as f64;
    PolicyLoss {
        loss,
        clipped_low: share(low),
        clipped_high: share(high),
        clipped_c: share(bounded),
        ratios: if counted == 0 { (1.0, 1.0) } else { ratios },
    }
}
