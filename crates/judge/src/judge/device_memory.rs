//! A task and the memory it takes, beside other judges on the same device.

use std::time::{Duration, Instant};

use warpsmith_machine::DeviceLease;
use warpsmith_schema::{Status, Target, Task};

use super::{Supervisor, task_hash};
use crate::JudgeError;
use crate::candidate_failure::CandidateFailure;
use crate::pool::JudgePool;
use crate::session::Session;
use crate::trusted::{DeviceMemory, TrustedProcess};

/// A task may keep this part of the device's memory while other judges are at work on it: one in …
const KEPT_FRACTION: u64 = 16;
/// What others may take or give back unnoticed.
const MEMORY_SLACK: u64 = 1 << 30;
const MEMORY_CLEARED: Duration = Duration::from_secs(3);

/// What a CUDA context and its libraries take in each of a judge's own processes, all together.
const OWN_CONTEXTS: u64 = 2 << 30;
/// A candidate may want this much beside the task, for contexts, modules, stacks and scratch of its own, ...
const ROOM_TO_RUN: u64 = 2 << 30;
/// ... or this part of what the task itself takes: one in ...
const ROOM_FRACTION: u64 = 2;
/// Below this even a launch may fail. One whose error nobody asks for ends as a wrong answer.
const ROOM_TO_LAUNCH: u64 = 512 << 20;

/// The device's memory is with others, so that a candidate's failure says nothing of the candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryShortage {
    pub(crate) free: u64,
    /// With processes that are none of this judge's.
    pub(crate) taken: u64,
}

/// Whether a candidate that ended so may have lacked memory. `memory` was read by the trusted process after the candidate was
/// gone: nothing in it is the candidate's word or doing.
fn shortage(status: Status, total: u64, memory: DeviceMemory) -> Option<MemoryShortage> {
    let wanted = match status {
        Status::Crashed => ROOM_TO_RUN.max(memory.held / ROOM_FRACTION),
        Status::Mismatch => ROOM_TO_LAUNCH,
        _ => return None,
    };
    let taken = total
        .saturating_sub(memory.free)
        .saturating_sub(memory.held)
        .saturating_sub(OWN_CONTEXTS);
    (memory.free < wanted && taken > 0).then_some(MemoryShortage {
        free: memory.free,
        taken,
    })
}

impl Supervisor {
    /// Whether others hold the memory that a failed candidate may have lacked. Asked while the device is leased and the
    /// candidate is gone.
    pub(super) fn memory_shortage(
        &mut self,
        fault: &CandidateFailure,
    ) -> Result<Option<MemoryShortage>, JudgeError> {
        if self.config.target == Target::Cpu || self.alone {
            return Ok(None);
        }
        let (_, trusted) = self.session_and_trusted()?;
        let total = trusted.device_memory();
        let asked = Instant::now();
        loop {
            let found = shortage(fault.status, total, trusted.memory()?);
            // The driver takes a moment to clear up after a process.
            if found.is_none() || asked.elapsed() > MEMORY_CLEARED {
                return Ok(found);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Comes with the device where the task takes so much of it that nobody else may lay out a large one meanwhile.
    pub(super) fn load_task(&mut self, task: &Task) -> Result<Option<DeviceLease>, JudgeError> {
        let hash = task_hash(task);
        let seed = self.fresh_seed()?;
        self.trusted()?;
        if let Some(session) = self
            .session
            .as_mut()
            .filter(|session| session.task_hash == hash)
        {
            session.reseed(seed);
            return Ok(None);
        }
        let target = self.config.target;
        self.close_session();
        // A survey runs on the device too; on the CPU it may share the cores as a build does.
        let lease = match target {
            Target::Cuda => Some(self.lease()?),
            Target::Cpu => None,
        };
        let cores = self.cores.clone();
        let trusted = self.trusted()?;
        let task = (task.name.as_str(), task.source.as_str(), hash);
        let session = Session::open(trusted, task, target, cores, seed)?;
        self.session = Some(session);
        Ok(lease.filter(|_| self.exceeds_share()))
    }

    /// Whether the task should not lie on the device while other judges lay out theirs.
    fn exceeds_share(&self) -> bool {
        let held = self
            .session
            .as_ref()
            .map_or(0, |session| session.memory.held);
        let total = (self.trusted.as_ref()).map_or(0, TrustedProcess::device_memory);
        self.shares_device() && held > total / KEPT_FRACTION
    }

    pub(super) fn shares_device(&self) -> bool {
        self.config
            .pool
            .as_ref()
            .is_some_and(JudgePool::shares_device)
    }

    /// Gives back what others on the device may need; to be called while it is still leased.
    pub(super) fn release_device_memory(&mut self) -> Result<(), JudgeError> {
        let shares_device = self.shares_device();
        if let (Some(session), Some(trusted)) = (&mut self.session, &mut self.trusted)
            && shares_device
        {
            session.memory = trusted.memory()?;
        }
        if self.exceeds_share() {
            self.let_task_go()?;
        }
        Ok(())
    }

    /// Whether the device's memory, now that the candidate is gone, is what it was when the task was laid out. If not,
    /// others took it, and the candidate is not to blame.
    pub(super) fn device_memory_is_back(&mut self) -> Result<bool, JudgeError> {
        let (session, trusted) = self.session_and_trusted()?;
        let before = session.memory.held + session.memory.free;
        let asked = Instant::now();
        loop {
            let now = trusted.memory()?;
            if now.held + now.free + MEMORY_SLACK >= before {
                return Ok(true);
            }
            // The driver takes a moment to clear up after a process.
            if asked.elapsed() > MEMORY_CLEARED {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// In tenths of GiB, on an H200.
    fn found(status: Status, held: u64, free: u64) -> bool {
        let [held, free] = [held, free].map(|tenths| tenths * GIB / 10);
        shortage(status, 140 * GIB, DeviceMemory { held, free }).is_some()
    }

    #[test]
    fn a_failure_is_the_candidates_unless_others_left_it_no_room() {
        // Alone on the device, and beside others who leave room.
        assert!(!found(Status::Crashed, 30, 1350));
        assert!(!found(Status::Crashed, 30, 200));
        assert!(!found(Status::Mismatch, 30, 20));
        // Others hold all but a little.
        assert!(found(Status::Crashed, 30, 19));
        assert!(found(Status::Mismatch, 30, 4));
        // A large task may want more.
        assert!(found(Status::Crashed, 400, 190));
        assert!(!found(Status::Crashed, 400, 210));
        // The task itself fills the device: nobody else is to blame.
        assert!(!found(Status::Crashed, 1370, 12));
        // What memory cannot explain.
        for status in [
            Status::Cheating,
            Status::TimedOut,
            Status::CompileFailed,
            Status::Rejected,
        ] {
            assert!(!found(status, 30, 0));
        }
    }
}
