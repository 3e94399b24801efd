//! The one way to have something judged.
//!
//! [`LocalJudge`](crate::LocalJudge) judges on this machine. Others stand in front of it, such as a queue that many episodes
//! share: whoever asks for a verdict sees this trait alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use warpsmith_schema::{Submission, Task, Verdict};

use crate::JudgeError;
use crate::profile::ProfileReport;

/// Judges submissions, one at a time.
///
/// A judge has one task loaded, and to change it costs seconds. An `Err` is never a verdict: it is the task's fault or ours.
pub trait Judge: Send {
    /// Whether the task can be judged here at all.
    fn survey(&mut self, task: &Task) -> Result<(), JudgeError>;

    /// The verdict on a submission. What was judged before may be answered from memory.
    fn judge(&mut self, task: &Task, submission: &Submission) -> Result<Verdict, JudgeError>;

    /// The same, measured anew even where the verdict is known.
    fn judge_afresh(&mut self, task: &Task, submission: &Submission)
    -> Result<Verdict, JudgeError>;

    /// The same, timed as briefly as there is a way to: for choosing between many, of which one is judged in earnest later. It
    /// leaves no evidence.
    fn time_briefly(
        &mut self,
        task: &Task,
        submission: &Submission,
    ) -> Result<Verdict, JudgeError> {
        self.judge_afresh(task, submission)
    }

    /// Builds what is judged soon, side by side where that disturbs nobody. What cannot be built says so when it is judged.
    fn build_ahead(&mut self, _submissions: &[Submission]) -> Result<(), JudgeError> {
        Ok(())
    }

    /// Goes only as far as `depth`: `None` if nothing is wrong that far, else the verdict that judging would end with.
    fn check(
        &mut self,
        task: &Task,
        submission: &Submission,
        depth: CheckDepth,
    ) -> Result<Option<Verdict>, JudgeError>;

    /// Where the time goes: in the reference and, if given, in a submission.
    fn profile(
        &mut self,
        task: &Task,
        submission: Option<&Submission>,
    ) -> Result<ProfileReport, JudgeError>;

    /// Another judge like this one. After a panic nobody knows what state this one is in.
    fn replacement(&self) -> Result<Box<dyn Judge>, JudgeError>;
}

/// How far a submission is checked, short of being timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckDepth {
    /// It compiles, and what it imports is allowed.
    Compile,
    /// Its results are right too.
    Verify,
}

/// Whether a judge's calls are still wanted.
///
/// Whoever cancels a call kills the processes behind it. A killed process looks like a crash of the candidate, so the result
/// of a cancelled call is [`JudgeError::cancelled`] and never a verdict.
#[derive(Debug, Clone)]
pub struct Cancellation {
    requested: Arc<AtomicBool>,
    process_ends: fn() -> bool,
}

impl Default for Cancellation {
    fn default() -> Self {
        Self::when(|| false)
    }
}

impl Cancellation {
    /// Cancelled as well for as long as `process_ends` says so.
    pub fn when(process_ends: fn() -> bool) -> Self {
        Self {
            requested: Arc::default(),
            process_ends,
        }
    }

    pub fn request(&self) {
        self.requested.store(true, Ordering::SeqCst);
    }

    /// Takes the request back: the next call is wanted.
    pub fn reset(&self) {
        self.requested.store(false, Ordering::SeqCst);
    }

    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst) || (self.process_ends)()
    }
}
