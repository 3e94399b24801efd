//! From trajectories to a better policy.
//!
//! [`algorithms`] are pure functions on the numbers of a batch of tokens. They know neither models nor devices: each loss
//! comes with its gradient with respect to what a model says of its tokens. A [`network`] goes on from there, through the
//! model to its parameters: today on the processor, through traits that a GPU can stand behind too. [`recipes`] are
//! whole runs: they can be killed at any moment and go on from their last [`checkpoint`] bit for bit.

pub mod algorithms;
pub mod checkpoint;
pub mod data;
mod error;
pub mod estimate;
mod guard;
pub mod lr_schedule;
pub mod metrics;
pub mod network;
mod packing;
pub mod recipes;

pub use error::{NOTHING_REWARDED, TrainError};
pub use guard::{Alarm, Guard};
pub use warpsmith_kernels::training::{AdamW, AdamWStep};
