//! Tools that ask the judge: an agent reads their answers and never touches what gives them.

use warpsmith_judge::{CheckDepth, JudgeError};
use warpsmith_schema::{ToolCall, Verdict};

use super::args::{Nothing, Profile};
use super::{Effect, ToolAnswer, try_with_arguments};
use crate::{EpisodeJudge, FencedFiles, Workspace, feedback};

pub(crate) const NAMES: [&str; 5] = ["compile", "verify", "profile", "judge", "submit"];

/// The judge's tools on what lies in a workspace at this moment.
pub(crate) struct JudgeTools<'a, 'j> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) judge: &'a mut EpisodeJudge<'j>,
    pub(crate) submit: SubmitMeasurement,
}

/// What is submitted when the same was judged before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubmitMeasurement {
    /// Its known verdict.
    Known,
    /// A new measurement: the luckiest of several is no result.
    Afresh,
}

impl JudgeTools<'_, '_> {
    /// `None` if it is not one of these tools. Only the judge's own failure is an error.
    pub(crate) fn call(&mut self, call: &ToolCall) -> Option<Result<ToolAnswer, JudgeError>> {
        let given = &call.arguments;
        Some(match call.name.as_str() {
            "compile" => try_with_arguments(given, |_: Nothing| self.compile()),
            "verify" => try_with_arguments(given, |_: Nothing| self.verify()),
            "profile" => try_with_arguments(given, |args: Profile| self.profile(&args)),
            "judge" => try_with_arguments(given, |_: Nothing| self.judge()),
            "submit" => try_with_arguments(given, |_: Nothing| self.submit()),
            _ => return None,
        })
    }

    fn compile(&mut self) -> Result<ToolAnswer, JudgeError> {
        self.check(CheckDepth::Compile, "It compiles.")
    }

    fn verify(&mut self) -> Result<ToolAnswer, JudgeError> {
        self.check(CheckDepth::Verify, "It compiles and its results are right.")
    }

    fn check(&mut self, depth: CheckDepth, good: &str) -> Result<ToolAnswer, JudgeError> {
        let files = match self.files() {
            Ok(files) => files,
            Err(answer) => return Ok(answer),
        };
        Ok(match self.judge.check(&files, depth)? {
            None => ToolAnswer::good(good),
            Some(verdict) => ToolAnswer {
                text: feedback::describe(&verdict),
                failed: true,
                effect: Effect::Checked(Box::new(verdict)),
            },
        })
    }

    fn profile(&mut self, args: &Profile) -> Result<ToolAnswer, JudgeError> {
        let files = match self.files() {
            Ok(files) if !args.original => Some(files),
            // Nothing written yet: the original is all there is to look at.
            _ => None,
        };
        Ok(ToolAnswer::good(self.judge.profile(files.as_ref())?))
    }

    fn judge(&mut self) -> Result<ToolAnswer, JudgeError> {
        let files = match self.files() {
            Ok(files) => files,
            Err(answer) => return Ok(answer),
        };
        let verdict = self.judge.judge(&files)?;
        Ok(described(verdict, files, Effect::Judged))
    }

    fn submit(&mut self) -> Result<ToolAnswer, JudgeError> {
        let files = match self.files() {
            Ok(files) => files,
            Err(answer) => return Ok(answer),
        };
        let verdict = match self.submit {
            SubmitMeasurement::Known => self.judge.judge(&files)?,
            SubmitMeasurement::Afresh => self.judge.judge_afresh(&files)?,
        };
        Ok(described(verdict, files, Effect::Submitted))
    }

    fn files(&self) -> Result<FencedFiles, ToolAnswer> {
        let files = self
            .workspace
            .submission()
            .map_err(|refused| ToolAnswer::bad(refused.to_string()))?;
        if files.contains_key("model_new.py") {
            Ok(files)
        } else {
            Err(ToolAnswer::bad(
                "there is no `model_new.py` yet: write it first",
            ))
        }
    }
}

fn described(
    verdict: Verdict,
    files: FencedFiles,
    effect: fn(Box<Verdict>, FencedFiles) -> Effect,
) -> ToolAnswer {
    ToolAnswer {
        text: feedback::describe(&verdict),
        failed: !verdict.passed(),
        effect: effect(Box::new(verdict), files),
    }
}
