//! Supervised fine-tuning and value pretraining as runs: they learn, are killed at any moment and go on bit for bit, and what
//! goes wrong is said without a loss.
#![expect(
    clippy::float_cmp,
    reason = "what must be the same must be so to the last bit"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::tiny::Tiny;
use candle_core::Tensor;
use serde_json::json;
use warpsmith_model::policy::Dialogue;
use warpsmith_model::{Adapter, AdapterSettings, Projection, Scaling, Weights};
use warpsmith_schema::{
    Attempt, Counts, Ending, Message, Mode, PolicyVersion, Profile, Status, Target, Task,
    TokenRecord, Trajectory, Verdict,
};
use warpsmith_train::TrainError;
use warpsmith_train::algorithms::{Aggregation, Gae};
use warpsmith_train::checkpoint::Checkpoints;
use warpsmith_train::data::{
    Episode, Example, Examples, Finding, Paid, RewardKind, Tokens, TooLong, read_trajectories,
};
use warpsmith_train::metrics::{self, Numbers};
use warpsmith_train::network::cpu::{CpuActor, CpuCritic};
use warpsmith_train::network::{Actor, Learns, Published, ScoreLoss, Scores, Sequence, Trainable};
use warpsmith_train::optimizer::{AdamW, Decline, Update};
use warpsmith_train::recipes::{
    Keeping, Outcome, Rates, SftSettings, ValueSettings, Watch, pretrain_value, sft,
};

fn task(id: &str) -> Task {
    serde_json::from_value(json!({
        "id": id, "name": id, "source": "", "level": null, "problem_id": null, "origin": ""
    }))
    .unwrap()
}

/// A question and its answer, which the question tells.
fn trajectory(number: usize) -> Trajectory {
    let policy = PolicyVersion {
        name: "script:x".into(),
        hash: None,
        step: None,
    };
    let task = task(&format!("task {number}"));
    let mut trajectory = Trajectory::begin(&task, Target::Cpu, &policy, 1, Mode::Single);
    trajectory.ending = Ending::Finished;
    let word = ["float", "int", "void", "return"][number % 4];
    for text in [format!("Write {word}."), format!("Once more, {number}.")] {
        trajectory.messages.push(Message::User { text });
        trajectory.messages.push(Message::Assistant {
            text: format!("{word} {word} x;"),
            calls: Vec::new(),
        });
    }
    trajectory
}

fn verdict(passed: bool) -> Verdict {
    let status = if passed {
        Status::Passed
    } else {
        Status::Crashed
    };
    let mut verdict = Verdict::unreached(status, Target::Cpu, Profile::Rl, String::new());
    verdict.reward.robust = if passed { 1.0 } else { -1.0 };
    verdict.reward.ladder = if passed { 1.0 } else { -0.5 };
    verdict
}

fn examples(tiny: &Tiny, numbers: std::ops::Range<usize>) -> Vec<Example> {
    let dialogue = Dialogue::open(&tiny.path(), None).unwrap();
    let examples = Examples {
        dialogue: &dialogue,
        tools: &[],
        max_tokens: 256,
        too_long: TooLong::Drop,
    };
    numbers
        .map(|number| examples.of(&trajectory(number)).unwrap().unwrap())
        .collect()
}

fn adapter() -> Learns {
    Learns::NewAdapter {
        settings: AdapterSettings {
            rank: 8,
            alpha: 16.0,
            scaling: Scaling::Rank,
            base: None,
        },
        targets: Projection::ALL.to_vec(),
    }
}

fn rates(peak: f64) -> Rates {
    Rates {
        peak,
        warmup: 2,
        decline: Decline::Cosine,
        adamw: AdamW::default(),
    }
}

fn settings(peak: f64) -> SftSettings {
    SftSettings {
        epochs: 4,
        batch: 4,
        rates: rates(peak),
        aggregation: Aggregation::Trajectory,
        tokens_at_once: 128,
        seed: 7,
        evaluate_every: 4,
    }
}

fn keeping(folder: &Path, tiny: &Tiny) -> Keeping {
    Keeping {
        folder: folder.to_path_buf(),
        origin: tiny.path(),
        every: 2,
        checkpoints: 2,
    }
}

/// Stops after so many steps.
struct Until(u64);

impl Watch for Until {
    fn stepped(&mut self, _: u64, _: u64, _: &Numbers) {
        self.0 = self.0.saturating_sub(1);
    }

    fn wants_stop(&mut self) -> bool {
        self.0 == 0
    }
}

const FOREVER: Until = Until(u64::MAX);

fn run(
    tiny: &Tiny,
    folder: &Path,
    learns: &Learns,
    settings: &SftSettings,
    mut watch: Until,
) -> Result<Outcome, TrainError> {
    let weights = Weights::load(&tiny.path()).unwrap();
    let mut actor = CpuActor::new(&weights, learns, 2).unwrap();
    let (learnt, held_out) = (examples(tiny, 0..10), examples(tiny, 10..13));
    let keeping = keeping(folder, tiny);
    sft(
        &mut actor, &learnt, &held_out, settings, &keeping, &mut watch,
    )
}

/// All that a run leaves that is the same in every run.
fn left(folder: &Path) -> (Vec<u8>, Vec<(u64, f64)>) {
    let adapter = fs_err::read(folder.join("published/adapter_model.safetensors")).unwrap();
    let losses = metrics::read(folder).unwrap();
    let losses = losses
        .iter()
        .map(|(step, numbers)| (*step, numbers["loss"]));
    (adapter, losses.collect())
}

#[test]
fn sft_learns_with_an_adapter_and_with_everything() {
    for (learns, peak) in [(adapter(), 0.02), (Learns::Everything, 0.01)] {
        let tiny = Tiny::new();
        let folder = tempfile::tempdir().unwrap();
        let outcome = run(&tiny, folder.path(), &learns, &settings(peak), FOREVER).unwrap();
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
            "gradient_norm",
            "rate",
            "epoch",
            "tokens",
            "tokens_per_second",
        ] {
            assert!(last.contains_key(name), "{name}");
        }

        // What is published runs, and says what was learnt.
        let published = outcome.published.unwrap();
        let weights = Weights::load(&tiny.path()).unwrap();
        let learnt = match learns {
            Learns::Everything => Learns::Everything,
            _ => Learns::Adapter(Adapter::load(&published).unwrap()),
        };
        let base = match learns {
            Learns::Everything => Weights::load(&published).unwrap(),
            _ => weights.clone(),
        };
        let example = &examples(&tiny, 0..1)[0];
        let batch: Vec<&Sequence> = example.sequences.iter().collect();
        let mean = |weights: &Weights, learns: &Learns| {
            let actor = CpuActor::new(weights, learns, 1).unwrap();
            let scores = actor.score(&batch).unwrap().logprobs;
            scores.iter().sum::<f32>() / scores.len() as f32
        };
        let before = mean(&weights, &Learns::Everything);
        let after = mean(&base, &learnt);
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
fn a_checkpoint_that_travelled_goes_on_within_tolerance() {
    let tiny = Tiny::new();
    let [whole, stopped, elsewhere] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let go = |folder: &Path, watch| run(&tiny, folder, &adapter(), &settings(0.02), watch).unwrap();
    go(whole.path(), FOREVER);
    go(stopped.path(), Until(6));
    let of = |folder: &Path| Checkpoints::new(folder.join("checkpoints"), 2);
    let sent = of(stopped.path()).send(&of(elsewhere.path())).unwrap();
    let (step, bytes) = sent.unwrap();
    assert_eq!(step, 6);
    let place = of(stopped.path()).place(6).join("actor.safetensors");
    let large = fs_err::metadata(place).unwrap().len();
    assert!(10 * bytes < 7 * large, "{bytes} of {large}");
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
        of(nothing.path()).send(&of(elsewhere.path())).unwrap(),
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
            .args(["--ignored", "--exact", "runs::a_run_to_be_killed"])
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
    let episodes = |numbers: std::ops::Range<usize>| -> Vec<Episode> {
        let all = examples(&tiny, numbers.clone());
        numbers
            .zip(all)
            .map(|(number, example)| Episode {
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
        rates: rates(0.02),
        aggregation: Aggregation::Trajectory,
        tokens_at_once: 256,
        seed: 1,
        gae: Gae {
            gamma: 1.0,
            actor_lambda: 0.95,
            critic_lambda: 0.95,
        },
        enough: 0.3,
    };
    let run = |folder: &Path, mut watch: Until| {
        let mut critic = CpuCritic::new(&weights, &adapter(), 0.0, 2).unwrap();
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
    let (outcome, learnt) = run(whole.path(), FOREVER);
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
    assert_eq!(resumed, learnt);
    assert_eq!(run(folder.path(), FOREVER).0.step, outcome.step);
}

fn numbers(network: &dyn Trainable) -> BTreeMap<String, Vec<f32>> {
    let state = network.state().unwrap().into_iter();
    state
        .map(|(name, tensor)| (name, tensor.flatten_all().unwrap().to_vec1().unwrap()))
        .collect()
}

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
    let mut actor = CpuActor::new(&weights, &adapter(), 1).unwrap();
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
        rates: Rates {
            peak: 3.0,
            warmup: 40,
            decline: Decline::Constant,
            adamw: AdamW::default(),
        },
        ..settings(1.0)
    };
    let error = run(&tiny, folder.path(), &Learns::Everything, &wild, FOREVER).unwrap_err();
    let TrainError::Diverged { step, good, .. } = &error else {
        panic!("{error}")
    };
    assert!(*step < 120);
    assert!(good.as_ref().unwrap().is_dir());
    assert!(error.hint().unwrap().contains("last good checkpoint"));
}

/// An actor one of whose batches is not finite.
struct Poisoned {
    actor: CpuActor,
    step: u64,
    at: u64,
}

impl Trainable for Poisoned {
    fn update(&mut self, update: &Update) -> Result<f64, TrainError> {
        self.actor.update(update)
    }

    fn state(&self) -> Result<BTreeMap<String, Tensor>, TrainError> {
        self.actor.state()
    }

    fn restore(&mut self, state: &BTreeMap<String, Tensor>) -> Result<(), TrainError> {
        self.actor.restore(state)
    }
}

impl Actor for Poisoned {
    fn publish(&self) -> Result<Published, TrainError> {
        self.actor.publish()
    }

    fn score(&self, batch: &[&Sequence]) -> Result<Scores, TrainError> {
        self.actor.score(batch)
    }

    fn learn(&mut self, batch: &[&Sequence], loss: &mut ScoreLoss<'_>) -> Result<(), TrainError> {
        self.step += 1;
        let poisoned = self.step == self.at;
        self.actor.learn(batch, &mut |scores| {
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
    let actor = CpuActor::new(&weights, &adapter(), 2).unwrap();
    let mut poisoned = Poisoned {
        actor,
        step: 0,
        at: 17,
    };
    let folder = tempfile::tempdir().unwrap();
    let (learnt, held_out) = (examples(&tiny, 0..10), examples(&tiny, 10..13));
    let keeping = keeping(folder.path(), &tiny);
    let (settings, watch) = (settings(0.02), &mut { FOREVER });
    let error = sft(
        &mut poisoned,
        &learnt,
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

#[test]
fn examples_are_the_tokens_that_were_sampled_where_they_are_this_models() {
    let tiny = Tiny::new();
    let dialogue = Dialogue::open(&tiny.path(), None).unwrap();
    let of = |trajectory: &Trajectory, max_tokens, too_long| {
        Examples {
            dialogue: &dialogue,
            tools: &[],
            max_tokens,
            too_long,
        }
        .of(trajectory)
        .unwrap()
    };
    let mut trajectory = trajectory(1);
    let rendered = of(&trajectory, 256, TooLong::Drop).unwrap();
    let text = dialogue
        .tokenizer()
        .decode(rendered.sequences[0].tokens())
        .unwrap();
    assert!(text.contains("Once more, 1."), "{text}");
    let said: Vec<u32> = rendered.sequences[0]
        .said()
        .iter()
        .map(|place| rendered.sequences[0].tokens()[*place])
        .collect();
    let reply = dialogue.tokenizer().encode("int int x;<|im_end|>").unwrap();
    assert_eq!(said, [reply.clone(), reply].concat());

    let origin = dialogue.origin().clone();
    let mut record = TokenRecord {
        ids: vec![1, 2, 3, 4],
        logprobs: vec![None, Some(-0.5), None, Some(-2.0)],
        loss_mask: vec![false, true, false, true],
        replies: vec![1, 3],
        template: Some(origin.template.clone()),
        tokenizer: Some(origin.tokenizer.clone()),
    };
    trajectory.tokens = Some(vec![record.clone()]);
    let recorded = of(&trajectory, 256, TooLong::Drop).unwrap();
    assert_eq!(recorded.sequences[0].tokens(), [1, 2, 3, 4]);
    assert_eq!(recorded.sequences[0].said(), [1, 3]);
    assert_eq!(of(&trajectory, 3, TooLong::Drop), None);
    let cut = of(&trajectory, 3, TooLong::Cut).unwrap();
    assert_eq!(cut.sequences[0].said(), [1]);

    // Reinforcement wants the record, and of this model.
    let paid = Paid {
        kind: RewardKind::Ladder,
        counts: Counts::Best,
    };
    let episode = |trajectory: &Trajectory| Episode::of(trajectory, &paid, &dialogue, "tiny");
    let found = episode(&trajectory).unwrap().unwrap();
    assert_eq!(found.tokens.sampled, [-0.5, -2.0]);
    // The last token does not end a reply.
    assert!(found.cut);
    assert_eq!(found.reward, -1.0);
    record.tokenizer = Some("another".into());
    trajectory.tokens = Some(vec![record]);
    assert_eq!(of(&trajectory, 256, TooLong::Drop), Some(rendered));
    assert_eq!(
        episode(&trajectory).unwrap_err().to_string(),
        "the tokens of task 1, sample 1 are not those of `tiny`"
    );
    trajectory.tokens = None;
    let error = episode(&trajectory).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the trajectory of task 1, sample 1 has no record of its tokens"
    );
    assert!(error.hint().unwrap().contains("`local:` policy"));
}

#[test]
fn rewards_are_those_of_the_attempt_that_counts_and_failures_of_ours_are_none() {
    let mut trajectory = trajectory(1);
    let attempt = |passed| Attempt {
        message: 1,
        files: BTreeMap::new(),
        verdict: verdict(passed),
    };
    trajectory.attempts = vec![attempt(true), attempt(false)];
    trajectory.best = Some(0);
    let of = |trajectory: &Trajectory, kind, counts| Paid { kind, counts }.reward(trajectory);
    assert_eq!(of(&trajectory, RewardKind::Robust, Counts::Best), Some(1.0));
    assert_eq!(
        of(&trajectory, RewardKind::Ladder, Counts::Final),
        Some(-0.5)
    );
    trajectory.attempts.clear();
    trajectory.best = None;
    assert_eq!(
        of(&trajectory, RewardKind::Robust, Counts::Best),
        Some(-1.0)
    );
    assert_eq!(of(&trajectory, RewardKind::Raw, Counts::Best), Some(0.0));
    trajectory.ending = Ending::PolicyFailed {
        message: "gone".into(),
    };
    assert_eq!(of(&trajectory, RewardKind::Robust, Counts::Best), None);
}

#[test]
fn trajectories_are_read_from_files_and_runs_and_forgeable_verdicts_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trajectories.jsonl");
    let line = |trajectory: &Trajectory| serde_json::to_string(trajectory).unwrap() + "\n";
    let mut fine = trajectory(1);
    fine.attempts = vec![Attempt {
        message: 1,
        files: BTreeMap::new(),
        verdict: verdict(false),
    }];
    fs_err::write(&file, line(&fine) + &line(&trajectory(2))).unwrap();
    for path in [folder.path(), &file] {
        let found = read_trajectories(path).unwrap();
        assert_eq!(found, [fine.clone(), trajectory(2)]);
    }
    fine.attempts[0].verdict.isolation = Some(BTreeMap::new());
    fs_err::write(&file, line(&fine)).unwrap();
    assert_eq!(
        read_trajectories(&file).unwrap_err().to_string(),
        "a verdict on task 1, sample 1 was given without the required protections"
    );
    fine.attempts[0].verdict.trust.contained = true;
    fs_err::write(&file, line(&fine)).unwrap();
    assert_eq!(read_trajectories(&file).unwrap().len(), 1);
    assert!(read_trajectories(&folder.path().join("nowhere")).is_err());
}
