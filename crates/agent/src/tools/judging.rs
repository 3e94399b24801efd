//! Tools that go through the judge: an agent reads what they say and never touches what says it.

use warpsmith_judge::{JudgeError, Reach};
use warpsmith_schema::Verdict;

use super::args::Profile;
use super::{Answer, Effect, Tools};
use crate::{Files, feedback};

impl Tools<'_> {
    pub(super) fn compile(&mut self) -> Result<Answer, JudgeError> {
        self.rehearse(Reach::Built, "It compiles.")
    }

    pub(super) fn verify(&mut self) -> Result<Answer, JudgeError> {
        self.rehearse(Reach::Verified, "It compiles and its results are right.")
    }

    fn rehearse(&mut self, reach: Reach, good: &str) -> Result<Answer, JudgeError> {
        let files = match self.files() {
            Ok(files) => files,
            Err(answer) => return Ok(answer),
        };
        Ok(match self.court.rehearse(&files, reach)? {
            None => Answer::good(good),
            Some(verdict) => Answer::bad(feedback::describe(&verdict)),
        })
    }

    pub(super) fn profile(&mut self, args: &Profile) -> Result<Answer, JudgeError> {
        let files = match self.files() {
            Ok(files) if !args.original => Some(files),
            // Nothing written yet: the original is all there is to look at.
            _ => None,
        };
        Ok(Answer::good(self.court.profile(files.as_ref())?))
    }

    pub(super) fn judge(&mut self) -> Result<Answer, JudgeError> {
        self.judged(Effect::Judged)
    }

    pub(super) fn submit(&mut self) -> Result<Answer, JudgeError> {
        self.judged(Effect::Submitted)
    }

    fn judged(&mut self, effect: fn(Box<Verdict>, Files) -> Effect) -> Result<Answer, JudgeError> {
        let files = match self.files() {
            Ok(files) => files,
            Err(answer) => return Ok(answer),
        };
        let verdict = self.court.judge(&files)?;
        Ok(Answer {
            text: feedback::describe(&verdict),
            failed: !verdict.passed(),
            effect: effect(Box::new(verdict), files),
        })
    }

    fn files(&self) -> Result<Files, Answer> {
        let files = self
            .workspace
            .submission()
            .map_err(|refused| Answer::bad(refused.to_string()))?;
        if files.contains_key("model_new.py") {
            Ok(files)
        } else {
            Err(Answer::bad(
                "there is no `model_new.py` yet: write it first",
            ))
        }
    }
}
