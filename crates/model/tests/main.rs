//! One binary for all files: what they link is linked once.
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod adapters;
mod export;
mod generation;
mod gguf;
mod openai;
mod oracle;
mod pull;
mod quantize;
mod quantized;
mod replay;
mod script;
mod shipped;
mod together;
mod tokens;
mod turns;
