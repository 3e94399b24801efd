//! One binary for all files: what they link is linked once.

mod grammar;
mod run;
mod teacher;
