//! Every error of the program as the [`Failure`] that scripts see: whose fault, a stable word, a message, a hint.

use std::error::Error;
use std::io;

use warpsmith_judge::JudgeError;
use warpsmith_machine::{MachineError, PythonChoice};
#[cfg(feature = "local-models")]
use warpsmith_model::ModelError;
use warpsmith_report::ReportError;
use warpsmith_rollout::RolloutError;
use warpsmith_schema::{Failure, FailureKind};
use warpsmith_store::StoreError;
use warpsmith_tasks::{CaptureError, TaskError};
#[cfg(feature = "local-models")]
use warpsmith_train::{NOTHING_REWARDED, TrainError};

use crate::exit::Exit;

const CLOSED_PIPE: &str = "closed_pipe";

/// Why a command gave no answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stop(pub(crate) Failure);

impl Stop {
    /// The user's to mend: an argument or a file.
    pub(crate) fn config(code: &str, message: impl Into<String>, hint: Option<String>) -> Self {
        Self::new(FailureKind::Config, code, message.into(), hint)
    }

    fn new(kind: FailureKind, code: &str, message: String, hint: Option<String>) -> Self {
        Self(Failure {
            kind,
            code: code.to_owned(),
            message,
            hint,
        })
    }

    /// A Python that was asked for and cannot be started is the asker's to mend.
    pub(crate) fn python(error: MachineError, choice: &PythonChoice) -> Self {
        match (&error, choice) {
            (MachineError::Start { .. }, PythonChoice::Given(_)) => {
                let hint =
                    "`--python` or `WARPSMITH_PYTHON` names it; leave it out to have one found";
                Self::config("python", chain(&error), Some(hint.to_owned()))
            }
            _ => error.into(),
        }
    }

    pub(crate) fn interrupted() -> Self {
        Self::new(
            FailureKind::Infrastructure,
            "interrupted",
            "interrupted".to_owned(),
            None,
        )
    }

    /// Whoever read our output has had enough.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        self.0.code == CLOSED_PIPE
    }

    pub(crate) fn exit(&self) -> Exit {
        match self.0.kind {
            FailureKind::Task | FailureKind::Config => Exit::USAGE,
            FailureKind::Infrastructure => Exit::INFRASTRUCTURE,
        }
    }
}

/// An error with all its causes, in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

impl From<TaskError> for Stop {
    fn from(error: TaskError) -> Self {
        let (kind, code) = match &error {
            TaskError::Missing { .. }
            | TaskError::NoSuchTask { .. }
            | TaskError::Ambiguous { .. } => (FailureKind::Config, "no_task"),
            TaskError::Read { .. } => (FailureKind::Config, "unreadable"),
            TaskError::NotATask { .. } | TaskError::BrokenLine { .. } | TaskError::Empty { .. } => {
                (FailureKind::Task, "not_a_task")
            }
            TaskError::NoSolution { .. } => (FailureKind::Config, "no_solution"),
            _ => (FailureKind::Config, "bad_solution"),
        };
        Self::new(kind, code, chain(&error), error.hint())
    }
}

impl From<CaptureError> for Stop {
    fn from(error: CaptureError) -> Self {
        let hint = error.hint().map(str::to_owned);
        match &error {
            CaptureError::NotCaptured(reason) => {
                let line = reason.line.map(|line| format!("line {line}: "));
                let message = format!("{error}: {}{reason}", line.unwrap_or_default());
                Self::new(FailureKind::Task, "no_graph", message, hint)
            }
            CaptureError::Machine(_) | CaptureError::NoAnswer { .. } | CaptureError::Cache(_) => {
                Self::new(FailureKind::Infrastructure, "capture", chain(&error), hint)
            }
        }
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self(error.failure())
    }
}

impl From<ReportError> for Stop {
    fn from(error: ReportError) -> Self {
        match error {
            ReportError::NotARun { .. } => Self::config(
                "not_a_run",
                error.to_string(),
                Some("name a run's folder, such as `runs/latest`".to_owned()),
            ),
            ReportError::Store(error) => error.into(),
            ReportError::Export { .. } => Self::new(
                FailureKind::Infrastructure,
                "store",
                chain(&error),
                Some("check the folder's permissions and the disk's space".to_owned()),
            ),
        }
    }
}

#[cfg(feature = "local-models")]
impl From<ModelError> for Stop {
    fn from(error: ModelError) -> Self {
        let (kind, code) = match &error {
            ModelError::NotFound { .. }
            | ModelError::AdapterAlone { .. }
            | ModelError::UnknownModel { .. }
            | ModelError::Broken { .. }
            | ModelError::Family { .. }
            | ModelError::Adapter(_)
            | ModelError::Sampling { .. } => (FailureKind::Config, "model"),
            _ => (FailureKind::Infrastructure, "model"),
        };
        Self::new(kind, code, chain(&error), error.hint())
    }
}

#[cfg(feature = "local-models")]
impl From<TrainError> for Stop {
    fn from(error: TrainError) -> Self {
        let (kind, code) = match error {
            // Who hears of tokens that there are not was given another model's.
            TrainError::Model(error @ ModelError::Token { .. }) => {
                let hint = "collect with the model that is to learn, named in the same way";
                return Self::config("training_data", chain(&error), Some(hint.to_owned()));
            }
            TrainError::Model(error) => return error.into(),
            TrainError::Store(error) => return error.into(),
            TrainError::Collect(failure) | TrainError::Around(failure) => return Self(failure),
            TrainError::Interrupted => return Self::interrupted(),
            TrainError::NothingToLearn { .. }
            | TrainError::NoEpisodes { .. }
            | TrainError::OnlyBenchmark { .. }
            | TrainError::NothingFits { .. }
            | TrainError::NothingJudged
            | TrainError::NotATrajectory { .. }
            | TrainError::Collection { .. }
            | TrainError::OtherFormat { .. }
            | TrainError::NoTokens { .. }
            | TrainError::BrokenTokens { .. }
            | TrainError::OtherTokens { .. }
            | TrainError::Uncontained { .. } => (FailureKind::Config, "training_data"),
            TrainError::NothingRewarded { .. } => (FailureKind::Config, NOTHING_REWARDED),
            TrainError::NotHeldOut { .. } | TrainError::OffPolicy { .. } => {
                (FailureKind::Config, "config")
            }
            TrainError::Read { .. } => (FailureKind::Config, "unreadable"),
            TrainError::NotFinite { .. } | TrainError::Diverged { .. } => {
                (FailureKind::Config, "diverged")
            }
            TrainError::OtherCheckpointFormat { .. } => (FailureKind::Config, "other_format"),
            TrainError::BrokenCheckpoint { .. }
            | TrainError::NoCritic { .. }
            | TrainError::OtherCritic { .. } => (FailureKind::Config, "checkpoint"),
            TrainError::Write { .. } => (FailureKind::Infrastructure, "store"),
            TrainError::NotRepeatable { .. } => (FailureKind::Infrastructure, "not_repeatable"),
        };
        Self::new(kind, code, chain(&error), error.hint())
    }
}

impl From<MachineError> for Stop {
    fn from(error: MachineError) -> Self {
        let (kind, code) = match &error {
            MachineError::UnknownCache { .. } => (FailureKind::Config, "no_cache"),
            MachineError::BadPython { .. } | MachineError::NoTorch { .. } => {
                (FailureKind::Config, "python")
            }
            MachineError::Offline => (FailureKind::Infrastructure, "offline"),
            _ => (FailureKind::Infrastructure, "machine"),
        };
        Self::new(kind, code, chain(&error), error.hint())
    }
}

impl From<JudgeError> for Stop {
    fn from(error: JudgeError) -> Self {
        match error {
            JudgeError::Machine(error) => error.into(),
            other => Self(other.failure()),
        }
    }
}

impl From<RolloutError> for Stop {
    fn from(error: RolloutError) -> Self {
        match error {
            RolloutError::Judge(error) => error.into(),
            other => Self(other.failure()),
        }
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::BrokenPipe => CLOSED_PIPE,
            _ => "io",
        };
        Self::new(FailureKind::Infrastructure, code, chain(&error), None)
    }
}

impl From<serde_json::Error> for Stop {
    fn from(error: serde_json::Error) -> Self {
        Self::new(FailureKind::Infrastructure, "json", chain(&error), None)
    }
}
