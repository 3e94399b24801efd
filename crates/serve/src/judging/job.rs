//! What is asked of the judge and what comes of it, as clients see it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use warpsmith_schema::{FORMAT, Failure, Task, Verdict};

/// A solution to be judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct JudgeRequest {
    pub(crate) task: GivenTask,
    /// Relative path to content: `model_new.py` and files below `kernels/`.
    pub(crate) files: BTreeMap<FilePath, String>,
}

/// A module in `KernelBench` form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenTask {
    /// The text of `model.py`: `Model`, `get_inputs` and `get_init_inputs`.
    #[schemars(length(min = 1))]
    pub(crate) source: String,
    /// What evidence and lists call it; else `task`.
    #[serde(default)]
    #[schemars(length(min = 1, max = 200))]
    pub(crate) name: Option<String>,
}

/// The path of one file of a solution.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = r"^(model_new\.py|kernels(/[A-Za-z0-9_][A-Za-z0-9_.-]*){1,8})$", "maxLength" = 200))]
pub(crate) struct FilePath(String);

impl TryFrom<String> for FilePath {
    type Error = String;

    fn try_from(path: String) -> Result<Self, String> {
        let part = |part: &str| {
            let first = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            let later = |letter: char| first(letter) || ".-".contains(letter);
            part.starts_with(first) && part.chars().all(later)
        };
        let below = |rest: &str| {
            let parts: Vec<&str> = rest.split('/').collect();
            parts.len() <= 8 && parts.into_iter().all(part)
        };
        let fits = path == "model_new.py" || path.strip_prefix("kernels/").is_some_and(below);
        if fits && path.len() <= 200 {
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

impl JudgeRequest {
    /// Why it makes no sense, beyond what its types say.
    pub(crate) fn complaint(&self) -> Option<&'static str> {
        let name = self.task.name.as_deref();
        if self.task.source.is_empty() {
            Some("`task.source` is empty")
        } else if name.is_some_and(|name| name.is_empty() || name.chars().count() > 200) {
            Some("`task.name` has 1 to 200 characters")
        } else {
            None
        }
    }

    pub(crate) fn task(&self) -> Task {
        let name = self.task.name.clone().unwrap_or_else(|| "task".to_owned());
        // Two tasks of one name are two tasks.
        let hash = blake3::hash(self.task.source.as_bytes()).to_hex();
        Task {
            id: format!("{name}-{}", &hash[..12]),
            name,
            source: self.task.source.clone(),
            level: None,
            problem_id: None,
            origin: "http".to_owned(),
        }
    }

    pub(crate) fn files(&self) -> BTreeMap<String, String> {
        let each = self.files.iter();
        each.map(|(path, text)| (String::from(path.clone()), text.clone()))
            .collect()
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_a_solution_are_taken() {
        for (path, taken) in [
            ("model_new.py", true),
            ("kernels/softmax.cu", true),
            ("kernels/a/b-c.d/e_f.cuh", true),
            ("kernels/", false),
            ("kernels", false),
            ("kernels/../x", false),
            ("kernels//x", false),
            ("kernels/.hidden", false),
            ("/kernels/x", false),
            ("../model_new.py", false),
            ("model_new.py/x", false),
            ("kernels/ä", false),
            ("", false),
        ] {
            assert_eq!(FilePath::try_from(path.to_owned()).is_ok(), taken, "{path}");
        }
        assert!(FilePath::try_from(format!("kernels/{}", "x".repeat(200))).is_err());
    }
}
