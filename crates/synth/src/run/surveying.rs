//! The judge's own screening, and the row of what passed it.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Mutex, PoisonError, RwLock};

use warpsmith_judge::{Judge, JudgeError};
use warpsmith_schema::Task;
use warpsmith_tasks::SetTask;

use super::screening::ScreenedCandidate;
use super::timing::{TimedCandidate, Timing};
use super::{FilterResult, SynthError, SynthPlan, locked};
use crate::candidate::TaskCandidate;
use crate::filter::FilterStage;
use crate::filter::{FilterRejection, TaskMeasurements};
use crate::grammar::TaskSize;
use crate::record::SynthRow;

/// A thread that has a judge look at what is left.
pub(super) struct Surveyor<'a> {
    pub(super) plan: &'a SynthPlan,
    pub(super) judge: Option<Box<dyn Judge>>,
    /// Closed while something is timed.
    pub(super) gate: Option<&'a RwLock<()>>,
    pub(super) composer: String,
}

impl Surveyor<'_> {
    pub(super) fn work(
        mut self,
        queue: &Mutex<Receiver<TimedCandidate>>,
        to_main: &Sender<FilterResult>,
    ) {
        loop {
            let next = locked(queue).recv();
            let Ok(TimedCandidate {
                mut screened,
                timed,
            }) = next
            else {
                return;
            };
            let surveyed = {
                let _open =
                    (self.gate).map(|gate| gate.read().unwrap_or_else(PoisonError::into_inner));
                survey(self.judge.as_mut(), &mut screened.candidate, timed.size)
            };
            let done = match surveyed {
                Ok(Ok(surveyed)) => {
                    let row = self.row(&screened, &timed, surveyed);
                    FilterResult::Filtered(screened.candidate, Ok(Box::new(row)))
                }
                Ok(Err(dropped)) => FilterResult::Filtered(screened.candidate, Err(dropped)),
                Err(error) => FilterResult::Failed(SynthError::Judge(error)),
            };
            if to_main.send(done).is_err() {
                return;
            }
        }
    }

    fn row(&self, screened: &ScreenedCandidate, timed: &Timing, surveyed: bool) -> SynthRow {
        let candidate = &screened.candidate;
        let made = &candidate.source;
        let number = |name: &str| screened.agreed[name].as_f64().unwrap_or(0.0);
        SynthRow {
            task: SetTask {
                id: candidate.name.clone(),
                name: None,
                level: None,
                problem_id: None,
                ops: candidate.seeds.clone(),
                data_source: candidate.group.data_source(),
                code: made.code(timed.size),
                graph: made.graph(timed.size),
                eager_us: Some(1e3 * timed.eager_ms),
                split: None,
            },
            composer: self.composer.clone(),
            seed: self.plan.seed,
            index: candidate.index,
            size: made.has_sizes().then(|| timed.size.number()),
            target: self.plan.target,
            device: self.plan.device.clone(),
            measurements: TaskMeasurements {
                bytes: timed.bytes,
                compile_error: number("compile_error"),
                compile_seconds: number("compile_seconds"),
                surveyed,
            },
            nearest: candidate.nearest.clone(),
        }
    }
}

/// Whether it was tried out. Only our own tasks are: the judge runs a task outside the sandbox. And in no larger size than
/// shows what it is: what depends on the size was looked at when it was timed.
fn survey(
    judge: Option<&mut Box<dyn Judge>>,
    candidate: &mut TaskCandidate,
    size: TaskSize,
) -> Result<Result<bool, FilterRejection>, JudgeError> {
    let Some(judge) = judge.filter(|_| candidate.source.is_trusted()) else {
        return Ok(Ok(false));
    };
    let source = candidate.source.code(size.min(TaskSize::USUAL_ON_CPU));
    let task = Task::of_source(&candidate.name, source);
    match candidate
        .seconds
        .measure(FilterStage::Survey, || judge.survey(&task))
    {
        Ok(()) => Ok(Ok(true)),
        Err(JudgeError::Task { code, message }) => {
            Ok(Err(FilterRejection::new(&format!("judge_{code}"), message)))
        }
        Err(error) => Err(error),
    }
}
