//! The paths a policy names: links resolved, ownership prepared.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use crate::error::SandboxError;
use crate::landlock::FileAccess;
use crate::policy::SandboxPolicy;

const DEVICES: [&str; 5] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
];
const LINK_LIMIT: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Read,
    Write,
    Device,
    Scratch(u64),
    DeviceFolder,
    Proc,
}

/// A path that exists and has no links in it.
#[derive(Debug)]
pub(crate) struct TreeEntry {
    pub(crate) path: PathBuf,
    pub(crate) access: FileAccess,
    pub(crate) is_folder: bool,
}

/// The policy's paths with links resolved.
#[derive(Debug, Default)]
pub(crate) struct FileTree {
    /// By real path; a path sorts after its parents.
    pub(crate) content: BTreeMap<PathBuf, EntryKind>,
    /// Links on the way, and their targets.
    pub(crate) links: BTreeMap<PathBuf, PathBuf>,
}

impl FileTree {
    pub(crate) fn new(policy: &SandboxPolicy) -> Self {
        let mut tree = Self::default();
        for path in &policy.read {
            tree.add(path, EntryKind::Read);
        }
        for path in &policy.write {
            tree.add(path, EntryKind::Write);
        }
        for path in DEVICES
            .iter()
            .map(Path::new)
            .chain(policy.devices.iter().map(PathBuf::as_path))
        {
            tree.add(path, EntryKind::Device);
        }
        tree
    }

    fn add(&mut self, path: &Path, content: EntryKind) {
        if let Some(real) = follow(path, &mut self.links) {
            self.content.insert(real, content);
        }
    }

    /// The real paths of the policy's own entries.
    pub(crate) fn entries(&self) -> Vec<TreeEntry> {
        self.content
            .iter()
            .map(|(path, content)| TreeEntry {
                path: path.clone(),
                access: match content {
                    EntryKind::Read => FileAccess::Read,
                    EntryKind::Write => FileAccess::Write,
                    _ => FileAccess::Use,
                },
                is_folder: path.is_dir(),
            })
            .collect()
    }

    /// Makes `write` entries belong to `id` and checks that `read` entries can be read by it.
    pub(crate) fn prepare_for(&self, id: u32) -> Result<(), SandboxError> {
        for (path, content) in &self.content {
            match content {
                EntryKind::Write => {
                    change_owner(path, id).map_err(|source| SandboxError::Unwritable {
                        path: path.clone(),
                        source,
                    })?;
                }
                EntryKind::Read if !is_readable_by(path, id) => {
                    return Err(SandboxError::Unreadable { path: path.clone() });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether the nearest entry above already shows `path` with the same access.
    pub(crate) fn shown_by_parent(&self, path: &Path, content: EntryKind) -> bool {
        let above = path
            .ancestors()
            .skip(1)
            .find_map(|parent| self.content.get(parent));
        above == Some(&EntryKind::Proc)
            || (above == Some(&content) && matches!(content, EntryKind::Read | EntryKind::Write))
    }

    /// Whether a bound folder or `/proc` shows this link anyway.
    pub(crate) fn covered(&self, link: &Path) -> bool {
        let above = link
            .ancestors()
            .skip(1)
            .find_map(|parent| self.content.get(parent));
        matches!(
            above,
            Some(EntryKind::Read | EntryKind::Write | EntryKind::Proc | EntryKind::Device)
        )
    }
}

pub(crate) fn c_string(path: &Path) -> Result<CString, SandboxError> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// The real path of `path`, recording every link on the way; `None` if it does not exist.
fn follow(path: &Path, links: &mut BTreeMap<PathBuf, PathBuf>) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let parts = |path: &Path| -> Vec<OsString> {
        path.components()
            .filter(|part| !matches!(part, Component::RootDir | Component::CurDir))
            .map(|part| part.as_os_str().to_owned())
            .collect()
    };
    let mut remaining: VecDeque<OsString> = parts(&path).into();
    let mut real = PathBuf::from("/");
    let mut hops = 0;
    while let Some(part) = remaining.pop_front() {
        if part == ".." {
            real.pop();
            continue;
        }
        let next = real.join(&part);
        if !fs::symlink_metadata(&next).ok()?.is_symlink() {
            real = next;
            continue;
        }
        hops += 1;
        if hops > LINK_LIMIT {
            return None;
        }
        let target = fs::read_link(&next).ok()?;
        if target.is_absolute() {
            real = PathBuf::from("/");
        }
        for part in parts(&target).into_iter().rev() {
            remaining.push_front(part);
        }
        links.insert(next, target);
    }
    Some(real)
}

/// Changes the owner of `path` and everything below to `id`. Links are not followed.
fn change_owner(path: &Path, id: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    let kind = found.file_type();
    if kind.is_block_device() || kind.is_char_device() {
        return Ok(());
    }
    if found.uid() != id || found.gid() != id {
        std::os::unix::fs::lchown(path, Some(id), Some(id))?;
    }
    if kind.is_dir() {
        for entry in fs::read_dir(path)? {
            change_owner(&entry?.path(), id)?;
        }
    }
    Ok(())
}

fn is_readable_by(path: &Path, id: u32) -> bool {
    fs::metadata(path).is_ok_and(|found| {
        let wanted = if found.is_dir() { 0o5 } else { 0o4 };
        let shift = if found.uid() == id {
            6
        } else if found.gid() == id {
            3
        } else {
            0
        };
        (found.mode() >> shift) & wanted == wanted
    })
}
