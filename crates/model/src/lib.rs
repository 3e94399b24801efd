//! Policies: whoever writes the kernels. Endpoints that speak OpenAI's chat completions, and scripts.

mod openai;
mod policy;
mod script;

pub use openai::OpenAi;
pub use policy::{Finish, Policy, PolicyError, Reply, Request, Sampling};
pub use script::Script;
