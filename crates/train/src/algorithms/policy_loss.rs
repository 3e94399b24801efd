//! The loss of PPO, GRPO and GSPO: what went better than expected becomes likelier, but not by much at a time.

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

/// Whose ratio of new to old probability is clipped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossMode {
    /// Each token's, as in PPO and GRPO: [`policy_loss`].
    #[default]
    Vanilla,
    /// That of the whole sequence: [`gspo_loss`].
    Gspo,
}

/// What a policy loss is made of, one number for each token.
#[derive(Debug, Clone, Copy)]
pub struct PolicyTokens<'a> {
    /// Of the policy that learns.
    pub logprobs: &'a [f32],
    /// Of the policy as it was at the step's beginning.
    pub old: &'a [f32],
    pub advantages: &'a [f32],
    /// Makes up for a sampler that is not quite the old policy (see [`truncated_importance`](super::truncated_importance)).
    pub importance: Option<&'a [f32]>,
    pub weights: &'a [f32],
}

impl PolicyTokens<'_> {
    fn check(&self) {
        let all = [self.logprobs, self.old, self.advantages];
        for numbers in all.into_iter().chain(self.importance) {
            assert_eq!(numbers.len(), self.weights.len());
        }
    }

    fn log_ratio(&self, token: usize) -> f64 {
        f64::from(self.logprobs[token]) - f64::from(self.old[token])
    }
}

/// `−min(r·A, clip(r)·A)` for each token, with `r` the ratio of its new to its old probability and `A` its advantage. With a
/// dual clip no more than `−c·A` where `A` is negative. Without a clip it is plain policy gradient.
pub fn policy_loss(tokens: &PolicyTokens<'_>, clip: Option<Clip>) -> PolicyLoss {
    tokens.check();
    let mut counts = Counts::new(clip);
    let loss = Loss::weighted(tokens.weights, |token| {
        counts.clipped(tokens, token, tokens.log_ratio(token).exp())
    });
    counts.into_loss(loss)
}

/// The same with one ratio for all tokens of a sequence, `s = exp(mean of their differences of log-probabilities)`: what is
/// rewarded as a whole is kept or clipped as a whole. `s` has a gradient of `s / n` at each of `n` tokens.
///
/// `lengths` are those of the sequences, which lie one after the other. Ratios of sequences stay far nearer to 1 than those
/// of tokens, and want a narrower clip.
pub fn gspo_loss(tokens: &PolicyTokens<'_>, lengths: &[usize], clip: Option<Clip>) -> PolicyLoss {
    tokens.check();
    assert_eq!(lengths.iter().sum::<usize>(), tokens.weights.len());
    let mut counts = Counts::new(clip);
    let mut loss = Loss {
        value: 0.0,
        gradient: vec![0.0; tokens.weights.len()],
    };
    let mut end = 0;
    for length in lengths {
        let start = end;
        end += length;
        let counted = || (start..end).filter(|token| tokens.weights[*token] != 0.0);
        let count = counted().count() as f64;
        let mean = counted().map(|token| tokens.log_ratio(token)).sum::<f64>() / count;
        let mut gradient = 0.0;
        for token in counted() {
            let weight = f64::from(tokens.weights[token]);
            let (value, grad) = counts.clipped(tokens, token, mean.exp());
            loss.value += weight * value;
            gradient += weight * grad;
        }
        for token in counted() {
            loss.gradient[token] = (gradient / count) as f32;
        }
    }
    counts.into_loss(loss)
}

/// What clipping came to, token by token.
struct Counts {
    clip: Option<Clip>,
    low: usize,
    high: usize,
    bounded: usize,
    counted: usize,
    ratios: (f64, f64),
}

impl Counts {
    fn new(clip: Option<Clip>) -> Self {
        Self {
            clip,
            low: 0,
            high: 0,
            bounded: 0,
            counted: 0,
            ratios: (f64::INFINITY, 0.0),
        }
    }

    /// A token's loss at this ratio, and its derivative with respect to the ratio's logarithm.
    fn clipped(&mut self, tokens: &PolicyTokens<'_>, token: usize, ratio: f64) -> (f64, f64) {
        let advantage = f64::from(tokens.advantages[token]);
        let importance = tokens.importance.map_or(1.0, |all| f64::from(all[token]));
        self.counted += 1;
        self.ratios = (self.ratios.0.min(ratio), self.ratios.1.max(ratio));
        let allowed = self.clip.map_or(ratio, |clip| {
            ratio.clamp(1.0 - f64::from(clip.low), 1.0 + f64::from(clip.high))
        });
        if allowed * advantage < ratio * advantage {
            if ratio < allowed {
                self.low += 1;
            } else {
                self.high += 1;
            }
            return (-importance * allowed * advantage, 0.0);
        }
        if let Some(c) = self.clip.and_then(|clip| clip.c).map(f64::from)
            && advantage < 0.0
            && ratio > c
        {
            self.bounded += 1;
            return (-importance * c * advantage, 0.0);
        }
        let loss = -importance * ratio * advantage;
        // The ratio is its own derivative.
        (loss, loss)
    }

    fn into_loss(self, loss: Loss) -> PolicyLoss {
        let share = |count: usize| count as f64 / self.counted.max(1) as f64;
        PolicyLoss {
            loss,
            clipped_low: share(self.low),
            clipped_high: share(self.high),
            clipped_c: share(self.bounded),
            ratios: if self.counted == 0 {
                (1.0, 1.0)
            } else {
                self.ratios
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIP: Clip = Clip {
        low: 0.2,
        high: 0.28,
        c: Some(3.0),
    };

    /// Three sequences: of three tokens, of which one was given; of one; of two.
    const LENGTHS: [usize; 3] = [3, 1, 2];
    const OLD: [f32; 6] = [-1.0, -0.5, -2.0, -0.25, -1.5, -0.75];
    const NEW: [f32; 6] = [-0.8, -9.0, -2.1, -0.375, -1.0, -1.0];
    const WEIGHTS: [f32; 6] = [0.25, 0.0, 0.25, 0.25, 0.125, 0.125];

    fn tokens<'a>(logprobs: &'a [f32], advantages: &'a [f32]) -> PolicyTokens<'a> {
        PolicyTokens {
            logprobs,
            old: &OLD,
            advantages,
            importance: None,
            weights: &WEIGHTS,
        }
    }

    #[test]
    fn gspo_has_one_ratio_for_a_sequence() {
        let advantages = [1.0, 1.0, 1.0, -2.0, 0.5, 0.5];
        let found = gspo_loss(&tokens(&NEW, &advantages), &LENGTHS, None);
        // Mean differences: (0.2 − 0.1) / 2, −0.125, (0.5 − 0.25) / 2.
        let ratios = [0.05_f64.exp(), (-0.125_f64).exp(), 0.125_f64.exp()];
        let value = -0.5 * ratios[0] + 0.5 * ratios[1] - 0.125 * ratios[2];
        assert!((found.loss.value - value).abs() < 1e-6);
        // `s · A / n` times the weight of the whole sequence: the same at each of its tokens, and none where it was given.
        let (one, two, three) = (-0.25 * ratios[0], 0.5 * ratios[1], -0.0625 * ratios[2]);
        let expected = [one, 0.0, one, two, three, three];
        for (found, expected) in found.loss.gradient.iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-6);
        }
        assert!((found.ratios.0 - ratios[1]).abs() < 1e-6);
        assert!((found.ratios.1 - ratios[2]).abs() < 1e-6);
    }

    #[test]
    fn gspo_clips_a_sequence_as_a_whole() {
        // One token of the first is far likelier, the other far less: as a whole it has hardly moved.
        let new = [-0.5, 0.0, -2.45, -0.25, -1.25, -0.25];
        let advantages = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
        let token = policy_loss(&tokens(&new, &advantages), Some(CLIP));
        assert!(token.loss.gradient[0].abs() < f32::EPSILON);
        let found = gspo_loss(&tokens(&new, &advantages), &LENGTHS, Some(CLIP));
        assert!(found.loss.gradient[0] < 0.0);
        // Of the last, both tokens go or none: exp(0.375) is above 1.28.
        assert_eq!(found.loss.gradient[4..], [0.0, 0.0]);
        assert!((found.clipped_high - 2.0 / 5.0).abs() < 1e-12);
    }

    #[test]
    fn gradients_of_gspo_are_those_of_finite_differences() {
        let importance = [1.5, 0.0, 0.5, 1.0, 2.0, 0.75];
        let narrow = Clip {
            low: 0.0003,
            high: 0.0004,
            c: Some(3.0),
        };
        // Also where advantages differ within a sequence.
        for advantages in [
            [1.0, 1.0, 1.0, -2.0, 0.5, 0.5],
            [-1.0, 0.0, 2.0, 0.5, -0.5, -1.5],
        ] {
            for clip in [None, Some(CLIP), Some(narrow)] {
                let of = |new: &[f32]| {
                    let tokens = PolicyTokens {
                        importance: Some(&importance),
                        ..tokens(new, &advantages)
                    };
                    gspo_loss(&tokens, &LENGTHS, clip).loss
                };
                let gradient = of(&NEW).gradient;
                for token in 0..NEW.len() {
                    // A power of two, so that both sides are what they are meant to be.
                    let step = 1.0 / 1024.0;
                    let (mut above, mut below) = (NEW, NEW);
                    above[token] += step;
                    below[token] -= step;
                    let width = f64::from(above[token]) - f64::from(below[token]);
                    let expected = (of(&above).value - of(&below).value) / width;
                    let found = f64::from(gradient[token]);
                    assert!(
                        (found - expected).abs() < 1e-5,
                        "{token}: {found}, {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn sequences_of_one_token_have_the_ratios_of_tokens() {
        let advantages = [1.0, -1.0, 2.0, -2.0, 0.5, -0.5];
        let tokens = tokens(&NEW, &advantages);
        assert_eq!(
            gspo_loss(&tokens, &[1; 6], Some(CLIP)),
            policy_loss(&tokens, Some(CLIP))
        );
    }
}
