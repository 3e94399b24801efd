//! Workers: the cheap filters and the compiler, on all cores.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Mutex, PoisonError, RwLock};

use serde_json::Value;
use warpsmith_sandbox::Isolation;

use super::{Done, locked};
use crate::candidate::Candidate;
use crate::filter::{Containment, Dropped, Worker, WorkerError, Workshop};
use crate::grammar::Size;
use crate::spent::Stage;

/// What workers let through.
pub(super) struct Screened {
    pub(super) candidate: Box<Candidate>,
    pub(super) agreed: Value,
}

/// A worker's place.
pub(super) struct Bench<'a> {
    pub(super) workshop: &'a Workshop,
    pub(super) isolation: Isolation,
    pub(super) number: usize,
    pub(super) gate: Option<&'a RwLock<()>>,
}

impl Bench<'_> {
    pub(super) fn work(
        &self,
        queue: &Mutex<Receiver<Box<Candidate>>>,
        to_timer: &Sender<Screened>,
        to_main: &Sender<Done>,
    ) {
        let new =
            |containment| Worker::new(self.workshop, containment, self.isolation, self.number);
        let (mut ours, mut others) = (new(Containment::None), new(Containment::Sandboxed));
        loop {
            let next = locked(queue).recv();
            let Ok(mut candidate) = next else { return };
            let _open = self
                .gate
                .map(|gate| gate.read().unwrap_or_else(PoisonError::into_inner));
            let worker = if candidate.made.ours() {
                &mut ours
            } else {
                &mut others
            };
            let sent = match filter(worker, &mut candidate) {
                Ok(Ok(agreed)) => to_timer.send(Screened { candidate, agreed }).is_ok(),
                Ok(Err(dropped)) => to_main
                    .send(Done::Filtered(candidate, Err(dropped)))
                    .is_ok(),
                Err(error) => {
                    drop(to_main.send(Done::Failed(error.into())));
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
    worker: &mut Worker<'_>,
    candidate: &mut Candidate,
) -> Result<Result<Value, Dropped>, WorkerError> {
    let code = candidate.made.code(Size::REDUCED);
    let graph = candidate.made.graph_value(Size::REDUCED);
    let screened = (candidate.spent).on(Stage::Screen, || worker.screen(&code, graph.as_ref()))?;
    if let Err(dropped) = screened {
        return Ok(Err(dropped));
    }
    (candidate.spent).on(Stage::Compile, || worker.agree(&code))
}
