//! Searches without a real judge: verdicts follow from what is submitted, replies from a script.

mod resume;
mod searching;
mod stand_in;
