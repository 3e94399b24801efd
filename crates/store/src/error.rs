//! Errors of this crate and what the user can do about them.

use std::io;
use std::path::{Path, PathBuf};

use warpsmith_schema::{DocumentError, Failure, FailureKind, OtherFormat};

use crate::{ConfigDifference, LockHolder};

/// Why something could not be written or read back.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("failed to write `{path}`")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to read `{path}`")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{path}` is not valid JSON")]
    Json {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{}:{line}: not a line of this log", path.display())]
    BrokenLine {
        path: PathBuf,
        line: usize,
        #[source]
        source: serde_json::Error,
    },
    #[error("{}: {format}", place(path, *line))]
    OtherFormat {
        path: PathBuf,
        /// In a log.
        line: Option<usize>,
        format: OtherFormat,
    },
    #[error("`{path}` is not the configuration of a run")]
    BrokenRun {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("`{folder}` is in use by {holder}")]
    Locked { folder: PathBuf, holder: LockHolder },
    #[error(
        "`{folder}` was begun with another configuration: {}",
        list(differences)
    )]
    OtherConfig {
        folder: PathBuf,
        differences: Vec<ConfigDifference>,
    },
    #[error("`{folder}` exists and is not a run folder")]
    NotARun { folder: PathBuf },
    #[error(
        "`{folder}` is of an earlier version: it has `trajectories.jsonl`, and runs are read from `events.jsonl`"
    )]
    OldRun { folder: PathBuf },
    #[error("`{name}` is not a name for a file of a bundle")]
    Name { name: String },
    #[error("`{path}` already exists")]
    Exists { path: PathBuf },
    #[error("`{path}` is not a bundle: it has no `manifest.json`")]
    NotABundle { path: PathBuf },
    #[error("`{file}` of the bundle `{path}` is not what was written: {what}")]
    Tampered {
        path: PathBuf,
        file: String,
        what: &'static str,
    },
}

impl StoreError {
    /// Why one line of a log is not the document it should be.
    pub(crate) fn document(path: &Path, line: usize, error: DocumentError) -> Self {
        let path = path.to_path_buf();
        match error {
            DocumentError::OtherFormat(format) => Self::OtherFormat {
                path,
                line: Some(line),
                format,
            },
            DocumentError::Json(source) => Self::BrokenLine { path, line, source },
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Write { .. } => Some("check the permissions and the free space".into()),
            Self::OtherFormat { .. } => Some(OtherFormat::HINT.into()),
            Self::BrokenLine { .. } => {
                Some("only the last line of a log can be torn by a crash: this one was edited or the disk is failing".into())
            }
            Self::Locked { .. } => Some("wait for it, stop it, or give another folder with `--out`".into()),
            Self::BrokenRun { .. } => Some("put back what it was, or give another folder with `--out`".into()),
            Self::OtherConfig { folder, .. } => Some(format!(
                "continue with the configuration in `{}`, or give another folder with `--out`",
                folder.join("config.json").display()
            )),
            Self::OldRun { .. } => Some("run the same command again, into another folder".into()),
            Self::NotARun { .. } | Self::Exists { .. } => Some("give a folder that does not exist yet".into()),
            Self::NotABundle { .. } => Some("give the folder that a verdict names under `evidence`".into()),
            Self::Tampered { .. } => Some("judge the submission again: this evidence proves nothing".into()),
            Self::Read { .. } | Self::Json { .. } | Self::Name { .. } => None,
        }
    }
}

impl StoreError {
    /// The wire form.
    pub fn failure(&self) -> Failure {
        let (kind, code) = match self {
            Self::Tampered { .. } => (FailureKind::Config, "tampered"),
            Self::NotABundle { .. } | Self::Name { .. } | Self::Json { .. } => {
                (FailureKind::Config, "not_evidence")
            }
            Self::Exists { .. } => (FailureKind::Config, "exists"),
            Self::OtherConfig { .. }
            | Self::NotARun { .. }
            | Self::OldRun { .. }
            | Self::BrokenRun { .. } => (FailureKind::Config, "other_run"),
            Self::OtherFormat { .. } => (FailureKind::Config, "other_format"),
            _ => (FailureKind::Infrastructure, "store"),
        };
        let causes =
            std::iter::successors(Some(self as &dyn std::error::Error), |error| error.source());
        Failure {
            kind,
            code: code.to_owned(),
            message: causes
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(": "),
            hint: self.hint(),
        }
    }
}

/// The rest is only counted: with more differences it is another run altogether.
const LISTED: usize = 8;

fn list(differences: &[ConfigDifference]) -> String {
    // A run of another verb differs in everything.
    let kind = differences.iter().find(|one| one.key == "verb");
    let listed: Vec<String> = match kind {
        Some(kind) => vec![kind.to_string()],
        None => differences
            .iter()
            .take(LISTED)
            .map(ToString::to_string)
            .collect(),
    };
    match differences.len().saturating_sub(LISTED) {
        more if kind.is_none() && more > 0 => format!("{}; and {more} more", listed.join("; ")),
        _ => listed.join("; "),
    }
}

fn place(path: &Path, line: Option<usize>) -> String {
    match line {
        Some(line) => format!("{}:{line}", path.display()),
        None => format!("`{}`", path.display()),
    }
}
