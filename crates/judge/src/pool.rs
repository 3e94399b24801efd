//! Judges that share a device, and the moments in which one of them has it to itself.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::JudgeError;
use crate::judge::Supervisor;

/// Judges that take turns on one device and hold its memory side by side.
///
/// A candidate that failed, or a task that did not fit, while others held the memory is judged again, once, while every other
/// judge of the pool waits with its processes ended. What comes of that stands.
#[derive(Clone)]
pub struct JudgePool {
    judges: usize,
    turns: Arc<Turns>,
}

#[derive(Default)]
struct Turns {
    /// Held while one judge has the device to itself: nobody begins meanwhile.
    turnstile: Mutex<()>,
    seats: Mutex<Vec<Weak<Seat>>>,
}

/// The processes of one judge, if they run. Locked while it judges.
pub(crate) type Seat = Mutex<Option<Supervisor>>;

impl JudgePool {
    /// Of so many judges.
    pub fn of(judges: usize) -> Self {
        Self {
            judges,
            turns: Arc::default(),
        }
    }

    /// Whether what one judge leaves on the device is in another's way.
    pub(crate) fn shares_device(&self) -> bool {
        self.judges > 1
    }

    /// Whether others of the pool may be why a call failed: alone the candidate may hold, and the task may fit.
    pub(crate) fn explains(&self, error: &JudgeError) -> bool {
        error.lacks_memory()
            || error.found_device_busy()
            || (self.shares_device() && error.out_of_device_memory())
    }

    /// Waits while another judge has the device to itself. Whoever comes here is known to the next who wants that.
    pub(crate) fn await_turn(&self, seat: &Arc<Seat>) {
        let mut seats = lock(&self.turns.seats);
        seats.retain(|known| known.strong_count() > 0);
        if !seats
            .iter()
            .any(|known| known.as_ptr() == Arc::as_ptr(seat))
        {
            seats.push(Arc::downgrade(seat));
        }
        drop(seats);
        drop(lock(&self.turns.turnstile));
    }

    /// Acts when all others have finished what they were at, and have let go of all their memory. The caller's own seat must
    /// be free: another may be waiting for it.
    pub(crate) fn alone<T>(&self, own: &Arc<Seat>, act: impl FnOnce() -> T) -> T {
        let _turnstile = lock(&self.turns.turnstile);
        let known: Vec<Arc<Seat>> = lock(&self.turns.seats)
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        let others = known.iter().filter(|seat| !Arc::ptr_eq(seat, own));
        let mut held: Vec<MutexGuard<'_, Option<Supervisor>>> =
            others.map(|seat| lock(seat)).collect();
        for processes in &mut held {
            **processes = None;
        }
        act()
    }
}

impl fmt::Debug for JudgePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JudgePool")
            .field("judges", &self.judges)
            .finish_non_exhaustive()
    }
}

/// After a panic too: whoever comes next ends the processes or starts others.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
