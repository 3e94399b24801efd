//! Runs one untrusted command under limits.
//!
//! [`run`] runs a command to its end, [`spawn`] leaves one running. Both start it in namespaces of its own (made by
//! root, or inside a user namespace), with a file tree that holds nothing but what the [`SandboxPolicy`] names. Landlock,
//! seccomp, resource limits and a control group come on top. Where namespaces are refused, landlock and seccomp alone
//! isolate the command. [`effective`] says which protections hold on this machine.
//!
//! Not covered: side channels, devices that a policy names, and heat.

#[cfg(test)]
mod allocation_tests;
mod cgroup;
mod child;
mod effective;
mod error;
mod identity;
mod landlock;
#[cfg(test)]
mod mode_tests;
mod mounts;
mod output;
mod pc_samples;
mod plan;
mod policy;
mod probe;
mod processes;
mod running;
mod seccomp;
mod setup_report;
mod spawn;
mod sys;
mod tree;

pub use cgroup::ControlGroup;
pub use child::{Child, run, spawn};
pub use effective::{Effective, Protection, effective};
pub use error::SandboxError;
pub use pc_samples::PcSampler;
pub use policy::{Command, Exit, Isolation, Output, ResourceLimits, SandboxPolicy, system_paths};
pub use processes::descendants;
pub use seccomp::{ExecutableMemory, worker_filter};
