//! The thread that looks after a run: it hears every event, measures, and decides when everything is at rest.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use warpsmith_schema::{Event, EventKind, Failure, RunMetrics};

use crate::context::{RunContext, locked};
use crate::{StopRequest, Tally};

/// How often the caller is told how things stand.
const POLL: Duration = Duration::from_millis(200);
/// How often the log is.
const MEASURE_EVERY: Duration = Duration::from_secs(10);
/// How long episodes that do not wait for a reply may take to write down what they have.
const SETTLE: Duration = Duration::from_secs(3);

/// What a run came to.
#[derive(Debug, Clone)]
pub struct RolloutOutcome {
    pub tally: Tally,
    /// Tasks that cannot be judged here, and why.
    pub left_out: Vec<(String, Failure)>,
    pub planned: u32,
    /// Episodes of judgeable tasks without an end.
    pub unfinished: u32,
    pub gauges: RunMetrics,
    pub interrupted: bool,
    /// Why it stopped early; or, where it did not, the last failure of ours that cost an episode its end.
    pub failure: Option<Failure>,
}

pub(crate) struct Monitor<'a> {
    pub(crate) context: &'a RunContext,
    pub(crate) events: Receiver<Arc<Event>>,
    pub(crate) planned: u32,
    pub(crate) tally: Tally,
    pub(crate) on_event: &'a mut dyn FnMut(Option<&Event>, &RunMetrics),
}

impl Monitor<'_> {
    /// Returns when all episodes are over, or when everything is at rest that must not be cut short.
    pub(crate) fn watch(&mut self) {
        let mut measured = Instant::now();
        let mut at_rest_since = None;
        while self.context.alive.load(Ordering::SeqCst) > 0 {
            self.hear();
            if measured.elapsed() >= MEASURE_EVERY {
                measured = Instant::now();
                self.measure();
            }
            if !self.context.control.goes_on() {
                self.context.queue.close();
                if self.context.queue.load().busy_judges > 0 {
                    at_rest_since = None;
                } else {
                    let since = *at_rest_since.get_or_insert_with(Instant::now);
                    let alive = self.context.alive.load(Ordering::SeqCst);
                    if alive == self.context.meter.asking() || since.elapsed() > SETTLE {
                        return;
                    }
                }
            }
            if let Ok(event) = self.events.recv_timeout(POLL) {
                self.take(&event);
            }
        }
    }

    /// Takes all events that have come.
    pub(crate) fn hear(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            self.take(&event);
        }
        let gauges = self.gauges();
        (self.on_event)(None, &gauges);
    }

    fn take(&mut self, event: &Event) {
        if let EventKind::EpisodeEnded { trajectory } = &event.event {
            self.tally.add(trajectory);
        }
        let gauges = self.gauges();
        (self.on_event)(Some(event), &gauges);
    }

    fn gauges(&self) -> RunMetrics {
        self.context.meter.gauges(RunMetrics {
            episodes_planned: self.planned,
            episodes_ended: self.tally.episodes,
            episodes_running: self.context.running.load(Ordering::SeqCst),
            judge_queue: self.context.queue.load().waiting as u32,
            ..RunMetrics::default()
        })
    }

    /// What cannot be written here cannot be written by the episodes either, and they end the run.
    fn measure(&self) {
        let gauges = self.gauges();
        let _ = self
            .context
            .recorder
            .write(EventKind::MetricsSampled { metrics: gauges });
        let _ = self.context.recorder.sync();
    }

    pub(crate) fn outcome(&mut self, samples: u32, stop: fn() -> StopRequest) -> RolloutOutcome {
        self.measure();
        let left_out = locked(&self.context.left_out).clone();
        let tasks = &self.tally.tasks;
        let missing_of_left_out = left_out.iter().map(|(task, _)| {
            let ended = tasks.get(task).map_or(0, |task| task.episodes);
            samples.saturating_sub(ended)
        });
        let missing = self.planned.saturating_sub(self.tally.episodes);
        let unfinished = missing.saturating_sub(missing_of_left_out.sum());
        let interrupted = stop() != StopRequest::Continue;
        let last = locked(&self.context.last_failure).clone();
        let last = last.filter(|_| unfinished > 0 && !interrupted);
        let failure = self.context.control.fatal().or(last);
        let _ = self.context.recorder.write(EventKind::RunEnded {
            unfinished,
            interrupted,
            failure: failure.clone(),
        });
        let _ = self.context.recorder.sync();
        self.hear();
        RolloutOutcome {
            left_out,
            planned: self.planned,
            unfinished,
            gauges: self.gauges(),
            tally: self.tally.clone(),
            interrupted,
            failure,
        }
    }
}
