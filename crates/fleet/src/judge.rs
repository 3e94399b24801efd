//! A fleet as a judge like any other.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use warpsmith_judge::profile::ProfileReport;
use warpsmith_judge::{Cancellation, CheckDepth, Judge, JudgeError};
use warpsmith_schema::{Submission, Task, Verdict};
use warpsmith_store::evidence::folder_name;

use crate::client::FleetClient;
use crate::evidence::unpack;
use crate::wire::{FleetJudging, FleetPool, JobAnswer, JobCall, JobRequest, JobResult, PROTOCOL};

/// Asks the workers of one pool. Any number of these share a client; each waits for one answer at a time.
#[derive(Clone)]
pub struct FleetJudge {
    client: Arc<FleetClient>,
    pool: FleetPool,
    judging: FleetJudging,
    scope: String,
    evidence: Option<PathBuf>,
    cancellation: Cancellation,
}

/// As the local judge names bundles.
const HASH_DIGITS: usize = 16;

impl FleetJudge {
    /// `scope`: the run, say. What it asked before it was restarted is not judged again; what another run asked is.
    pub fn new(
        client: Arc<FleetClient>,
        pool: FleetPool,
        judging: FleetJudging,
        scope: impl Into<String>,
    ) -> Self {
        Self {
            client,
            pool,
            judging,
            scope: scope.into(),
            evidence: None,
            cancellation: Cancellation::default(),
        }
    }

    /// The same judge, which brings the evidence behind verdicts below this folder.
    #[must_use]
    pub fn keeping_evidence(mut self, folder: PathBuf) -> Self {
        self.evidence = Some(folder);
        self
    }

    /// The same judge, whose calls can be cancelled. A job that no worker has begun is taken back then.
    #[must_use]
    pub fn cancelled_by(mut self, cancellation: Cancellation) -> Self {
        self.cancellation = cancellation;
        self
    }

    fn ask(
        &self,
        call: JobCall,
        task: &Task,
        submission: Option<&Submission>,
        scope: &str,
    ) -> Result<JobResult, JudgeError> {
        let request = JobRequest {
            protocol: PROTOCOL,
            pool: self.pool.clone(),
            judging: self.judging.clone(),
            call,
            task: task.clone(),
            submission: submission.cloned(),
            evidence: self.evidence.is_some(),
        };
        self.client.ask(&request, scope, &self.cancellation)
    }

    fn answer(
        &self,
        call: JobCall,
        task: &Task,
        submission: Option<&Submission>,
    ) -> Result<JobAnswer, JudgeError> {
        let result = self.ask(call, task, submission, &self.scope)?;
        result.into_answer().map_err(JudgeError::Around)
    }

    fn verdict(
        &self,
        call: JobCall,
        task: &Task,
        submission: &Submission,
        scope: &str,
    ) -> Result<Verdict, JudgeError> {
        let result = self.ask(call, task, Some(submission), scope)?;
        let evidence = result.evidence.clone();
        let verdict = match result.into_answer().map_err(JudgeError::Around)? {
            JobAnswer::Verdict(verdict) => verdict,
            other => return Err(unexpected(&other)),
        };
        let (Some(folder), Some(object)) = (&self.evidence, evidence) else {
            return Ok(verdict);
        };
        let hash = submission.content_hash();
        let place = folder
            .join(folder_name(&task.id))
            .join(&hash[..HASH_DIGITS]);
        Ok(unpack(&self.client.object(&object)?, &place, verdict)?)
    }
}

impl Judge for FleetJudge {
    fn survey(&mut self, task: &Task) -> Result<(), JudgeError> {
        match self.answer(JobCall::Survey, task, None)? {
            JobAnswer::Surveyed => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn judge(&mut self, task: &Task, submission: &Submission) -> Result<Verdict, JudgeError> {
        self.verdict(JobCall::Judge, task, submission, &self.scope)
    }

    fn judge_afresh(
        &mut self,
        task: &Task,
        submission: &Submission,
    ) -> Result<Verdict, JudgeError> {
        let scope = format!("{}\0{}", self.scope, unlike_any_other());
        self.verdict(JobCall::JudgeAfresh, task, submission, &scope)
    }

    fn check(
        &mut self,
        task: &Task,
        submission: &Submission,
        depth: CheckDepth,
    ) -> Result<Option<Verdict>, JudgeError> {
        let call = match depth {
            CheckDepth::Compile => JobCall::CheckCompile,
            CheckDepth::Verify => JobCall::CheckVerify,
        };
        match self.answer(call, task, Some(submission))? {
            JobAnswer::Checked(verdict) => Ok(verdict),
            other => Err(unexpected(&other)),
        }
    }

    fn profile(
        &mut self,
        task: &Task,
        submission: Option<&Submission>,
    ) -> Result<ProfileReport, JudgeError> {
        match self.answer(JobCall::Profile, task, submission)? {
            JobAnswer::Profiled(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    fn replacement(&self) -> Result<Box<dyn Judge>, JudgeError> {
        Ok(Box::new(self.clone()))
    }
}

/// A word for one call of one process.
fn unlike_any_other() -> String {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    format!(
        "{}-{}-{}",
        jiff::Timestamp::now().as_nanosecond(),
        std::process::id(),
        CALLS.fetch_add(1, Ordering::Relaxed)
    )
}

fn unexpected(answer: &JobAnswer) -> JudgeError {
    JudgeError::Infrastructure {
        code: "fleet",
        message: format!("a worker answered another call: {answer:?}"),
        hint: None,
    }
}
