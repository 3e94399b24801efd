//! What is asked of the judge and what comes of it, as clients see it.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use warpsmith_agent::read_files;
use warpsmith_schema::{
    FORMAT, Failure, Submission, Task, Verdict, clashing_path, is_solution_path,
};
use warpsmith_tasks::submission_from_text;

/// A solution to be judged: its files, or what a language model said.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [{ "required": ["files"] }, { "required": ["reply"] }]))]
pub(crate) struct JudgeRequest {
    pub(crate) task: GivenTask,
    /// Relative path to content: `model_new.py` and files below `kernels/`.
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "BTreeMap<FilePath, String>")]
    files: Option<BTreeMap<FilePath, String>>,
    /// A reply whose blocks hold the files. One that holds none is a verdict against it.
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "String")]
    reply: Option<String>,
}

/// A field that may be left out and is never null.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    field: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(field).map(Some)
}

impl JudgeRequest {
    /// What is judged, or why that cannot be.
    pub(crate) fn received(self) -> Result<Received, String> {
        match (self.files, self.reply) {
            (Some(files), None) => match complaint_of(&files) {
                Some(complaint) => Err(complaint),
                None => Ok(Received::of(submission_of(files))),
            },
            (None, Some(reply)) => Ok(Received::reply(&reply)),
            _ => Err("a request has either `files` or a `reply`".to_owned()),
        }
    }
}

/// A submission as it came.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Received {
    pub(crate) submission: Submission,
    /// Why there is nothing in it, which the verdict then says.
    pub(crate) unusable: Option<String>,
}

impl Received {
    pub(crate) fn of(submission: Submission) -> Self {
        Self {
            submission,
            unusable: None,
        }
    }

    /// By the one rule for what a reply's solution is.
    pub(crate) fn reply(text: &str) -> Self {
        match read_files(text) {
            Ok(files) if files.values().all(|text| text.len() <= MAX_BYTES) => {
                Self::of(submission_from_text(&files))
            }
            Ok(_) => Self::nothing(format!(
                "a file of the reply is larger than {MAX_BYTES} bytes"
            )),
            Err(why) => Self::nothing(why.to_string()),
        }
    }

    /// What it takes in memory while it waits.
    pub(crate) fn bytes(&self) -> usize {
        let files = self.submission.files.iter();
        files.map(|(path, text)| path.len() + text.len()).sum()
    }

    /// The judge rejects what has no files, by the rule `form`.
    fn nothing(why: String) -> Self {
        Self {
            submission: submission_from_text(&BTreeMap::new()),
            unusable: Some(why),
        }
    }
}

/// One of the server's tasks, or, where the server takes such, a module of the client's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum GivenTask {
    Known(KnownTask),
    Own(OwnTask),
    Path(TaskPath),
}

/// A task in a file of the server's machine, named as the command line names it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskPath {
    #[schemars(length(min = 1, max = 4096))]
    pub(crate) path: String,
}

impl GivenTask {
    /// As a client means it that has one text for both: a task's source, else its name here.
    pub(crate) fn of_text(text: &str) -> Self {
        if text.contains('\n') {
            let source = text.to_owned();
            Self::Own(OwnTask { source, name: None })
        } else {
            let id = text.trim().to_owned();
            Self::Known(KnownTask { id })
        }
    }
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
        told_apart(Task {
            id: name.clone(),
            name,
            source: self.source.clone(),
            level: None,
            problem_id: None,
            origin: "http".to_owned(),
            graph: None,
        })
    }
}

/// Two tasks of one name are two tasks.
pub(crate) fn told_apart(task: Task) -> Task {
    let hash = blake3::hash(task.source.as_bytes()).to_hex();
    Task {
        id: format!("{}-{}", task.id, &hash[..12]),
        ..task
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
    #[serde(with = "shared")]
    #[schemars(with = "Option<Verdict>")]
    pub(crate) verdict: Option<Arc<Verdict>>,
    /// Where the status is `failed`. It says nothing about the solution.
    pub(crate) failure: Option<Failure>,
}

/// A verdict that several look at, written as one that nobody shares.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use warpsmith_schema::Verdict;

    #[expect(clippy::ref_option, reason = "this is how serde hands it over")]
    pub(super) fn serialize<S: Serializer>(
        verdict: &Option<Arc<Verdict>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        verdict.as_deref().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Arc<Verdict>>, D::Error> {
        Ok(Option::deserialize(from)?.map(Arc::new))
    }
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
    use serde_json::{Value, json};

    use super::*;

    fn request(body: Value) -> Result<Received, String> {
        let mut whole = json!({ "task": { "id": "softmax" } });
        if let (Value::Object(whole), Value::Object(body)) = (&mut whole, body) {
            whole.extend(body);
        }
        let read: Result<JudgeRequest, _> = serde_json::from_value(whole);
        read.map_err(|error| error.to_string())?.received()
    }

    #[test]
    fn a_request_has_files_or_a_reply() {
        let files = json!({ "model_new.py": "x\n" });
        let by_files = request(json!({ "files": files })).unwrap();
        let by_reply = request(json!({ "reply": "model_new.py\n```\nx\n```" })).unwrap();
        assert_eq!(by_files, by_reply);
        assert_eq!(by_files.unusable, None);
        for wrong in [
            json!({}),
            json!({ "files": files, "reply": "" }),
            json!({ "files": null, "reply": "" }),
            json!({ "reply": null }),
            json!({ "reply": "", "more": 1 }),
        ] {
            assert!(request(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_reply_without_a_solution_says_why() {
        let nothing = request(json!({ "reply": "I cannot." })).unwrap();
        assert!(nothing.submission.files.is_empty());
        assert_eq!(
            nothing.unusable.as_deref(),
            Some("the reply has no fenced block")
        );
    }

    #[test]
    fn one_text_is_a_task_by_name_or_by_source() {
        let named = GivenTask::of_text(" softmax ");
        let id = "softmax".to_owned();
        assert_eq!(named, GivenTask::Known(KnownTask { id }));
        let GivenTask::Own(own) = GivenTask::of_text("import torch\nclass Model: ...") else {
            panic!("it is a source");
        };
        assert_eq!(own.complaint(), None);
        assert_ne!(own.task().id, "task");
    }
}
