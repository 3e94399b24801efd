//! Supervised fine-tuning and value pretraining as runs: they learn, are killed at any moment and go on bit for bit, and what
//! goes wrong is said without a loss. Here is what these tests share.
#![expect(
    clippy::float_cmp,
    reason = "what must be the same must be so to the last bit"
)]

mod data;
mod learning;
mod mishaps;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::tiny::Tiny;
use crate::until::Until;
use serde_json::json;
use warpsmith_kernels::training::{AdamW, AdamWStep};
use warpsmith_model::policy::ChatCodec;
use warpsmith_model::{Adapter, AdapterSettings, HostTensor, Projection, Scaling, Weights};
use warpsmith_schema::{
    Attempt, CountedAttempt, EpisodeEnding, EpisodeMode, Message, PolicyVersion, Profile, Status,
    Target, Task, TokenRecord, Trajectory, Verdict,
};
use warpsmith_train::TrainError;
use warpsmith_train::algorithms::Aggregation;
use warpsmith_train::checkpoint::Checkpoints;
use warpsmith_train::data::{
    Example, Examples, Finding, RewardKind, RewardRule, TokenEpisode, Tokens, TooLong,
    TrainedReplies, read_trajectories,
};
use warpsmith_train::lr_schedule::LrSchedulerType;
use warpsmith_train::metrics;
use warpsmith_train::network::{
    Actor, FineTuning, PolicyNetwork, Published, ScoreLossFn, TokenScores, TokenSequence,
    Trainable, TrainingModel,
};
use warpsmith_train::recipes::{
    Keeping, OptimizerSettings, RecipeOutcome, SftSettings, ValueSettings, pretrain_value, sft,
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
    let mut trajectory = Trajectory::begin(&task, Target::Cpu, &policy, 1, EpisodeMode::Single);
    trajectory.ending = EpisodeEnding::Finished;
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

fn maker(codec: &ChatCodec) -> Examples<'_> {
    Examples {
        codec,
        tools: &[],
        replies: TrainedReplies::All,
        max_tokens: 256,
        too_long: TooLong::Drop,
    }
}

fn examples(tiny: &Tiny, numbers: std::ops::Range<usize>) -> Vec<Example> {
    let codec = ChatCodec::open(&tiny.path(), None).unwrap();
    numbers
        .map(|number| maker(&codec).of(&trajectory(number)).unwrap().unwrap())
        .collect()
}

fn adapter() -> FineTuning {
    FineTuning::NewLora {
        settings: AdapterSettings {
            rank: 8,
            alpha: 16.0,
            scaling: Scaling::Rank,
            base: None,
        },
        targets: Projection::ALL.to_vec(),
    }
}

fn optimizer(learning_rate: f64) -> OptimizerSettings {
    OptimizerSettings {
        learning_rate,
        warmup_steps: 2,
        lr_scheduler_type: LrSchedulerType::Cosine,
        adamw: AdamW::default(),
    }
}

fn settings(learning_rate: f64) -> SftSettings {
    SftSettings {
        epochs: 4,
        batch: 4,
        optimizer: optimizer(learning_rate),
        aggregation: Aggregation::Trajectory,
        tokens_per_microbatch: 128,
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

fn cpu_actor(weights: &Weights, fine_tuning: &FineTuning, seed: u64) -> PolicyNetwork {
    let model = TrainingModel::on_cpu(weights, fine_tuning, seed).unwrap();
    model.actor().unwrap()
}

const FOREVER: Until = Until(u64::MAX);

fn run(
    tiny: &Tiny,
    folder: &Path,
    fine_tuning: &FineTuning,
    settings: &SftSettings,
    mut watch: Until,
) -> Result<RecipeOutcome, TrainError> {
    let weights = Weights::load(&tiny.path()).unwrap();
    let mut actor = cpu_actor(&weights, fine_tuning, 2);
    let (training, held_out) = (examples(tiny, 0..10), examples(tiny, 10..13));
    let keeping = keeping(folder, tiny);
    sft(
        &mut actor, &training, &held_out, settings, &keeping, &mut watch,
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
