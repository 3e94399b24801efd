//! Everything a child needs after the fork, prepared before it: the child does not allocate.
#![expect(
    unsafe_code,
    reason = "pointers to strings the plan owns are sent along with it"
)]

use std::ffi::{CString, OsStr, c_char};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use seccompiler::BpfProgram;

use crate::cgroup::ControlGroup;
use crate::effective::Mode;
use crate::error::{Context, SandboxError};
use crate::identity::{self, OTHER_ID};
use crate::landlock::{self, FileAccess, Ruleset};
use crate::mounts::{MountStep, enter_steps};
use crate::policy::{Command, SandboxPolicy};
use crate::processes;
use crate::seccomp::{self, ExecutableMemory, SyscallPermissions};
use crate::sys;
use crate::tree::{FileTree, c_string};

const OPEN_FILES: u64 = 4096;

/// The program to execute.
pub(crate) struct ExecProgram {
    pub(crate) path: CString,
    pub(crate) arguments: Vec<*const c_char>,
    pub(crate) environment: Vec<*const c_char>,
    pub(crate) folder: CString,
    _strings: Vec<CString>,
}

// SAFETY: the pointers lead to heap strings owned by the same value.
unsafe impl Send for ExecProgram {}

pub(crate) struct IdMap {
    pub(crate) uid: CString,
    pub(crate) gid: CString,
}

impl IdMap {
    fn new(inside: (u32, u32), outside: (u32, u32)) -> Result<Self, SandboxError> {
        Ok(Self {
            uid: CString::new(format!("{} {} 1", inside.0, outside.0))?,
            gid: CString::new(format!("{} {} 1", inside.1, outside.1))?,
        })
    }
}

/// `RLIMIT_NPROC`, which a control group may make superfluous.
pub(crate) struct ProcessLimits {
    /// Inside a user namespace of the command's own.
    pub(crate) in_user_namespace: Option<u64>,
    /// Without one, where everything that runs under the uid counts.
    pub(crate) of_uid: Option<u64>,
}

pub(crate) struct LaunchPlan {
    pub(crate) mode: Mode,
    pub(crate) nested: bool,
    /// `None` for a probe, which runs nothing.
    pub(crate) program: Option<ExecProgram>,
    /// Become 0, 1, 2, 3, …
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Scratch space for renumbering the descriptors.
    pub(crate) moved: Vec<i32>,
    pub(crate) steps: Vec<MountStep>,
    /// `None` where the kernel has no landlock or where mounts must stay possible.
    pub(crate) landlock: Option<Ruleset>,
    pub(crate) filter: BpfProgram,
    pub(crate) limits: Vec<(i32, u64)>,
    pub(crate) processes: ProcessLimits,
    pub(crate) group: Vec<OwnedFd>,
    /// Removed by the monitor if the supervisor dies first.
    pub(crate) group_folders: Vec<CString>,
    pub(crate) supervisor: i32,
    pub(crate) other_id: Option<u32>,
    /// Of the user namespace that owns the other namespaces, where one is needed to make them.
    pub(crate) outer_map: Option<IdMap>,
    /// Of the user namespace of the command.
    pub(crate) inner_map: IdMap,
    /// Hangs up when the supervisor shuts it down or dies.
    pub(crate) lifeline: OwnedFd,
    /// Closed by everyone once the command runs.
    pub(crate) started: OwnedFd,
}

/// Ends of the channels the plan gives to the child.
pub(crate) struct ChildChannels {
    pub(crate) descriptors: Vec<OwnedFd>,
    pub(crate) lifeline: OwnedFd,
    pub(crate) started: OwnedFd,
}

impl LaunchPlan {
    pub(crate) fn new(
        mode: Mode,
        program: Option<ExecProgram>,
        policy: &SandboxPolicy,
        group: Option<&ControlGroup>,
        channels: ChildChannels,
    ) -> Result<Self, SandboxError> {
        let ids = sys::ids();
        let other_id = identity::other_id();
        let tree = FileTree::new(policy);
        if let Some(id) = other_id {
            tree.prepare_for(id)?;
        }
        let landlock = match landlock::abi() {
            Some(_) if !policy.nested => Some(rules(mode, &tree)?),
            _ => None,
        };
        let steps = match mode {
            Mode::Root | Mode::User => enter_steps(tree, policy.scratch_bytes)?,
            Mode::Plain => Vec::new(),
        };
        let permissions = SyscallPermissions {
            namespaces: policy.nested,
            unix_sockets: mode != Mode::Plain,
            processes: true,
            executable_memory: ExecutableMemory::Generated,
        };
        let mut limits = vec![
            (libc::RLIMIT_CORE as i32, 0),
            (libc::RLIMIT_NOFILE as i32, OPEN_FILES),
            (libc::RLIMIT_FSIZE as i32, policy.limits.file_bytes),
        ];
        if !group.is_some_and(ControlGroup::limits_memory) {
            // Not RLIMIT_AS: CUDA reserves far more addresses than it uses. Watching the memory of the tree is the exact
            // limit; this one keeps a single process from growing faster than we watch.
            let twice = policy.limits.memory_bytes.saturating_mul(2);
            limits.push((libc::RLIMIT_DATA as i32, twice));
        }
        let inside = match (other_id, ids) {
            (Some(id), _) => (id, id),
            (None, (0, _)) => (OTHER_ID, OTHER_ID),
            (None, ids) => ids,
        };
        let outside = other_id.map_or(ids, |id| (id, id));
        Ok(Self {
            mode,
            nested: policy.nested,
            program,
            moved: vec![-1; channels.descriptors.len()],
            descriptors: channels.descriptors,
            steps,
            landlock,
            filter: seccomp::filter(permissions)?,
            limits,
            processes: process_limits(policy, group, outside.0),
            group: group
                .map(ControlGroup::join_files)
                .transpose()
                .context("open the control group")?
                .unwrap_or_default(),
            group_folders: group
                .into_iter()
                .flat_map(ControlGroup::paths)
                .map(c_string)
                .collect::<Result<_, _>>()?,
            supervisor: std::process::id() as i32,
            other_id,
            outer_map: match mode {
                Mode::User => Some(IdMap::new(outside, outside)?),
                Mode::Root | Mode::Plain => None,
            },
            inner_map: IdMap::new(inside, outside)?,
            lifeline: channels.lifeline,
            started: channels.started,
        })
    }
}

/// Before Linux 5.14 a user namespace did not count its processes separately, and without one nothing does: then the
/// processes that the uid already has are added to the limit.
fn process_limits(policy: &SandboxPolicy, group: Option<&ControlGroup>, uid: u32) -> ProcessLimits {
    let own = u64::from(policy.limits.processes);
    let grouped = group.is_some_and(ControlGroup::limits_processes);
    let of_uid = || (!grouped).then(|| own + processes::tasks_of(uid));
    ProcessLimits {
        in_user_namespace: if processes::kernel_at_least(5, 14) {
            Some(own)
        } else {
            of_uid()
        },
        of_uid: of_uid(),
    }
}

fn rules(mode: Mode, tree: &FileTree) -> Result<Ruleset, SandboxError> {
    let mut rules = Ruleset::default();
    for place in tree.entries() {
        rules.allow(&c_string(&place.path)?, place.access, place.is_folder);
    }
    if mode == Mode::Plain {
        for path in [c"/proc/self", c"/proc/sys", c"/sys/devices/system/cpu"] {
            rules.allow(path, FileAccess::Read, true);
        }
        for path in [c"/proc/cpuinfo", c"/proc/meminfo", c"/proc/stat"] {
            rules.allow(path, FileAccess::Read, false);
        }
    } else {
        // Folders that hold nothing but what the policy names.
        rules.allow(c"/", FileAccess::List, true);
        rules.allow(c"/proc", FileAccess::Use, true);
        rules.allow(c"/tmp", FileAccess::Write, true);
        rules.allow(c"/dev/shm", FileAccess::Write, true);
    }
    Ok(rules)
}

impl ExecProgram {
    /// Also returns the descriptors of `command`: its own, and where stderr goes.
    pub(crate) fn new(
        command: Command,
    ) -> Result<(Self, Vec<OwnedFd>, Option<OwnedFd>), SandboxError> {
        let path = find(&command)?;
        let mut arguments = vec![c_string(&path)?];
        for argument in &command.args {
            arguments.push(CString::new(argument.as_bytes())?);
        }
        let mut environment = Vec::new();
        for (name, value) in &command.env {
            let pair = [name.as_bytes(), b"=", value.as_bytes()].concat();
            environment.push(CString::new(pair)?);
        }
        let pointers = |strings: &[CString]| -> Vec<*const c_char> {
            strings
                .iter()
                .map(|string| string.as_ptr())
                .chain([std::ptr::null()])
                .collect()
        };
        let program = Self {
            path: c_string(&path)?,
            arguments: pointers(&arguments),
            environment: pointers(&environment),
            folder: c_string(&command.cwd)?,
            _strings: arguments.into_iter().chain(environment).collect(),
        };
        Ok((program, command.fds, command.stderr_to))
    }
}

fn find(command: &Command) -> Result<PathBuf, SandboxError> {
    let program = &command.program;
    if program.as_os_str().as_bytes().contains(&b'/') {
        return Ok(program.clone());
    }
    let folders = command
        .env
        .iter()
        .find(|(name, _)| name == "PATH")
        .map_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"), |(_, value)| {
            value
        });
    std::env::split_paths(folders)
        .map(|folder| folder.join(program))
        .find(|path| path.is_absolute() && Path::is_file(path))
        .ok_or_else(|| SandboxError::Program {
            path: program.clone(),
        })
}
