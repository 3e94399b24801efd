//! Tasks on the target, each in the size that fits the window.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use warpsmith_sandbox::Isolation;
use warpsmith_schema::Target;

use super::screening::ScreenedCandidate;
use super::{FilterResult, SynthError, SynthPlan, TIMING_BATCH, locked};
use crate::candidate::TaskCandidate;
use crate::filter::FilterStage;
use crate::filter::{Containment, FilterEnvironment, FilterRejection, FilterWorker};
use crate::grammar::TaskSize;

/// How long more to time is waited for.
const BATCH_WAIT: Duration = Duration::from_secs(2);

/// The next ones to be timed; none when there will be no more.
fn next_batch(queue: &Receiver<ScreenedCandidate>, most: usize) -> Vec<ScreenedCandidate> {
    let mut together: Vec<ScreenedCandidate> = queue.recv().into_iter().collect();
    while !together.is_empty() && together.len() < most {
        match queue.recv_timeout(BATCH_WAIT) {
            Ok(next) => together.push(next),
            Err(_) => break,
        }
    }
    together
}

/// What fits the window.
pub(super) struct TimedCandidate {
    pub(super) screened: ScreenedCandidate,
    pub(super) timed: Timing,
}

pub(super) struct Timing {
    pub(super) size: TaskSize,
    pub(super) eager_ms: f64,
    pub(super) bytes: u64,
}

/// A thread that times.
pub(super) struct Timer<'a> {
    pub(super) plan: &'a SynthPlan,
    pub(super) workshop: &'a FilterEnvironment,
    pub(super) isolation: Isolation,
    /// After those of the workers.
    pub(super) number: usize,
    pub(super) lease: &'a str,
    /// Closed to workers meanwhile.
    pub(super) gate: Option<&'a RwLock<()>>,
    /// Closed to judges meanwhile.
    pub(super) judges_gate: Option<&'a RwLock<()>>,
}

type TimedOrNot = (ScreenedCandidate, Result<Timing, FilterRejection>);

impl<'a> Timer<'a> {
    pub(super) fn work(
        &self,
        queue: &Mutex<Receiver<ScreenedCandidate>>,
        to_surveyors: &Sender<TimedCandidate>,
        to_main: &Sender<FilterResult>,
    ) {
        let new = |containment| {
            FilterWorker::new(self.workshop, containment, self.isolation, self.number)
        };
        let (mut ours, mut others) = (new(Containment::None), new(Containment::Sandboxed));
        // Where nobody pauses, nothing is gained by timing several in a row.
        let most = self.gate.map_or(1, |_| TIMING_BATCH);
        loop {
            let together = next_batch(&locked(queue), most);
            if together.is_empty() {
                return;
            }
            let timed = {
                let closed =
                    |gate: &'a RwLock<()>| gate.write().unwrap_or_else(PoisonError::into_inner);
                let _judges = self.judges_gate.map(closed);
                let _workers = self.gate.map(closed);
                self.time_all(together, &mut ours, &mut others)
            };
            match timed {
                Ok(timed) => {
                    for (screened, timed) in timed {
                        match timed {
                            Ok(timed) => {
                                drop(to_surveyors.send(TimedCandidate { screened, timed }));
                            }
                            Err(dropped) => {
                                drop(to_main.send(FilterResult::Filtered(
                                    screened.candidate,
                                    Err(dropped),
                                )));
                            }
                        }
                    }
                }
                Err(error) => {
                    drop(to_main.send(FilterResult::Failed(error)));
                    return;
                }
            }
        }
    }

    fn time_all(
        &self,
        together: Vec<ScreenedCandidate>,
        ours: &mut FilterWorker<'a>,
        others: &mut FilterWorker<'a>,
    ) -> Result<Vec<TimedOrNot>, SynthError> {
        let mut all = Vec::new();
        for mut screened in together {
            let worker = if screened.candidate.source.is_trusted() {
                &mut *ours
            } else {
                &mut *others
            };
            let mut spent = std::mem::take(&mut screened.candidate.seconds);
            let timed = spent.measure(FilterStage::Time, || {
                self.fit_window(worker, &screened.candidate)
            })?;
            screened.candidate.seconds = spent;
            all.push((screened, timed));
        }
        Ok(all)
    }

    /// Looks for the size whose time falls into the window.
    fn fit_window(
        &self,
        worker: &mut FilterWorker<'_>,
        candidate: &TaskCandidate,
    ) -> Result<Result<Timing, FilterRejection>, SynthError> {
        let (least, most) = self.plan.window_ms;
        let made = &candidate.source;
        let mut size = match self.plan.target {
            Target::Cpu => TaskSize::USUAL_ON_CPU,
            Target::Cuda => TaskSize::USUAL_ON_GPU,
        };
        let mut tried = BTreeSet::new();
        loop {
            tried.insert(size);
            let bytes = made.bytes(size);
            let timed = if bytes.is_some_and(|bytes| bytes > self.plan.memory_bytes) {
                Err(FilterRejection::new(
                    "too_much_memory",
                    format!("{} bytes", bytes.unwrap_or(0)),
                ))
            } else {
                worker.time(&made.code(size), most, self.lease)?
            };
            // Too large is like too long: a smaller size may do.
            let (next, why) = match timed {
                Err(dropped) if dropped.reason == "too_much_memory" => (size.smaller(), dropped),
                Err(dropped) => return Ok(Err(dropped)),
                Ok(facts) => {
                    let eager_ms = facts["eager_ms"].as_f64().unwrap_or(f64::INFINITY);
                    let peak = facts["peak_bytes"].as_u64().or(bytes).unwrap_or(0);
                    let told = format!("{eager_ms:.2} ms in size {}", size.number());
                    if peak > self.plan.memory_bytes {
                        (
                            size.smaller(),
                            FilterRejection::new("too_much_memory", format!("{peak} bytes")),
                        )
                    } else if eager_ms < least {
                        (size.larger(), FilterRejection::new("too_short", told))
                    } else if eager_ms > most {
                        (size.smaller(), FilterRejection::new("too_long", told))
                    } else {
                        return Ok(Ok(Timing {
                            size,
                            eager_ms,
                            bytes: peak,
                        }));
                    }
                }
            };
            match next.filter(|next| made.has_sizes() && !tried.contains(next)) {
                Some(next) => size = next,
                None => return Ok(Err(why)),
            }
        }
    }
}
