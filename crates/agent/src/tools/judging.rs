//! Tools that go through the judge: an agent reads what they say and never touches what says it.

use warpsmith_judge::{JudgeDepth, JudgeError};
use warpsmith_schema::{ToolCall, Verdict};

use super::args::{Nothing, Profile};
use super::{Answer, Effect, tried};
use crate::{Court, Files, Workspace, feedback};

pub(crate) const NAMES: [&str; 5] = ["compile", "verify", "profile", "judge", "submit"];

/// What lies in a workspace at this moment, before the judge.
pub(crate) struct Judging<'a> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) court: &'a mut dyn Court,
}

impl Judging<'_> {
    /// `None` if it is no tool of these. Only the judge's own failure is an error.
    pub(crate) fn call(&mut self, call: &ToolCall) -> Option<Result<Answer, JudgeError>> {
        let given = &call.arguments;
        Some(match call.name.as_str() {
            "compile" => tried(given, |_: Nothing| self.compile()),
            "verify" => tried(given, |_: Nothing| self.verify()),
            "profile" => tried(given, |args: Profile| self.profile(&args)),
            "judge" => tried(given, |_: Nothing| self.judged(Effect::Judged)),
            "submit" => tried(given, |_: Nothing| self.judged(Effect::Submitted)),
            _ => return None,
        })
    }

    fn compile(&mut self) -> Result<Answer, JudgeError> {
        self.rehearse(JudgeDepth::Compiled, "It compiles.")
    }

    fn verify(&mut self) -> Result<Answer, JudgeError> {
        self.rehearse(
            JudgeDepth::Verified,
            "It compiles and its results are right.",
        )
    }

    fn rehearse(&mut self, reach: JudgeDepth, good: &str) -> Result<Answer, JudgeError> {
        let files = match self.files() {
            Ok(files) => files,
            Err(answer) => return Ok(answer),
        };
        Ok(match self.court.rehearse(&files, reach)? {
            None => Answer::good(good),
            Some(verdict) => Answer {
                text: feedback::describe(&verdict),
                failed: true,
                effect: Effect::Rehearsed(Box::new(verdict)),
            },
        })
    }

    fn profile(&mut self, args: &Profile) -> Result<Answer, JudgeError> {
        let files = match self.files() {
            Ok(files) if !args.original => Some(files),
            // Nothing written yet: the original is all there is to look at.
            _ => None,
        };
        Ok(Answer::good(self.court.profile(files.as_ref())?))
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
