//! The file tree a command sees: planned before the fork, mounted after it.
//!
//! Everything keeps its absolute path. Parent folders are fresh and empty, so a folder below a private home is reachable
//! without showing the home.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::SandboxError;
use crate::setup_report::SetupStage;
use crate::sys;
use crate::tree::{EntryKind, FileTree, c_string};

const SHARED_MEMORY_BYTES: u64 = 64 << 20;

/// Attribute bits of `mount_setattr`; the flags of `mount` have the same values.
const READ_ONLY: u64 = 1;
const NO_SET_UID: u64 = 2;
const NO_DEVICES: u64 = 4;
const NO_EXECUTE: u64 = 8;

#[derive(Debug)]
enum MountKind {
    Folder,
    File,
    Link(CString),
    Bind { source: CString, attributes: u64 },
    Scratch { options: CString },
    Seal,
}

#[derive(Debug)]
pub(crate) struct MountStep {
    kind: MountKind,
    /// Below `/new`.
    target: CString,
}

impl MountStep {
    pub(crate) fn describe(&self) -> String {
        let target = self.target.to_string_lossy();
        let path = target.strip_prefix("/new").unwrap_or(&target);
        let path = if path.is_empty() { "/" } else { path };
        let verb = match self.kind {
            MountKind::Folder | MountKind::File => "make",
            MountKind::Link(_) => "link",
            MountKind::Bind { .. } => "bind",
            MountKind::Scratch { .. } => "mount scratch space at",
            MountKind::Seal => "seal",
        };
        format!("{verb} `{path}`")
    }
}

/// The steps that build the tree below `/new` from the old root at `/old`.
pub(crate) fn enter_steps(
    mut tree: FileTree,
    scratch_bytes: u64,
) -> Result<Vec<MountStep>, SandboxError> {
    // Our own mounts win over an entry of the same path.
    for (path, content) in [
        ("/proc", EntryKind::Proc),
        ("/dev", EntryKind::DeviceFolder),
        (
            "/dev/shm",
            EntryKind::Scratch(scratch_bytes.min(SHARED_MEMORY_BYTES)),
        ),
        ("/tmp", EntryKind::Scratch(scratch_bytes)),
    ] {
        tree.content.insert(PathBuf::from(path), content);
    }
    let mut steps = Vec::new();
    // A path sorts after its parents.
    for (path, content) in &tree.content {
        if tree.shown_by_parent(path, *content) {
            continue;
        }
        add_parents(path, &mut steps)?;
        add_content(path, *content, &mut steps)?;
    }
    let links = tree
        .links
        .iter()
        .map(|(at, to)| (at.as_path(), to.as_path()));
    let standard = [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ];
    let standard = standard
        .iter()
        .map(|(at, to)| (Path::new(*at), Path::new(*to)));
    for (at, to) in links.filter(|(at, _)| !tree.covered(at)).chain(standard) {
        add_parents(at, &mut steps)?;
        let kind = MountKind::Link(c_string(to)?);
        steps.push(step(at, kind)?);
    }
    for path in ["/dev", "/"] {
        steps.push(step(Path::new(path), MountKind::Seal)?);
    }
    Ok(steps)
}

fn add_parents(path: &Path, steps: &mut Vec<MountStep>) -> Result<(), SandboxError> {
    let mut parents: Vec<&Path> = path.ancestors().skip(1).collect();
    parents.pop();
    for parent in parents.into_iter().rev() {
        steps.push(step(parent, MountKind::Folder)?);
    }
    Ok(())
}

fn add_content(
    path: &Path,
    content: EntryKind,
    steps: &mut Vec<MountStep>,
) -> Result<(), SandboxError> {
    let is_folder = !matches!(
        content,
        EntryKind::Read | EntryKind::Write | EntryKind::Device
    ) || fs::metadata(path).is_ok_and(|found| found.is_dir());
    let place = if is_folder {
        MountKind::Folder
    } else {
        MountKind::File
    };
    steps.push(step(path, place)?);
    let bind = |attributes| -> Result<MountKind, SandboxError> {
        Ok(MountKind::Bind {
            source: prefixed("/old", path)?,
            attributes,
        })
    };
    let kind = match content {
        EntryKind::Read => bind(READ_ONLY | NO_SET_UID | NO_DEVICES)?,
        EntryKind::Write => bind(NO_SET_UID | NO_DEVICES)?,
        EntryKind::Device => bind(NO_SET_UID | NO_EXECUTE)?,
        EntryKind::Scratch(bytes) => {
            let inodes = (bytes / 4096).clamp(1024, 1 << 20);
            MountKind::Scratch {
                options: CString::new(format!("size={bytes},nr_inodes={inodes},mode=1777"))?,
            }
        }
        EntryKind::DeviceFolder => MountKind::Scratch {
            options: c"size=64k,mode=0755".to_owned(),
        },
        EntryKind::Proc => return Ok(()),
    };
    steps.push(step(path, kind)?);
    Ok(())
}

fn step(path: &Path, kind: MountKind) -> Result<MountStep, SandboxError> {
    let target = prefixed("/new", path)?;
    Ok(MountStep { kind, target })
}

fn prefixed(prefix: &str, path: &Path) -> Result<CString, SandboxError> {
    let mut bytes = prefix.as_bytes().to_vec();
    if path != Path::new("/") {
        bytes.extend(path.as_os_str().as_bytes());
    }
    Ok(CString::new(bytes)?)
}

/// Builds the tree and makes it the root. Runs in a mount and pid namespace of its own and does not allocate.
pub(crate) fn enter(steps: &[MountStep]) -> Result<(), (SetupStage, usize, io::Error)> {
    let at = |stage: SetupStage| move |error| (stage, 0, error);
    let restricted = NO_SET_UID | NO_DEVICES;
    let private = libc::MS_REC | libc::MS_PRIVATE;
    let small = Some(c"size=8m,mode=0755");
    sys::umask(0);
    sys::mount(Some(c"none"), c"/", None, private, None).map_err(at(SetupStage::MountNamespace))?;
    // Two roots one after the other, so that sources below the mount point of the first stay reachable.
    let prepare = || {
        sys::mount(Some(c"tmpfs"), c"/tmp", Some(c"tmpfs"), restricted, small)?;
        sys::chdir(c"/tmp")?;
        sys::mkdir(c"new")?;
        sys::mkdir(c"old")?;
        sys::pivot_root(c".", c"old")?;
        sys::chdir(c"/")?;
        sys::mount(Some(c"tmpfs"), c"/new", Some(c"tmpfs"), restricted, small)
    };
    prepare().map_err(at(SetupStage::Root))?;
    for (index, step) in steps.iter().enumerate() {
        apply(step).map_err(|error| (SetupStage::Mount, index, error))?;
    }
    // Before the old /proc is detached: a user namespace may mount a /proc only where one is visible already.
    let flags = restricted | NO_EXECUTE;
    sys::mount(Some(c"proc"), c"/new/proc", Some(c"proc"), flags, None)
        .map_err(at(SetupStage::Proc))?;
    let pivot = || {
        sys::detach(c"/old")?;
        sys::chdir(c"/new")?;
        sys::pivot_root(c".", c".")?;
        sys::detach(c".")?;
        sys::chdir(c"/")
    };
    pivot().map_err(at(SetupStage::Pivot))?;
    sys::umask(0o022);
    Ok(())
}

fn apply(step: &MountStep) -> io::Result<()> {
    let target = &step.target;
    match &step.kind {
        MountKind::Folder => unless_present(sys::mkdir(target)),
        MountKind::File => unless_present(sys::make_file(target)),
        MountKind::Link(to) => unless_present(sys::symlink(to, target)),
        MountKind::Bind { source, attributes } => {
            sys::mount(
                Some(source),
                target,
                None,
                libc::MS_BIND | libc::MS_REC,
                None,
            )?;
            restrict(target, *attributes, true)
        }
        MountKind::Scratch { options } => sys::mount(
            Some(c"tmpfs"),
            target,
            Some(c"tmpfs"),
            NO_SET_UID | NO_DEVICES,
            Some(options),
        ),
        MountKind::Seal => restrict(target, READ_ONLY, false),
    }
}

/// A read-only mount refuses to make what exists already, too. If the mount point is missing, the mount that follows
/// fails.
fn unless_present(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EEXIST | libc::EROFS)) => Ok(()),
        other => other,
    }
}

fn restrict(target: &CStr, attributes: u64, recursive: bool) -> io::Result<()> {
    match sys::mount_restrict(target, attributes, recursive) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            // Before Linux 5.12; flags that are locked must be repeated.
            let flags = libc::MS_REMOUNT | libc::MS_BIND | sys::mount_flags(target) | attributes;
            sys::mount(None, target, None, flags, None)
        }
        other => other,
    }
}
