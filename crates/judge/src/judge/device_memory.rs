//! A task and the memory it takes, beside other judges on the same device.

use std::time::{Duration, Instant};

use warpsmith_machine::DeviceLease;
use warpsmith_schema::{Target, Task};

use super::{Supervisor, task_hash};
use crate::JudgeError;
use crate::session::Session;
use crate::trusted::TrustedProcess;

/// A task may keep this part of the device's memory while other judges are at work on it: one in …
const KEPT_FRACTION: u64 = 16;
/// What others may take or give back unnoticed.
const MEMORY_SLACK: u64 = 1 << 30;
const MEMORY_CLEARED: Duration = Duration::from_secs(3);

impl Supervisor {
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
        self.config.shared_device && held > total / KEPT_FRACTION
    }

    /// Gives back what others on the device may need; to be called while it is still leased.
    pub(super) fn release_device_memory(&mut self) -> Result<(), JudgeError> {
        if let (Some(session), Some(trusted)) = (&mut self.session, &mut self.trusted)
            && self.config.shared_device
        {
            session.memory = trusted.memory()?;
        }
        if self.exceeds_share() {
            self.close_session();
            self.baseline = None;
            self.trusted()?.unload()?;
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
