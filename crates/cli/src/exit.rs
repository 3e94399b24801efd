//! Exit codes. Scripts branch on these; they are part of the contract.

/// How a run of `warpsmith` ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit(u8);

impl Exit {
    /// Done. For `judge`: passed, however fast.
    pub(crate) const DONE: Self = Self(0);
    /// The answer is no: not passed, or below `--min-speedup`, or a replay that disagrees.
    pub(crate) const NO: Self = Self(1);
    /// Wrong usage, wrong configuration or a broken task.
    pub(crate) const USAGE: Self = Self(2);
    /// This machine or this program failed. Never a verdict.
    pub(crate) const INFRASTRUCTURE: Self = Self(3);
    /// Ended by a signal (128 + SIGINT).
    pub(crate) const INTERRUPTED: Self = Self(130);

    pub(crate) fn code(self) -> u8 {
        self.0
    }
}
