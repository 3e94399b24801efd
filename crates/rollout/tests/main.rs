//! Whole runs, what an `optimize` starts from, and tuning, without a real judge: verdicts follow from what is submitted.
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod common;
mod runs;
mod start;
mod tuning;
