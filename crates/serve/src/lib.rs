//! What is served over HTTP, and to whom.
//!
//! `dashboard` shows runs in a browser. [`judging`] is the judge for trainers and tools in other
//! languages, `completions` a language model of this process for everything that speaks OpenAI's chat completions. [`serve`]
//! puts together what was asked for.

mod client;
#[cfg(feature = "local-models")]
mod completions;
mod connections;
mod dashboard;
mod guard;
pub mod judging;
#[cfg(test)]
mod load;
mod openapi;
mod problem;
mod refusal;
mod server;

pub use client::{ApiKeyError, ApiKeys};
pub use dashboard::{Assembly, AttemptExamination, Examine, ExaminedKernel, LookAtMachine};
#[cfg(feature = "local-models")]
pub use server::ServedModel;
pub use server::{Offer, serve};
