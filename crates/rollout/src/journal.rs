//! The log of a run, for all its threads.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use warpsmith_schema::{EVENT_FORMAT, Event, EventKind, Failure, FailureKind};
use warpsmith_store::EventLog;

pub(crate) struct Journal {
    /// `None` once the run is over: a thread that was left behind has nothing more to say.
    log: Mutex<Option<EventLog>>,
    heard: Sender<Arc<Event>>,
}

impl Journal {
    pub(crate) fn new(log: EventLog, heard: Sender<Arc<Event>>) -> Self {
        Self {
            log: Mutex::new(Some(log)),
            heard,
        }
    }

    /// Returns once the kernel has the line: only power can take it back then.
    pub(crate) fn write(&self, event: EventKind) -> Result<(), Failure> {
        let event = Event {
            format: EVENT_FORMAT,
            at: Timestamp::now().to_string(),
            event,
        };
        match &mut *self.log.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(log) => log.append(&event).map_err(|error| error.failure())?,
            None => return Err(over()),
        }
        // Whoever watches may have gone.
        let _ = self.heard.send(Arc::new(event));
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

pub(crate) const CANCELLED: &str = "cancelled";

/// Nobody waits for it any more.
pub(crate) fn over() -> Failure {
    Failure {
        kind: FailureKind::Infrastructure,
        code: CANCELLED.to_owned(),
        message: "the run is being left".to_owned(),
        hint: None,
    }
}
