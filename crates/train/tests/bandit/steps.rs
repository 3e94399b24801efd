//! What bounds a step, and what a step learns from.

use std::collections::BTreeMap;

use warpsmith_train::checkpoint::Checkpoints;

use super::*;

/// Many updates a step, so large that the policy leaves where it was.
fn hasty() -> PolicySettings {
    PolicySettings {
        epochs: 8,
        minibatches: 1,
        ..settings(3, GRPO)
    }
}

fn numbers_of(settings: &PolicySettings, game: (f64, usize)) -> Vec<metrics::Line> {
    let folder = tempfile::tempdir().unwrap();
    played_in(folder.path(), settings, game, None);
    let mut lines = lines(folder.path());
    lines.retain(|(step, _)| *step > 0);
    lines
}

#[test]
fn a_step_ends_once_the_policy_has_moved_far_enough() {
    let free = numbers_of(&hasty(), (1.0, 0));
    let target_kl = 0.01;
    let bounded = PolicySettings {
        target_kl: Some(target_kl),
        ..hasty()
    };
    let bounded = numbers_of(&bounded, (1.0, 0));
    for ((_, free), (_, bounded)) in free.iter().zip(&bounded) {
        assert!((free["updates"] - 8.0).abs() < 1e-9);
        assert!(bounded["updates"] < 8.0, "{bounded:?}");
        // The update that went beyond is the last.
        assert!(bounded["kl_step"] > target_kl);
    }
    assert!(bounded[0].1["kl_step"] < free[0].1["kl_step"]);
}

/// Before the only update of a step the policy is where it was.
#[test]
fn how_far_a_step_went_is_measured_after_its_last_update() {
    let single = PolicySettings {
        epochs: 1,
        minibatches: 1,
        ..settings(3, GRPO)
    };
    for (_, numbers) in numbers_of(&single, (1.0, 0)) {
        assert!(numbers["kl_step"] > 1e-6, "{numbers:?}");
        assert!((numbers["ratio_max"] - 1.0).abs() < 1e-5);
    }
}

/// It says the same every time at once, right or wrong.
#[test]
fn a_policy_that_has_collapsed_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let wild = PolicySettings {
        optimizer: OptimizerSettings {
            warmup_steps: 0,
            ..optimizer(1.0)
        },
        ..settings(60, PPO)
    };
    let (outcome, worth) = try_in(folder.path(), &wild, (1.0, 0), None);
    let Err(TrainError::Diverged { reason, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(reason.starts_with("sampled_entropy is "), "{reason}");
    assert!(worth.len() < 60);
}

/// What a guard knows is in the checkpoint.
#[test]
fn a_guard_hears_what_tells_a_run_gone_wrong() {
    let folder = tempfile::tempdir().unwrap();
    played_in(folder.path(), &settings(2, PPO), (1.0, 0), None);
    let checkpoints = Checkpoints::new(folder.path().join("checkpoints"), 1);
    let memory = checkpoints.load().unwrap().unwrap().memory;
    let levels = memory["guard"]["levels"].as_object().unwrap();
    let heard: Vec<(&str, Vec<&str>)> = levels
        .iter()
        .map(|(name, alarms)| {
            let alarms = alarms.as_object().unwrap().keys();
            (name.as_str(), alarms.map(String::as_str).collect())
        })
        .collect();
    let expected = [
        ("entropy", "rise"),
        ("kl_step", "spike"),
        ("mismatch_mean", "rise"),
        ("sampled_entropy", "collapse"),
        ("value_loss", "rise"),
    ];
    assert_eq!(heard, expected.map(|(name, alarm)| (name, vec![alarm])));
}

/// Where all replies earn the same, the policy stays as it is to the last bit. The critic learns what there is to expect.
#[test]
fn groups_without_a_difference_teach_the_critic_alone() {
    let folder = tempfile::tempdir().unwrap();
    let settings = PolicySettings {
        entropy_coeff: 0.5,
        ..settings(2, PPO)
    };
    // Nothing is paid, whatever is said.
    let (outcome, _) = played_in(folder.path(), &settings, (0.0, 0), None);
    let tiny = Tiny::with_vocabulary(VOCABULARY);
    let before = Weights::load(&tiny.path()).unwrap();
    let after = Weights::load(outcome.published.as_ref().unwrap()).unwrap();
    assert_eq!(before.final_norm, after.final_norm);
    let lines = lines(folder.path());
    let numbers = &lines[2].1;
    // Three signs, and three more in their place.
    assert!(
        (numbers["groups_dropped"] - 6.0).abs() < 1e-9,
        "{numbers:?}"
    );
    assert!((numbers["episodes"] - 144.0).abs() < 1e-9);
    assert!(!numbers.contains_key("policy_loss"));
    assert!(numbers["value_loss"] >= 0.0);
    assert!(numbers["critic_grad_norm"] >= 0.0);
}

#[test]
fn cut_replies_are_punished_once_few_are_cut() {
    let of = |cut_replies, cut| {
        let settings = PolicySettings {
            cut_replies,
            refills: 0,
            ..settings(2, GRPO)
        };
        numbers_of(&settings, (1.0, cut))
    };
    // One of twelve is few, six are many.
    let (few, many) = (1, 6);
    assert_eq!(of(CutReplies::Auto, few), of(CutReplies::Penalise, few));
    assert_ne!(of(CutReplies::Auto, few), of(CutReplies::Mask, few));
    assert_eq!(of(CutReplies::Auto, many), of(CutReplies::Mask, many));
    assert_ne!(of(CutReplies::Auto, many), of(CutReplies::Penalise, many));
}

/// As often as it is told, whatever the policy does, and to better effect.
#[test]
fn a_critic_has_epochs_of_its_own() {
    let with = |epochs: u64| {
        let Advantages::Critic(critic) = PPO else {
            unreachable!("PPO has one")
        };
        let settings = PolicySettings {
            epochs: 1,
            // A policy that stays where it is pays the same all the time.
            optimizer: optimizer(0.0),
            advantages: Advantages::Critic(CriticSettings { epochs, ..critic }),
            ..settings(12, PPO)
        };
        let folder = tempfile::tempdir().unwrap();
        played_in(folder.path(), &settings, (1.0, 0), None);
        let checkpoints = Checkpoints::new(folder.path().join("checkpoints"), 1);
        let counters = checkpoints.load().unwrap().unwrap().memory["recipe"]["counters"].clone();
        let counts = ["updates", "critic_updates"].map(|name| counters[name].as_u64().unwrap());
        let numbers: BTreeMap<String, f64> = lines(folder.path()).pop().unwrap().1;
        (counts, numbers["explained_variance"])
    };
    let ((once, little), (often, more)) = (with(1), with(6));
    assert_eq!((once, often), ([12, 12], [12, 72]));
    assert!(more > little + 0.02, "{little}, {more}");
}
