//! Workers: the cheap filters and the compiler, on all cores.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Mutex, PoisonError, RwLock};

use serde_json::Value;
use warpsmith_sandbox::Isolation;

use super::{FilterResult, locked};
use crate::candidate::TaskCandidate;
use crate::filter::FilterStage;
use crate::filter::{Containment, FilterEnvironment, FilterError, FilterRejection, FilterWorker};
use crate::grammar::TaskSize;

/// What workers let through.
pub(super) struct ScreenedCandidate {
    pub(super) candidate: Box<TaskCandidate>,
    pub(super) agreed: Value,
}

/// A worker's place.
pub(super) struct ScreeningWorker<'a> {
    pub(super) workshop: &'a FilterEnvironment,
    pub(super) isolation: Isolation,
    pub(super) number: usize,
    pub(super) gate: Option<&'a RwLock<()>>,
}

impl ScreeningWorker<'_> {
    pub(super) fn work(
        &self,
        queue: &Mutex<Receiver<Box<TaskCandidate>>>,
        to_timer: &Sender<ScreenedCandidate>,
        to_main: &Sender<FilterResult>,
    ) {
        let new = |containment| {
            FilterWorker::new(self.workshop, containment, self.isolation, self.number)
        };
        let (mut ours, mut others) = (new(Containment::None), new(Containment::Sandboxed));
        loop {
            let next = locked(queue).recv();
            let Ok(mut candidate) = next else { return };
            let _open = self
                .gate
                .map(|gate| gate.read().unwrap_or_else(PoisonError::into_inner));
            let worker = if candidate.source.is_trusted() {
                &mut ours
            } else {
                &mut others
            };
            let sent = match filter(worker, &mut candidate) {
                Ok(Ok(agreed)) => to_timer
                    .send(ScreenedCandidate { candidate, agreed })
                    .is_ok(),
                Ok(Err(dropped)) => to_main
                    .send(FilterResult::Filtered(candidate, Err(dropped)))
                    .is_ok(),
                Err(error) => {
                    drop(to_main.send(FilterResult::Failed(error.into())));
                    false
                }
            };
            if !sent {
                return;
            }
        }
    }
}

/// The cheap filters, then the compiler.
fn filter(
    worker: &mut FilterWorker<'_>,
    candidate: &mut TaskCandidate,
) -> Result<Result<Value, FilterRejection>, FilterError> {
    let code = candidate.source.code(TaskSize::REDUCED);
    let graph = candidate.source.graph_value(TaskSize::REDUCED);
    let screened = (candidate.seconds)
        .measure(FilterStage::Screen, || worker.screen(&code, graph.as_ref()))?;
    if let Err(dropped) = screened {
        return Ok(Err(dropped));
    }
    (candidate.seconds).measure(FilterStage::Compile, || worker.agree(&code))
}
