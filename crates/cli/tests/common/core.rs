//! A core for each test that runs, so that tests which time something need not wait for each other.

use std::cell::OnceCell;
use std::fs::{File, TryLockError};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

thread_local! {
    /// Each test has a thread of its own, and gives its core back as that thread ends.
    static CORE: OnceCell<Core> = const { OnceCell::new() };
}

/// Locked for all checkouts on this machine.
struct Core {
    _lock: File,
    before: CpuSet,
}

impl Drop for Core {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// Waits for a core that no other test has. What this thread starts from now on stays on it.
pub(crate) fn pin_to_own() {
    CORE.with(|core| {
        core.get_or_init(wait_for_core);
    });
}

fn wait_for_core() -> Core {
    let before = sched_getaffinity(None).unwrap();
    let allowed = (0..CpuSet::MAX_CPU).filter(|&core| before.is_set(core));
    let allowed: Vec<usize> = allowed.collect();
    loop {
        for &core in &allowed {
            let name = format!("warpsmith-core-{core}.lock");
            let lock = File::create(std::env::temp_dir().join(name)).unwrap();
            match lock.try_lock() {
                Ok(()) => {
                    let mut own = CpuSet::new();
                    own.set(core);
                    sched_setaffinity(None, &own).unwrap();
                    return Core {
                        _lock: lock,
                        before,
                    };
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => panic!("{error}"),
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
