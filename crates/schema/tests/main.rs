//! One binary for all files: what they link is linked once.

mod event;
mod reward;
mod trajectory;
