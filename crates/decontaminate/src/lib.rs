//! Keeps benchmarks out of training sets: the structural similarity of tasks, and fingerprints of benchmarks.
//!
//! A [`Structure`] is read from a task's source without running it. A [`FingerprintIndex`] finds near-duplicates of a task.
//! [`validation_split`] separates a set so that no two similar tasks are on different sides.

mod families;
mod index;
mod structure;
mod text;

pub use families::{FAMILY_THRESHOLD, validation_split};
pub use index::{FingerprintIndex, SimilarTask};
pub use structure::{NEAR_DUPLICATE_THRESHOLD, SimilarityBasis, Structure};
