//! A run's judges for work that is no episode, such as the candidates of a search: the same queue, the same log, the same retries.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use warpsmith_judge::Judge;
use warpsmith_schema::{EpisodeId, EventKind, RunMetrics, Task};
use warpsmith_store::RunFolder;

use crate::control::RunControl;
use crate::meter::Meter;
use crate::queue::{JudgeQueue, Phases};
use crate::queued_judge::QueuedJudge;
use crate::recorder::EventRecorder;
use crate::{History, RolloutError, StopRequest};

/// The log of a run, for whoever writes to it from several places.
#[derive(Clone)]
pub struct SharedLog(Arc<EventRecorder>);

impl SharedLog {
    /// Returns once the kernel has the line.
    pub fn record(&self, event: EventKind) -> Result<(), RolloutError> {
        self.0.write(event).map_err(RolloutError::Log)
    }
}

/// Judges at work behind a queue. Each verdict is a line of the run's log before whoever asked hears of it, and what the log
/// has is not judged again.
pub struct QueuedJudges {
    queue: Arc<JudgeQueue>,
    recorder: Arc<EventRecorder>,
    control: Arc<RunControl>,
    meter: Arc<Meter>,
    threads: Vec<JoinHandle<Box<dyn Judge>>>,
}

impl QueuedJudges {
    pub fn start(
        folder: &RunFolder,
        judges: Vec<Box<dyn Judge>>,
        stop: fn() -> StopRequest,
    ) -> Result<Self, RolloutError> {
        let recorder = Arc::new(EventRecorder::new(folder.events()?, None));
        let control = Arc::new(RunControl::new(stop));
        let meter = Arc::new(Meter::new(judges.len()));
        let queue = Arc::new(JudgeQueue::new(
            History::read(folder.path())?.verdicts,
            recorder.clone(),
            meter.clone(),
            control.clone(),
            Phases::Overlapping,
        ));
        let mut threads = Vec::new();
        for (number, judge) in judges.into_iter().enumerate() {
            let queue = queue.clone();
            let name = format!("judge-{}", number + 1);
            let thread = thread::Builder::new().name(name);
            threads.push(thread.spawn(move || queue.serve(judge))?);
        }
        Ok(Self {
            queue,
            recorder,
            control,
            meter,
            threads,
        })
    }

    /// A judge like any other, whose verdicts are logged under this id.
    pub fn judge(&self, id: EpisodeId, task: Arc<Task>) -> Box<dyn Judge> {
        Box::new(QueuedJudge::new(self.queue.clone(), id, task))
    }

    /// Returns once the kernel has the line.
    pub fn record(&self, event: EventKind) -> Result<(), RolloutError> {
        self.log().record(event)
    }

    /// Adds what is measured here to what was counted elsewhere.
    pub fn gauges(&self, counted: RunMetrics) -> RunMetrics {
        self.meter.gauges(counted)
    }

    /// The run's log, also after the judges have stopped.
    pub fn log(&self) -> SharedLog {
        SharedLog(self.recorder.clone())
    }

    /// Lets the judges finish what they are at, and gives them back.
    pub fn stop(self) -> Vec<Box<dyn Judge>> {
        self.queue.close();
        let threads = self.threads.into_iter();
        let judges = threads.filter_map(|thread| thread.join().ok()).collect();
        self.control.finish();
        judges
    }
}
