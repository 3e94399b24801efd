//! Workers and controllers over a real server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed expectation is a failed test"
)]

mod all {
    mod door;
    mod jobs;
    mod policies;
    mod sharing;
}
mod common;
