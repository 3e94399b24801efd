//! What goes wrong is said, and nothing that was kept is lost.

use super::*;

#[test]
fn a_corrupt_checkpoint_is_told_and_the_one_before_it_is_good() {
    let tiny = Tiny::new();
    let whole = tempfile::tempdir().unwrap();
    run(&tiny, whole.path(), &adapter(), &settings(0.02), FOREVER).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let again = || run(&tiny, folder.path(), &adapter(), &settings(0.02), FOREVER);
    run(&tiny, folder.path(), &adapter(), &settings(0.02), Until(6)).unwrap();
    let checkpoints = Checkpoints::new(folder.path().join("checkpoints"), 2);
    assert_eq!(checkpoints.steps().unwrap(), [4, 6]);
    let last = checkpoints.last().unwrap().unwrap();

    let file = last.join("actor.safetensors");
    let bytes = fs_err::read(&file).unwrap();
    let mut spoilt = bytes.clone();
    let place = spoilt.len() - 3;
    spoilt[place] ^= 1;
    let manifest = last.join("checkpoint.json");
    let text = fs_err::read(&manifest).unwrap();
    let cut = &text[..text.len() / 2];
    let spoil: [(&Path, &[u8], &str); 3] = [
        (
            &file,
            &spoilt,
            "`actor.safetensors` is not what was written",
        ),
        (
            &file,
            &bytes[..100],
            "`actor.safetensors` is not what was written",
        ),
        (&manifest, cut, "`checkpoint.json` is not what was written"),
    ];
    for (path, content, expected) in spoil {
        let good = fs_err::read(path).unwrap();
        fs_err::write(path, content).unwrap();
        let error = again().unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        let hint = error.hint().unwrap();
        assert!(hint.contains(&last.display().to_string()), "{hint}");
        fs_err::write(path, good).unwrap();
    }
    fs_err::remove_dir_all(&last).unwrap();
    again().unwrap();
    assert_eq!(left(folder.path()), left(whole.path()));
}

/// Names of its files and tensors, or what a recipe remembers, may have changed since.
#[test]
fn a_checkpoint_of_another_format_is_refused_with_the_reason() {
    let (tiny, folder) = (Tiny::new(), tempfile::tempdir().unwrap());
    let again = |until| run(&tiny, folder.path(), &adapter(), &settings(0.02), until);
    again(Until(2)).unwrap();
    let checkpoints = Checkpoints::new(folder.path().join("checkpoints"), 2);
    let manifest = checkpoints.last().unwrap().unwrap().join("checkpoint.json");
    let text = fs_err::read_to_string(&manifest).unwrap();
    let older = text.replacen("\"format\": 3", "\"format\": 2", 1);
    assert_ne!(text, older);
    fs_err::write(&manifest, older).unwrap();
    let error = again(Until(4)).unwrap_err();
    let reason = "has format 2, and this program reads format 3";
    assert!(error.to_string().contains(reason), "{error}");
    assert!(error.hint().unwrap().contains("start a new run"));
}

/// The checkpoint's place cannot be written: what was kept before is as it was, and a later run goes on from it.
#[test]
fn a_checkpoint_that_cannot_be_written_costs_nothing_that_was() {
    let tiny = Tiny::new();
    let whole = tempfile::tempdir().unwrap();
    run(&tiny, whole.path(), &adapter(), &settings(0.02), FOREVER).unwrap();
    let folder = tempfile::tempdir().unwrap();
    run(&tiny, folder.path(), &adapter(), &settings(0.02), Until(4)).unwrap();
    // A file where the next one's folder is to be.
    let blocked = folder.path().join("checkpoints/.new-step-000006");
    fs_err::write(&blocked, "").unwrap();
    let error = run(&tiny, folder.path(), &adapter(), &settings(0.02), FOREVER).unwrap_err();
    assert!(matches!(error, TrainError::Write { .. }), "{error}");
    assert!(error.hint().unwrap().contains("free space"));
    let checkpoints = Checkpoints::new(folder.path().join("checkpoints"), 2);
    assert_eq!(checkpoints.load().unwrap().unwrap().step, 4);
    fs_err::remove_file(&blocked).unwrap();
    run(&tiny, folder.path(), &adapter(), &settings(0.02), FOREVER).unwrap();
    assert_eq!(left(folder.path()), left(whole.path()));
}

#[test]
fn nothing_to_learn_from_is_said() {
    let tiny = Tiny::new();
    let weights = Weights::load(&tiny.path()).unwrap();
    let mut actor = cpu_actor(&weights, &adapter(), 1);
    let folder = tempfile::tempdir().unwrap();
    let keeping = keeping(folder.path(), &tiny);
    let error = sft(&mut actor, &[], &[], &settings(0.1), &keeping, &mut {
        FOREVER
    });
    assert_eq!(
        error.unwrap_err().to_string(),
        "there is nothing to learn from: no trajectory has a reply that fits"
    );
}

#[test]
fn a_run_that_falls_apart_is_stopped_and_names_what_is_good() {
    let tiny = Tiny::new();
    let folder = tempfile::tempdir().unwrap();
    let wild = SftSettings {
        epochs: 40,
        optimizer: OptimizerSettings {
            learning_rate: 3.0,
            warmup_steps: 40,
            lr_scheduler_type: LrSchedulerType::Constant,
            adamw: AdamW::default(),
        },
        ..settings(1.0)
    };
    let error = run(&tiny, folder.path(), &FineTuning::Full, &wild, FOREVER).unwrap_err();
    let TrainError::Diverged { step, good, .. } = &error else {
        panic!("{error}")
    };
    assert!(*step < 120);
    assert!(good.as_ref().unwrap().is_dir());
    assert!(error.hint().unwrap().contains("last good checkpoint"));
}

/// An actor one of whose batches is not finite.
struct Poisoned {
    actor: PolicyNetwork,
    step: u64,
    at: u64,
}

impl Trainable for Poisoned {
    fn step(&mut self, update: &AdamWStep) -> Result<f64, TrainError> {
        self.actor.step(update)
    }

    fn state(&self) -> Result<BTreeMap<String, HostTensor>, TrainError> {
        self.actor.state()
    }

    fn restore(&mut self, state: &BTreeMap<String, HostTensor>) -> Result<(), TrainError> {
        self.actor.restore(state)
    }
}

impl Actor for Poisoned {
    fn publish(&self) -> Result<Published, TrainError> {
        self.actor.publish()
    }

    fn score(&self, batch: &[&TokenSequence]) -> Result<TokenScores, TrainError> {
        self.actor.score(batch)
    }

    fn backward(
        &mut self,
        batch: &[&TokenSequence],
        loss: &mut ScoreLossFn<'_>,
    ) -> Result<(), TrainError> {
        self.step += 1;
        let poisoned = self.step == self.at;
        self.actor.backward(batch, &mut |scores| {
            let mut scores = scores.clone();
            if poisoned {
                scores.logprobs[0] = f32::NAN;
            }
            loss(&scores)
        })
    }
}

#[test]
fn a_batch_that_is_not_finite_ends_the_run_with_nothing_lost() {
    let tiny = Tiny::new();
    let whole = tempfile::tempdir().unwrap();
    run(&tiny, whole.path(), &adapter(), &settings(0.02), FOREVER).unwrap();
    let weights = Weights::load(&tiny.path()).unwrap();
    let actor = cpu_actor(&weights, &adapter(), 2);
    let mut poisoned = Poisoned {
        actor,
        step: 0,
        at: 17,
    };
    let folder = tempfile::tempdir().unwrap();
    let (training, held_out) = (examples(&tiny, 0..10), examples(&tiny, 10..13));
    let keeping = keeping(folder.path(), &tiny);
    let (settings, watch) = (settings(0.02), &mut { FOREVER });
    let error = sft(
        &mut poisoned,
        &training,
        &held_out,
        &settings,
        &keeping,
        watch,
    )
    .unwrap_err();
    assert_eq!(error.to_string(), "the loss is not finite");
    assert!(error.hint().unwrap().contains("metrics.jsonl"));
    run(&tiny, folder.path(), &adapter(), &settings, FOREVER).unwrap();
    assert_eq!(left(folder.path()), left(whole.path()));
}
