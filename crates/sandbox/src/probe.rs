//! Detects once, by trying, which mode of starting a command works here.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use crate::cgroup::ControlGroup;
use crate::effective::Mode;
use crate::error::SandboxError;
use crate::identity;
use crate::policy::{Isolation, ResourceLimits, SandboxPolicy};
use crate::running::start_with;

#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) mode: Mode,
    /// A process can be moved into a control group that we make.
    pub(crate) groups: bool,
    /// Why there are no namespaces, when there are none.
    pub(crate) no_namespaces: String,
    /// Why the command has no user namespace, when it has none.
    pub(crate) no_user_namespace: Option<String>,
    /// Why not even a plain sandbox starts.
    pub(crate) failed: Option<String>,
}

impl Probe {
    /// A group under small limits, to see whether one can be made.
    pub(crate) fn group(&self) -> Option<ControlGroup> {
        self.groups.then(|| ControlGroup::create(&LIMITS)).flatten()
    }
}

const LIMITS: ResourceLimits = ResourceLimits {
    memory_bytes: 256 << 20,
    processes: 16,
    wall_time: Duration::from_secs(10),
    file_bytes: 1 << 20,
    output_bytes: 4096,
};

pub(crate) fn get() -> &'static Probe {
    static FOUND: OnceLock<Probe> = OnceLock::new();
    FOUND.get_or_init(detect)
}

fn detect() -> Probe {
    // Root without CAP_SETUID stays root, and its capabilities are confined by a user namespace.
    let root = identity::other_id().is_some();
    let mut refusals = Vec::new();
    let modes = [(root, Mode::Root), (true, Mode::User), (true, Mode::Plain)];
    for (_, mode) in modes.into_iter().filter(|(possible, _)| *possible) {
        for groups in [true, false] {
            match attempt(mode, groups) {
                Ok(no_user_namespace) => {
                    return Probe {
                        mode,
                        groups,
                        no_namespaces: refusals.join("; "),
                        no_user_namespace,
                        failed: None,
                    };
                }
                Err(error) if !groups => refusals.push(chain(&error)),
                Err(_) => {}
            }
        }
    }
    Probe {
        mode: Mode::Plain,
        groups: false,
        no_namespaces: refusals.join("; "),
        no_user_namespace: Some("not tried".to_owned()),
        failed: Some(refusals.join("; ")),
    }
}

/// Why there was no user namespace, if everything else worked.
fn attempt(mode: Mode, groups: bool) -> Result<Option<String>, SandboxError> {
    let policy = SandboxPolicy {
        read: vec![PathBuf::from("/usr")],
        write: Vec::new(),
        devices: Vec::new(),
        scratch_bytes: 1 << 20,
        limits: LIMITS,
        nested: false,
        isolation: Isolation::Weak,
    };
    let group = groups.then(|| ControlGroup::create(&LIMITS)).flatten();
    if groups && group.is_none() {
        return Err(SandboxError::Uncontained {
            missing: Vec::new(),
        });
    }
    let started = start_with(mode, None, &policy, group)?;
    started.running.kill_and_wait();
    if let Some(failure) = started.running.failure(&[]) {
        return Err(failure);
    }
    Ok(match started.running.user_namespace() {
        Some(Ok(())) => None,
        Some(Err(error)) => Some(format!("failed to make one: {error}")),
        None => Some("no namespaces".to_owned()),
    })
}

fn chain(error: &SandboxError) -> String {
    use std::error::Error;
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
