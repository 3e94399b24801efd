//! Landlock, the kernel's unprivileged access control.
//!
//! The rules are listed before the fork and handed to the kernel after it: some of the folders exist only then (the
//! fresh root and scratch folders, `/proc/self` of the command itself), and descriptors have their final places. That
//! part does not allocate; a test counts.
#![expect(unsafe_code, reason = "the crate keeps its version query to itself")]

use std::ffi::{CStr, CString, c_long};
use std::io;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, Errno, PathBeneath,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::sys;

/// The newest version whose access rights and scopes are handled; of an older kernel, as many as it knows.
const NEWEST: ABI = ABI::V6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileAccess {
    /// Names in folders, no contents.
    List,
    Read,
    /// Reading, and writing to files that exist: `/proc`, devices.
    Use,
    Write,
}

impl FileAccess {
    fn rights(self, is_folder: bool) -> BitFlags<AccessFs> {
        let read = AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir;
        let rights = match self {
            Self::List => AccessFs::ReadDir.into(),
            Self::Read => read,
            Self::Use => read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev,
            Self::Write => AccessFs::from_all(NEWEST),
        };
        if is_folder {
            rights
        } else {
            rights & AccessFs::from_file(NEWEST)
        }
    }
}

#[derive(Debug)]
struct Rule {
    path: CString,
    access: FileAccess,
    is_folder: bool,
}

/// What is allowed. Everything else is denied: files, TCP and, where the kernel can scope them, signals and abstract
/// sockets to processes outside.
#[derive(Debug, Default)]
pub(crate) struct Ruleset {
    rules: Vec<Rule>,
}

/// The version this kernel offers, if any.
pub(crate) fn abi() -> Option<u32> {
    const CREATE_RULESET: c_long = libc::SYS_landlock_create_ruleset;
    const VERSION: u32 = 1;
    // SAFETY: with a null attribute of size zero and this flag only a number is returned.
    let version =
        unsafe { libc::syscall(CREATE_RULESET, std::ptr::null::<u8>(), 0_usize, VERSION) };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// Signals to processes outside are refused from this version on.
pub(crate) fn scopes_signals(abi: u32) -> bool {
    abi >= ABI::V6 as u32
}

impl Ruleset {
    pub(crate) fn allow(&mut self, path: &CStr, access: FileAccess, is_folder: bool) {
        self.rules.push(Rule {
            path: path.to_owned(),
            access,
            is_folder,
        });
    }

    /// Binds the calling thread and everything it starts. Does not allocate.
    pub(crate) fn enforce(&self) -> io::Result<()> {
        let errno = |error: RulesetError| io::Error::from_raw_os_error(*Errno::from(error));
        let mut created = create().map_err(errno)?;
        for rule in &self.rules {
            let parent = match sys::open(&rule.path, libc::O_PATH) {
                Ok(parent) => parent,
                // There is nothing to allow.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
                Err(error) => return Err(error),
            };
            let rights = rule.access.rights(rule.is_folder);
            (&mut created)
                .add_rule(PathBeneath::new(parent, rights))
                .map_err(errno)?;
        }
        let status = created.restrict_self().map_err(errno)?;
        match status.ruleset {
            RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
            RulesetStatus::NotEnforced => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        }
    }
}

fn create() -> Result<RulesetCreated, RulesetError> {
    landlock::Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The oracle is the kernel's `linux/landlock.h`.
    #[test]
    fn rights_are_the_bits_of_the_kernel() {
        let bits = |access: FileAccess, is_folder| access.rights(is_folder).bits();
        let (execute, write, read, list) = (1, 1 << 1, 1 << 2, 1 << 3);
        let (truncate, ioctl) = (1 << 14, 1 << 15);
        assert_eq!(bits(FileAccess::List, true), list);
        assert_eq!(bits(FileAccess::Read, true), execute | read | list);
        assert_eq!(bits(FileAccess::Read, false), execute | read);
        let used = execute | write | read | truncate | ioctl;
        assert_eq!(bits(FileAccess::Use, true), used | list);
        assert_eq!(bits(FileAccess::Use, false), used);
        assert_eq!(bits(FileAccess::Write, true), (1 << 16) - 1);
        assert_eq!(bits(FileAccess::Write, false), used);
        // What is denied unless a rule allows it.
        assert_eq!(AccessFs::from_all(NEWEST).bits(), (1 << 16) - 1);
        assert_eq!(AccessNet::from_all(NEWEST).bits(), 0b11);
        assert_eq!(Scope::from_all(NEWEST).bits(), 0b11);
    }
}
