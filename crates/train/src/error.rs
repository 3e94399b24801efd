use std::path::PathBuf;

use warpsmith_kernels::GpuError;
use warpsmith_model::ModelError;
use warpsmith_schema::{Failure, OtherFormat};
use warpsmith_store::StoreError;

/// The code of [`TrainError::NothingRewarded`] for scripts.
pub const NOTHING_REWARDED: &str = "nothing_rewarded";

/// Why learning could not go on. What was kept before stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error("there is nothing to learn from: {why}")]
    NothingToLearn { why: String },
    #[error("there is nothing to learn from: no episode has ended in {places}")]
    NoEpisodes { places: String },
    #[error(
        "there is nothing to learn from: all {rows} rows hold tasks of the benchmark, the first `{first}`"
    )]
    OnlyBenchmark { rows: usize, first: String },
    /// Every trajectory was rejected.
    #[error("there is nothing to learn from: {why}")]
    NothingRewarded { why: String },
    #[error(
        "there is nothing to learn from: no reply of {trajectories} trajectories ends within {max_tokens} tokens"
    )]
    NothingFits {
        trajectories: usize,
        max_tokens: usize,
    },
    #[error("no validation task could be judged")]
    NothingJudged,
    #[error("`{task}` is among the tasks and among those of `--validation`")]
    NotHeldOut { task: String },
    #[error(
        "`{setting}` is {value}: only replies sampled with 1 are the policy's own, and others cannot be trained on"
    )]
    OffPolicy { setting: &'static str, value: f32 },
    #[error("`{}` has no critic", run.display())]
    NoCritic { run: PathBuf },
    #[error("the critic of `{}` cannot go on here: {reason}", run.display())]
    OtherCritic { run: PathBuf, reason: String },
    #[error("`{}` is no collection to learn from: {reason}", path.display())]
    Collection { path: PathBuf, reason: String },
    #[error("{}:{line}: not a trajectory", path.display())]
    NotATrajectory {
        path: PathBuf,
        line: usize,
        #[source]
        source: serde_json::Error,
    },
    #[error("{}:{line}: {format}", path.display())]
    OtherFormat {
        path: PathBuf,
        line: usize,
        format: OtherFormat,
    },
    #[error("the trajectory of {episode} has no record of its tokens")]
    NoTokens { episode: String },
    #[error("the record of the tokens of {episode} does not add up")]
    BrokenTokens { episode: String },
    #[error("the tokens of {episode} are not those of `{model}`")]
    OtherTokens { episode: String, model: String },
    #[error("a verdict on {episode} was given without the required protections")]
    Uncontained { episode: String },
    #[error("episodes could not be collected: {}", .0.message)]
    Collect(Failure),
    /// Whoever holds the run failed before or after it, and has said how.
    #[error("{}", .0.message)]
    Around(Failure),
    /// Somebody wants it to stop; the same command goes on.
    #[error("interrupted")]
    Interrupted,
    #[error("{what} is not finite")]
    NotFinite { what: &'static str },
    #[error("step {step}: {reason}")]
    Diverged {
        step: u64,
        reason: String,
        /// The last checkpoint before it.
        good: Option<PathBuf>,
    },
    #[error("the policy that learns says other probabilities than just before: a ratio is {ratio}")]
    NotRepeatable { ratio: f64 },
    #[error("the checkpoint `{path}` cannot be used: {reason}")]
    BrokenCheckpoint { path: PathBuf, reason: String },
    #[error(
        "the checkpoint `{}` has format {found}, and this program reads format {reads}",
        path.display()
    )]
    OtherCheckpointFormat {
        path: PathBuf,
        found: u32,
        reads: u32,
    },
    #[error("failed to write `{path}`")]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to read `{path}`")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl From<GpuError> for TrainError {
    fn from(error: GpuError) -> Self {
        Self::Model(error.into())
    }
}

impl TrainError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NothingToLearn { .. } => {
                Some("`warpsmith rollout` collects trajectories".into())
            }
            Self::NoEpisodes { .. } => Some(
                "`warpsmith rollout` collects trajectories, `warpsmith train demos` writes a teacher's".into(),
            ),
            Self::OnlyBenchmark { .. } => Some(
                "a model trained on them cannot be measured by them; `--no-decontaminate` keeps them".into(),
            ),
            Self::NothingRewarded { .. } => Some(
                "a lower `--above`, another `--reward`, or more trajectories".into(),
            ),
            Self::NothingFits { .. } => Some(
                "raise `max_tokens`, or set `too_long` to `cut` to keep what fits of replies that begin in time".into(),
            ),
            Self::NotHeldOut { .. } => Some("leave it out of one of them".into()),
            Self::OffPolicy { setting, .. } => Some(format!("leave `{setting}` out, or set it to 1")),
            Self::NoCritic { .. } => Some("name the folder of a run of `train value`".into()),
            Self::OtherCritic { .. } => Some(
                "both runs need the same `--model`, `--fine-tuning`, `--rank` and `--targets`".into(),
            ),
            Self::NotATrajectory { .. } => Some(
                "trajectories come from `warpsmith rollout`, or for tasks with graphs from `warpsmith train demos`".into(),
            ),
            Self::Collection { .. } => Some(
                "name its columns: `--columns messages=COL`, `prompt=COL,reply=COL` or `source=COL,code=COL`".into(),
            ),
            Self::OtherFormat { .. } => Some("collect again, or use the program that wrote it".into()),
            Self::NoTokens { .. } => Some(
                "collect with a `local:` policy, or an endpoint that tells its tokens; `sft` and `rft` can do without".into(),
            ),
            Self::BrokenTokens { .. } => Some("collect it again, or leave it out".into()),
            Self::OtherTokens { .. } => Some(
                "collect with the model that is to learn, named in the same way".into(),
            ),
            Self::Uncontained { .. } => Some(
                "collect again without `--isolation weak`: such verdicts can be forged, and training on them teaches to forge".into(),
            ),
            Self::Collect(failure) | Self::Around(failure) => failure.hint.clone(),
            Self::Interrupted | Self::NothingJudged => None,
            Self::NotFinite { .. } => Some(
                "look at the last lines of `metrics.jsonl`; a lower rate or a longer warm-up often helps".into(),
            ),
            Self::Diverged { good, .. } => Some(match good {
                Some(path) => format!(
                    "the last good checkpoint is `{}`; in another run, lower the rate, or go on from its `published` folder",
                    path.display()
                ),
                None => "in another run, lower the rate or make the warm-up longer".into(),
            }),
            Self::NotRepeatable { .. } => Some("this is a defect of the program: please report it".into()),
            Self::BrokenCheckpoint { path, .. } => Some(format!(
                "delete `{}` to go on from the checkpoint before it, or from the beginning where there is none",
                path.display()
            )),
            Self::OtherCheckpointFormat { .. } => Some(
                "go on with the version of the program that wrote it, or start a new run".into(),
            ),
            Self::Write { .. } => Some(
                "check the permissions and the free space; earlier checkpoints are as they were, and the same command goes on".into(),
            ),
            Self::Read { .. } => Some("check that the file is there and may be read".into()),
            Self::Store(error) => error.hint(),
            Self::Model(error) => error.hint(),
        }
    }
}
