use std::path::PathBuf;
use std::time::Duration;

use warpsmith_judge::JudgeError;
use warpsmith_machine::MachineError;
use warpsmith_schema::{Failure, FailureKind};

/// Why something of a fleet could not be done.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error("`{address}` is no address of a fleet: {reason}")]
    Address { address: String, reason: String },
    #[error("could not reach the fleet at {servers}: {reason}")]
    Unreachable { servers: String, reason: String },
    #[error("the fleet at {servers} refused the token")]
    Refused { servers: String },
    #[error("the server has no queues of protocol {protocol}")]
    NotAFleet { protocol: u32 },
    #[error("the fleet did not {doing} within {} s: {reason}", .waited.as_secs())]
    Silent {
        doing: &'static str,
        waited: Duration,
        reason: String,
    },
    #[error("no worker of this fleet can judge this: {reason}")]
    NoWorker { reason: String, hint: String },
    #[error("nats-server {reason}")]
    Server {
        reason: String,
        hint: Option<String>,
    },
    #[error("could not {doing} `{path}`")]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the machine lacks something")]
    Machine(#[from] MachineError),
    #[error("could not start")]
    Start(#[from] std::io::Error),
    #[error("`{what}` cannot be read: {reason}")]
    Unreadable { what: String, reason: String },
}

impl FleetError {
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Address { .. } => {
                "use the address that `warpsmith fleet up` printed, such as `http://TOKEN@host:7070`"
            }
            Self::Unreachable { .. } | Self::Silent { .. } => {
                "see whether `warpsmith fleet up` runs there, and whether its ports can be reached from here"
            }
            Self::Refused { .. } => "use the address that `warpsmith fleet up` printed last",
            Self::NotAFleet { .. } => "start it with a `warpsmith fleet up` of this version",
            Self::NoWorker { hint, .. } => hint,
            Self::Server { hint, .. } => return hint.clone(),
            Self::Machine(error) => return error.hint(),
            Self::File { .. } | Self::Start(_) | Self::Unreadable { .. } => return None,
        };
        Some(hint.to_owned())
    }

    /// The wire form.
    pub fn failure(&self) -> Failure {
        let (kind, code) = match self {
            Self::Address { .. } | Self::Refused { .. } | Self::NotAFleet { .. } => {
                (FailureKind::Config, "fleet")
            }
            Self::NoWorker { .. } => (FailureKind::Config, "no_worker"),
            _ => (FailureKind::Infrastructure, "fleet"),
        };
        let mut message = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            message.push_str(": ");
            message.push_str(&cause.to_string());
            source = cause.source();
        }
        Failure {
            kind,
            code: code.to_owned(),
            message,
            hint: self.hint(),
        }
    }
}

impl From<FleetError> for JudgeError {
    fn from(error: FleetError) -> Self {
        Self::Around(error.failure())
    }
}
