//! The judge as an episode sees it: each attempt's evidence is kept in the run's folder.

use std::path::{Path, PathBuf};

use warpsmith_agent::{Court, Files};
use warpsmith_judge::profile::{ProfileRequest, profile, render};
use warpsmith_judge::{Judge, JudgeError, Reach, TaskSource};
use warpsmith_schema::{Submission, Task, Verdict};
use warpsmith_store::RunFolder;

use super::OptimizeArgs;
use crate::engine::Engine;
use crate::evidence;
use crate::failure::Stop;
use crate::source::{judged, submission};

pub(super) struct Bench<'a> {
    judge: &'a mut Judge,
    task: TaskSource,
    folder: PathBuf,
    compile_mode: Option<String>,
    /// What a profile needs beside a solution.
    profiling: ProfileRequest,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        judge: &'a mut Judge,
        task: &Task,
        run: &RunFolder,
        compile_mode: Option<String>,
        engine: &Engine,
        args: &OptimizeArgs,
    ) -> Self {
        Self {
            judge,
            task: judged(task),
            folder: run.path().join("attempts"),
            compile_mode,
            profiling: engine.profiling(judged(task), args.isolation.into()),
        }
    }

    /// Judges once more, apart from the attempts.
    pub(super) fn afresh(
        &mut self,
        submission: &Submission,
        place: &Path,
    ) -> Result<Verdict, Stop> {
        // Not the verdict that it remembers.
        self.judge.forget();
        let judged = self.judge.judge(&self.task, submission)?;
        evidence::write(place, judged, self.compile_mode.clone())
    }

    /// Numbered on from what an interrupted run left.
    fn next_place(&self) -> PathBuf {
        let mut places = (1_u32..).map(|number| self.folder.join(format!("{number:02}")));
        places
            .find(|place| !place.exists())
            .unwrap_or_else(|| self.folder.clone())
    }
}

impl Court for Bench<'_> {
    fn judge(&mut self, files: &Files) -> Result<Verdict, JudgeError> {
        let judged = self.judge.judge(&self.task, &submission(files))?;
        fs_err::create_dir_all(&self.folder)
            .map_err(Stop::from)
            .and_then(|()| evidence::write(&self.next_place(), judged, self.compile_mode.clone()))
            .map_err(|stop| JudgeError::Around(stop.0))
    }

    fn rehearse(&mut self, files: &Files, reach: Reach) -> Result<Option<Verdict>, JudgeError> {
        self.judge.rehearse(&self.task, &submission(files), reach)
    }

    fn profile(&mut self, files: Option<&Files>) -> Result<String, JudgeError> {
        let request = ProfileRequest {
            solution: files.map(submission),
            ..self.profiling.clone()
        };
        profile(&request).map(|report| render(&report))
    }
}
