//! One binary for all files: what they link is linked once.

mod planted;
mod sets;
mod solutions;
mod structure;
mod tasks;
