//! Replies: sampling, stopping, and many sequences at once.

mod engine;
mod prefixes;
mod runner;
mod sampling;
mod scheduler;
mod sequence;
mod stop;

pub use engine::Engine;
pub use runner::{Cache, Runner, SequenceStep};
pub use sampling::{Sampled, Sampler};
pub use scheduler::{BatchLimits, EngineEvent, RequestId};
pub use sequence::{Completion, EndReason, GenerationRequest};
pub(crate) use stop::overlap;
