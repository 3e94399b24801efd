use super::*;

const CONSTANT: CallOverhead = CallOverhead {
    single_us: 180.0,
    per_call_us: 8.0,
    per_burst_us: 0.0,
    per_waking_us: 0.0,
    gated_us: None,
};

const NONE: HonestGaps = HonestGaps {
    single_us: 0.0,
    once_us: 0.0,
    gated_us: 0.0,
};

fn raw(single: f64, per_call: f64) -> TimingSamples {
    TimingSamples {
        singles: vec![single; 3],
        bursts: [2, 4, 8]
            .iter()
            .map(|&length| (length, single + per_call * f64::from(length - 1)))
            .collect(),
        ..TimingSamples::default()
    }
}

#[test]
fn honest_work_is_credited_by_its_slope() {
    let estimate = estimate(&raw(180.0 + 100.0, 108.0), &CONSTANT, NONE);
    assert!((estimate.time_us - 100.0).abs() < 1e-9);
    assert!(!estimate.deferred);
    assert_eq!(estimate.samples, 3 + 14);
}

#[test]
fn batched_work_is_credited_by_its_single_call() {
    // 700 us alone but 50 us each in a burst: something was put off until later calls.
    let estimate = estimate(&raw(180.0 + 700.0, 58.0), &CONSTANT, NONE);
    assert!(estimate.deferred);
    assert!((estimate.time_us - 700.0).abs() < 1e-9);
}

#[test]
fn a_few_quick_calls_speak_for_an_honest_kernel() {
    let mut noisy = raw(180.0 + 300.0, 108.0);
    noisy.singles = vec![300.0, 305.0, 460.0, 480.0, 490.0, 500.0];
    noisy.alike = true;
    noisy.bursts = vec![(64, 150.0 + 108.0 * 64.0); 5];
    let constant = CallOverhead {
        per_burst_us: 150.0,
        ..CONSTANT
    };
    let honest = estimate(&noisy, &constant, NONE);
    assert!(!honest.deferred);
    assert!((honest.time_us - 100.0).abs() < 1e-9);
    // Batched work is in every single call.
    noisy.singles = vec![800.0, 805.0, 860.0, 880.0, 890.0, 900.0];
    assert!(estimate(&noisy, &CONSTANT, NONE).deferred);
}

#[test]
fn batched_long_calls_are_seen_behind_a_large_constant() {
    let constant = CallOverhead {
        single_us: 1000.0,
        per_call_us: 20.0,
        per_burst_us: 800.0,
        per_waking_us: 800.0,
        gated_us: None,
    };
    let long = |each: f64| TimingSamples {
        singles: (0..20).map(|step| 1950.0 + 5.0 * f64::from(step)).collect(),
        bursts: vec![(12, 800.0 + 12.0 * (each + 20.0)); 4],
        alike: true,
        ..TimingSamples::default()
    };
    let honest = estimate(&long(950.0), &constant, NONE);
    assert!(!honest.deferred);
    assert!((honest.time_us - 950.0).abs() < 1e-6);
    // A third of the work of every call was shared with others.
    assert!(estimate(&long(690.0), &constant, NONE).deferred);
}

#[test]
fn no_more_than_half_of_a_burst_is_taken_off() {
    let constant = CallOverhead {
        single_us: 1000.0,
        per_call_us: 0.0,
        per_burst_us: 800.0,
        per_waking_us: 800.0,
        gated_us: None,
    };
    let quick = TimingSamples {
        singles: vec![1000.0; 8],
        bursts: vec![(4, 840.0); 4],
        alike: true,
        ..TimingSamples::default()
    };
    assert!((estimate(&quick, &constant, NONE).time_us - 105.0).abs() < 1e-6);
}

#[test]
fn nothing_never_gets_quicker_with_more_calls() {
    let noisy = TimingSamples {
        bursts: vec![(2, 900.0), (3, 800.0)],
        alike: true,
        ..TimingSamples::default()
    };
    let singles = TimingSamples {
        singles: vec![1000.0],
        alike: true,
        ..TimingSamples::default()
    };
    let measured = call_overhead(&singles, &noisy);
    assert_eq!((measured.per_call_us, measured.per_burst_us), (0.0, 900.0));
}

#[test]
fn bursts_after_which_a_core_was_taken_away_do_not_count() {
    let nothing = TimingSamples {
        singles: vec![300.0],
        bursts: [(16, 160.0 + 16.0 * 15.0), (64, 160.0 + 64.0 * 15.0)].repeat(6),
        warm: true,
        alike: true,
        ..TimingSamples::default()
    };
    let constant = call_overhead(&nothing, &nothing);
    assert!(
        (constant.per_call_us - 15.0).abs() < 1e-9 && (constant.per_burst_us - 160.0).abs() < 1e-9
    );
    let clean = 160.0 + 64.0 * (15.0 + 20.0);
    let kernel = TimingSamples {
        singles: vec![330.0; 8],
        bursts: [1.0, 2.2, 1.0, 9.0, 1.0, 1.0, 1.4, 1.0]
            .map(|times| (64, clean * times))
            .to_vec(),
        warm: true,
        alike: true,
        ..TimingSamples::default()
    };
    let estimate = estimate(&kernel, &constant, NONE);
    assert!(
        (estimate.time_us - 20.0).abs() < 1e-9,
        "{}",
        estimate.time_us
    );
    // Noisy single calls are not what the time rests on.
    let mut noisy = kernel.clone();
    noisy.singles = vec![200.0, 300.0, 600.0, 900.0];
    assert!((noisy.spread() - kernel.spread()).abs() < 1e-12);
    noisy.alike = false;
    assert!(noisy.spread() > kernel.spread());
}

/// Slow short bursts once made the slope of long ones look small.
#[test]
fn slow_short_bursts_gain_nothing_where_bursts_are_alike() {
    let constant = CallOverhead {
        per_burst_us: 160.0,
        ..CONSTANT
    };
    let mut kernel = TimingSamples {
        singles: vec![220.0; 8],
        bursts: vec![(64, 160.0 + 64.0 * 48.0); 6],
        warm: true,
        alike: true,
        ..TimingSamples::default()
    };
    let honest = estimate(&kernel, &constant, NONE).time_us;
    kernel.bursts.push((16, 160.0 + 64.0 * 48.0));
    assert!(estimate(&kernel, &constant, NONE).time_us >= honest - 1e-9);
}

#[test]
fn small_gaps_are_not_called_deferred() {
    let estimate = estimate(&raw(180.0 + 100.0, 8.0 + 90.0), &CONSTANT, NONE);
    assert!(!estimate.deferred);
}

#[test]
fn without_bursts_single_calls_decide() {
    let mut raw = raw(180.0 + 5000.0, 1000.0);
    raw.bursts.clear();
    let estimate = estimate(&raw, &CONSTANT, NONE);
    assert!((estimate.time_us - 5000.0).abs() < 1e-9);
    assert!(!estimate.deferred);
}

#[test]
fn a_constant_from_a_busier_hour_is_noticed() {
    let stale = CallOverhead {
        single_us: 36_900.0,
        per_call_us: 8.0,
        per_burst_us: 0.0,
        per_waking_us: 0.0,
        gated_us: None,
    };
    assert!(contradicts(&raw(20_000.0, 20_000.0), &stale));
    assert!(!contradicts(&raw(280.0, 108.0), &CONSTANT));
}

#[test]
fn a_constant_after_warm_ups_stands_a_noisy_host() {
    let mut nothing = raw(300.0, 8.0);
    nothing.singles = vec![210.0, 300.0, 310.0, 320.0, 330.0, 340.0];
    nothing.warm = true;
    let measured = call_overhead(&nothing, &nothing);
    assert!(measured.single_us < 260.0, "{}", measured.single_us);
    let mut quick = raw(200.0, 20.0);
    quick.warm = true;
    assert!(!contradicts(&quick, &measured));
    assert!(contradicts(&raw(60.0, 20.0), &measured));
}

#[test]
fn a_time_is_never_zero_or_negative() {
    let estimate = estimate(&raw(170.0, 5.0), &CONSTANT, NONE);
    assert!(estimate.time_us > 0.0);
}

#[test]
fn one_wild_interval_does_not_move_the_slope() {
    let mut raw = raw(180.0 + 100.0, 108.0);
    raw.bursts.push((4, 90_000.0));
    let estimate = estimate(&raw, &CONSTANT, NONE);
    assert!(
        (estimate.time_us - 100.0).abs() < 5.0,
        "{}",
        estimate.time_us
    );
}

/// Intervals of a machine with busy neighbours, more than half of them interrupted for milliseconds.
#[test]
fn a_machine_that_takes_cores_away_does_not_move_a_short_time() {
    let noisy = TimingSamples {
        singles: vec![
            2400.0, 3909.0, 345.0, 10346.0, 7680.0, 340.0, 5824.0, 352.0, 6475.0, 338.0,
        ],
        bursts: vec![
            (2, 2336.0),
            (2, 401.0),
            (2, 8872.0),
            (4, 521.0),
            (4, 3692.0),
            (4, 519.0),
            (6, 643.0),
            (6, 2850.0),
            (6, 7073.0),
            (8, 12225.0),
            (8, 761.0),
            (8, 3230.0),
        ],
        ..TimingSamples::default()
    };
    let nothing = CallOverhead {
        single_us: 300.0,
        per_call_us: 35.0,
        per_burst_us: 0.0,
        per_waking_us: 0.0,
        gated_us: None,
    };
    let seen = HonestGaps {
        once_us: 15.0,
        ..NONE
    };
    let found = estimate(&noisy, &nothing, seen);
    // 60 us a call, of which Python takes 35; more than half of it stays.
    assert!((20.0..200.0).contains(&found.time_us), "{}", found.time_us);
    assert!(!found.deferred);
    let gap = honest_gap_us(&noisy, &nothing, &found);
    assert!(gap < 50.0, "{gap}");
}

#[test]
fn long_differences_weigh_more() {
    let values = vec![(1.0, 1.0), (5.0, 10.0), (9.0, 1.0), (2.0, 1.0)];
    assert_eq!(weighted_median(values), Some(5.0));
    assert_eq!(weighted_median(Vec::new()), None);
}

#[test]
fn shapes_combine_by_geometric_mean() {
    let one = estimate(&raw(180.0 + 100.0, 108.0), &CONSTANT, NONE);
    let mut two = one;
    two.time_us = 400.0;
    assert!((combine(&[one, two]).unwrap().time_us - 200.0).abs() < 1e-6);
}

#[test]
fn clear_of_a_line_needs_samples_and_distance() {
    let mut raw = raw(180.0 + 100.0, 108.0);
    assert!(!is_clear_of(&raw, &CONSTANT, &[200.0]));
    raw.singles = (0..16).map(|step| 280.0 + f64::from(step % 3)).collect();
    assert!(is_clear_of(&raw, &CONSTANT, &[200.0]));
    assert!(!is_clear_of(&raw, &CONSTANT, &[100.5]));
}

/// As seen on an H200: a null call that wakes the device for a tiny kernel began later than eager mode's calls did, and hid what a
/// candidate did once.
#[test]
fn work_done_once_is_not_hidden_behind_a_slow_beginning_of_nothing() {
    let constant = CallOverhead {
        single_us: 200.0,
        per_call_us: 10.0,
        per_burst_us: 140.0,
        per_waking_us: 365.0,
        gated_us: None,
    };
    // Each call takes 25 us, 10 of them the judge's; a burst begins after 300 us, and one does work of 45 us once.
    let bursts = |beginning: f64| -> TimingSamples {
        TimingSamples {
            singles: vec![225.0; 24],
            bursts: [
                vec![(64, beginning - 160.0 + 64.0 * 25.0); 4],
                vec![(1, beginning + 25.0); 4],
            ]
            .concat(),
            warm: true,
            alike: true,
            ..TimingSamples::default()
        }
    };
    let eager = bursts(300.0);
    let of_eager = estimate(&eager, &constant, HonestGaps::ANY);
    let honest = HonestGaps {
        single_us: honest_gap_us(&eager, &constant, &of_eager),
        once_us: honest_once_us(&eager, &constant, &of_eager),
        gated_us: honest_gate_gap_us(&eager, &constant, &of_eager),
    };
    assert!(honest.once_us < -60.0, "{}", honest.once_us);
    let kernel = estimate(&bursts(300.0), &constant, honest);
    assert!(!kernel.deferred, "{kernel:?}");
    let mut sharing = bursts(345.0);
    sharing.bursts.retain(|(length, _)| *length == 1);
    sharing
        .bursts
        .extend(vec![(64, 140.0 + 45.0 + 64.0 * 25.0); 4]);
    sharing.singles = vec![270.0; 24];
    let caught = estimate(&sharing, &constant, honest);
    assert!(caught.deferred && caught.time_us > 50.0, "{caught:?}");
}
