//! A language model of this process for everything that speaks OpenAI's chat completions.
//!
//! One thread owns the [`Engine`](warpsmith_model::Engine) and generates the replies of all clients together
//! ([`Generation`](warpsmith_model::Generation)); another speaks HTTP. A client that goes away drops its end of a channel, and
//! that is what cancels its request.

mod answer;
mod chat;
mod request;
mod routes;

pub(crate) use routes::{MOST_REPLIES, Served, routes};
