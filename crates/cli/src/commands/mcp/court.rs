//! The judge as a client's calls see it: started by the first of them, and again after one was given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use warpsmith_agent::{Court, Files, render_profile};
use warpsmith_judge::profile::{ProfileRequest, profile};
use warpsmith_judge::{JudgeDepth, JudgeError, LocalJudge, TaskSource};
use warpsmith_schema::{Task, Verdict};

use crate::args::{JudgingArgs, MachineArgs};
use crate::engine::{Engine, Manner};
use crate::failure::{Stop, cancelled};
use crate::printer::Printer;
use crate::source::{judged, submission};
use crate::{evidence, interrupt};

pub(super) struct Lazy {
    task: TaskSource,
    machine: MachineArgs,
    manner: Manner,
    printer: Printer,
    engine: Option<Engine>,
    judge: Option<LocalJudge>,
    /// A call was given up and the judge's processes with it.
    abandoned: Arc<AtomicBool>,
}

impl Lazy {
    pub(super) fn new(
        task: &Task,
        judging: &JudgingArgs,
        printer: &Printer,
        abandoned: Arc<AtomicBool>,
    ) -> Self {
        Self {
            task: judged(task),
            machine: judging.machine.clone(),
            manner: judging.manner(),
            printer: printer.clone(),
            engine: None,
            judge: None,
            abandoned,
        }
    }

    fn engine(&mut self) -> Result<&Engine, JudgeError> {
        // Calls come one after another: what was abandoned is a call before this one.
        if self.abandoned.swap(false, Ordering::SeqCst) {
            self.judge = None;
        }
        if self.engine.is_none() {
            self.engine = Some(Engine::prepare(&self.machine, &self.printer).map_err(around)?);
        }
        self.engine.as_ref().ok_or_else(cancelled)
    }

    fn judge(&mut self) -> Result<&mut LocalJudge, JudgeError> {
        let manner = self.manner.clone();
        let options = self.engine()?.options(manner);
        if self.judge.is_none() {
            self.judge = Some(LocalJudge::start(options)?);
        }
        self.judge.as_mut().ok_or_else(cancelled)
    }

    /// A killed process looks like a crash of the candidate's.
    fn unless_given_up<T>(&self, found: Result<T, JudgeError>) -> Result<T, JudgeError> {
        if self.abandoned.load(Ordering::SeqCst) || interrupt::happened() {
            return Err(cancelled());
        }
        found
    }
}

impl Court for Lazy {
    fn judge(&mut self, files: &Files) -> Result<Verdict, JudgeError> {
        let (task, submission) = (self.task.clone(), submission(files));
        let judged = self.judge()?.judge(&task, &submission);
        let judged = self.unless_given_up(judged)?;
        let place = evidence::place(&self.engine()?.caches, &task.name, &submission);
        evidence::write(&place, judged, self.manner.compile_mode.clone())
            .map_err(|error| around(error.into()))
    }

    fn forget(&mut self) {
        if let Some(judge) = &mut self.judge {
            judge.forget();
        }
    }

    fn rehearse(
        &mut self,
        files: &Files,
        reach: JudgeDepth,
    ) -> Result<Option<Verdict>, JudgeError> {
        let task = self.task.clone();
        let found = self.judge()?.rehearse(&task, &submission(files), reach);
        self.unless_given_up(found)
    }

    fn profile(&mut self, files: Option<&Files>) -> Result<String, JudgeError> {
        let (task, isolation) = (self.task.clone(), self.manner.isolation);
        let request = ProfileRequest {
            solution: files.map(submission),
            ..self.engine()?.profiling(task, isolation)
        };
        let found = profile(&request).map(|report| render_profile(&report));
        self.unless_given_up(found)
    }
}

/// What the judge's own errors have no word for.
fn around(stop: Stop) -> JudgeError {
    JudgeError::Around(stop.0)
}
