//! Every algorithm against PyTorch: golden numbers that `make_losses.py` made, the same live on fresh numbers, and what must
//! hold whatever the numbers.
#![expect(
    clippy::float_cmp,
    reason = "what must be the same must be so to the last bit"
)]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use warpsmith_machine::{Caches, NoProgress, PythonChoice, ensure_python};
use warpsmith_train::algorithms::{
    Aggregation, Clip, Difficulty, Gae, GroupAdvantages, Kl, LengthPenalty, Loss, Mismatch,
    PolicyTokens, Spread, cross_entropy, entropy, entropy_coeff, explained_variance,
    generalised_advantages, gspo_loss, kl_loss, negative_log_likelihood, policy_loss,
    token_weights, truncated_importance, value_loss, whiten,
};

const GOLDEN: &str = include_str!("losses.json");
const VOCABULARY: usize = 7;
const CLIP: Clip = Clip {
    low: 0.2,
    high: 0.28,
    c: None,
};
const DUAL: Clip = Clip {
    c: Some(1.2),
    ..CLIP
};
const DR_GRPO: Aggregation = Aggregation::Constant { tokens: 16 };

#[derive(Deserialize)]
struct Golden {
    inputs: Inputs,
    outputs: Outputs,
}

#[derive(Serialize, Deserialize)]
struct Inputs {
    lengths: Vec<usize>,
    mask: Vec<bool>,
    logits: Vec<Vec<f32>>,
    targets: Vec<u32>,
    old: Vec<f32>,
    logprobs: Vec<f32>,
    sampler: Vec<f32>,
    advantages: Vec<f32>,
    values: Vec<f32>,
    old_values: Vec<f32>,
    rewards: Vec<f32>,
    group: Vec<(f64, f64)>,
}

#[derive(Deserialize)]
struct Outputs {
    trajectory: Losses,
    token: Losses,
    constant: Losses,
    advantages: BTreeMap<String, Vec<f64>>,
    whitened: BTreeMap<String, Vec<f64>>,
    explained_variance: f64,
    mismatch: BTreeMap<String, f64>,
    group: BTreeMap<String, Vec<f64>>,
}

#[derive(Deserialize)]
struct Losses {
    weights: Vec<f64>,
    #[serde(flatten)]
    losses: BTreeMap<String, Expected>,
}

#[derive(Deserialize)]
struct Expected {
    value: f64,
    gradient: Vec<f64>,
}

fn close(found: f64, expected: f64, what: &str) {
    let limit = 2e-6 * (1.0 + expected.abs());
    assert!(
        (found - expected).abs() <= limit,
        "{what}: {found}, PyTorch says {expected}"
    );
}

fn all_close(found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        close(f64::from(*found), *expected, what);
    }
}

impl Inputs {
    fn random(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let lengths: Vec<usize> = (0..4).map(|_| random.random_range(1..9)).collect();
        let tokens: usize = lengths.iter().sum();
        let mut numbers = |scale: f32| -> Vec<f32> {
            (0..tokens)
                .map(|_| random.random_range(-scale..scale))
                .collect()
        };
        let old: Vec<f32> = numbers(1.0).iter().map(|one| one - 1.5).collect();
        let near = numbers(0.6);
        let moved = |by: f32| -> Vec<f32> {
            let pairs = old.iter().zip(&near);
            pairs.map(|(old, near)| old + by * near).collect()
        };
        let mut mask: Vec<bool> = numbers(1.0).iter().map(|one| *one > -0.4).collect();
        mask[0] = true;
        Self {
            logprobs: moved(1.0),
            sampler: moved(-1.5),
            advantages: numbers(2.0),
            values: numbers(1.0),
            old_values: numbers(1.0),
            rewards: numbers(3.0),
            logits: (0..tokens)
                .map(|_| numbers(4.0)[..VOCABULARY.min(tokens)].to_vec())
                .map(|mut row| {
                    row.resize(VOCABULARY, 0.5);
                    row
                })
                .collect(),
            targets: (0..tokens as u32)
                .map(|one| one % VOCABULARY as u32)
                .collect(),
            group: numbers(2.0)
                .iter()
                .zip([30.0, 10.0, 25.0, 70.0])
                .map(|(reward, length)| (f64::from(*reward), length))
                .collect(),
            lengths,
            mask,
            old,
        }
    }

    /// Each trajectory's part.
    fn split<'a, T>(&self, mut numbers: &'a [T]) -> Vec<&'a [T]> {
        let mut parts = Vec::new();
        for length in &self.lengths {
            let (part, rest) = numbers.split_at(*length);
            parts.push(part);
            numbers = rest;
        }
        parts
    }

    fn losses(&self, weights: &[f32]) -> Vec<(&'static str, Loss)> {
        let logits = self.logits.concat();
        let tokens = PolicyTokens {
            logprobs: &self.logprobs,
            old: &self.old,
            advantages: &self.advantages,
            importance: None,
            weights,
        };
        let policy = |importance, clip| {
            let tokens = PolicyTokens {
                importance,
                ..tokens
            };
            policy_loss(&tokens, clip).loss
        };
        let value = |clip| {
            let (values, old, returns) = (&self.values, &self.old_values, &self.rewards);
            value_loss(values, old, returns, weights, clip).loss
        };
        let importance = truncated_importance(&self.old, &self.sampler, 2.0);
        let kl = |kind| kl_loss(kind, &self.logprobs, &self.old, weights);
        vec![
            (
                "cross_entropy",
                cross_entropy(&logits, VOCABULARY, &self.targets, weights),
            ),
            ("entropy", entropy(&logits, VOCABULARY, weights)),
            ("plain", policy(None, None)),
            ("clipped", policy(None, Some(CLIP))),
            ("dual", policy(None, Some(DUAL))),
            ("importance", policy(Some(&importance), Some(CLIP))),
            ("gspo", gspo_loss(&tokens, &self.lengths, Some(CLIP)).loss),
            ("k1", kl(Kl::K1)),
            ("k3", kl(Kl::K3)),
            ("value", value(None)),
            ("value_clipped", value(Some(0.2))),
        ]
    }

    fn agree(&self, expected: &Outputs) {
        let masks = self.split(&self.mask);
        for (aggregation, expected) in [
            (Aggregation::Trajectory, &expected.trajectory),
            (Aggregation::Token, &expected.token),
            (DR_GRPO, &expected.constant),
        ] {
            let weights = token_weights(aggregation, &masks);
            all_close(&weights, &expected.weights, "weights");
            let found = self.losses(&weights);
            assert_eq!(found.len(), expected.losses.len());
            for (name, loss) in found {
                let expected = &expected.losses[name];
                close(loss.value, expected.value, name);
                all_close(&loss.gradient, &expected.gradient, name);
            }
        }
        let gae = Gae {
            gamma: 0.99,
            lam: 0.95,
            critic_lambda: 1.0,
        };
        let (mut advantages, mut returns) = (Vec::new(), Vec::new());
        let (rewards, values) = (self.split(&self.rewards), self.split(&self.values));
        for (place, mask) in masks.iter().enumerate() {
            let found = gae.estimate(rewards[place], values[place], mask);
            advantages.extend(found.advantages);
            returns.extend(found.returns);
        }
        all_close(&advantages, &expected.advantages["0.95"], "advantages");
        let said = |numbers: &[f32]| -> Vec<f32> {
            let pairs = numbers.iter().zip(&self.mask);
            pairs
                .filter(|(_, said)| **said)
                .map(|(one, _)| *one)
                .collect()
        };
        let returned: Vec<f64> = expected.advantages["1.0"]
            .iter()
            .zip(&self.values)
            .zip(&self.mask)
            .filter(|(_, said)| **said)
            .map(|((advantage, value), _)| advantage + f64::from(*value))
            .collect();
        all_close(&said(&returns), &returned, "returns");
        let explained = explained_variance(&self.values, &returns, &self.mask).unwrap();
        close(explained, expected.explained_variance, "explained variance");
        for (aggregation, name) in [
            (Aggregation::Trajectory, "trajectory"),
            (Aggregation::Token, "token"),
        ] {
            let mut whitened = advantages.clone();
            whiten(&mut whitened, &token_weights(aggregation, &masks));
            all_close(&said(&whitened), &expected.whitened[name], name);
        }

        let mismatch = Mismatch::of(&self.old, &self.sampler, &self.mask, 2.0).unwrap();
        for (found, name) in [
            (mismatch.mean_difference, "mean_difference"),
            (mismatch.largest_deviation, "largest_deviation"),
            (mismatch.truncated, "truncated"),
        ] {
            close(found, expected.mismatch[name], name);
        }
        let replies: Vec<(f64, usize)> = self
            .group
            .iter()
            .map(|(reward, length)| (*reward, *length as usize))
            .collect();
        let plain = GroupAdvantages::PLAIN;
        for (name, rule) in [
            ("absolute", plain),
            (
                "deviation",
                GroupAdvantages {
                    spread: Spread::Deviation,
                    ..plain
                },
            ),
            (
                "leave_one_out",
                GroupAdvantages {
                    spread: Spread::LeaveOneOut,
                    ..plain
                },
            ),
            (
                "length",
                GroupAdvantages {
                    length: Some(LengthPenalty { alpha: 0.05 }),
                    ..plain
                },
            ),
            (
                "difficulty",
                GroupAdvantages {
                    difficulty: Some(Difficulty::default()),
                    ..plain
                },
            ),
        ] {
            let found: Vec<f32> = rule
                .of(&replies)
                .unwrap()
                .iter()
                .map(|one| *one as f32)
                .collect();
            all_close(&found, &expected.group[name], name);
        }
    }
}

#[test]
fn algorithms_agree_with_golden_numbers_of_pytorch() {
    let golden: Golden = serde_json::from_str(GOLDEN).unwrap();
    golden.inputs.agree(&golden.outputs);
}

#[test]
fn algorithms_agree_with_pytorch_on_fresh_numbers() {
    let caches = Caches::locate().unwrap();
    let python = ensure_python(&PythonChoice::Auto, &caches, &NoProgress, false).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/make_losses.py");
    for seed in 0..3 {
        let inputs = Inputs::random(seed);
        let mut child = Command::new(&python.executable)
            .arg(&script)
            .arg("--inputs")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let text = serde_json::to_string(&inputs).unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        inputs.agree(&serde_json::from_slice(&output.stdout).unwrap());
    }
}

/// The loss from log-probabilities is the loss from logits.
#[test]
fn likelihood_is_cross_entropy() {
    let golden: Golden = serde_json::from_str(GOLDEN).unwrap();
    let inputs = golden.inputs;
    let weights = token_weights(Aggregation::Token, &inputs.split(&inputs.mask));
    let logprob = |row: &[f32], target: u32| {
        let total: f32 = row.iter().map(|one| one.exp()).sum();
        row[target as usize] - total.ln()
    };
    let logprobs: Vec<f32> = inputs
        .logits
        .iter()
        .zip(&inputs.targets)
        .map(|(row, target)| logprob(row, *target))
        .collect();
    let found = negative_log_likelihood(&logprobs, &weights);
    close(
        found.value,
        golden.outputs.token.losses["cross_entropy"].value,
        "value",
    );
    let expected: Vec<f32> = weights.iter().map(|one| -one).collect();
    assert_eq!(found.gradient, expected);
    // Paid for entropy, with the sign of a loss.
    let bonus = entropy_coeff(&[2.0, 1.0], &[0.5, 0.0], 0.1);
    close(bonus.value, -0.1, "bonus");
    assert_eq!(bonus.gradient, [-0.05, 0.0]);
}

/// The tail is what collapses runs: one token in a thousand may be far off, two may not.
#[test]
fn a_mismatch_is_told_from_health() {
    let sampler = vec![-1.0_f32; 2000];
    let mut learner = sampler.clone();
    let mask = vec![true; 2000];
    let of = |learner: &[f32]| Mismatch::of(learner, &sampler, &mask, 2.0).unwrap();
    assert!(of(&learner).is_healthy());
    learner[7] = -20.0;
    learner[9] = -0.2;
    assert!(of(&learner).is_healthy());
    assert!(of(&learner).largest_deviation > 0.9);
    close(of(&learner).truncated, 1.0 / 2000.0, "truncated");
    learner[11] = -20.0;
    assert!(!of(&learner).is_healthy());
    let off: Vec<f32> = sampler.iter().map(|one| one + 0.02).collect();
    assert!(!of(&off).is_healthy());
    assert_eq!(Mismatch::of(&[], &[], &[], 2.0), None);
}

/// Tokens of several trajectories, each with its mask.
fn batch() -> impl Strategy<Value = Vec<Vec<(bool, [f32; 4])>>> {
    let number = -3.0_f32..3.0;
    let token = (any::<bool>(), prop::array::uniform4(number));
    prop::collection::vec(prop::collection::vec(token, 1..12), 1..6)
}

fn column(batch: &[Vec<(bool, [f32; 4])>], place: usize) -> Vec<f32> {
    batch.iter().flatten().map(|(_, all)| all[place]).collect()
}

fn masks(batch: &[Vec<(bool, [f32; 4])>]) -> Vec<Vec<bool>> {
    let mask = |trajectory: &Vec<(bool, [f32; 4])>| trajectory.iter().map(|one| one.0).collect();
    batch.iter().map(mask).collect()
}

fn tokens<'a>(
    logprobs: &'a [f32],
    old: &'a [f32],
    advantages: &'a [f32],
    weights: &'a [f32],
) -> PolicyTokens<'a> {
    PolicyTokens {
        logprobs,
        old,
        advantages,
        importance: None,
        weights,
    }
}

proptest! {
    #[test]
    fn weights_sum_to_one_and_ignore_what_was_given(batch in batch()) {
        let masks = masks(&batch);
        let slices: Vec<&[bool]> = masks.iter().map(Vec::as_slice).collect();
        for aggregation in [Aggregation::Trajectory, Aggregation::Token] {
            let weights = token_weights(aggregation, &slices);
            let any = masks.concat().contains(&true);
            let sum: f32 = weights.iter().sum();
            prop_assert!((sum - f32::from(u8::from(any))).abs() < 1e-5);
            for (weight, said) in weights.iter().zip(masks.concat()) {
                prop_assert_eq!(*weight > 0.0, said);
            }
        }
    }

    #[test]
    fn tokens_that_were_given_change_nothing(batch in batch(), noise in -9.0_f32..9.0) {
        let masks = masks(&batch);
        let slices: Vec<&[bool]> = masks.iter().map(Vec::as_slice).collect();
        let mask = masks.concat();
        let weights = token_weights(Aggregation::Trajectory, &slices);
        let numbers: [Vec<f32>; 4] = std::array::from_fn(|place| column(&batch, place));
        let spoilt: [Vec<f32>; 4] = std::array::from_fn(|place| {
            let pairs = numbers[place].iter().zip(&mask);
            pairs.map(|(one, said)| if *said { *one } else { noise * f32::INFINITY }).collect()
        });
        let of = |[a, b, c, d]: &[Vec<f32>; 4]| {
            let tokens = PolicyTokens { importance: Some(d), ..tokens(a, b, c, &weights) };
            let policy = policy_loss(&tokens, Some(CLIP));
            let lengths: Vec<usize> = batch.iter().map(Vec::len).collect();
            let gspo = gspo_loss(&tokens, &lengths, Some(CLIP));
            let value = value_loss(a, b, c, &weights, Some(0.2));
            let kl = kl_loss(Kl::K3, a, b, &weights);
            let advantages = generalised_advantages(a, b, &mask, 1.0, 0.95);
            (policy, gspo, value, kl, advantages, negative_log_likelihood(a, &weights))
        };
        prop_assert_eq!(of(&numbers), of(&spoilt));
    }

    #[test]
    fn with_ratio_one_the_loss_is_plain_policy_gradient(batch in batch()) {
        let masks = masks(&batch);
        let slices: Vec<&[bool]> = masks.iter().map(Vec::as_slice).collect();
        let weights = token_weights(Aggregation::Token, &slices);
        let (logprobs, advantages) = (column(&batch, 0), column(&batch, 1));
        let found = policy_loss(&tokens(&logprobs, &logprobs, &advantages, &weights), Some(CLIP));
        let expected: Vec<f32> = weights.iter().zip(&advantages).map(|(w, a)| -w * a).collect();
        prop_assert_eq!(&found.loss.gradient, &expected);
        prop_assert_eq!((found.clipped_low, found.clipped_high, found.ratios), (0.0, 0.0, (1.0, 1.0)));
    }

    #[test]
    fn a_clipped_token_is_pushed_back_but_never_further(
        new in -3.0_f32..0.0, old in -3.0_f32..0.0, advantage in -3.0_f32..3.0,
    ) {
        let found = policy_loss(&tokens(&[new], &[old], &[advantage], &[1.0]), Some(CLIP));
        let ratio = (new - old).exp();
        let beyond = (advantage > 0.0 && ratio > 1.2801) || (advantage < 0.0 && ratio < 0.7999);
        if beyond {
            prop_assert_eq!(found.loss.gradient[0], 0.0);
        } else if (0.8001..1.2799).contains(&ratio) {
            prop_assert!((found.loss.gradient[0] + ratio * advantage).abs() < 1e-4);
        }
    }

    #[test]
    fn values_of_what_comes_telescope_with_lambda_one(batch in batch()) {
        for trajectory in &batch {
            let one = std::slice::from_ref(trajectory);
            let (rewards, values) = (column(one, 0), column(one, 1));
            let mask = masks(one).concat();
            let gae = Gae { gamma: 1.0, lam: 1.0, critic_lambda: 1.0 };
            let found = gae.estimate(&rewards, &values, &mask);
            let mut ahead = 0.0;
            for token in (0..mask.len()).rev() {
                if mask[token] {
                    ahead += rewards[token];
                    prop_assert!((found.returns[token] - ahead).abs() < 1e-4);
                    prop_assert!((found.advantages[token] - (ahead - values[token])).abs() < 1e-4);
                } else {
                    prop_assert_eq!((found.returns[token], found.advantages[token]), (0.0, 0.0));
                }
            }
        }
    }

    /// By the weights of the loss, whichever these are: what is whitened is what is summed.
    #[test]
    fn whitened_numbers_have_mean_zero_and_variance_one(batch in batch()) {
        let masks = masks(&batch);
        let slices: Vec<&[bool]> = masks.iter().map(Vec::as_slice).collect();
        let before = column(&batch, 0);
        for aggregation in [Aggregation::Trajectory, Aggregation::Token] {
            let weights = token_weights(aggregation, &slices);
            let mut after = before.clone();
            whiten(&mut after, &weights);
            for ((after, before), weight) in after.iter().zip(&before).zip(&weights) {
                prop_assert!(*weight > 0.0 || after == before);
            }
            let moments = |numbers: &[f32]| {
                let pairs = || numbers.iter().zip(&weights).filter(|(_, weight)| **weight > 0.0);
                let sum = |of: &dyn Fn(f64) -> f64| -> f64 {
                    pairs().map(|(one, weight)| f64::from(*weight) * of(f64::from(*one))).sum()
                };
                let mean = sum(&|one| one);
                let squares: f64 = pairs().map(|(_, weight)| f64::from(*weight).powi(2)).sum();
                (mean, sum(&|one| (one - mean).powi(2)) / (1.0 - squares))
            };
            if weights.iter().filter(|weight| **weight > 0.0).count() > 1 {
                let ((_, drawn), (mean, variance)) = (moments(&before), moments(&after));
                prop_assert!(mean.abs() < 1e-4);
                // The epsilon below the root keeps numbers that hardly differ from being blown up.
                prop_assert!((variance - drawn / (drawn + 1e-8)).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn a_bad_token_that_became_likely_is_bounded_by_the_dual_clip(
        old in -3.0_f32..0.0, gain in 0.5_f32..4.0, advantage in -3.0_f32..-0.1,
    ) {
        let of = |clip| policy_loss(&tokens(&[old + gain], &[old], &[advantage], &[1.0]), Some(clip));
        let (free, bounded) = (of(CLIP), of(DUAL));
        prop_assert!(free.loss.value >= bounded.loss.value);
        prop_assert!(bounded.loss.value <= 1.2001 * f64::from(-advantage) + 1e-6);
        prop_assert_eq!(bounded.clipped_c, 1.0);
        prop_assert_eq!(bounded.loss.gradient[0], 0.0);
        prop_assert!(free.loss.gradient[0] > 0.0 && free.clipped_c == 0.0);
    }

    #[test]
    fn group_advantages_sum_to_zero_and_keep_the_order(
        rewards in prop::collection::vec((-1.0_f64..3.0, 1_usize..500), 2..9),
        spread in prop::sample::select(vec![Spread::Absolute, Spread::Deviation, Spread::LeaveOneOut]),
    ) {
        let rule = GroupAdvantages { spread, ..GroupAdvantages::PLAIN };
        if let Some(found) = rule.of(&rewards) {
            prop_assert!(found.iter().sum::<f64>().abs() < 1e-9);
            for (one, other) in (0..rewards.len()).flat_map(|one| (0..one).map(move |other| (one, other))) {
                let rewarded = rewards[one].0.total_cmp(&rewards[other].0);
                prop_assert!(rewarded == found[one].total_cmp(&found[other]) || (found[one] - found[other]).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn groups_without_a_difference_teach_nothing(reward in -1.0_f64..3.0, size in 1_usize..9) {
        for rule in [
            GroupAdvantages::PLAIN,
            GroupAdvantages { spread: Spread::Deviation, ..GroupAdvantages::PLAIN },
            GroupAdvantages { spread: Spread::LeaveOneOut, ..GroupAdvantages::PLAIN },
        ] {
            prop_assert_eq!(rule.of(&vec![(reward, 7); size]), None);
        }
    }

    #[test]
    fn the_third_estimator_is_never_negative(own in -9.0_f32..0.0, other in -9.0_f32..0.0) {
        prop_assert!(Kl::K3.estimate(own, other) >= 0.0);
        prop_assert_eq!(Kl::K3.estimate(own, own), 0.0);
        prop_assert!((Kl::K1.estimate(own, other) + Kl::K1.estimate(other, own)).abs() < 1e-9);
    }

    #[test]
    fn importance_is_capped(own in -9.0_f32..0.0, other in -9.0_f32..0.0) {
        let found = truncated_importance(&[own], &[other], 2.0)[0];
        prop_assert!((0.0..=2.0).contains(&found));
    }
}
