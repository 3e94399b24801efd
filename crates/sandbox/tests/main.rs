//! One binary for all files: what they link is linked once.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a failed expectation is a failed test"
)]

mod confinement;
mod limits;
mod script;
