//! Which protections really hold.

use std::fmt;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::cgroup::ControlGroup;
use crate::identity::{self, OTHER_ID};
use crate::landlock;
use crate::pc_samples::PcSampler;
use crate::probe::{self, Probe};
use crate::sys;

/// How the command is isolated from us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Namespaces made by root, the command under another uid.
    Root,
    /// Namespaces made inside a user namespace, the command under our own uid.
    User,
    /// No namespaces: landlock, seccomp and a monitor that adopts orphans.
    Plain,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Protection {
    Held { by: String },
    Missing { why: String },
}

impl Protection {
    pub fn is_held(&self) -> bool {
        matches!(self, Self::Held { .. })
    }

    fn held(by: impl Into<String>) -> Self {
        Self::Held { by: by.into() }
    }

    fn missing(why: impl Into<String>) -> Self {
        Self::Missing { why: why.into() }
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held { by } => write!(formatter, "held by {by}"),
            Self::Missing { why } => write!(formatter, "missing: {why}"),
        }
    }
}

/// One field per protection. The first five are required.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effective {
    /// The whole tree can be killed, daemons included.
    pub process_tree: Protection,
    pub network: Protection,
    pub filesystem: Protection,
    pub memory: Protection,
    pub processes: Protection,
    pub other_uid: Protection,
    pub user_namespace: Protection,
    pub pid_namespace: Protection,
    pub ipc_namespace: Protection,
    pub seccomp: Protection,
    pub cgroup: Protection,
    pub landlock: Protection,
    /// The program counters of a command can be sampled from outside. Verdicts and `doctor --json` call it `looks`.
    #[serde(rename = "looks")]
    pub pc_samples: Protection,
}

const REQUIRED: usize = 5;

impl Effective {
    /// Every protection by name, the required ones first.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Protection)> {
        [
            ("process_tree", &self.process_tree),
            ("network", &self.network),
            ("filesystem", &self.filesystem),
            ("memory", &self.memory),
            ("processes", &self.processes),
            ("other_uid", &self.other_uid),
            ("user_namespace", &self.user_namespace),
            ("pid_namespace", &self.pid_namespace),
            ("ipc_namespace", &self.ipc_namespace),
            ("seccomp", &self.seccomp),
            ("cgroup", &self.cgroup),
            ("landlock", &self.landlock),
            ("looks", &self.pc_samples),
        ]
        .into_iter()
    }

    /// All required protections hold.
    pub fn contained(&self) -> bool {
        self.missing_required().is_empty()
    }

    /// The protections that do not hold, and why.
    pub fn missing(&self) -> Vec<(&'static str, String)> {
        missing_in(self.iter())
    }

    pub(crate) fn missing_required(&self) -> Vec<(&'static str, String)> {
        missing_in(self.iter().take(REQUIRED))
    }

    pub(crate) fn nothing(why: &str) -> Self {
        let missing = || Protection::missing(why);
        Self {
            process_tree: missing(),
            network: missing(),
            filesystem: missing(),
            memory: missing(),
            processes: missing(),
            other_uid: missing(),
            user_namespace: missing(),
            pid_namespace: missing(),
            ipc_namespace: missing(),
            seccomp: missing(),
            cgroup: missing(),
            landlock: missing(),
            pc_samples: missing(),
        }
    }

    /// The protections of a command that is started in `probe.mode`.
    pub(crate) fn of(probe: &Probe, group: Option<&ControlGroup>, nested: bool) -> Self {
        let namespaced = probe.mode != Mode::Plain;
        let no_namespaces = probe.no_namespaces.as_str();
        let other_uid = identity::other_id().is_some();
        let landlock = match landlock::abi() {
            Some(_) if nested => Protection::missing("it would forbid the nested mounts"),
            Some(abi) => Protection::held(format!("landlock ABI {abi}")),
            None => Protection::missing("this kernel has no landlock"),
        };
        let namespace = |name: &str| {
            if namespaced {
                Protection::held(format!("{name} namespace"))
            } else {
                Protection::missing(no_namespaces)
            }
        };
        let user_namespace = match &probe.no_user_namespace {
            None => Protection::held("user namespace"),
            Some(why) => Protection::missing(why),
        };
        Self {
            process_tree: process_tree(namespaced, group, other_uid, nested),
            network: Protection::held(if namespaced {
                "network namespace, seccomp"
            } else {
                "seccomp, which refuses sockets"
            }),
            filesystem: match (namespaced, &landlock) {
                (true, Protection::Held { .. }) => Protection::held("mount namespace, landlock"),
                (true, Protection::Missing { .. }) => Protection::held("mount namespace"),
                (false, landlock) => landlock.clone(),
            },
            memory: Protection::held(match group {
                Some(group) if group.limits_memory() => group.version(),
                _ => "RLIMIT_DATA and a watch over the tree",
            }),
            processes: match group {
                Some(group) if group.limits_processes() => Protection::held(group.version()),
                _ if sys::ids().0 == 0 && !other_uid => {
                    Protection::missing("root is exempt from RLIMIT_NPROC")
                }
                _ if user_namespace.is_held() => {
                    Protection::held("RLIMIT_NPROC in a user namespace")
                }
                _ => Protection::held("RLIMIT_NPROC, counted over the uid"),
            },
            other_uid: if other_uid {
                Protection::held(format!("uid {OTHER_ID}"))
            } else {
                Protection::missing("only root, with CAP_SETUID, can change to another uid")
            },
            user_namespace,
            pid_namespace: namespace("pid"),
            ipc_namespace: namespace("ipc"),
            seccomp: Protection::held("system-call filter"),
            cgroup: match group {
                Some(group) => Protection::held(group.version()),
                None => Protection::missing("control groups are not writable"),
            },
            landlock,
            pc_samples: pc_sampling(),
        }
    }
}

fn pc_sampling() -> Protection {
    static FOUND: OnceLock<Protection> = OnceLock::new();
    let found = FOUND.get_or_init(|| match PcSampler::attach(std::process::id()) {
        Ok(_) => Protection::held("perf events"),
        Err(error) => Protection::missing(format!(
            "perf events are refused ({error}); kernel.perf_event_paranoid must be 2 or less"
        )),
    });
    found.clone()
}

fn process_tree(
    namespaced: bool,
    group: Option<&ControlGroup>,
    other_uid: bool,
    nested: bool,
) -> Protection {
    let scoped = !nested && landlock::abi().is_some_and(landlock::scopes_signals);
    if namespaced {
        Protection::held("pid namespace, which dies with its init")
    } else if let Some(group) = group {
        Protection::held(format!("{} kill", group.version()))
    } else if other_uid {
        Protection::held("a keeper of another uid that adopts orphans")
    } else if scoped {
        Protection::held("a keeper that adopts orphans, out of reach by landlock")
    } else {
        Protection::missing("without namespaces the command could kill its keeper")
    }
}

fn missing_in<'a>(
    protections: impl Iterator<Item = (&'static str, &'a Protection)>,
) -> Vec<(&'static str, String)> {
    protections
        .filter_map(|(name, protection)| match protection {
            Protection::Held { .. } => None,
            Protection::Missing { why } => Some((name, why.clone())),
        })
        .collect()
}

/// The protections that hold on this machine, detected once by starting a sandbox in which nothing runs.
pub fn effective() -> &'static Effective {
    static FOUND: OnceLock<Effective> = OnceLock::new();
    FOUND.get_or_init(|| {
        let probe = probe::get();
        match &probe.failed {
            Some(why) => Effective::nothing(why),
            None => Effective::of(probe, probe.group().as_ref(), false),
        }
    })
}
