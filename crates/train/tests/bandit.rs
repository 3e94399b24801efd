//! PPO and GRPO from end to end, on a game small enough for a test: a model of random numbers is shown one of a few signs and
//! paid for answering with the two tokens that belong to it. It samples with the model that users run.

use std::sync::Arc;

use crate::tiny::Tiny;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_model::{Segment, Transformer, Wanted, Weights};
use warpsmith_train::TrainError;
use warpsmith_train::algorithms::{Aggregation, Clip, Gae, GroupAdvantages, Kl};
use warpsmith_train::data::{Episode, Tokens};
use warpsmith_train::metrics::{self, Numbers};
use warpsmith_train::network::cpu::{CpuActor, CpuCritic};
use warpsmith_train::network::{Actor as _, Learns, Published, Sequence};
use warpsmith_train::optimizer::{AdamW, Decline};
use warpsmith_train::recipes::{
    Advantages, Collector, CriticSettings, CutReplies, Keeping, Penalty, PolicyRun, PolicySettings,
    Rates, Watch,
};

const VOCABULARY: usize = 12;
const SIGNS: [u32; 3] = [2, 3, 4];

struct Game {
    weights: Weights,
    /// Episodes of each sign.
    samples: usize,
    /// −1 turns what is good into what is bad.
    sign: f64,
    /// What the policy was really worth, step by step.
    worth: Vec<f64>,
}

fn answer(sign: u32) -> [u32; 2] {
    [sign + 5, 11 - sign]
}

fn sample(logits: &[f32], random: &mut StdRng) -> (u32, f32) {
    let sum: f64 = logits.iter().map(|one| f64::from(*one).exp()).sum();
    let mut left: f64 = random.random_range(0.0..sum);
    let last = logits.len() - 1;
    for (token, logit) in logits.iter().enumerate() {
        let share = f64::from(*logit).exp();
        if left < share || token == last {
            return (token as u32, (share / sum).ln() as f32);
        }
        left -= share;
    }
    unreachable!("the last token takes what is left")
}

impl Collector for Game {
    fn collect(
        &mut self,
        step: u64,
        round: u32,
        policy: &Published,
    ) -> Result<Vec<Episode>, TrainError> {
        let model = Transformer::new(Arc::new(policy.on(&self.weights)?));
        let mut random = StdRng::seed_from_u64(1000 * step + u64::from(round));
        let mut episodes = Vec::new();
        for sign in SIGNS {
            for _ in 0..self.samples {
                let mut cache = model.new_cache();
                let mut tokens = vec![1, sign];
                let mut sampled = Vec::new();
                let mut fresh = 0;
                while tokens.len() < 4 {
                    let logits = model.forward(&mut [Segment {
                        cache: &mut cache,
                        tokens: &tokens[fresh..],
                        wanted: Wanted::Last,
                    }])?;
                    fresh = tokens.len();
                    let (token, logprob) = sample(logits[0].row(0), &mut random);
                    tokens.push(token);
                    sampled.push(logprob);
                }
                let pairs = answer(sign).into_iter().zip(tokens[2..].iter().copied());
                let right = pairs.filter(|(one, other)| one == other).count();
                episodes.push(Episode {
                    task: format!("sign {sign}"),
                    tokens: Tokens {
                        sequences: vec![Sequence::new(tokens, &[false, false, true, true])],
                        sampled,
                    },
                    reward: self.sign * right as f64 / 2.0,
                    cut: false,
                });
            }
        }
        let worth = episodes.iter().map(|one| self.sign * one.reward);
        self.worth.push(worth.sum::<f64>() / episodes.len() as f64);
        Ok(episodes)
    }
}

struct Silent;

impl Watch for Silent {
    fn stepped(&mut self, _: u64, _: u64, _: &Numbers) {}
}

fn rates(peak: f64) -> Rates {
    Rates {
        peak,
        warmup: 2,
        decline: Decline::Constant,
        adamw: AdamW {
            weight_decay: 0.0,
            ..AdamW::default()
        },
    }
}

fn settings(steps: u64, advantages: Advantages) -> PolicySettings {
    // Whitened advantages stay loud when little is left to learn: smaller steps, and a reason to stay curious.
    let (rate, entropy_bonus, minibatches) = match advantages {
        Advantages::Critic(_) => (0.003, 0.05, 1),
        Advantages::Group { .. } => (0.02, 0.0, 2),
    };
    PolicySettings {
        steps,
        rates: rates(rate),
        advantages,
        clip: Some(Clip {
            low: 0.2,
            high: 0.28,
        }),
        importance_cap: 2.0,
        penalty: None,
        entropy_bonus,
        aggregation: Aggregation::Trajectory,
        epochs: 2,
        minibatches,
        cut_replies: CutReplies::Mask,
        tokens_at_once: 64,
        seed: 3,
    }
}

const PPO: Advantages = Advantages::Critic(CriticSettings {
    gae: Gae {
        gamma: 1.0,
        actor_lambda: 0.95,
        critic_lambda: 1.0,
    },
    rates: Rates {
        peak: 0.01,
        warmup: 2,
        decline: Decline::Constant,
        adamw: AdamW {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            max_gradient_norm: 1.0,
        },
    },
    value_clip: Some(0.5),
    whiten: true,
});

const GRPO: Advantages = Advantages::Group {
    rule: GroupAdvantages::PLAIN,
    refills: 1,
};

/// What the policy is worth in the first steps and in the last.
fn played(settings: PolicySettings, sign: f64) -> (f64, f64, Vec<metrics::Line>) {
    let tiny = Tiny::with_vocabulary(VOCABULARY);
    let weights = Weights::load(&tiny.path()).unwrap();
    let mut actor = CpuActor::new(&weights, &Learns::Everything, 0).unwrap();
    let mut critic = CpuCritic::new(&weights, &Learns::Everything, 0.0, 0).unwrap();
    let reference = CpuActor::new(&weights, &Learns::Everything, 0).unwrap();
    let mut game = Game {
        weights,
        samples: match settings.advantages {
            Advantages::Critic(_) => 24,
            Advantages::Group { .. } => 12,
        },
        sign,
        worth: Vec::new(),
    };
    let folder = tempfile::tempdir().unwrap();
    let keeping = Keeping {
        folder: folder.path().to_path_buf(),
        origin: tiny.path(),
        every: 1000,
        checkpoints: 1,
    };
    let outcome = PolicyRun {
        actor: &mut actor,
        critic: Some(&mut critic),
        reference: Some(&reference),
        collector: &mut game,
        settings,
    }
    .run(&keeping, &mut Silent)
    .unwrap();
    assert_eq!((outcome.step, outcome.interrupted), (settings.steps, false));
    let mean = |worth: &[f64]| worth.iter().sum::<f64>() / worth.len() as f64;
    let worth = &game.worth;
    let lines = metrics::read(folder.path()).unwrap();
    // What was published is what was learnt.
    let published = Weights::load(&outcome.published.unwrap()).unwrap();
    let Published::Weights(learnt) = actor.publish().unwrap() else {
        panic!("all of it learns")
    };
    assert_eq!(published.final_norm, learnt.final_norm);
    (mean(&worth[..3]), mean(&worth[worth.len() - 3..]), lines)
}

#[test]
fn ppo_learns_and_with_the_sign_flipped_unlearns() {
    let (first, last, lines) = played(settings(60, PPO), 1.0);
    assert!(first < 0.3, "{first}");
    assert!(last > 0.9, "{last}");
    assert_eq!(lines.len(), 60);
    // While rewards still differ: later there is no variance to explain.
    let (_, numbers) = &lines[9];
    for name in [
        "reward",
        "reward_p50",
        "pass_rate",
        "length",
        "entropy",
        "ratio_min",
        "ratio_max",
        "clip_low",
        "clip_high",
        "mismatch_mean",
        "mismatch_usual",
        "importance_truncated",
        "policy_loss",
        "value_loss",
        "gradient_norm",
        "critic_gradient_norm",
        "explained_variance",
        "rate",
        "seconds_collect",
        "seconds_learn",
        "tokens_per_second",
    ] {
        assert!(numbers.contains_key(name), "{name}: {numbers:?}");
    }
    // Sampler and learner are one model in two arithmetics.
    assert!(numbers["mismatch_mean"] < 1e-4, "{numbers:?}");
    let (_, flipped, _) = played(settings(60, PPO), -1.0);
    assert!(flipped < 0.1, "{flipped}");
}

#[test]
fn grpo_learns_and_with_the_sign_flipped_unlearns() {
    let (first, last, lines) = played(settings(60, GRPO), 1.0);
    assert!(first < 0.3, "{first}");
    assert!(last > 0.9, "{last}");
    // A group that all got right teaches nothing.
    let dropped: f64 = lines
        .iter()
        .map(|(_, numbers)| numbers["groups_dropped"])
        .sum();
    assert!(dropped > 0.0);
    assert!(!lines[59].1.contains_key("explained_variance"));
    let (_, flipped, _) = played(settings(60, GRPO), -1.0);
    assert!(flipped < 0.1, "{flipped}");
}

/// A strong pull to where it was keeps the policy there.
#[test]
fn a_penalty_holds_the_policy_back() {
    let held = PolicySettings {
        penalty: Some(Penalty {
            kl: Kl::K3,
            coefficient: 20.0,
        }),
        ..settings(25, GRPO)
    };
    let (_, free, _) = played(settings(25, GRPO), 1.0);
    let (_, held, _) = played(held, 1.0);
    assert!(free > 0.5, "{free}");
    assert!(held < 0.5 * free, "{held}, free {free}");
}
