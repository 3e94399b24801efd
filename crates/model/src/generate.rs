//! Replies: sampling, stopping, and many sequences at once.

mod engine;
mod prefixes;
mod sampling;
mod sequence;
mod stop;

pub use engine::{Engine, Event, Limits, RequestId};
pub use sampling::{Sampled, Sampling};
pub use sequence::{Finish, Reply, Request};
pub(crate) use stop::overlap;
