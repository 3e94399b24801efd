//! The event log of a run, for all its threads.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use warpsmith_judge::CANCELLED;
use warpsmith_schema::{EVENT_FORMAT, Event, EventKind, Failure, FailureKind};
use warpsmith_store::EventLog;

pub(crate) struct EventRecorder {
    /// `None` once the run has ended: a thread that was left behind writes nothing more.
    log: Mutex<Option<EventLog>>,
    listener: Option<Sender<Arc<Event>>>,
}

impl EventRecorder {
    pub(crate) fn new(log: EventLog, listener: Option<Sender<Arc<Event>>>) -> Self {
        Self {
            log: Mutex::new(Some(log)),
            listener,
        }
    }

    /// Returns once the kernel has the line: after that only a power cut can lose it.
    pub(crate) fn write(&self, event: EventKind) -> Result<(), Failure> {
        let event = Event {
            format: EVENT_FORMAT,
            at: Timestamp::now().to_string(),
            event,
        };
        match &mut *self.log.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(log) => log.append(&event).map_err(|error| error.failure())?,
            None => return Err(cancelled()),
        }
        if let Some(listener) = &self.listener {
            // It may be gone.
            let _ = listener.send(Arc::new(event));
        }
        Ok(())
    }

    /// Makes what was written survive a power cut too.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        match &*self.log.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(log) => log.sync().map_err(|error| error.failure()),
            None => Ok(()),
        }
    }

    pub(crate) fn close(&self) {
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Of work that nobody waits for any more.
pub(crate) fn cancelled() -> Failure {
    Failure {
        kind: FailureKind::Infrastructure,
        code: CANCELLED.to_owned(),
        message: "the run is being left".to_owned(),
        hint: None,
    }
}
