//! Whether a run goes on.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use warpsmith_schema::Failure;

use crate::StopRequest;

/// So many failures of ours in a row, in whichever episodes, and the next would fail too.
const IN_A_ROW: u32 = 3;

pub(crate) struct Fate {
    wish: fn() -> StopRequest,
    in_a_row: AtomicU32,
    /// Why nothing more can be done.
    fatal: Mutex<Option<Failure>>,
    over: AtomicBool,
    finished: AtomicBool,
}

impl Fate {
    pub(crate) fn new(wish: fn() -> StopRequest) -> Self {
        Self {
            wish,
            in_a_row: AtomicU32::new(0),
            fatal: Mutex::new(None),
            over: AtomicBool::new(false),
            finished: AtomicBool::new(false),
        }
    }

    /// Whether new work may begin.
    pub(crate) fn goes_on(&self) -> bool {
        !self.over.load(Ordering::SeqCst) && (self.wish)() == StopRequest::GoOn
    }

    /// Whether what judges say is to be believed: processes that were killed look like candidates that crashed.
    pub(crate) fn abandoned(&self) -> bool {
        (self.wish)() == StopRequest::Abandon
    }

    pub(crate) fn went_well(&self) {
        self.in_a_row.store(0, Ordering::SeqCst);
    }

    /// One failure may be the episode's bad luck; several in a row are the machine's or the server's.
    pub(crate) fn failed(&self, failure: &Failure) {
        if self.in_a_row.fetch_add(1, Ordering::SeqCst) + 1 >= IN_A_ROW {
            self.end(failure);
        }
    }

    /// Nothing more can be done. The first reason counts.
    pub(crate) fn end(&self, failure: &Failure) {
        let mut fatal = self.fatal.lock().unwrap_or_else(PoisonError::into_inner);
        fatal.get_or_insert_with(|| failure.clone());
        self.over.store(true, Ordering::SeqCst);
    }

    /// All is said and done.
    pub(crate) fn finish(&self) {
        self.over.store(true, Ordering::SeqCst);
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
