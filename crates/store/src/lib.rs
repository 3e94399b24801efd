//! What a run leaves on disk: its folder, its logs, and the evidence for its verdicts.
//!
//! The event log is the truth. It is only ever appended to, and a crash costs at most the line being
//! written. A bundle of evidence appears complete or not at all, and its manifest proves it.

mod bundle;
mod difference;
mod error;
mod events;
pub mod evidence;
mod index;
mod lock;
mod remeasured;
mod run;

pub use bundle::{Bundle, BundleWriter};
pub use difference::ConfigDifference;
pub use error::StoreError;
pub use events::{EventLog, LogLines};
pub use index::{EpisodeResult, EpisodeRow, RunEnd, RunIndex, RunTotals};
pub use lock::LockHolder;
pub use remeasured::Remeasured;
pub use run::{RunFolder, event_log, is_held};
