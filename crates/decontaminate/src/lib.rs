//! How alike tasks are: their structure, read from their text, and the fingerprints of benchmarks that no training set may
//! hold a task of.

mod benchmark;
mod families;
mod structure;

pub use benchmark::{Benchmark, Near};
pub use families::{FAMILY, validation};
pub use structure::{NEAR, Structure, Why};
