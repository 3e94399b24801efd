//! Formats: which version of a document this program writes and reads.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::{Event, Trajectory};

/// The version of verdicts, of failures and of what `--json` prints.
pub const FORMAT: u32 = 1;
/// The version of `events.jsonl`.
pub const EVENT_FORMAT: u32 = 2;
/// The version of trajectories.
pub const TRAJECTORY_FORMAT: u32 = 2;
/// The version of a run's `config.json`.
pub const CONFIG_FORMAT: u32 = 4;

/// A document that names its format in its field `format`.
pub trait Versioned: DeserializeOwned {
    /// What an error calls it, with its article.
    const NAME: &'static str;
    /// The only format that is read.
    const FORMAT: u32;

    fn format(&self) -> u32;
}

impl Versioned for Event {
    const NAME: &'static str = "an event";
    const FORMAT: u32 = EVENT_FORMAT;

    fn format(&self) -> u32 {
        self.format
    }
}

impl Versioned for Trajectory {
    const NAME: &'static str = "a trajectory";
    const FORMAT: u32 = TRAJECTORY_FORMAT;

    fn format(&self) -> u32 {
        self.format
    }
}

/// Why a document was not read.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error(transparent)]
    OtherFormat(#[from] OtherFormat),
    #[error("not a document of this kind")]
    Json(#[from] serde_json::Error),
}

/// A document of a format that this program does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{document} of {}, and this program reads format {reads}", name(*.found))]
pub struct OtherFormat {
    pub document: &'static str,
    /// `None` where the document names no format.
    pub found: Option<u32>,
    pub reads: u32,
}

impl OtherFormat {
    /// What the user can do about it.
    pub const HINT: &'static str = "read it with the version of warpsmith that wrote it, or begin a new run in another folder (`--out`)";
}

fn name(format: Option<u32>) -> String {
    format.map_or_else(
        || "no stated format".to_owned(),
        |format| format!("format {format}"),
    )
}

/// Reads one document. One of another format is refused as such, also where its fields have other names.
pub fn read_document<D: Versioned>(text: &[u8]) -> Result<D, DocumentError> {
    let other = |found| OtherFormat {
        document: D::NAME,
        found,
        reads: D::FORMAT,
    };
    match serde_json::from_slice::<D>(text) {
        Ok(document) if document.format() == D::FORMAT => Ok(document),
        Ok(document) => Err(other(Some(document.format())).into()),
        Err(error) => match serde_json::from_slice(text) {
            Ok(FormatOnly { format }) if format != Some(D::FORMAT) => Err(other(format).into()),
            _ => Err(error.into()),
        },
    }
}

/// What is looked at in a JSON object that is not a document of this format.
#[derive(Deserialize)]
struct FormatOnly {
    format: Option<u32>,
}
