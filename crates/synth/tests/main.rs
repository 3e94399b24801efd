//! One binary for all files: what they link is linked once.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed expectation is a failed test"
)]

use warpsmith_machine::{Caches, Python, PythonChoice, find_python};

mod grammar;
mod modules;
mod run;
mod teacher;

fn python() -> Python {
    let caches = Caches::locate().unwrap();
    let found = find_python(&PythonChoice::Auto, &caches).unwrap();
    found.expect("these tests need a Python with torch")
}
