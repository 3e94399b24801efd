//! What is ended after a failure, and what may go on.

use super::Supervisor;
use crate::JudgeError;
#[cfg(test)]
use crate::trusted::TrustedProcess;
use crate::zygote::Zygote;

impl Supervisor {
    /// Every process is suspect, unless others were in the way: then ours are as good as before, and importing PyTorch anew would
    /// only add to the load. The task is surveyed again all the same, since its times are of a busy moment too.
    pub(crate) fn clean_up_after(&mut self, error: &JudgeError) {
        self.drop_single_use();
        let sound = error.is_noise() && self.let_task_go().is_ok();
        if !sound {
            self.restart();
        }
    }

    pub(super) fn restart(&mut self) {
        self.close_session();
        self.trusted = None;
        self.trusted_starting = None;
        self.zygote = None;
        self.baseline = None;
        self.ahead_compiler = None;
    }

    /// A worker that stands by has the session's memory mapped.
    pub(super) fn close_session(&mut self) {
        self.standby = None;
        self.session = None;
    }

    /// With all memory that it takes.
    pub(super) fn let_task_go(&mut self) -> Result<(), JudgeError> {
        self.close_session();
        self.baseline = None;
        self.trusted()?.unload()
    }

    /// One that a candidate could reach serves no other.
    pub(super) fn drop_single_use(&mut self) {
        if self.zygote.as_ref().is_some_and(Zygote::single_use) {
            self.standby = None;
            self.zygote = None;
        }
    }

    #[cfg(test)]
    pub(crate) fn trusted_id(&self) -> Option<u32> {
        self.trusted.as_ref().map(TrustedProcess::id)
    }
}
