//! Policies: whoever writes the kernels. Endpoints that speak OpenAI's chat completions, and scripts.

pub mod policy;
