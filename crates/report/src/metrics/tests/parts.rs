use super::super::*;
use super::{broken, close, episode, failed, four, lasting, passed, share, task};
use warpsmith_schema::{Rule, Status, Trajectory, Verdict};

#[test]
fn groups_are_in_order_and_add_up() {
    let trajectories = four();
    let metrics = ReportMetrics::of(&trajectories, Counting::default());
    let rows = |groups: &[Group]| -> Vec<(String, usize, usize)> {
        let row = |group: &Group| {
            (
                group.name.clone(),
                group.summary.correct.count,
                group.summary.episodes,
            )
        };
        groups.iter().map(row).collect()
    };
    let named = |rows: &[(&str, usize, usize)]| -> Vec<_> {
        rows.iter()
            .map(|(name, correct, of)| ((*name).to_owned(), *correct, *of))
            .collect()
    };
    assert_eq!(
        rows(&metrics.by_level),
        named(&[("level 1", 2, 2), ("level 2", 0, 1), ("level 3", 0, 1)])
    );
    let families = [
        ("matmul", 1, 1),
        ("activation", 1, 1),
        ("matmul chain", 0, 1),
        ("perceptron", 0, 1),
    ];
    assert_eq!(rows(&metrics.by_family), named(&families));
}

#[test]
fn families_of_names() {
    let table = [
        (
            "level1/54",
            "54_conv_standard_3D__square_input",
            TaskFamily::Convolution,
        ),
        ("level1/87", "87_conv_pointwise_2D", TaskFamily::Convolution),
        ("level1/23", "23_Softmax", TaskFamily::Activation),
        ("level1/24", "24_LogSoftmax", TaskFamily::Activation),
        ("level1/36", "36_RMSNorm_", TaskFamily::Normalization),
        ("level1/42", "42_Max_Pooling_2D", TaskFamily::Pooling),
        (
            "level1/47",
            "47_Sum_reduction_over_a_dimension",
            TaskFamily::Reduction,
        ),
        (
            "level1/51",
            "51_Argmax_over_a_dimension",
            TaskFamily::Reduction,
        ),
        ("level1/88", "88_MinGPTNewGelu", TaskFamily::Activation),
        ("level1/89", "89_cumsum", TaskFamily::Scan),
        ("level1/94", "94_MSELoss", TaskFamily::Loss),
        (
            "level2/28",
            "28_BMM_InstanceNorm_Sum",
            TaskFamily::MatmulChain,
        ),
        (
            "level2/44",
            "44_ConvTranspose2d_Multiply",
            TaskFamily::ConvolutionChain,
        ),
        ("level3/9", "9_ResNet18", TaskFamily::ConvolutionalNetwork),
        ("level3/30", "30_SwinTransformerV2", TaskFamily::Attention),
        (
            "level3/38",
            "38_LSTMBidirectional",
            TaskFamily::RecurrentNetwork,
        ),
        ("level3/48", "48_Mamba2ReturnY", TaskFamily::StateSpace),
        (
            "level3/46",
            "46_NetVladWithGhostClusters",
            TaskFamily::Other,
        ),
        ("layernorm", "layernorm", TaskFamily::Normalization),
        ("mine", "mine", TaskFamily::Other),
    ];
    for (id, name, family) in table {
        assert_eq!(TaskFamily::of(&task(id, name)), family, "{name}");
    }
}

#[test]
fn cheating_is_counted_by_attempt_and_rule() {
    let runs = [
        episode(
            task("a", "a"),
            1,
            vec![
                broken(Status::Cheating, Rule::OutputChanged),
                broken(Status::Rejected, Rule::ForbiddenImport),
                broken(Status::Cheating, Rule::OutputChanged),
                passed(1.0, 2.0, None),
            ],
        ),
        // A rule that honest mistakes break.
        episode(
            task("b", "b"),
            1,
            vec![broken(Status::Crashed, Rule::MemoryLimit)],
        ),
    ];
    let found = ReportMetrics::of(&runs, Counting::default()).cheating;
    let rules = [
        ("forbidden-import".to_owned(), 1),
        ("output-changed".to_owned(), 2),
    ];
    let expected = Cheating {
        attempts: 5,
        cheating: 2,
        rejected: 1,
        episodes: share(1, 2),
        rules: rules.into(),
    };
    assert_eq!(found, expected);
}

#[test]
fn seconds_and_tokens() {
    let verdict = lasting(passed(1.0, 2.0, None), [2.0, 3.0, 4.0, 10.0]);
    // The same again, remembered: more than the episode took.
    let long = vec![verdict.clone(), verdict.clone(), verdict.clone()];
    let runs = [
        episode(task("a", "a"), 1, vec![verdict]),
        episode(task("a", "a"), 2, long),
        episode(task("b", "b"), 1, vec![]),
    ];
    let metrics = ReportMetrics::of(&runs, Counting::default());
    let expected = Budget {
        compile: 8.0,
        verify: 12.0,
        time: 16.0,
        judge_other: 4.0,
        generation: 30.0,
    };
    assert_eq!(metrics.seconds, expected);
    let cost = Cost {
        prompt_tokens_per_task: Some(150.0),
        completion_tokens_per_task: Some(15.0),
        seconds_per_task: Some(30.0),
        attempts_per_task: Some(2.0),
    };
    assert_eq!(metrics.cost, cost);
}

#[test]
fn intervals_hold_the_value_and_repeat() {
    let runs: Vec<Trajectory> = (0..40)
        .map(|number| {
            let verdict = if number % 4 == 0 {
                failed(Status::Mismatch, true)
            } else {
                passed(10.0, 20.0 + f64::from(number), None)
            };
            episode(task(&format!("task{number}"), "a"), 1, vec![verdict])
        })
        .collect();
    let of = |seed| {
        ReportMetrics::of(
            &runs,
            Counting {
                counted: CountedAttempt::Best,
                seed,
            },
        )
        .intervals
    };
    let found = of(1);
    assert_eq!(found, of(1));
    assert_ne!(found, of(2));
    // By the normal distribution: 0.75 +- 1.96 * sqrt(0.75 * 0.25 / 40) = 0.616 to 0.884.
    let correct = found.correct.unwrap();
    assert!(
        (correct.low - 0.616).abs() < 0.03 && (correct.high - 0.884).abs() < 0.03,
        "{correct:?}"
    );
    // All compiled; nothing was compared with `torch.compile`.
    let all = Some(Interval {
        low: 1.0,
        high: 1.0,
    });
    assert_eq!(
        (
            found.compiled,
            found.faster_than_compile,
            found.speedup_compile
        ),
        (all, None, None)
    );
    let speedup = found.speedup_eager.unwrap();
    let value = ReportMetrics::of(&runs, Counting::default())
        .overall
        .strict
        .eager;
    let value = value.unwrap().geomean.unwrap();
    assert!(speedup.low < value && value < speedup.high, "{speedup:?}");
    // One task says nothing about others.
    let one = ReportMetrics::of(&runs[..1], Counting::default()).intervals;
    assert_eq!(one.correct, None);
}

#[test]
fn runs_are_compared_task_by_task() {
    let run = |verdicts: Vec<(&str, Verdict)>| -> Vec<Trajectory> {
        let one = |(id, verdict): (&str, Verdict)| episode(task(id, id), 1, vec![verdict]);
        verdicts.into_iter().map(one).collect()
    };
    let wrong = || failed(Status::Mismatch, true);
    let right = |runtime| passed(runtime, 100.0, None);
    let elsewhere = Verdict {
        device: "another".to_owned(),
        ..right(1.0)
    };
    let first = run(vec![
        ("a", wrong()),
        ("b", right(10.0)),
        ("c", right(10.0)),
        ("d", right(10.0)),
        ("e", right(10.0)),
        ("f", wrong()),
        ("g", right(10.0)),
        ("h", right(10.0)),
    ]);
    let mut other = run(vec![
        ("a", right(5.0)),
        ("b", wrong()),
        ("c", right(5.0)),
        ("d", right(20.0)),
        ("e", right(10.4)),
        ("f", wrong()),
        ("g", elsewhere),
        ("i", right(1.0)),
    ]);
    let mut found = compare(
        &episodes(&first, CountedAttempt::Best),
        &episodes(&other, CountedAttempt::Best),
        0,
    );
    let changes: Vec<(&str, Change)> = found
        .tasks
        .iter()
        .map(|one| (one.task.as_str(), one.change))
        .collect();
    let expected = [
        ("a", Change::Gained),
        ("b", Change::Lost),
        ("c", Change::Quicker { times: 2.0 }),
        ("d", Change::Slower { times: 2.0 }),
        ("e", Change::Same),
        ("f", Change::Neither),
        ("g", Change::OtherDevice),
        ("h", Change::Missing),
        ("i", Change::Missing),
    ];
    assert_eq!(changes, expected);
    assert_eq!(
        (
            found.shared,
            found.gained,
            found.lost,
            found.quicker,
            found.slower
        ),
        (7, 1, 1, 1, 1)
    );
    // 2, 1/2 and 10/10.4.
    close(found.times_as_quick, (10.0_f64 / 10.4).cbrt());
    other[0].task.source.push_str("another");
    found = compare(
        &episodes(&first, CountedAttempt::Best),
        &episodes(&other, CountedAttempt::Best),
        0,
    );
    assert_eq!(
        (found.tasks[0].change, found.shared),
        (Change::OtherTask, 6)
    );
}

/// Samples of tasks `a`, `b` and so on, of which so many are correct and quicker than eager.
fn correct_samples(tasks: &[(usize, usize)]) -> Vec<Trajectory> {
    let of_one = |(place, (correct, samples)): (usize, &(usize, usize))| {
        let id = char::from(b'a' + place as u8).to_string();
        let one = |sample: usize| {
            let verdict = if sample < *correct {
                passed(10.0, 20.0, None)
            } else {
                failed(Status::Mismatch, true)
            };
            episode(task(&id, &id), sample as u32 + 1, vec![verdict])
        };
        (0..*samples).map(one).collect::<Vec<_>>()
    };
    tasks.iter().enumerate().flat_map(of_one).collect()
}

#[test]
fn shares_of_two_runs_differ_by_tasks_that_both_have() {
    // Means over tasks: (1/4 + 2/4 + 0) / 3 and (3/4 + 2/4 + 1/2) / 3; `d` is in one run only.
    let first = correct_samples(&[(1, 4), (2, 4), (0, 4)]);
    let other = correct_samples(&[(3, 4), (2, 4), (1, 2), (4, 4)]);
    let of = |other: &[Trajectory]| {
        let first = episodes(&first, CountedAttempt::Best);
        compare(&first, &episodes(other, CountedAttempt::Best), 0).differences
    };
    let found = of(&other);
    let names: Vec<&str> = found.iter().map(|one| one.metric.as_str()).collect();
    // Nothing was compared with `torch.compile`; of `c` there are but two samples.
    assert_eq!(
        names,
        ["compiled", "correct", "faster_than_eager", "pass@2"]
    );
    let correct = &found[1];
    close(Some(correct.first), 0.25);
    close(Some(correct.other), 7.0 / 12.0);
    close(Some(correct.difference), 1.0 / 3.0);
    // Differences of 1/2, 0 and 1/2: three times the 0 in one of 27 resamples, which is more than 2.5 %.
    let bootstrap = correct.bootstrap.unwrap();
    assert_eq!(
        (bootstrap.interval.low, bootstrap.interval.high),
        (0.0, 0.5)
    );
    assert!(
        (bootstrap.p_value - 2.0 / 27.0).abs() < 0.01,
        "{bootstrap:?}"
    );
    // 1/2, 5/6 and 0; 1, 5/6 and 1.
    close(Some(found[3].first), 4.0 / 9.0);
    close(Some(found[3].other), 17.0 / 18.0);
    close(Some(found[3].difference), 0.5);
    assert_eq!(found, of(&other));
    // Of one task, and of none.
    assert_eq!(of(&other[..4])[1].bootstrap, None);
    assert_eq!(of(&[]), []);
}

#[test]
fn pass_at_k_has_an_interval_over_tasks() {
    let run = correct_samples(&[
        (0, 2),
        (0, 2),
        (2, 2),
        (2, 2),
        (0, 2),
        (2, 2),
        (1, 2),
        (1, 2),
    ]);
    let of = |run: &[Trajectory]| ReportMetrics::of(run, Counting::default()).pass_at_k;
    let found = of(&run);
    assert_eq!(found, of(&run));
    // 0, 0, 1, 1, 0, 1, 1/2, 1/2: 0.5 +- 1.96 * sqrt(0.1875 / 8) = 0.2 to 0.8.
    let interval = found[0].interval.unwrap();
    assert!((interval.low - 0.2).abs() < 0.07, "{interval:?}");
    assert!((interval.high - 0.8).abs() < 0.07, "{interval:?}");
    // 5 of 8: 0.625 +- 1.96 * sqrt(0.234 / 8) = 0.29 to 0.96, in steps of 1/8.
    close(Some(found[1].value), 0.625);
    let interval = found[1].interval.unwrap();
    assert_eq!((interval.low, interval.high), (0.25, 0.875));
    assert_eq!(of(&run[..2])[0].interval, None);
}

#[test]
fn nothing_at_all_has_no_numbers() {
    let metrics = ReportMetrics::of(&[], Counting::default());
    assert_eq!(
        (metrics.overall.correct.value(), metrics.pass_at_k.len()),
        (None, 0)
    );
    assert_eq!(
        (metrics.cost, metrics.seconds),
        (Cost::default(), Budget::default())
    );
}
