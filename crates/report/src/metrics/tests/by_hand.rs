use super::super::*;
use super::{close, episode, failed, four, in_tf32, passed, share, task};
use warpsmith_schema::{EpisodeEnding, Profile, Status, Trajectory, Verdict};

#[test]
fn the_row_of_four_tasks() {
    let trajectories = four();
    let row = ReportMetrics::of(&trajectories, Counting::default()).overall;
    assert_eq!((row.tasks, row.episodes), (4, 4));
    assert_eq!((row.compiled, row.correct), (share(3, 4), share(2, 4)));
    close(row.average_runtime_us, 74.0);
    let eager = row.strict.eager.unwrap();
    // 98 is below 100 and not below 95.
    assert_eq!(
        (eager.faster, eager.clearly_faster),
        (share(2, 4), share(1, 4))
    );
    // 2 and 100/98: their product is (10/7)^2.
    close(eager.geomean, 10.0 / 7.0);
    close(eager.median, f64::midpoint(2.0, 100.0 / 98.0));
    // With 1 for each failure.
    close(eager.geomean_all, (10.0_f64 / 7.0).sqrt());
    close(eager.median_all, f64::midpoint(1.0, 100.0 / 98.0));
    let compile = row.strict.compile.unwrap();
    assert_eq!(
        (compile.faster, compile.clearly_faster),
        (share(1, 4), share(1, 4))
    );
    close(compile.geomean, (1.6_f64 * 90.0 / 98.0).sqrt());
    // Nothing says what their own class would be.
    assert_eq!(
        row.matched,
        Against {
            eager: None,
            compile: None
        }
    );
}

#[test]
fn exactly_five_percent_is_not_clearly_faster() {
    let runs = [episode(task("a", "a"), 1, vec![passed(95.0, 100.0, None)])];
    let row = ReportMetrics::of(&runs, Counting::default()).overall;
    let eager = row.strict.eager.unwrap();
    assert_eq!(
        (eager.faster, eager.clearly_faster),
        (share(1, 1), share(0, 1))
    );
    // Not measured is not zero.
    assert_eq!(row.strict.compile, None);
}

#[test]
fn what_lacks_a_baseline_is_counted_as_such() {
    let runs = [
        episode(task("a", "a"), 1, vec![passed(10.0, 40.0, Some(20.0))]),
        episode(task("b", "b"), 1, vec![passed(10.0, 40.0, None)]),
        episode(task("c", "c"), 1, vec![failed(Status::Crashed, true)]),
    ];
    let compile = ReportMetrics::of(&runs, Counting::default())
        .overall
        .strict
        .compile
        .unwrap();
    assert_eq!(
        (compile.clearly_faster, compile.not_measured),
        (share(1, 3), 1)
    );
    close(compile.geomean, 2.0);
    // 2 and 1.
    close(compile.geomean_all, 2.0_f64.sqrt());
}

#[test]
fn matched_precision_has_baselines_of_its_own() {
    let verdict = in_tf32(passed(10.0, 80.0, Some(40.0)), 20.0, Some(9.0));
    let runs = [episode(task("a", "a"), 1, vec![verdict])];
    let row = ReportMetrics::of(&runs, Counting::default()).overall;
    let geomean = |speed: Option<Speed>| speed.and_then(|speed| speed.geomean);
    close(geomean(row.strict.eager), 8.0);
    close(geomean(row.strict.compile), 4.0);
    close(geomean(row.matched.eager), 2.0);
    close(geomean(row.matched.compile), 0.9);
}

#[test]
fn the_curve_of_four_tasks() {
    let trajectories = four();
    let all = episodes(&trajectories, CountedAttempt::Best);
    let table = [
        (0.0, 0.5, 0.5),
        (0.95, 0.5, 0.25),
        (1.0, 0.5, 0.25),
        (1.5, 0.25, 0.25),
        (2.0, 0.0, 0.0),
        (3.0, 0.0, 0.0),
    ];
    for (p, eager, compile) in table {
        assert_eq!(fast_p(&all, Baseline::EAGER, p), Some(eager), "{p}");
        assert_eq!(fast_p(&all, Baseline::COMPILE, p), Some(compile), "{p}");
    }
    let curves = FastP::of(&all);
    assert_eq!(
        (curves.eager.len(), curves.eager[0], curves.eager[60]),
        (61, (0.0, 0.5), (3.0, 0.0))
    );
    assert!(curves.compile.is_some() && curves.matched_eager.is_none());
    assert_eq!(fast_p(&[], Baseline::EAGER, 1.0), None);
}

#[test]
fn pass_at_k_of_four_samples() {
    // Of four samples one: C(3, 2) / C(4, 2) = 1/2.
    let table = [
        (4, 1, 1, 0.25),
        (4, 1, 2, 0.5),
        (4, 1, 4, 1.0),
        (4, 0, 4, 0.0),
        (5, 2, 2, 0.7),
        (3, 3, 1, 1.0),
    ];
    for (samples, correct, k, expected) in table {
        close(Some(pass_at_k(samples, correct, k)), expected);
    }
    let verdict = |right| {
        if right {
            passed(1.0, 2.0, None)
        } else {
            failed(Status::Mismatch, true)
        }
    };
    let runs: Vec<Trajectory> = (1..=4)
        .flat_map(|sample| {
            [
                episode(task("a", "a"), sample, vec![verdict(sample == 3)]),
                episode(task("b", "b"), sample, vec![verdict(false)]),
            ]
        })
        .collect();
    let metrics = ReportMetrics::of(&runs, Counting::default());
    let found: Vec<(u32, f64)> = metrics
        .pass_at_k
        .iter()
        .map(|one| (one.k, one.value))
        .collect();
    assert_eq!(found, [(1, 0.125), (2, 0.25), (4, 0.5)]);
    assert_eq!(metrics.overall.correct, share(1, 8));
    assert_eq!(metrics.best_of_samples.unwrap().correct, share(1, 2));
}

#[test]
fn the_best_attempt_and_the_final_one() {
    let runs = [
        episode(
            task("a", "a"),
            1,
            vec![passed(10.0, 40.0, None), passed(20.0, 40.0, None)],
        ),
        episode(
            task("b", "b"),
            1,
            vec![passed(10.0, 10.0, None), failed(Status::Crashed, true)],
        ),
        episode(
            task("c", "c"),
            1,
            vec![
                failed(Status::Mismatch, true),
                failed(Status::CompileFailed, false),
            ],
        ),
        episode(task("d", "d"), 1, vec![]),
    ];
    let attempts = ReportMetrics::of(&runs, Counting::default()).attempts;
    let row = |summary: &Summary| {
        (
            summary.compiled,
            summary.correct,
            summary.strict.eager.unwrap().geomean.unwrap(),
        )
    };
    assert_eq!(row(&attempts.best), (share(3, 4), share(2, 4), 2.0));
    assert_eq!(row(&attempts.last), (share(2, 4), share(1, 4), 2.0));
    let counting = Counting {
        counted: CountedAttempt::Final,
        seed: 0,
    };
    assert_eq!(ReportMetrics::of(&runs, counting).overall, attempts.last);
}

#[test]
fn what_did_not_end_is_counted_apart() {
    let mut runs = four();
    runs[0].ending = EpisodeEnding::Interrupted;
    runs[1].ending = EpisodeEnding::PolicyFailed {
        message: "no answer".to_owned(),
    };
    let metrics = ReportMetrics::of(&runs, Counting::default());
    assert_eq!(
        (metrics.unfinished, metrics.overall.correct),
        (2, share(2, 2))
    );
}

/// What was only verified is correct, and faster than nothing.
#[test]
fn what_was_not_timed_is_correct_all_the_same() {
    let verified = || Verdict {
        profile: Profile::Verify,
        times_us: None,
        ..passed(1.0, 1.0, None)
    };
    let run = vec![
        episode(task("level1/1", "a"), 1, vec![verified()]),
        episode(
            task("level1/2", "b"),
            1,
            vec![failed(Status::Mismatch, true)],
        ),
    ];
    let all = episodes(&run, CountedAttempt::Best);
    assert_eq!(
        all.iter().map(EpisodeMetrics::correct).collect::<Vec<_>>(),
        [true, false]
    );
    assert_eq!(fast_p(&all, Baseline::EAGER, 0.0), Some(0.5));
    assert_eq!(fast_p(&all, Baseline::EAGER, 1.0), Some(0.0));
    let compared = compare(&all, &all, 0);
    assert_eq!(compared.tasks[0].change, Change::Same);
}
