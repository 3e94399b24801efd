//! The judge on this machine: starts processes when they are needed, keeps evidence, and judges nothing twice.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::info;
use warpsmith_schema::{Mutants, OpGraph, Submission, Task, Verdict};
use warpsmith_store::StoreError;
use warpsmith_store::evidence::{self, EvidenceQuota};

use crate::JudgeError;
use crate::interface::{Cancellation, CheckDepth, Judge};
use crate::judge::{JudgeConfig, JudgeDepth, Judged, Supervisor, task_hash};
use crate::kill_rate::KillRate;
use crate::pool::{Seat, lock};
use crate::profile::{ProfileReport, ProfileRequest, profile};

/// Where the evidence behind verdicts goes.
#[derive(Debug, Clone, Default)]
pub enum EvidencePlace {
    /// Nowhere: only verdicts are wanted.
    #[default]
    Nowhere,
    /// In the user's cache, a bundle for every judgement, named by its time.
    Cache,
    /// Below a folder, by task and submission. A bundle that lies there is the verdict of whoever judged the same before,
    /// even of a process that was killed before it could say so.
    ByHash {
        folder: PathBuf,
        /// How many bundles are kept. Without it all of them are.
        quota: Option<EvidenceQuota>,
    },
}

/// Finds out how to judge. It may have to fetch Python and PyTorch first.
pub type Configure = Arc<dyn Fn() -> Result<JudgeConfig, JudgeError> + Send + Sync>;

/// To look through all bundles for every one that is written would cost more than it frees.
const WRITES_BETWEEN_QUOTA_CHECKS: usize = 64;

/// Judges on this machine.
///
/// Verdicts are remembered by task and submission, in the evidence folder where bundles are named by hash, else in memory.
pub struct LocalJudge {
    configure: Configure,
    config: Option<JudgeConfig>,
    seat: Arc<Seat>,
    evidence: EvidencePlace,
    cancellation: Cancellation,
    /// By hash of the task and of the submission.
    known: HashMap<(String, String), Verdict>,
    /// Bundles written since the quota was last checked.
    written: usize,
}

impl LocalJudge {
    /// Starts its processes at once; they import PyTorch while the caller goes on.
    pub fn start(config: JudgeConfig) -> Result<Self, JudgeError> {
        let supervisor = Supervisor::start(config.clone())?;
        let again = config.clone();
        let mut judge = Self::lazy(Arc::new(move || Ok(again.clone())));
        judge.config = Some(config);
        *lock(&judge.seat) = Some(supervisor);
        Ok(judge)
    }

    /// Asks for its configuration, and starts its processes, with the first call.
    pub fn lazy(configure: Configure) -> Self {
        Self {
            configure,
            config: None,
            seat: Arc::default(),
            evidence: EvidencePlace::default(),
            cancellation: Cancellation::default(),
            known: HashMap::new(),
            written: 0,
        }
    }

    /// The same judge, whose evidence goes there.
    #[must_use]
    pub fn keeping_evidence(mut self, place: EvidencePlace) -> Self {
        if let EvidencePlace::ByHash {
            quota: Some(quota), ..
        } = &place
        {
            quota.enforce();
        }
        self.evidence = place;
        self
    }

    /// The same judge, whose calls can be cancelled.
    #[must_use]
    pub fn cancelled_by(mut self, cancellation: Cancellation) -> Self {
        self.cancellation = cancellation;
        self
    }

    /// Builds what would otherwise be built on first use.
    pub fn prepare(&mut self) -> Result<(), JudgeError> {
        self.supervised(Supervisor::prepare)
    }

    /// A verdict with the evidence behind it, which is not written anywhere. Nothing is answered from memory.
    pub fn judge_unrecorded(
        &mut self,
        task: &Task,
        submission: &Submission,
    ) -> Result<Judged, JudgeError> {
        self.supervised(|supervisor| supervisor.judge(task, submission))
    }

    /// Judges anew and writes the evidence to exactly this place, which must not exist yet.
    pub fn judge_into(
        &mut self,
        task: &Task,
        submission: &Submission,
        place: &Path,
    ) -> Result<Verdict, JudgeError> {
        let judged = self.judge_unrecorded(task, submission)?;
        let compile_mode = self.config()?.compile_mode.clone();
        Ok(evidence::write(
            place,
            judged.verdict,
            judged.evidence,
            compile_mode,
        )?)
    }

    /// How many wrong variants of a task the checks before timing refuse; kept, so that verdicts carry it from now on.
    pub fn kill_rate(
        &mut self,
        task: &Task,
        graph: &OpGraph,
        mutants: &dyn Mutants,
    ) -> Result<KillRate, JudgeError> {
        self.supervised(|supervisor| supervisor.kill_rate(task, graph, mutants))
    }

    fn config(&mut self) -> Result<&JudgeConfig, JudgeError> {
        let config = match self.config.take() {
            Some(config) => config,
            None => (self.configure)()?,
        };
        Ok(self.config.insert(config))
    }

    /// Acts with running processes, and where others held the memory that was lacking once more without them. After a
    /// cancelled call the processes are gone: they were killed.
    fn supervised<T>(
        &mut self,
        act: impl Fn(&mut Supervisor) -> Result<T, JudgeError>,
    ) -> Result<T, JudgeError> {
        let config = self.config()?.clone();
        let result = match &config.pool {
            None => self.seated(&config, &act),
            Some(pool) => {
                pool.await_turn(&self.seat);
                match self.seated(&config, &act) {
                    Err(error) if pool.explains(&error) && !self.cancellation.is_requested() => {
                        info!(%error, "judging again alone");
                        pool.alone(&self.seat, || {
                            self.seated(&config, |supervisor| supervisor.while_alone(&act))
                        })
                    }
                    result => result,
                }
            }
        };
        self.unless_cancelled(result)
    }

    fn seated<T>(
        &self,
        config: &JudgeConfig,
        act: impl FnOnce(&mut Supervisor) -> Result<T, JudgeError>,
    ) -> Result<T, JudgeError> {
        let mut seat = lock(&self.seat);
        let supervisor = match seat.take() {
            Some(supervisor) => supervisor,
            None => Supervisor::start(config.clone())?,
        };
        act(seat.insert(supervisor))
    }

    fn unless_cancelled<T>(&mut self, result: Result<T, JudgeError>) -> Result<T, JudgeError> {
        if self.cancellation.is_requested() {
            *lock(&self.seat) = None;
            return Err(JudgeError::cancelled());
        }
        result
    }

    /// The verdict that is known of a submission.
    fn recall(&self, task: &Task, submission: &Submission) -> Result<Option<Verdict>, JudgeError> {
        let EvidencePlace::ByHash { folder, .. } = &self.evidence else {
            return Ok(self.known.get(&key(task, submission)).cloned());
        };
        let place = bundle_place(folder, task, submission);
        if !place.exists() {
            return Ok(None);
        }
        let recorded = evidence::read(&place)?;
        if recorded.task_source != task.source || recorded.submission != *submission {
            return Err(StoreError::Exists { path: place }.into());
        }
        Ok(Some(recorded.verdict))
    }

    fn judge_and_keep(
        &mut self,
        task: &Task,
        submission: &Submission,
    ) -> Result<Verdict, JudgeError> {
        let hash = || submission.content_hash();
        let place = match &self.evidence {
            EvidencePlace::Nowhere => None,
            EvidencePlace::Cache => {
                let folder = self.config()?.caches.evidence();
                Some(evidence::timestamped_place(&folder, &task.name, &hash()))
            }
            EvidencePlace::ByHash { folder, .. } => {
                let place = bundle_place(folder, task, submission);
                Some(evidence::free_place(&place))
            }
        };
        let Some(place) = place else {
            let verdict = self.judge_unrecorded(task, submission)?.verdict;
            self.known.insert(key(task, submission), verdict.clone());
            return Ok(verdict);
        };
        let verdict = self.judge_into(task, submission, &place)?;
        if let EvidencePlace::ByHash { quota, .. } = &self.evidence {
            self.written += 1;
            if let Some(quota) = quota
                && self.written >= WRITES_BETWEEN_QUOTA_CHECKS
            {
                quota.enforce();
                self.written = 0;
            }
        } else {
            self.known.insert(key(task, submission), verdict.clone());
        }
        Ok(verdict)
    }
}

impl Judge for LocalJudge {
    fn survey(&mut self, task: &Task) -> Result<(), JudgeError> {
        self.supervised(|supervisor| supervisor.survey(task))
    }

    fn judge(&mut self, task: &Task, submission: &Submission) -> Result<Verdict, JudgeError> {
        match self.recall(task, submission)? {
            Some(verdict) => Ok(verdict),
            None => self.judge_and_keep(task, submission),
        }
    }

    fn judge_afresh(
        &mut self,
        task: &Task,
        submission: &Submission,
    ) -> Result<Verdict, JudgeError> {
        self.judge_and_keep(task, submission)
    }

    fn time_briefly(
        &mut self,
        task: &Task,
        submission: &Submission,
    ) -> Result<Verdict, JudgeError> {
        self.supervised(|supervisor| supervisor.time_briefly(task, submission))
            .map(|judged| judged.verdict)
    }

    fn build_ahead(&mut self, submissions: &[Submission]) -> Result<(), JudgeError> {
        self.supervised(|supervisor| supervisor.build_ahead(submissions))
    }

    fn check(
        &mut self,
        task: &Task,
        submission: &Submission,
        depth: CheckDepth,
    ) -> Result<Option<Verdict>, JudgeError> {
        let reach = match depth {
            CheckDepth::Compile => JudgeDepth::Compiled,
            CheckDepth::Verify => JudgeDepth::Verified,
        };
        self.supervised(|supervisor| supervisor.check(task, submission, reach))
    }

    fn profile(
        &mut self,
        task: &Task,
        submission: Option<&Submission>,
    ) -> Result<ProfileReport, JudgeError> {
        let config = self.config()?;
        let request = ProfileRequest {
            task: task.clone(),
            solution: submission.cloned(),
            target: config.target,
            device: config.device,
            python: config.python.clone(),
            caches: config.caches.clone(),
            sanitize: false,
            isolation: config.isolation,
        };
        let report = profile(&request);
        self.unless_cancelled(report)
    }

    fn replacement(&self) -> Result<Box<dyn Judge>, JudgeError> {
        Ok(Box::new(Self {
            config: self.config.clone(),
            evidence: self.evidence.clone(),
            cancellation: self.cancellation.clone(),
            known: self.known.clone(),
            ..Self::lazy(self.configure.clone())
        }))
    }
}

fn key(task: &Task, submission: &Submission) -> (String, String) {
    (task_hash(task), submission.content_hash())
}

/// Hexadecimal digits of a submission's hash in the name of its bundle.
const HASH_DIGITS: usize = 16;

fn bundle_place(folder: &Path, task: &Task, submission: &Submission) -> PathBuf {
    let hash = submission.content_hash();
    folder
        .join(evidence::folder_name(&task.id))
        .join(&hash[..HASH_DIGITS])
}

impl From<StoreError> for JudgeError {
    fn from(error: StoreError) -> Self {
        Self::Around(error.failure())
    }
}

#[cfg(test)]
mod tests;
