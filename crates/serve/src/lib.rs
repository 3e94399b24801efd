//! What is shown of runs, and what is served.
//!
//! [`metrics`] are a run's numbers, [`report`] puts the numbers of several beside each other; [`page`] and [`plot`] are what
//! pages are made of. `completions` answers clients of a language model of this process.

#[cfg(feature = "local-models")]
mod completions;
pub mod metrics;
pub mod page;
pub mod plot;
pub mod report;

#[cfg(feature = "local-models")]
pub use completions::{Offer, Token, serve};
