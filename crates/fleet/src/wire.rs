//! What controllers and workers say to each other.
//!
//! A job's id is the hash of its body, so the same question has the same id whoever asks it and however often. A result is
//! stored under that id once and never replaced.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use warpsmith_judge::profile::ProfileReport;
use warpsmith_sandbox::Isolation;
use warpsmith_schema::{
    Failure, Profile, Rules, Submission, SubmissionForm, Target, Task, Verdict,
};

/// Count up when a body changes its meaning: other numbers are other subjects, so old and new workers never meet.
pub const PROTOCOL: u32 = 1;

/// What all verdicts of one comparison share. Workers of a pool take each other's jobs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FleetPool {
    pub target: Target,
    /// The GPU's model, or the processor's with its number of cores.
    pub device: String,
    /// Version of `PyTorch`.
    pub torch: String,
    /// As [`warpsmith_judge::judge_version`] says it.
    pub judge: String,
    /// Whether every required protection holds.
    pub contained: bool,
}

impl FleetPool {
    /// A word for subjects: readable, and different for different pools.
    pub fn name(&self) -> String {
        let plain = |letter: char| match letter {
            letter if letter.is_ascii_alphanumeric() => letter.to_ascii_lowercase(),
            _ => '-',
        };
        let device: String = self.device.chars().map(plain).collect();
        let words: Vec<&str> = device.split('-').filter(|word| !word.is_empty()).collect();
        let hash = blake3::hash(
            format!(
                "{}\0{}\0{}\0{}\0{}",
                self.target.name(),
                self.device,
                self.torch,
                self.judge,
                self.contained
            )
            .as_bytes(),
        );
        let device: String = words.join("-").chars().take(40).collect();
        format!("{}-{device}-{}", self.target.name(), &hash.to_hex()[..8])
    }
}

/// How to judge, beyond where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetJudging {
    pub profile: Profile,
    pub rules: Rules,
    /// A mode of `torch.compile` to compare with.
    pub compile_mode: Option<String>,
    /// Whether a worker that lacks a required protection may judge.
    pub weak_isolation: bool,
}

impl FleetJudging {
    pub fn isolation(&self) -> Isolation {
        if self.weak_isolation {
            Isolation::Weak
        } else {
            Isolation::Strict
        }
    }
}

/// One question to a judge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRequest {
    pub protocol: u32,
    pub pool: FleetPool,
    pub judging: FleetJudging,
    pub call: JobCall,
    pub task: Task,
    #[serde(default, with = "texts", skip_serializing_if = "Option::is_none")]
    pub submission: Option<Submission>,
    /// Whether the bundle behind a verdict is wanted.
    #[serde(default)]
    pub evidence: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobCall {
    Survey,
    Judge,
    JudgeAfresh,
    CheckCompile,
    CheckVerify,
    Profile,
}

/// What a worker has to say about a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    pub outcome: JobOutcome,
    /// By name.
    pub worker: String,
    /// How often the job was handed out.
    pub tries: u32,
    /// From taking it to its answer.
    pub seconds: f64,
    /// The object that holds the bundle behind the verdict.
    #[serde(default)]
    pub evidence: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobOutcome {
    Answered(Box<JobAnswer>),
    /// The task's fault or the asker's: another try would end the same.
    Refused(Failure),
    /// Ours, and tried so often that another worker would not help.
    DeadLetter(Failure),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobAnswer {
    Surveyed,
    Verdict(Verdict),
    Checked(Option<Verdict>),
    Profiled(ProfileReport),
}

/// The hash of a job: which question it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(String);

impl JobId {
    /// `scope`: whose question; another scope has the same judged anew. `attempt`: how many dead letters it already left.
    pub fn of(body: &[u8], scope: &str, attempt: u32) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(scope.as_bytes())
            .update(b"\0")
            .update(&attempt.to_le_bytes())
            .update(body);
        Self(hasher.finalize().to_hex()[..32].to_owned())
    }

    /// The last word of a subject.
    pub(crate) fn of_subject(subject: &str) -> Self {
        Self(subject.rsplit('.').next().unwrap_or_default().to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A file as text where it is text: an array of numbers is four times as long.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum FileContent {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Vec<u8>> for FileContent {
    fn from(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Text(text),
            Err(error) => Self::Bytes(error.into_bytes()),
        }
    }
}

impl FileContent {
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.into_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

mod texts {
    use serde::{Deserializer, Serializer};

    use super::{BTreeMap, Deserialize, FileContent, Serialize, Submission, SubmissionForm};

    #[derive(Serialize, Deserialize)]
    struct Files {
        form: SubmissionForm,
        files: BTreeMap<String, FileContent>,
    }

    #[expect(clippy::ref_option, reason = "serde calls it so")]
    pub(super) fn serialize<S: Serializer>(
        submission: &Option<Submission>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let files = submission.as_ref().map(|submission| Files {
            form: submission.form,
            files: submission
                .files
                .iter()
                .map(|(path, bytes)| (path.clone(), bytes.clone().into()))
                .collect(),
        });
        files.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Submission>, D::Error> {
        let files = Option::<Files>::deserialize(deserializer)?;
        Ok(files.map(|files| Submission {
            form: files.form,
            files: files
                .files
                .into_iter()
                .map(|(path, content)| (path, content.into_bytes()))
                .collect(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(device: &str) -> FleetPool {
        FleetPool {
            target: Target::Cuda,
            device: device.to_owned(),
            torch: "2.11.0".to_owned(),
            judge: "0.1.0-14-0a1b2c3d".to_owned(),
            contained: true,
        }
    }

    #[test]
    fn a_job_is_read_as_it_was_written() {
        let request = JobRequest {
            protocol: PROTOCOL,
            pool: pool("NVIDIA H200"),
            judging: FleetJudging {
                profile: Profile::Rl,
                rules: Rules::Own,
                compile_mode: None,
                weak_isolation: false,
            },
            call: JobCall::Judge,
            task: Task::of_source("t", "x = 1"),
            submission: Some(Submission {
                form: SubmissionForm::Plain,
                files: BTreeMap::from([
                    ("model_new.py".to_owned(), b"y = 2".to_vec()),
                    ("kernels/a.cu".to_owned(), vec![0xff, 0, 1]),
                ]),
            }),
            evidence: true,
        };
        let text = serde_json::to_string(&request).unwrap();
        assert!(text.contains("y = 2"), "{text}");
        assert_eq!(serde_json::from_str::<JobRequest>(&text).unwrap(), request);
        let survey = JobRequest {
            submission: None,
            ..request
        };
        let text = serde_json::to_string(&survey).unwrap();
        assert_eq!(serde_json::from_str::<JobRequest>(&text).unwrap(), survey);
    }

    #[test]
    fn pools_have_readable_names_that_tell_them_apart() {
        let h200 = pool("NVIDIA H200").name();
        assert!(h200.starts_with("cuda-nvidia-h200-"), "{h200}");
        let newer = FleetPool {
            torch: "2.12.0".to_owned(),
            ..pool("NVIDIA H200")
        };
        assert_ne!(h200, newer.name());
        assert_ne!(h200, pool("NVIDIA-H200").name());
    }

    #[test]
    fn whose_question_it_is_makes_another_job() {
        let ids = [
            JobId::of(b"body", "run a", 0),
            JobId::of(b"body", "run b", 0),
            JobId::of(b"body", "run a", 1),
            JobId::of(b"bodz", "run a", 0),
        ];
        let different: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(different.len(), ids.len());
        assert_eq!(JobId::of(b"body", "run a", 0), ids[0]);
    }
}
