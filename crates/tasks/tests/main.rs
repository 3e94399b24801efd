//! One binary for all files: what they link is linked once.
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod capture;
mod sets;
mod solutions;
mod tasks;
