//! Runs learn, and go on bit for bit after a stop or a kill.

use super::*;

#[test]
fn sft_learns_with_an_adapter_and_with_everything() {
    for (fine_tuning, learning_rate) in [(adapter(), 0.02), (FineTuning::Full, 0.01)] {
        let tiny = Tiny::new();
        let folder = tempfile::tempdir().unwrap();
        let outcome = run(
            &tiny,
            folder.path(),
            &fine_tuning,
            &settings(learning_rate),
            FOREVER,
        )
        .unwrap();
        assert_eq!((outcome.step, outcome.steps), (12, 12));
        let lines = metrics::read(folder.path()).unwrap();
        let steps: Vec<u64> = lines.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, (1..=12).collect::<Vec<_>>());
        let (first, last) = (&lines[0].1, &lines[11].1);
        assert!(last["loss"] < 0.8 * first["loss"], "{first:?}, {last:?}");
        let (before, after) = (lines[3].1["validation_loss"], last["validation_loss"]);
        assert!(after < before, "{before}, {after}");
        assert!(!first.contains_key("validation_loss"));
        for name in [
            "grad_norm",
            "learning_rate",
            "epoch",
            "tokens",
            "tokens_per_second",
        ] {
            assert!(last.contains_key(name), "{name}");
        }

        // What is published runs, and says what was learnt.
        let published = outcome.published.unwrap();
        let weights = Weights::load(&tiny.path()).unwrap();
        let trained = match fine_tuning {
            FineTuning::Full => FineTuning::Full,
            _ => FineTuning::Lora(Adapter::load(&published).unwrap()),
        };
        let base = match fine_tuning {
            FineTuning::Full => Weights::load(&published).unwrap(),
            _ => weights.clone(),
        };
        let example = &examples(&tiny, 0..1)[0];
        let batch: Vec<&TokenSequence> = example.sequences.iter().collect();
        let mean = |weights: &Weights, fine_tuning: &FineTuning| {
            let actor = cpu_actor(weights, fine_tuning, 1);
            let scores = actor.score(&batch).unwrap().logprobs;
            scores.iter().sum::<f32>() / scores.len() as f32
        };
        let before = mean(&weights, &FineTuning::Full);
        let after = mean(&base, &trained);
        assert!(after > before + 1.0, "{before}, {after}");
    }
}

/// Stopped after every number of steps there is, and once more on the way: the end is the same.
#[test]
fn a_stopped_run_goes_on_bit_for_bit() {
    let tiny = Tiny::new();
    let whole = tempfile::tempdir().unwrap();
    run(&tiny, whole.path(), &adapter(), &settings(0.02), FOREVER).unwrap();
    for stopped in [1, 5, 11] {
        let folder = tempfile::tempdir().unwrap();
        let part = |watch| run(&tiny, folder.path(), &adapter(), &settings(0.02), watch).unwrap();
        let outcome = part(Until(stopped));
        assert_eq!((outcome.step, outcome.interrupted), (stopped, true));
        part(Until(1));
        let outcome = part(FOREVER);
        assert_eq!((outcome.step, outcome.interrupted), (12, false));
        assert_eq!(left(folder.path()), left(whole.path()), "{stopped}");
        // What is done stays done.
        assert_eq!(part(FOREVER).step, 12);
    }
}

/// Packed after some steps and unpacked elsewhere, it comes to about the same end.
#[test]
fn a_packed_checkpoint_goes_on_within_tolerance() {
    let tiny = Tiny::new();
    let [whole, stopped, elsewhere] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let go = |folder: &Path, watch| run(&tiny, folder, &adapter(), &settings(0.02), watch).unwrap();
    go(whole.path(), FOREVER);
    go(stopped.path(), Until(6));
    let of = |folder: &Path| Checkpoints::new(folder.join("checkpoints"), 2);
    let sent = of(stopped.path()).pack_into(&of(elsewhere.path())).unwrap();
    let (step, bytes) = sent.unwrap();
    assert_eq!(step, 6);
    let size = |folder: &Path, name: &str| {
        let place = of(folder).place(6).join(name);
        fs_err::metadata(place).unwrap().len()
    };
    let large = size(stopped.path(), "actor.safetensors");
    let small = size(elsewhere.path(), "actor.packed.safetensors");
    // Beside it there is what the best one published.
    assert!(
        10 * small < 7 * large && small < bytes,
        "{small} of {large}, {bytes} in all"
    );
    let outcome = go(elsewhere.path(), FOREVER);
    assert_eq!((outcome.step, outcome.steps), (12, 12));
    assert!(outcome.published.is_some());
    let loss = |folder: &Path, name: &str| metrics::read(folder).unwrap().last().unwrap().1[name];
    for name in ["loss", "validation_loss"] {
        let (one, other) = (loss(whole.path(), name), loss(elsewhere.path(), name));
        assert!((one - other).abs() < 0.02 * one, "{name}: {one}, {other}");
        assert_ne!(one, other);
    }
    let nothing = tempfile::tempdir().unwrap();
    assert_eq!(
        of(nothing.path()).pack_into(&of(elsewhere.path())).unwrap(),
        None
    );
}

const FOLDER: &str = "WARPSMITH_TEST_RUN";
const MODEL: &str = "WARPSMITH_TEST_MODEL";

#[test]
#[ignore = "started by another test, which kills it"]
fn a_run_to_be_killed() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let model = PathBuf::from(std::env::var_os(MODEL).unwrap());
    let tiny = Tiny::at(model);
    run(&tiny, &folder, &adapter(), &settings(0.02), FOREVER).unwrap();
}

/// Killed without a warning after every step, wherever it happens to be, until it comes to its end.
#[test]
fn a_killed_run_goes_on_bit_for_bit() {
    let tiny = Tiny::new();
    let whole = tempfile::tempdir().unwrap();
    run(&tiny, whole.path(), &adapter(), &settings(0.02), FOREVER).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let lines = || metrics::read(folder.path()).map_or(0, |lines| lines.len());
    let mut kills = 0;
    for attempt in 0..40 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "runs::learning::a_run_to_be_killed"])
            .env(FOLDER, folder.path())
            .env(MODEL, tiny.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Somewhere after the next steps, at a moment that differs from attempt to attempt.
        let before = lines();
        let ended = loop {
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success());
                break true;
            }
            if attempt < 5 && lines() > before + attempt {
                std::thread::sleep(Duration::from_micros(700 * attempt as u64));
                child.kill().unwrap();
                child.wait().unwrap();
                kills += 1;
                break false;
            }
        };
        if ended {
            break;
        }
    }
    assert!(kills >= 2, "{kills}");
    assert_eq!(left(folder.path()), left(whole.path()));
}

#[test]
fn value_pretraining_learns_what_to_expect_and_goes_on_bit_for_bit() {
    let tiny = Tiny::new();
    let weights = Weights::load(&tiny.path()).unwrap();
    // What is asked decides what is paid.
    let episodes = |numbers: std::ops::Range<usize>| -> Vec<TokenEpisode> {
        let all = examples(&tiny, numbers.clone());
        numbers
            .zip(all)
            .map(|(number, example)| TokenEpisode {
                task: example.episode.task.clone(),
                reward: if number % 4 < 2 { 1.0 } else { -1.0 },
                finding: Finding::NOTHING,
                cut: false,
                tokens: Tokens {
                    sampled: vec![-1.0; example.said()],
                    sequences: example.sequences,
                },
            })
            .collect()
    };
    let settings = ValueSettings {
        epochs: 20,
        batch: 4,
        optimizer: optimizer(0.02),
        aggregation: Aggregation::Trajectory,
        tokens_per_microbatch: 256,
        seed: 1,
        gamma: 1.0,
        lam: 0.95,
        enough: 0.3,
    };
    let run = |folder: &Path, mut watch: Until| {
        let model = TrainingModel::on_cpu(&weights, &adapter(), 2).unwrap();
        let mut critic = model.critic(0.0).unwrap();
        let keeping = keeping(folder, &tiny);
        let outcome = pretrain_value(
            &mut critic,
            episodes(0..12),
            episodes(12..16),
            &settings,
            &keeping,
            &mut watch,
        );
        (outcome.unwrap(), numbers(&critic))
    };
    let whole = tempfile::tempdir().unwrap();
    let (outcome, trained) = run(whole.path(), FOREVER);
    let lines = metrics::read(whole.path()).unwrap();
    let explained = lines.last().unwrap().1["explained_variance"];
    assert!(explained >= 0.3, "{explained}");
    // It is done when it is enough, after a whole epoch.
    assert!(
        outcome.step < 60 && outcome.step.is_multiple_of(3),
        "{outcome:?}"
    );
    assert_eq!((outcome.steps, outcome.published), (outcome.step, None));

    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), Until(2));
    let (again, resumed) = run(folder.path(), FOREVER);
    assert_eq!(again.step, outcome.step);
    assert_eq!(resumed, trained);
    assert_eq!(run(folder.path(), FOREVER).0.step, outcome.step);
}

fn numbers(network: &dyn Trainable) -> BTreeMap<String, Vec<f32>> {
    let state = network.state().unwrap().into_iter();
    state
        .map(|(name, tensor)| (name, tensor.into_data()))
        .collect()
}
