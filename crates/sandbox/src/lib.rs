//! Runs one untrusted command under limits.
//!
//! [`run`] takes a command through its whole life, [`spawn`] leaves one running. Both start it in namespaces of its
//! own (made by root, or inside a user namespace), with a file tree that holds nothing but what the [`Policy`] names,
//! and put landlock, seccomp, resource limits and a control group on top. Where namespaces are refused, landlock and
//! seccomp alone carry the separation. [`effective`] says what holds on this machine.
//!
//! Not covered: side channels, devices that a policy names, and how fast a command makes the machine warm.

mod cgroup;
mod child;
mod effective;
mod error;
mod identity;
mod landlock;
mod looks;
#[cfg(test)]
mod modes;
mod mounts;
mod output;
mod plan;
mod policy;
mod probe;
mod report;
mod running;
mod seccomp;
mod spawn;
mod sys;
mod tree;
mod watch;

pub use cgroup::Group;
pub use child::{Child, run, spawn};
pub use effective::{Effective, Protection, effective};
pub use error::SandboxError;
pub use looks::Looks;
pub use policy::{Command, Exit, Isolation, Limits, Output, Policy, system_paths};
pub use seccomp::worker_filter;
