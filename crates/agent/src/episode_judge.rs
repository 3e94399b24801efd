//! The judge, as an episode sees it.

use warpsmith_judge::{CheckDepth, Judge, JudgeError};
use warpsmith_schema::{Task, Verdict};
use warpsmith_tasks::submission_from_text;

use crate::{FencedFiles, render_profile};

/// A judge for one task. Here the text files of a conversation become a submission.
pub struct EpisodeJudge<'a> {
    pub judge: &'a mut (dyn Judge + 'static),
    pub task: &'a Task,
}

impl EpisodeJudge<'_> {
    pub(crate) fn judge(&mut self, files: &FencedFiles) -> Result<Verdict, JudgeError> {
        self.judge.judge(self.task, &submission_from_text(files))
    }

    pub(crate) fn judge_afresh(&mut self, files: &FencedFiles) -> Result<Verdict, JudgeError> {
        let submission = submission_from_text(files);
        self.judge.judge_afresh(self.task, &submission)
    }

    /// `None` if nothing is wrong that far.
    pub(crate) fn check(
        &mut self,
        files: &FencedFiles,
        depth: CheckDepth,
    ) -> Result<Option<Verdict>, JudgeError> {
        let submission = submission_from_text(files);
        self.judge.check(self.task, &submission, depth)
    }

    /// Where the time goes, in words: in the original, and in a solution if there is one.
    pub(crate) fn profile(&mut self, files: Option<&FencedFiles>) -> Result<String, JudgeError> {
        let submission = files.map(submission_from_text);
        let report = self.judge.profile(self.task, submission.as_ref())?;
        Ok(render_profile(&report))
    }
}
