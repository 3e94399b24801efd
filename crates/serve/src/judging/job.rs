//! What is asked of the judge and what comes of it, as clients see it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use warpsmith_schema::{
    FORMAT, Failure, Submission, Task, Verdict, clashing_path, is_solution_path,
};
use warpsmith_tasks::submission_from_text;

/// A solution to be judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct JudgeRequest {
    pub(crate) task: GivenTask,
    /// Relative path to content: `model_new.py` and files below `kernels/`.
    pub(crate) files: BTreeMap<FilePath, String>,
}

/// One of the server's tasks, or, where the server takes such, a module of the client's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum GivenTask {
    Known(KnownTask),
    Own(OwnTask),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KnownTask {
    pub(crate) id: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OwnTask {
    /// A module in `KernelBench` form: `Model`, `get_inputs` and `get_init_inputs`.
    #[schemars(length(min = 1, max = MAX_BYTES))]
    pub(crate) source: String,
    /// What evidence and lists call it; else `task`.
    #[serde(default)]
    #[schemars(length(min = 1, max = 200))]
    pub(crate) name: Option<String>,
}

impl OwnTask {
    pub(crate) fn complaint(&self) -> Option<String> {
        let odd = |name: &str| name.is_empty() || name.chars().count() > 200;
        if self.source.is_empty() || self.source.len() > MAX_BYTES {
            Some(format!("`task.source` has 1 to {MAX_BYTES} bytes"))
        } else if self.name.as_deref().is_some_and(odd) {
            Some("`task.name` has 1 to 200 characters".to_owned())
        } else {
            None
        }
    }

    pub(crate) fn task(&self) -> Task {
        let name = self.name.clone().unwrap_or_else(|| "task".to_owned());
        // Two tasks of one name are two tasks.
        let hash = blake3::hash(self.source.as_bytes()).to_hex();
        Task {
            id: format!("{name}-{}", &hash[..12]),
            name,
            source: self.source.clone(),
            level: None,
            problem_id: None,
            origin: "http".to_owned(),
            graph: None,
        }
    }
}

/// As many files, and as large, as a folder may have.
const MAX_FILES: usize = 256;
const MAX_BYTES: usize = 2 << 20;

/// Why these cannot be a solution's files.
pub(crate) fn complaint_of(files: &BTreeMap<FilePath, String>) -> Option<String> {
    if files.len() > MAX_FILES {
        return Some(format!("a solution has at most {MAX_FILES} files"));
    }
    if let Some((path, _)) = files.iter().find(|(_, text)| text.len() > MAX_BYTES) {
        return Some(format!("`{}` is larger than {MAX_BYTES} bytes", path.0));
    }
    let clash = clashing_path(files.keys().map(|path| path.0.as_str()))?;
    Some(format!("`{clash}` is a file and a folder of others"))
}

/// The path of one file of a solution.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = r"^(model_new\.py|kernels(/[A-Za-z0-9_][A-Za-z0-9_.-]*){1,8})$", "maxLength" = 200))]
pub(crate) struct FilePath(String);

impl TryFrom<String> for FilePath {
    type Error = String;

    fn try_from(path: String) -> Result<Self, String> {
        if is_solution_path(&path) {
            Ok(Self(path))
        } else {
            Err(format!(
                "`{path}` is no file of a solution: these are `model_new.py` and `kernels/…`"
            ))
        }
    }
}

impl From<FilePath> for String {
    fn from(path: FilePath) -> Self {
        path.0
    }
}

/// Files that came over the wire, as they are judged.
pub(crate) fn submission_of(files: BTreeMap<FilePath, String>) -> Submission {
    let files = files.into_iter().map(|(path, text)| (path.0, text));
    submission_from_text(&files.collect())
}

/// A submission on its way through the judge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Job {
    pub(crate) format: u32,
    pub(crate) id: String,
    /// The task's name.
    pub(crate) task: String,
    pub(crate) status: JobStatus,
    /// How long it waited for a judge, so far.
    pub(crate) waited_seconds: f64,
    /// How long a judge has been at it, so far.
    pub(crate) judging_seconds: f64,
    /// Where the status is `judged`. It says whether the solution passed.
    pub(crate) verdict: Option<Verdict>,
    /// Where the status is `failed`. It says nothing about the solution.
    pub(crate) failure: Option<Failure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JobStatus {
    Waiting,
    Judging,
    Judged,
    Failed,
    Cancelled,
}

impl JobStatus {
    pub(crate) fn is_over(self) -> bool {
        !matches!(self, Self::Waiting | Self::Judging)
    }
}

/// Jobs, the latest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct JobList {
    pub(crate) format: u32,
    /// Jobs that wait for a judge.
    pub(crate) waiting: u32,
    pub(crate) jobs: Vec<Job>,
}

impl JobList {
    pub(crate) fn new(waiting: usize, jobs: Vec<Job>) -> Self {
        Self {
            format: FORMAT,
            waiting: waiting as u32,
            jobs,
        }
    }
}
