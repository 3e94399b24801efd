//! PPO and GRPO from end to end, on a game small enough for a test: a model of random numbers is shown one of a few signs and
//! paid for answering with the two tokens that belong to it. It samples with the model that users run.

mod steps;

use std::path::Path;
use std::sync::Arc;

use crate::tiny::Tiny;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::training::AdamW;
use warpsmith_model::{LogitsFor, Segment, Transformer, Weights};
use warpsmith_train::TrainError;
use warpsmith_train::algorithms::{Aggregation, Clip, Gae, GroupAdvantages, Kl, LossMode, Spread};
use warpsmith_train::data::{Finding, TokenEpisode, Tokens};
use warpsmith_train::lr_schedule::LrSchedulerType;
use warpsmith_train::metrics::{self, Numbers};
use warpsmith_train::network::{Actor as _, FineTuning, Published, TokenSequence, TrainingModel};
use warpsmith_train::recipes::{
    Advantages, Collector, CriticSettings, CutReplies, Keeping, OptimizerSettings, Penalty,
    PolicyRun, PolicySettings, RecipeOutcome, Watch,
};

const VOCABULARY: usize = 12;
const SIGNS: [u32; 3] = [2, 3, 4];

struct Game {
    weights: Weights,
    /// Episodes of each sign.
    samples: usize,
    /// −1 turns what is good into what is bad.
    sign: f64,
    /// So many episodes of each sign count as cut, the first.
    cut: usize,
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

impl Game {
    fn play(&self, policy: &Published, seed: u64) -> Result<Vec<TokenEpisode>, TrainError> {
        let model = Transformer::new(Arc::new(policy.on(&self.weights)?));
        let mut random = StdRng::seed_from_u64(seed);
        let mut episodes = Vec::new();
        for sign in SIGNS {
            for number in 0..self.samples {
                let mut cache = model.new_cache();
                let mut tokens = vec![1, sign];
                let mut sampled = Vec::new();
                let mut fresh = 0;
                while tokens.len() < 4 {
                    let logits = model.forward(&mut [Segment {
                        cache: &mut cache,
                        tokens: &tokens[fresh..],
                        logits_for: LogitsFor::Last,
                    }])?;
                    fresh = tokens.len();
                    let (token, logprob) = sample(logits[0].row(0), &mut random);
                    tokens.push(token);
                    sampled.push(logprob);
                }
                let pairs = answer(sign).into_iter().zip(tokens[2..].iter().copied());
                let right = pairs.filter(|(one, other)| one == other).count();
                episodes.push(TokenEpisode {
                    task: format!("sign {sign}"),
                    tokens: Tokens {
                        sequences: vec![TokenSequence::new(tokens, &[false, false, true, true])],
                        sampled,
                    },
                    reward: self.sign * right as f64 / 2.0,
                    finding: Finding {
                        robust: if right == 2 { 1.0 } else { -1.0 },
                        ..Finding::NOTHING
                    },
                    cut: number < self.cut,
                });
            }
        }
        Ok(episodes)
    }
}

impl Collector for Game {
    fn collect(
        &mut self,
        step: u64,
        round: u32,
        policy: &Published,
    ) -> Result<Vec<TokenEpisode>, TrainError> {
        let episodes = self.play(policy, 1000 * step + u64::from(round))?;
        let worth = episodes.iter().map(|one| self.sign * one.reward);
        self.worth.push(worth.sum::<f64>() / episodes.len() as f64);
        Ok(episodes)
    }

    fn examine(
        &mut self,
        _: u64,
        policy: &Published,
    ) -> Result<Option<Vec<TokenEpisode>>, TrainError> {
        self.play(policy, 0).map(Some)
    }
}

/// Stops after a step, or never.
struct Until(Option<u64>, u64);

impl Watch for Until {
    fn stepped(&mut self, step: u64, _: u64, _: &Numbers) {
        self.1 = step;
    }

    fn wants_stop(&mut self) -> bool {
        self.0 == Some(self.1)
    }
}

fn optimizer(learning_rate: f64) -> OptimizerSettings {
    OptimizerSettings {
        learning_rate,
        warmup_steps: 2,
        lr_scheduler_type: LrSchedulerType::Constant,
        adamw: AdamW {
            weight_decay: 0.0,
            ..AdamW::default()
        },
    }
}

fn settings(steps: u64, advantages: Advantages) -> PolicySettings {
    // Whitened advantages stay loud when little is left to learn: smaller steps, and a reason to stay curious.
    let (rate, entropy_coeff, minibatches) = match advantages {
        Advantages::Critic(_) => (0.003, 0.05, 1),
        Advantages::Group { .. } => (0.02, 0.0, 2),
    };
    PolicySettings {
        steps,
        optimizer: optimizer(rate),
        advantages,
        loss_mode: LossMode::Vanilla,
        clip: Some(Clip {
            low: 0.2,
            high: 0.28,
            c: Some(3.0),
        }),
        importance_cap: 2.0,
        penalty: None,
        entropy_coeff,
        aggregation: Aggregation::Trajectory,
        epochs: 2,
        target_kl: None,
        refills: 1,
        minibatches,
        cut_replies: CutReplies::Mask,
        tokens_per_microbatch: 64,
        seed: 3,
        evaluate_every: 20,
    }
}

const PPO: Advantages = Advantages::Critic(CriticSettings {
    gae: Gae {
        gamma: 1.0,
        lam: 0.95,
        critic_lambda: 1.0,
    },
    optimizer: OptimizerSettings {
        learning_rate: 0.01,
        warmup_steps: 2,
        lr_scheduler_type: LrSchedulerType::Constant,
        adamw: AdamW {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
        },
    },
    epochs: 2,
    value_clip: Some(0.5),
    whiten: true,
});

const GRPO: Advantages = Advantages::Group {
    rule: GroupAdvantages::PLAIN,
};

/// What must be the same whenever the same is done.
fn lines(folder: &Path) -> Vec<metrics::Line> {
    let mut lines = metrics::read(folder).unwrap();
    for (_, numbers) in &mut lines {
        numbers.retain(|name, _| !name.contains("second"));
    }
    lines
}

/// What the policy is worth in the first steps and in the last.
fn played(settings: &PolicySettings, sign: f64) -> (f64, f64, Vec<metrics::Line>) {
    let folder = tempfile::tempdir().unwrap();
    let (outcome, worth) = played_in(folder.path(), settings, (sign, 0), None);
    assert_eq!((outcome.step, outcome.interrupted), (settings.steps, false));
    let mean = |worth: &[f64]| worth.iter().sum::<f64>() / worth.len() as f64;
    let lines = metrics::read(folder.path()).unwrap();
    (mean(&worth[..3]), mean(&worth[worth.len() - 3..]), lines)
}

/// Up to a step, or to the end, in a game with this sign and so many that are cut.
fn played_in(
    folder: &Path,
    settings: &PolicySettings,
    game: (f64, usize),
    until: Option<u64>,
) -> (RecipeOutcome, Vec<f64>) {
    let (outcome, worth) = try_in(folder, settings, game, until);
    (outcome.unwrap(), worth)
}

fn try_in(
    folder: &Path,
    settings: &PolicySettings,
    (sign, cut): (f64, usize),
    until: Option<u64>,
) -> (Result<RecipeOutcome, TrainError>, Vec<f64>) {
    let tiny = Tiny::with_vocabulary(VOCABULARY);
    let weights = Weights::load(&tiny.path()).unwrap();
    let model = TrainingModel::on_cpu(&weights, &FineTuning::Full, 0).unwrap();
    let mut actor = model.actor().unwrap();
    let mut critic = model.critic(0.0).unwrap();
    let reference = model.actor().unwrap();
    let mut game = Game {
        weights,
        samples: match settings.advantages {
            Advantages::Critic(_) => 24,
            Advantages::Group { .. } => 12,
        },
        sign,
        cut,
        worth: Vec::new(),
    };
    let keeping = Keeping {
        folder: folder.to_path_buf(),
        origin: tiny.path(),
        every: 1000,
        checkpoints: 1,
    };
    let outcome = PolicyRun {
        actor: &mut actor,
        critic: Some(&mut critic),
        reference: Some(&reference),
        collector: &mut game,
        settings: *settings,
    }
    .run(&keeping, &mut Until(until, 0));
    let Ok(outcome) = outcome else {
        return (outcome, game.worth);
    };
    // What was published is what was learnt.
    let published = Weights::load(outcome.published.as_ref().unwrap()).unwrap();
    let Published::Weights(trained) = actor.publish().unwrap() else {
        panic!("all of it learns")
    };
    assert_eq!(published.final_norm, trained.final_norm);
    (Ok(outcome), game.worth)
}

#[test]
fn ppo_learns_and_with_the_sign_flipped_unlearns() {
    let (first, last, lines) = played(&settings(60, PPO), 1.0);
    assert!(first < 0.3, "{first}");
    assert!(last > 0.9, "{last}");
    // One line from before the first step.
    assert_eq!(lines.len(), 61);
    let validation: Vec<(u64, f64)> = lines
        .iter()
        .filter_map(|(step, numbers)| Some((*step, *numbers.get("validation_pass_rate")?)))
        .collect();
    let steps: Vec<u64> = validation.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [0, 20, 40, 60]);
    assert!(
        validation[0].1 < 0.3 && validation[3].1 > 0.8,
        "{validation:?}"
    );
    // While rewards still differ: later there is no variance to explain.
    let (_, numbers) = &lines[10];
    for name in [
        "reward",
        "reward_p50",
        "pass_rate",
        "robust_reward",
        "faster_rate",
        "cheating_share",
        "unreadable_share",
        "robust_correct",
        "kl",
        "kl_step",
        "length",
        "entropy",
        "ratio_min",
        "ratio_max",
        "clip_fraction_low",
        "clip_fraction_high",
        "clip_fraction_c",
        "sampled_entropy",
        "updates",
        "mismatch_mean",
        "mismatch_usual",
        "importance_truncated",
        "policy_loss",
        "value_loss",
        "grad_norm",
        "critic_grad_norm",
        "explained_variance",
        "learning_rate",
        "seconds_collect",
        "seconds_learn",
        "tokens_per_second",
    ] {
        assert!(numbers.contains_key(name), "{name}: {numbers:?}");
    }
    // Sampler and learner are one model in two arithmetics.
    assert!(numbers["mismatch_mean"] < 1e-4, "{numbers:?}");
    let (_, flipped, _) = played(&settings(60, PPO), -1.0);
    assert!(flipped < 0.1, "{flipped}");
}

#[test]
fn grpo_learns_and_with_the_sign_flipped_unlearns() {
    let (first, last, lines) = played(&settings(60, GRPO), 1.0);
    assert!(first < 0.3, "{first}");
    assert!(last > 0.9, "{last}");
    // A group that all got right teaches nothing.
    let dropped: f64 = lines
        .iter()
        .filter_map(|(_, numbers)| numbers.get("groups_dropped"))
        .sum();
    assert!(dropped > 0.0);
    assert!(!lines[60].1.contains_key("explained_variance"));
    let (_, flipped, _) = played(&settings(60, GRPO), -1.0);
    assert!(flipped < 0.1, "{flipped}");
}

/// RLOO, Dr. GRPO and GSPO learn the same game. With PPO's rate and bonus, as with GRPO's rate whether a policy collapses before
/// it is right depends on the seed, by whichever of them it learns.
#[test]
fn rloo_dr_grpo_and_gspo_learn() {
    let of = |spread| PolicySettings {
        optimizer: optimizer(0.003),
        entropy_coeff: 0.05,
        ..settings(
            60,
            Advantages::Group {
                rule: GroupAdvantages {
                    spread,
                    ..GroupAdvantages::PLAIN
                },
            },
        )
    };
    let dr_grpo = PolicySettings {
        aggregation: Aggregation::Constant { tokens: 4 },
        ..of(Spread::Absolute)
    };
    let gspo = PolicySettings {
        loss_mode: LossMode::Gspo,
        ..of(Spread::Absolute)
    };
    for (name, settings) in [
        ("RLOO", of(Spread::LeaveOneOut)),
        ("Dr. GRPO", dr_grpo),
        ("GSPO", gspo),
    ] {
        let (first, last, lines) = played(&settings, 1.0);
        assert!(first < 0.3 && last > 0.9, "{name}: {first} to {last}");
        // A mean, whatever the weights of the loss sum to: of a policy that begins with next to no preference.
        let entropy = lines[1].1["entropy"];
        let most = (VOCABULARY as f64).ln();
        assert!((0.8 * most..=most).contains(&entropy), "{name}: {entropy}");
    }
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
    let (_, free, _) = played(&settings(25, GRPO), 1.0);
    let (_, held, _) = played(&held, 1.0);
    assert!(free > 0.5, "{free}");
    assert!(held < 0.5 * free, "{held}, free {free}");
}

/// Stopped between two looks at what is held out: the end is the same, and the best checkpoint is kept beside the last.
#[test]
fn a_stopped_run_goes_on_with_what_it_knows_of_the_best() {
    let settings = PolicySettings {
        evaluate_every: 2,
        ..settings(9, PPO)
    };
    let [whole, parts] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (outcome, _) = played_in(whole.path(), &settings, (1.0, 0), None);
    for until in [Some(1), Some(5), None] {
        let (part, _) = played_in(parts.path(), &settings, (1.0, 0), until);
        assert_eq!(part.step, until.unwrap_or(9));
    }
    assert_eq!(lines(parts.path()), lines(whole.path()));
    let merits = lines(whole.path());
    let merits = merits.iter().filter(|(step, _)| *step > 0);
    let best = merits
        .filter_map(|(step, numbers)| Some((*step, *numbers.get("validation_reward")?)))
        .reduce(|best, next| if next.1 > best.1 { next } else { best })
        .unwrap();
    let found = outcome.best.unwrap();
    assert_eq!((found.step, found.merit), best);
    for folder in [&whole, &parts] {
        let best = folder.path().join("best/model.safetensors");
        let place = format!("checkpoints/step-{:06}/published", found.step);
        let kept = folder.path().join(place).join("model.safetensors");
        assert_eq!(fs_err::read(best).unwrap(), fs_err::read(kept).unwrap());
    }
    let published = |folder: &Path| fs_err::read(folder.join("published/model.safetensors"));
    assert_eq!(
        published(parts.path()).unwrap(),
        published(whole.path()).unwrap()
    );
}
