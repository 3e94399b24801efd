//! One binary for all files: what they link is linked once.

mod download;
mod install;
mod python;
mod report;
