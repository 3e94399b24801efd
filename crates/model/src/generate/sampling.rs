//! Choosing the next token from logits, repeatably.

use crate::ModelError;

/// How tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler(Choice);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Choice {
    Greedy,
    Random {
        temperature: f32,
        top_p: f32,
        seed: u64,
    },
}

impl Sampler {
    /// Always the most probable token.
    pub const GREEDY: Self = Self(Choice::Greedy);

    /// At random by probability; `top_p` leaves out the least probable tokens beyond that share.
    /// A temperature of 0 is greedy.
    pub fn random(temperature: f32, top_p: f32, seed: u64) -> Result<Self, ModelError> {
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(ModelError::Sampling {
                option: "temperature",
                value: f64::from(temperature),
                allowed: "0 or more",
            });
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(ModelError::Sampling {
                option: "top-p",
                value: f64::from(top_p),
                allowed: "above 0 and at most 1",
            });
        }
        Ok(Self(if temperature == 0.0 {
            Choice::Greedy
        } else {
            Choice::Random {
                temperature,
                top_p,
                seed,
            }
        }))
    }

    /// Temperature (0 where it is greedy), top-p and seed.
    pub(crate) fn numbers(&self) -> (f32, f32, u64) {
        match self.0 {
            Choice::Greedy => (0.0, 1.0, 0),
            Choice::Random {
                temperature,
                top_p,
                seed,
            } => (temperature, top_p, seed),
        }
    }

    /// The token for one step of a sequence. The same seed, step and logits give the same token,
    /// whatever other sequences do.
    pub fn choose(&self, logits: &[f32], step: u64) -> Sampled {
        let token = match self.0 {
            Choice::Greedy => most_probable(logits),
            Choice::Random {
                temperature,
                top_p,
                seed,
            } => draw(logits, temperature, top_p, unit(seed, step)),
        };
        Sampled {
            token: token as u32,
            log_probability: log_probability(logits, token),
        }
    }
}

/// A chosen token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    pub token: u32,
    /// Under the model itself, before temperature and top-p: what a learner computes again.
    pub log_probability: f32,
}

fn highest(logits: &[f32]) -> f32 {
    logits.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// The first of equals, so that greedy decoding does not depend on how the maximum is searched.
fn most_probable(logits: &[f32]) -> usize {
    let highest = highest(logits);
    logits
        .iter()
        .position(|&logit| logit >= highest)
        .unwrap_or_default()
}

fn log_probability(logits: &[f32], token: usize) -> f32 {
    let highest = highest(logits);
    let sum: f64 = logits
        .iter()
        .map(|logit| f64::from((logit - highest).exp()))
        .sum();
    logits[token] - highest - sum.ln() as f32
}

fn draw(logits: &[f32], temperature: f32, top_p: f32, unit: f64) -> usize {
    let highest = highest(logits);
    let weights: Vec<f32> = logits
        .iter()
        .map(|logit| ((logit - highest) / temperature).exp())
        .collect();
    let total: f64 = weights.iter().copied().map(f64::from).sum();
    let left_out = (1.0 - f64::from(top_p)) * total;
    let all = weights.iter().copied().map(f64::from).enumerate();
    if left_out <= 0.0 {
        return pick(all, unit * total).unwrap_or_else(|| most_probable(logits));
    }
    // Even if all tokens as improbable as this were left out, that would not be too many: the
    // rest need not be sorted with the few that matter.
    let floor = left_out / logits.len() as f64;
    let mut kept: Vec<(usize, f64)> = all.filter(|(_, weight)| *weight >= floor).collect();
    kept.sort_unstable_by(|left, right| right.1.total_cmp(&left.1).then(left.0.cmp(&right.0)));
    let wanted = total - left_out;
    let mut sum = 0.0;
    let mut count = 0;
    while count < kept.len() && (count == 0 || sum < wanted) {
        sum += kept[count].1;
        count += 1;
    }
    pick(kept[..count].iter().copied(), unit * sum).unwrap_or_else(|| most_probable(logits))
}

/// The token in whose share of the whole this place lies; the last where rounding leaves it beyond.
fn pick(tokens: impl Iterator<Item = (usize, f64)>, place: f64) -> Option<usize> {
    let mut rest = place;
    let mut last = None;
    for (token, weight) in tokens.filter(|(_, weight)| *weight > 0.0) {
        last = Some(token);
        rest -= weight;
        if rest < 0.0 {
            break;
        }
    }
    last
}

/// A number in [0, 1) of a seed and a step: `SplitMix64`, which is fixed for good, so that a seed in a
/// record means the same in a year.
fn unit(seed: u64, step: u64) -> f64 {
    let mix = |mut state: u64| {
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^ (state >> 31)
    };
    let place = step.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Neighbouring seeds must not give shifted copies of one sequence.
    let bits = mix(mix(seed).wrapping_add(place));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, -1.0, 3.0];

    fn shares(temperature: f32, top_p: f32) -> Vec<f64> {
        let mut counts = vec![0.0; LOGITS.len()];
        for step in 0..20_000 {
            let sampling = Sampler::random(temperature, top_p, 5).unwrap();
            counts[sampling.choose(&LOGITS, step).token as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    fn softmax(logits: &[f32], temperature: f32) -> Vec<f64> {
        let weights: Vec<f64> = logits
            .iter()
            .map(|&logit| f64::from(logit / temperature).exp())
            .collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_best() {
        let sampled = Sampler::GREEDY.choose(&LOGITS, 0);
        assert_eq!(sampled.token, 1);
        let expected = softmax(&LOGITS, 1.0)[1].ln() as f32;
        assert!((sampled.log_probability - expected).abs() < 1e-6);
        assert_eq!(Sampler::random(0.0, 0.5, 1).unwrap(), Sampler::GREEDY);
    }

    #[test]
    fn tokens_come_as_often_as_they_are_probable() {
        for temperature in [0.5, 1.0, 2.0] {
            let expected = softmax(&LOGITS, temperature);
            for (found, expected) in shares(temperature, 1.0).iter().zip(expected) {
                assert!((found - expected).abs() < 0.015, "{found} {expected}");
            }
        }
    }

    /// The two best have 0.40 each: 0.7 takes both, 0.9 a third, 0.3 only the first.
    #[test]
    fn top_p_leaves_out_the_tail() {
        let taken = |top_p| -> Vec<bool> { shares(1.0, top_p).iter().map(|s| *s > 0.0).collect() };
        assert_eq!(taken(0.3), [false, true, false, false, false]);
        assert_eq!(taken(0.7), [false, true, false, false, true]);
        assert_eq!(taken(0.9), [false, true, true, false, true]);
        let two = shares(1.0, 0.7);
        assert!((two[1] - 0.5).abs() < 0.015, "{two:?}");
    }

    #[test]
    fn log_probabilities_are_the_models_own() {
        let sampled = Sampler::random(0.2, 0.5, 3).unwrap().choose(&LOGITS, 9);
        let expected = softmax(&LOGITS, 1.0)[sampled.token as usize].ln() as f32;
        assert!((sampled.log_probability - expected).abs() < 1e-6);
    }

    #[test]
    fn seeds_repeat_and_differ() {
        let run = |seed| -> Vec<u32> {
            let sampling = Sampler::random(1.0, 1.0, seed).unwrap();
            (0..64)
                .map(|step| sampling.choose(&LOGITS, step).token)
                .collect()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        assert_ne!(run(1)[1..], run(2)[..63]);
        // Computed apart, in Python's integers.
        assert_eq!(
            unit(42, 7).to_bits(),
            0.152_893_342_226_499_75_f64.to_bits()
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for (temperature, top_p) in [(-1.0, 1.0), (f32::NAN, 1.0), (1.0, 0.0), (1.0, 1.1)] {
            assert!(Sampler::random(temperature, top_p, 0).is_err());
        }
    }
}
