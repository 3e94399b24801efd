//! Simulated candidates against the estimate: what each is credited with, honest or not.

use super::*;

const NONE: HonestGaps = HonestGaps {
    single_us: 0.0,
    once_us: 0.0,
    gated_us: 0.0,
};

/// What a candidate's calls take, less the judge's own share: `once` for a burst, `each` for a call, and what it waits for to
/// look like something else.
struct Candidate {
    once_us: f64,
    each_us: f64,
    waits: fn(calls: u32) -> f64,
}

impl Candidate {
    fn new(once_us: f64, each_us: f64) -> Self {
        Self {
            once_us,
            each_us,
            waits: |_| 0.0,
        }
    }

    fn takes(&self, calls: u32) -> f64 {
        self.once_us + f64::from(calls) * self.each_us + (self.waits)(calls)
    }

    fn honest_us(&self) -> f64 {
        self.once_us + self.each_us
    }

    /// Intervals of a CPU: every length is woken in the same way.
    fn on_cpu(&self) -> TimeEstimate {
        let constant = CallOverhead {
            single_us: 200.0,
            per_call_us: 12.0,
            per_burst_us: 0.0,
            per_waking_us: 0.0,
            gated_us: None,
        };
        let time = |calls: u32| 188.0 + 12.0 * f64::from(calls) + self.takes(calls);
        let raw = TimingSamples {
            singles: vec![time(1); 20],
            bursts: [2, 4, 6, 8]
                .repeat(3)
                .into_iter()
                .map(|calls| (calls, time(calls)))
                .collect(),
            ..TimingSamples::default()
        };
        estimate(&raw, &constant, NONE)
    }

    /// Of a GPU: a burst costs less than a single call, and single calls are rough.
    fn on_gpu(&self) -> TimeEstimate {
        let constant = CallOverhead {
            single_us: 260.0,
            per_call_us: 9.0,
            per_burst_us: 60.0,
            per_waking_us: 110.0,
            gated_us: None,
        };
        let time = |calls: u32| 110.0 + 9.0 * f64::from(calls) + self.takes(calls);
        let raw = TimingSamples {
            singles: vec![300.0 + self.takes(1); 20],
            bursts: [1, 64, 1, 64, 1, 1, 64, 64]
                .map(|calls| (calls, time(calls)))
                .to_vec(),
            warm: true,
            alike: true,
            ..TimingSamples::default()
        };
        estimate(&raw, &constant, NONE)
    }
}

#[test]
fn honest_kernels_are_credited_with_their_time() {
    for each in [5.0, 20.0, 50.0, 400.0] {
        // A first look at weights and code.
        let honest = Candidate::new(8.0, each);
        let (cpu, gpu) = (honest.on_cpu(), honest.on_gpu());
        assert!(!cpu.deferred && !gpu.deferred, "{each} {cpu:?} {gpu:?}");
        // Half of what was seen of a call stays, and a burst's waking is shared by its calls.
        let least = |null: f64| each.max(0.5 * (each + null));
        assert!((cpu.time_us - least(12.0)).abs() < 0.1, "{cpu:?}");
        assert!((gpu.time_us - least(9.0)).abs() < 1.0, "{gpu:?}");
    }
}

#[test]
fn work_done_once_a_burst_is_charged_to_the_call() {
    for (once, each) in [(25.0, 1.0), (45.0, 5.0), (90.0, 2.0), (600.0, 100.0)] {
        let sharing = Candidate::new(once, each);
        for (target, found) in [("cpu", sharing.on_cpu()), ("gpu", sharing.on_gpu())] {
            assert!(found.deferred, "{target} {once} {found:?}");
            assert!(
                found.time_us > 0.9 * sharing.honest_us(),
                "{target} {once} {found:?}"
            );
        }
    }
}

/// Whoever behaves in short bursts and shares work in long ones only lies further below its short bursts.
#[test]
fn work_shared_in_long_bursts_alone_is_charged_too() {
    let sharing = Candidate {
        // Honest up to four calls: every call does all of it.
        waits: |calls| {
            if calls <= 4 {
                45.0 * f64::from(calls - 1)
            } else {
                0.0
            }
        },
        ..Candidate::new(45.0, 5.0)
    };
    for found in [sharing.on_cpu(), sharing.on_gpu()] {
        assert!(found.deferred && found.time_us > 0.9 * 50.0, "{found:?}");
    }
}

/// Every fourth call does the work of four.
#[test]
fn work_shared_by_some_calls_is_charged_too() {
    let sharing = Candidate {
        waits: |calls| 40.0 * f64::from(calls.div_ceil(4) - 1),
        ..Candidate::new(40.0, 3.0)
    };
    for found in [sharing.on_cpu(), sharing.on_gpu()] {
        assert!(found.time_us > 0.6 * 43.0, "{found:?}");
    }
}

/// The best that is left to one that knows the estimate: it slows long bursts until nothing is seen of the work.
#[test]
fn work_hidden_by_waiting_gains_nothing() {
    let hiding = Candidate {
        waits: |calls| 45.0 * f64::from(calls - 1),
        ..Candidate::new(45.0, 5.0)
    };
    for found in [hiding.on_cpu(), hiding.on_gpu()] {
        assert!(found.time_us > 0.9 * 50.0, "{found:?}");
    }
    let half = Candidate {
        waits: |calls| 22.0 * f64::from(calls - 1),
        ..Candidate::new(45.0, 5.0)
    };
    for found in [half.on_cpu(), half.on_gpu()] {
        assert!(found.deferred && found.time_us > 0.9 * 50.0, "{found:?}");
    }
}

/// A host on which nothing that surrounds a call stays the same: an empty burst takes half a millisecond more or less. Behind the
/// gate the device alone is timed.
fn behind_the_gate(gated_us: f64, each_us: f64, once_us: f64, eager: HonestGaps) -> TimeEstimate {
    let constant = CallOverhead {
        single_us: 700.0,
        per_call_us: 9.0,
        per_burst_us: 500.0,
        per_waking_us: 620.0,
        gated_us: Some(6.0),
    };
    let raw = TimingSamples {
        singles: vec![680.0; 20],
        bursts: vec![(64, 500.0 + 64.0 * (9.0 + each_us) + once_us); 4],
        gated: (0..16)
            .map(|step| 6.0 + gated_us + 0.1 * f64::from(step))
            .collect(),
        warm: true,
        alike: true,
        ..TimingSamples::default()
    };
    estimate(&raw, &constant, eager)
}

#[test]
fn a_batched_burst_is_charged_whatever_an_empty_one_takes() {
    // One product of 64 vectors, as seen on an H200; work of 45 us on weights alone; every fourth call does the work of four.
    for (gated, each, once) in [(37.0, 14.0, 0.0), (50.0, 5.0, 45.0), (43.0, 13.0, 0.0)] {
        let found = behind_the_gate(gated, each, once, NONE);
        assert!(found.deferred, "{gated} {found:?}");
        assert!((found.time_us - gated).abs() < 1.0, "{gated} {found:?}");
    }
}

#[test]
fn honest_calls_are_credited_with_their_burst_behind_a_gate_too() {
    // A kernel that fills the device; many launches, which queue behind the gate; colder caches.
    for (gated, each) in [(37.0, 37.0), (12.0, 30.0), (45.0, 37.0), (440.0, 400.0)] {
        let found = behind_the_gate(gated, each, 0.0, NONE);
        assert!(!found.deferred, "{gated} {found:?}");
        assert!((found.time_us - each).abs() < 1e-6, "{found:?}");
    }
    // Eager mode finds its weights in a cache too.
    let eager = HonestGaps {
        gated_us: 20.0,
        ..NONE
    };
    assert!(!behind_the_gate(60.0, 34.0, 0.0, eager).deferred);
    assert!(behind_the_gate(70.0, 34.0, 0.0, eager).deferred);
}
