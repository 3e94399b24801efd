//! Replies: sampling, stopping, and many sequences at once.

mod engine;
mod prefixes;
mod runner;
mod sampling;
mod scheduler;
mod sequence;
mod stop;

pub use engine::Engine;
pub use runner::{Asked, Cache, Runner};
pub use sampling::{Sampled, Sampling};
pub use scheduler::{Event, Limits, RequestId};
pub use sequence::{Finish, Reply, Request};
pub(crate) use stop::overlap;
