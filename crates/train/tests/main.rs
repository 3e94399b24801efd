//! One binary for all files: what they link is linked once.

mod algorithms;
mod bandit;
mod gradients;
mod runs;
mod tiny;
