//! What a run leaves on disk: its folder, its events, and the evidence for its verdicts.
//!
//! The event log is the truth: it is only ever appended to, and a crash can cost at most the line
//! being written. A bundle of evidence is whole or not there, and says so itself.

mod bundle;
mod difference;
mod error;
mod events;
pub mod evidence;
mod index;
mod lock;
mod run;

pub use bundle::{Bundle, BundleWriter};
pub use difference::Difference;
pub use error::StoreError;
pub use events::{EventLog, LogLines};
pub use index::{EpisodeResult, EpisodeRow, RunEnd, RunIndex, Totals};
pub use lock::Holder;
pub use run::{RunFolder, is_held};
