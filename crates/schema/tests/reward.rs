//! Reward arithmetic, by tables.

use warpsmith_schema::{
    AttemptProgress, CompositeWeights, MatchedPrecision, Number, Precision, Profile, Reward,
    Speedup, Status, Target, Times, Verdict, composite_reward, ladder_reward, raw_reward,
    robust_reward,
};

#[test]
fn robust_pays_for_milestones_at_five_percent() {
    for (candidate, eager, compile, expected) in [
        (100.0, 100.0, Some(100.0), 1.0),
        (95.0, 100.0, Some(100.0), 1.0), // exactly 5 % is not more than 5 %
        (94.9, 100.0, Some(94.9), 2.0),
        (94.9, 100.0, Some(100.0), 3.0),
        (94.9, 100.0, None, 2.0),
        (94.9, 90.0, Some(200.0), 1.0), // slower than eager: compile's own slowness earns nothing
    ] {
        assert!(
            (robust_reward(candidate, eager, compile) - expected).abs() < 1e-12,
            "{candidate} {eager} {compile:?}"
        );
    }
}

#[test]
fn raw_is_the_speedup_over_compile_or_eager() {
    assert!((raw_reward(50.0, 100.0, Some(75.0)) - 1.5).abs() < 1e-12);
    assert!((raw_reward(50.0, 100.0, None) - 2.0).abs() < 1e-12);
}

#[test]
fn composite_is_capped() {
    let weights = CompositeWeights::default();
    for (compiled, speedup, expected) in [
        (false, None, 0.0),
        (true, None, 0.5),
        (true, Some(1.0), 3.0),
        (true, Some(3.0), 6.0),
        (true, Some(300.0), 6.0),
    ] {
        assert!((composite_reward(&weights, compiled, speedup) - expected).abs() < 1e-12);
    }
}

#[test]
fn the_ladder_rises_with_progress_and_stays_below_success() {
    let steps = [
        AttemptProgress::default(),
        AttemptProgress {
            parsed: true,
            ..AttemptProgress::default()
        },
        AttemptProgress {
            parsed: true,
            compiled: true,
            ..AttemptProgress::default()
        },
        AttemptProgress {
            parsed: true,
            compiled: true,
            loaded: true,
            ..AttemptProgress::default()
        },
        AttemptProgress {
            parsed: true,
            compiled: true,
            loaded: true,
            ran: true,
            ..AttemptProgress::default()
        },
        AttemptProgress {
            parsed: true,
            compiled: true,
            loaded: true,
            ran: true,
            shape_ok: true,
            share_within_tolerance: Some(0.0),
        },
        AttemptProgress {
            parsed: true,
            compiled: true,
            loaded: true,
            ran: true,
            shape_ok: true,
            share_within_tolerance: Some(0.5),
        },
        AttemptProgress {
            parsed: true,
            compiled: true,
            loaded: true,
            ran: true,
            shape_ok: true,
            share_within_tolerance: Some(1.0),
        },
    ];
    let values: Vec<f64> = steps.iter().map(ladder_reward).collect();
    assert!(
        values.windows(2).all(|pair| pair[0] < pair[1]),
        "{values:?}"
    );
    assert!((values[0] + 1.0).abs() < 1e-12);
    assert!((values[7] + 0.2).abs() < 1e-9);
}

#[test]
fn a_rung_counts_only_on_top_of_those_below() {
    let gap = AttemptProgress {
        parsed: true,
        loaded: true,
        ran: true,
        shape_ok: true,
        ..AttemptProgress::default()
    };
    assert!((ladder_reward(&gap) + 0.9).abs() < 1e-12);
    let nonsense = AttemptProgress {
        share_within_tolerance: Some(f64::NAN),
        parsed: true,
        ..AttemptProgress::default()
    };
    assert!(ladder_reward(&nonsense).is_finite());
}

fn verdict(status: Status) -> Verdict {
    let mut verdict =
        Verdict::unreached(status, Target::Cpu, Profile::Full, "a machine".to_owned());
    verdict.compiled = true;
    verdict.progress = AttemptProgress {
        parsed: true,
        compiled: true,
        loaded: true,
        ran: true,
        shape_ok: true,
        share_within_tolerance: Some(0.9),
    };
    verdict
}

#[test]
fn cheating_is_the_lowest_on_every_scale() {
    let lowest = Reward::of(&verdict(Status::Cheating));
    for status in [
        Status::CompileFailed,
        Status::Crashed,
        Status::TimedOut,
        Status::Mismatch,
        Status::Passed,
        Status::Rejected,
    ] {
        let other = Reward::of(&verdict(status));
        assert!(
            lowest.robust <= other.robust && lowest.ladder <= other.ladder,
            "{status:?}"
        );
        assert!(
            lowest.raw.0 <= other.raw.0 && lowest.composite.0 <= other.composite.0,
            "{status:?}"
        );
    }
}

#[test]
fn a_pass_without_usable_times_earns_nothing() {
    for candidate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let mut passed = verdict(Status::Passed);
        passed.times_us = Some(Times {
            candidate: Number(candidate),
            eager: Number(1.0),
            compile: None,
            spread: Number(0.0),
            samples: 1,
            single: Number(1.0),
            burst: None,
            constant: Number(1.0),
        });
        passed.matched_precision = Some(MatchedPrecision {
            mode: Precision::Fp32,
            eager_us: Number(1.0),
            compile_us: None,
            speedup: Speedup {
                eager: Number(1.0),
                compile: None,
            },
        });
        assert_eq!(Reward::of(&passed), Reward::lowest(), "{candidate}");
    }
}

#[test]
fn a_verdict_survives_json_with_every_key_present() {
    let mut original = verdict(Status::Mismatch);
    original.reward.raw = Number(f64::NAN);
    original.reward.composite = Number(f64::NEG_INFINITY);
    let text = serde_json::to_string(&original).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    for key in [
        "format",
        "status",
        "rule",
        "reason",
        "compiled",
        "correct",
        "progress",
        "target",
        "device",
        "times_us",
        "speedup",
        "matched_precision",
        "numerics",
        "reward",
        "seconds",
        "isolation",
        "trust",
        "evidence",
    ] {
        assert!(value.get(key).is_some(), "`{key}` is missing");
    }
    assert_eq!(value["reward"]["raw"], "nan");
    let back: Verdict = serde_json::from_str(&text).unwrap();
    assert_eq!(back, original);
}

/// What was only verified earns as much as what is as fast as eager, and no more.
#[test]
fn untimed_solutions_earn_what_correctness_is_worth() {
    let mut verdict =
        Verdict::unreached(Status::Passed, Target::Cuda, Profile::Verify, String::new());
    verdict.compiled = true;
    let reward = Reward::of(&verdict);
    assert_eq!(
        (reward.robust, reward.ladder),
        (1.0, robust_reward(1.0, 1.0, None))
    );
    verdict.profile = Profile::Rl;
    assert_eq!(Reward::of(&verdict), Reward::lowest());
}
