//! Who judges for a run.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpsmith_agent::{Files, render_profile};
use warpsmith_judge::profile::{ProfileRequest, profile};
use warpsmith_judge::{JudgeConfig, JudgeDepth, JudgeError, LocalJudge};
use warpsmith_schema::{Task, Verdict};
use warpsmith_store::StoreError;
use warpsmith_tasks::{solution_hash, submission};

use crate::StopRequest;
use crate::journal::over;
use warpsmith_store::evidence::{self, EvidenceQuota};

/// One of the pool's judges. It has one task loaded at a time, and changing it costs.
pub trait Judging: Send {
    /// Whether the task can be judged here at all.
    fn survey(&mut self, task: &Task) -> Result<(), JudgeError>;
    fn judge(&mut self, task: &Task, files: &Files) -> Result<Verdict, JudgeError>;
    /// Part of the way: `None` if nothing is wrong that far.
    fn rehearse(
        &mut self,
        task: &Task,
        files: &Files,
        reach: JudgeDepth,
    ) -> Result<Option<Verdict>, JudgeError>;
    /// Where the time goes, in words.
    fn profile(&mut self, task: &Task, files: Option<&Files>) -> Result<String, JudgeError>;
    /// Another one in its place. After a panic nobody knows what state this one is in.
    fn another(&self) -> Result<Box<dyn Judging>, JudgeError>;
}

/// The judge itself, which keeps the evidence of every verdict.
pub struct KeptJudge {
    judge: LocalJudge,
    options: JudgeConfig,
    folder: PathBuf,
    wish: fn() -> StopRequest,
    quota: Option<EvidenceQuota>,
    /// Bundles written since the quota was last looked after.
    written: usize,
}

/// Looking through all bundles is not worth the while for every one.
const BETWEEN_QUOTAS: usize = 64;

impl KeptJudge {
    /// Its evidence goes below `folder`.
    pub fn start(
        options: JudgeConfig,
        folder: PathBuf,
        wish: fn() -> StopRequest,
    ) -> Result<Self, JudgeError> {
        Ok(Self {
            judge: LocalJudge::start(options.clone())?,
            options,
            folder,
            wish,
            quota: None,
            written: 0,
        })
    }

    /// The same with a limit on what is kept, which is looked after now and then.
    #[must_use]
    pub fn within(mut self, quota: EvidenceQuota) -> Self {
        quota.enforce();
        self.quota = Some(quota);
        self
    }

    fn look_after_quota(&mut self) {
        self.written += 1;
        if let Some(quota) = &self.quota
            && self.written >= BETWEEN_QUOTAS
        {
            quota.enforce();
            self.written = 0;
        }
    }
}

impl Judging for KeptJudge {
    fn survey(&mut self, task: &Task) -> Result<(), JudgeError> {
        self.judge.survey(&task.into())
    }

    /// The place of the evidence follows from what is judged. Where it lies already, a process was killed after it had
    /// judged and before it could say so: that verdict stands.
    fn judge(&mut self, task: &Task, files: &Files) -> Result<Verdict, JudgeError> {
        let submission = submission(files);
        let hash = solution_hash(&submission);
        let place = self
            .folder
            .join(evidence::folder_name(&task.id))
            .join(&hash[..16]);
        let around = |error: StoreError| JudgeError::Around(error.failure());
        if place.exists() {
            let recorded = evidence::read(&place).map_err(around)?;
            if recorded.task_source != task.source || recorded.submission != submission {
                return Err(around(StoreError::Exists { path: place }));
            }
            return Ok(recorded.verdict);
        }
        let judged = self.judge.judge(&task.into(), &submission)?;
        // The docket remembers.
        self.judge.forget();
        if (self.wish)() == StopRequest::Abandon {
            return Err(JudgeError::Around(over()));
        }
        let verdict = evidence::write(
            &place,
            judged.verdict,
            judged.evidence,
            self.options.compile_mode.clone(),
        )
        .map_err(around)?;
        self.look_after_quota();
        Ok(verdict)
    }

    fn rehearse(
        &mut self,
        task: &Task,
        files: &Files,
        reach: JudgeDepth,
    ) -> Result<Option<Verdict>, JudgeError> {
        self.judge.rehearse(&task.into(), &submission(files), reach)
    }

    fn profile(&mut self, task: &Task, files: Option<&Files>) -> Result<String, JudgeError> {
        let options = &self.options;
        let request = ProfileRequest {
            task: task.into(),
            solution: files.map(submission),
            target: options.target,
            device: options.device,
            python: options.python.clone(),
            caches: options.caches.clone(),
            sanitize: false,
            isolation: options.isolation,
        };
        profile(&request).map(|report| render_profile(&report))
    }

    fn another(&self) -> Result<Box<dyn Judging>, JudgeError> {
        let judge = Self::start(self.options.clone(), self.folder.clone(), self.wish)?;
        Ok(Box::new(Self {
            quota: self.quota.clone(),
            ..judge
        }))
    }
}

/// Judges for one run after another: to start one takes seconds.
#[derive(Clone)]
pub struct JudgePool(Vec<Shared>);

type Shared = Arc<Mutex<Box<dyn Judging>>>;

impl JudgePool {
    pub fn new(judges: Vec<Box<dyn Judging>>) -> Self {
        let shared = judges.into_iter().map(|judge| Arc::new(Mutex::new(judge)));
        Self(shared.collect())
    }

    /// All of them, for one run. They come back when it drops them.
    pub fn lend(&self) -> Vec<Box<dyn Judging>> {
        let lent = |judge: &Shared| Box::new(Lent(judge.clone())) as Box<dyn Judging>;
        self.0.iter().map(lent).collect()
    }
}

struct Lent(Shared);

impl Lent {
    /// A judge whose run panicked has no task half loaded: it loads one whole or fails.
    fn own(&self) -> MutexGuard<'_, Box<dyn Judging>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Judging for Lent {
    fn survey(&mut self, task: &Task) -> Result<(), JudgeError> {
        self.own().survey(task)
    }

    fn judge(&mut self, task: &Task, files: &Files) -> Result<Verdict, JudgeError> {
        self.own().judge(task, files)
    }

    fn rehearse(
        &mut self,
        task: &Task,
        files: &Files,
        reach: JudgeDepth,
    ) -> Result<Option<Verdict>, JudgeError> {
        self.own().rehearse(task, files, reach)
    }

    fn profile(&mut self, task: &Task, files: Option<&Files>) -> Result<String, JudgeError> {
        self.own().profile(task, files)
    }

    /// The pool has it from now on.
    fn another(&self) -> Result<Box<dyn Judging>, JudgeError> {
        let mut own = self.own();
        let fresh = own.another()?;
        *own = fresh;
        Ok(Box::new(Self(self.0.clone())))
    }
}
