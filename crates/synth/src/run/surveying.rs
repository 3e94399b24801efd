//! The judge's own screening, and the row of what passed it.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Mutex, PoisonError, RwLock};

use warpsmith_judge::{JudgeError, LocalJudge, TaskSource};
use warpsmith_tasks::SetTask;

use super::screening::Screened;
use super::timing::{Fitting, Timed};
use super::{Done, Plan, SynthError, locked};
use crate::candidate::Candidate;
use crate::filter::{Dropped, Facts};
use crate::grammar::Size;
use crate::record::Row;
use crate::spent::Stage;

/// A thread that has a judge look at what is left.
pub(super) struct Surveyor<'a> {
    pub(super) plan: &'a Plan,
    pub(super) judge: Option<LocalJudge>,
    /// Closed while something is timed.
    pub(super) gate: Option<&'a RwLock<()>>,
    pub(super) composer: String,
}

impl Surveyor<'_> {
    pub(super) fn work(mut self, queue: &Mutex<Receiver<Fitting>>, to_main: &Sender<Done>) {
        loop {
            let next = locked(queue).recv();
            let Ok(Fitting {
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
                    Done::Filtered(screened.candidate, Ok(Box::new(row)))
                }
                Ok(Err(dropped)) => Done::Filtered(screened.candidate, Err(dropped)),
                Err(error) => Done::Failed(SynthError::Judge(error)),
            };
            if to_main.send(done).is_err() {
                return;
            }
        }
    }

    fn row(&self, screened: &Screened, timed: &Timed, surveyed: bool) -> Row {
        let candidate = &screened.candidate;
        let made = &candidate.made;
        let number = |name: &str| screened.agreed[name].as_f64().unwrap_or(0.0);
        Row {
            task: SetTask {
                id: candidate.name.clone(),
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
            facts: Facts {
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
    judge: Option<&mut LocalJudge>,
    candidate: &mut Candidate,
    size: Size,
) -> Result<Result<bool, Dropped>, JudgeError> {
    let Some(judge) = judge.filter(|_| candidate.made.ours()) else {
        return Ok(Ok(false));
    };
    let task = TaskSource {
        name: candidate.name.clone(),
        source: candidate.made.code(size.min(Size::USUAL_ON_CPU)),
    };
    match candidate.spent.on(Stage::Survey, || judge.survey(&task)) {
        Ok(()) => Ok(Ok(true)),
        Err(JudgeError::Task { code, message }) => {
            Ok(Err(Dropped::new(&format!("judge_{code}"), message)))
        }
        Err(error) => Err(error),
    }
}
