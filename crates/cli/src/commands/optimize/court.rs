//! The judge as episodes see it: each attempt's evidence is kept in the run's folder, and the same files are judged once.

use std::collections::BTreeMap;
use std::path::PathBuf;

use warpsmith_agent::{Court, Files, render_profile};
use warpsmith_judge::profile::{ProfileRequest, profile};
use warpsmith_judge::{JudgeDepth, JudgeError, Judged, LocalJudge, TaskSource};
use warpsmith_schema::{Submission, Task, Verdict};
use warpsmith_store::RunFolder;
use warpsmith_tasks::solution_hash;

use super::journal::Journal;
use crate::args::JudgingArgs;
use crate::engine::Engine;
use crate::failure::{Stop, cancelled};
use crate::source::{judged, submission};
use crate::{evidence, interrupt};

pub(super) struct Bench<'a> {
    judge: &'a mut LocalJudge,
    task: TaskSource,
    run: PathBuf,
    compile_mode: Option<String>,
    /// What a profile needs beside a solution.
    profiling: ProfileRequest,
    /// What was judged before, in whichever sample.
    known: BTreeMap<Files, Verdict>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        judge: &'a mut LocalJudge,
        task: &Task,
        run: &RunFolder,
        judging: &JudgingArgs,
        engine: &Engine,
        journal: &Journal,
    ) -> Self {
        let known = journal.attempts();
        Self {
            judge,
            task: judged(task),
            run: run.path().to_owned(),
            compile_mode: judging.manner().compile_mode,
            profiling: engine.profiling(judged(task), judging.isolation.into()),
            known: known
                .map(|attempt| (attempt.files.clone(), attempt.verdict.clone()))
                .collect(),
        }
    }

    /// Judges once more, apart from the attempts. The measurements of one submission are numbered; one that an earlier run
    /// made is not made again.
    pub(super) fn afresh(&mut self, submission: &Submission, number: u32) -> Result<Verdict, Stop> {
        let name = format!("{}-{number}", &solution_hash(submission)[..8]);
        let place = self.run.join("final").join(name);
        if place.exists() {
            return Ok(evidence::read(&place)?.verdict);
        }
        // Not the verdict that it remembers.
        self.judge.forget();
        let judged = self.judged(submission)?;
        if let Some(folder) = place.parent() {
            fs_err::create_dir_all(folder)?;
        }
        Ok(evidence::write(&place, judged, self.compile_mode.clone())?)
    }

    fn judged(&mut self, submission: &Submission) -> Result<Judged, JudgeError> {
        let judged = self.judge.judge(&self.task, submission)?;
        if interrupt::happened() {
            return Err(cancelled());
        }
        Ok(judged)
    }

    /// Numbered on from what an interrupted run left.
    fn next_place(&self) -> Result<PathBuf, Stop> {
        let folder = self.run.join("attempts");
        fs_err::create_dir_all(&folder)?;
        let mut places = (1_u32..).map(|number| folder.join(format!("{number:02}")));
        Ok(places.find(|place| !place.exists()).unwrap_or(folder))
    }
}

impl Court for Bench<'_> {
    fn judge(&mut self, files: &Files) -> Result<Verdict, JudgeError> {
        if let Some(known) = self.known.get(files) {
            return Ok(known.clone());
        }
        let judged = self.judged(&submission(files))?;
        let verdict = self
            .next_place()
            .and_then(|place| Ok(evidence::write(&place, judged, self.compile_mode.clone())?))
            .map_err(|stop| JudgeError::Around(stop.0))?;
        self.known.insert(files.clone(), verdict.clone());
        Ok(verdict)
    }

    fn rehearse(
        &mut self,
        files: &Files,
        reach: JudgeDepth,
    ) -> Result<Option<Verdict>, JudgeError> {
        self.judge.rehearse(&self.task, &submission(files), reach)
    }

    fn profile(&mut self, files: Option<&Files>) -> Result<String, JudgeError> {
        let request = ProfileRequest {
            solution: files.map(submission),
            ..self.profiling.clone()
        };
        profile(&request).map(|report| render_profile(&report))
    }
}
