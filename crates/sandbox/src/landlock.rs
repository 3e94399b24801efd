//! Landlock, the kernel's unprivileged file rules, by raw system calls.
#![expect(unsafe_code, reason = "landlock has no wrapper in std or libc")]

use std::ffi::{CStr, CString, c_long};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

// The same numbers on every architecture.
const CREATE_RULESET: c_long = 444;
const ADD_RULE: c_long = 445;
const RESTRICT_SELF: c_long = 446;
const VERSION: u32 = 1;
const PATH_BENEATH: u32 = 1;

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
const ON_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;

const READING: u64 = EXECUTE | READ_FILE | READ_DIR;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Names in folders, no contents.
    List,
    Read,
    /// Reading, and writing to files that exist: `/proc`, devices.
    Use,
    Write,
}

#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) path: CString,
    pub(crate) access: Access,
    pub(crate) is_folder: bool,
}

#[derive(Debug)]
pub(crate) struct Ruleset {
    abi: u32,
    pub(crate) rules: Vec<Rule>,
}

#[repr(C)]
struct RulesetAttributes {
    files: u64,
    network: u64,
    scope: u64,
}

#[repr(C, packed)]
struct PathAttributes {
    allowed: u64,
    parent: RawFd,
}

/// The version this kernel offers, if any.
pub(crate) fn abi() -> Option<u32> {
    // SAFETY: with a null attribute of size zero and this flag only a number is returned.
    let version =
        unsafe { libc::syscall(CREATE_RULESET, std::ptr::null::<u8>(), 0_usize, VERSION) };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// Signals to processes outside are refused from this version on.
pub(crate) fn scopes_signals(abi: u32) -> bool {
    abi >= 6
}

impl Ruleset {
    pub(crate) fn new(abi: u32) -> Self {
        Self {
            abi,
            rules: Vec::new(),
        }
    }

    pub(crate) fn allow(&mut self, path: &CStr, access: Access, is_folder: bool) {
        self.rules.push(Rule {
            path: path.to_owned(),
            access,
            is_folder,
        });
    }

    fn handled(&self) -> u64 {
        let bits = match self.abi {
            0 | 1 => 13,
            2 => 14,
            3 | 4 => 15,
            _ => 16,
        };
        (1 << bits) - 1
    }

    /// Binds the calling thread and everything it starts. Does not allocate.
    pub(crate) fn enforce(&self) -> io::Result<()> {
        let attributes = RulesetAttributes {
            files: self.handled(),
            network: if self.abi >= 4 { 0b11 } else { 0 },
            scope: if scopes_signals(self.abi) { 0b11 } else { 0 },
        };
        let size: usize = match self.abi {
            0..=3 => 8,
            4 | 5 => 16,
            _ => 24,
        };
        // SAFETY: `attributes` is live and at least `size` bytes long; the descriptor is new and ours.
        let ruleset = unsafe {
            let fd = libc::syscall(CREATE_RULESET, &raw const attributes, size, 0_u32);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd as RawFd)
        };
        for rule in &self.rules {
            self.add(&ruleset, rule)?;
        }
        // SAFETY: takes no pointer.
        if unsafe { libc::syscall(RESTRICT_SELF, ruleset.as_raw_fd(), 0_u32) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn add(&self, ruleset: &OwnedFd, rule: &Rule) -> io::Result<()> {
        let wanted = match rule.access {
            Access::List => READ_DIR,
            Access::Read => READING,
            Access::Use => READING | WRITE_FILE | TRUNCATE | IOCTL_DEV,
            Access::Write => u64::MAX,
        };
        let mask = if rule.is_folder { u64::MAX } else { ON_FILES };
        let parent = match crate::sys::open(&rule.path, libc::O_PATH) {
            Ok(parent) => parent,
            // Nothing there, nothing to allow.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
            Err(error) => return Err(error),
        };
        let attributes = PathAttributes {
            allowed: wanted & mask & self.handled(),
            parent: parent.as_raw_fd(),
        };
        // SAFETY: `attributes` is live and of the layout this rule type has.
        let result = unsafe {
            libc::syscall(
                ADD_RULE,
                ruleset.as_raw_fd(),
                PATH_BENEATH,
                &raw const attributes,
                0_u32,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}
