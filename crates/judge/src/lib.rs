//! Submission to verdict.
//!
//! The candidate is hostile. The reference, the answer, the comparison, the clock and the verdict are never in a process
//! that has run candidate code, and nothing such a process prints, writes or times is evidence. Three kinds of process:
//! this **supervisor** (clock and verdict), the **trusted** Python (reference, inputs, answers) with a **baseline** Python
//! beside it, and the sandboxed **zygote** from which one **worker** per candidate is forked.
//!
//! Not covered: side channels between processes on one CPU, and a candidate that knows an unpublished hole in the kernel
//! or the driver.

mod baseline;
pub mod benchmark;
mod candidate_failure;
mod channel;
mod contention;
mod cores;
mod error;
mod evidence;
pub mod exploits;
mod harness;
mod import_check;
mod imports;
mod interface;
mod judge;
mod kill_rate;
mod lease;
mod local;
mod pool;
mod process;
pub mod profile;
mod runner;
mod sample;
mod sampled_code;
mod session;
mod submission;
mod timing;
mod toolchain;
mod trusted;
mod value;
mod zygote;

pub use error::{CANCELLED, JudgeError};
pub use harness::{KERNELS_MODULE, VECTOR_ISAS, judge_version};
pub use import_check::{ImportCheck, ImportJob, check_import};
pub use interface::{Cancellation, CheckDepth, Judge};
pub use judge::{JudgeConfig, Judged};
pub use kill_rate::{KillCount, KillRate, MutantFate, TriedMutant};
pub use local::{Configure, EvidencePlace, LocalJudge};
pub use pool::JudgePool;
pub use toolchain::provided_sources;
pub use zygote::{cuda_devices, cuda_paths};
