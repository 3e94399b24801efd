//! Whether a run goes on.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use warpsmith_schema::Failure;

use crate::StopRequest;

/// After so many failures of ours in a row, in whichever episodes, the next would fail too.
const MAX_FAILURES_IN_A_ROW: u32 = 3;

pub(crate) struct RunControl {
    stop: fn() -> StopRequest,
    failures_in_a_row: AtomicU32,
    /// Why nothing more can be done.
    fatal: Mutex<Option<Failure>>,
    stopped: AtomicBool,
    finished: AtomicBool,
}

impl RunControl {
    pub(crate) fn new(stop: fn() -> StopRequest) -> Self {
        Self {
            stop,
            failures_in_a_row: AtomicU32::new(0),
            fatal: Mutex::new(None),
            stopped: AtomicBool::new(false),
            finished: AtomicBool::new(false),
        }
    }

    /// Whether new work may begin.
    pub(crate) fn goes_on(&self) -> bool {
        !self.stopped.load(Ordering::SeqCst) && (self.stop)() == StopRequest::Continue
    }

    /// Whether verdicts are to be ignored: processes that were killed look like candidates that crashed.
    pub(crate) fn aborted(&self) -> bool {
        (self.stop)() == StopRequest::Abort
    }

    pub(crate) fn episode_succeeded(&self) {
        self.failures_in_a_row.store(0, Ordering::SeqCst);
    }

    /// One failure may be the episode's bad luck; several in a row are the machine's or the server's.
    pub(crate) fn episode_failed(&self, failure: &Failure) {
        let count = self.failures_in_a_row.fetch_add(1, Ordering::SeqCst) + 1;
        if count >= MAX_FAILURES_IN_A_ROW {
            self.fail(failure);
        }
    }

    /// Nothing more can be done. The first reason counts.
    pub(crate) fn fail(&self, failure: &Failure) {
        let mut fatal = self.fatal.lock().unwrap_or_else(PoisonError::into_inner);
        fatal.get_or_insert_with(|| failure.clone());
        self.stopped.store(true, Ordering::SeqCst);
    }

    /// Everything is done and written.
    pub(crate) fn finish(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.finished.store(true, Ordering::SeqCst);
    }

    pub(crate) fn finished(&self) -> bool {
        self.finished.load(Ordering::SeqCst)
    }

    pub(crate) fn fatal(&self) -> Option<Failure> {
        let fatal = self.fatal.lock().unwrap_or_else(PoisonError::into_inner);
        fatal.clone()
    }
}
