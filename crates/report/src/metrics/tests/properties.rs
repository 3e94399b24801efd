use proptest::prelude::*;
use warpsmith_schema::{Status, Trajectory, Verdict};

use super::super::*;
use super::{episode, failed, passed, task};

fn verdict() -> impl Strategy<Value = Verdict> {
    let time = 0.1..1000.0;
    prop_oneof![
        any::<bool>().prop_map(|compiled| failed(Status::Mismatch, compiled)),
        (time.clone(), time.clone(), prop::option::of(time))
            .prop_map(|(runtime, eager, compile)| passed(runtime, eager, compile)),
    ]
}

/// Tasks with as many samples each, of up to three attempts.
fn run() -> impl Strategy<Value = Vec<Trajectory>> {
    (1..6_usize, 1..5_usize).prop_flat_map(|(tasks, samples)| {
        prop::collection::vec(prop::collection::vec(verdict(), 0..4), tasks * samples).prop_map(
            move |all| {
                let one = |(number, verdicts): (usize, Vec<Verdict>)| {
                    let id = format!("level1/{}", number / samples);
                    episode(task(&id, "a"), (number % samples) as u32 + 1, verdicts)
                };
                all.into_iter().enumerate().map(one).collect()
            },
        )
    })
}

proptest! {
    #[test]
    fn fast_0_is_the_correct_share_and_fast_p_falls(run in run()) {
        let metrics = ReportMetrics::of(&run, Counting::default());
        let curves = metrics.fast_p;
        let all = [Some(curves.eager), curves.compile, curves.matched_eager, curves.matched_compile];
        for curve in all.into_iter().flatten() {
            prop_assert_eq!(Some(curve[0].1), metrics.overall.correct.value());
            prop_assert!(curve.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        }
    }

    #[test]
    fn pass_at_k_rises_from_the_correct_share_to_the_solved_tasks(run in run()) {
        let metrics = ReportMetrics::of(&run, Counting::default());
        let values: Vec<f64> = metrics.pass_at_k.iter().map(|one| one.value).collect();
        prop_assert!(values.windows(2).all(|pair| pair[0] <= pair[1] + 1e-12));
        let near = |found: f64, expected: Option<f64>| (found - expected.unwrap()).abs() < 1e-12;
        prop_assert!(near(values[0], metrics.overall.correct.value()));
        let solved = metrics.best_of_samples.unwrap_or(metrics.overall).correct.value();
        prop_assert!(near(values[values.len() - 1], solved));
    }

    #[test]
    fn bars_and_shares_are_in_order(run in run()) {
        let metrics = ReportMetrics::of(&run, Counting::default());
        let row = &metrics.overall;
        prop_assert!(row.correct.count <= row.compiled.count && row.compiled.count <= row.episodes);
        for speed in [row.strict.eager, row.strict.compile].into_iter().flatten() {
            prop_assert!(speed.clearly_faster.count <= speed.faster.count);
            prop_assert!(speed.faster.count <= row.correct.count);
        }
        // The final attempt is never better than the best.
        prop_assert!(metrics.attempts.last.correct.count <= metrics.attempts.best.correct.count);
        let parts: usize = metrics.by_family.iter().map(|group| group.summary.episodes).sum();
        prop_assert_eq!(parts, row.episodes);
    }

    #[test]
    fn a_run_beside_itself_has_no_changes(run in run()) {
        let all = episodes(&run, CountedAttempt::Best);
        let found = compare(&all, &all, 0);
        prop_assert!(found.tasks.iter().all(|one| matches!(one.change, Change::Same | Change::Neither)));
        prop_assert!(found.times_as_quick.is_none_or(|times| (times - 1.0).abs() < 1e-12));
        for one in &found.differences {
            prop_assert_eq!((one.first, one.difference), (one.other, 0.0));
            prop_assert!(one.bootstrap.is_none_or(|found| found.p_value >= 1.0));
        }
    }
}
