//! What a worker says of itself.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::WorkerSummary;

const MINUTE: Duration = Duration::from_mins(1);

/// Counted on the worker's one thread.
pub(super) struct WorkerTally {
    state: RefCell<State>,
    joined_at: i64,
}

#[derive(Default)]
struct State {
    summary: WorkerSummary,
    answers: VecDeque<Instant>,
    busy: Vec<String>,
}

/// A task counts as under way until this is dropped.
pub(super) struct Busy<'a> {
    tally: &'a WorkerTally,
    task: String,
}

impl WorkerTally {
    pub(super) fn new() -> Self {
        Self {
            state: RefCell::default(),
            joined_at: jiff::Timestamp::now().as_second(),
        }
    }

    pub(super) fn begin(&self, task: &str) -> Busy<'_> {
        self.state.borrow_mut().busy.push(task.to_owned());
        Busy {
            tally: self,
            task: task.to_owned(),
        }
    }

    pub(super) fn answered(&self) {
        let mut state = self.state.borrow_mut();
        state.summary.answered += 1;
        state.answers.push_back(Instant::now());
        state.forget();
    }

    pub(super) fn failed(&self) {
        self.state.borrow_mut().summary.failed_tries += 1;
    }

    pub(super) fn summary(&self) -> WorkerSummary {
        self.state.borrow().summary
    }

    pub(super) fn last_minute(&self) -> u64 {
        let mut state = self.state.borrow_mut();
        state.forget();
        state.answers.len() as u64
    }

    pub(super) fn busy(&self) -> Vec<String> {
        self.state.borrow().busy.clone()
    }

    pub(super) fn joined_at(&self) -> i64 {
        self.joined_at
    }
}

impl State {
    fn forget(&mut self) {
        while self.answers.front().is_some_and(|at| at.elapsed() > MINUTE) {
            self.answers.pop_front();
        }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = self.tally.state.borrow_mut();
        if let Some(at) = state.busy.iter().position(|task| *task == self.task) {
            state.busy.swap_remove(at);
        }
    }
}
