//! The uid, gid and capabilities of the command.
#![expect(unsafe_code, reason = "credentials have no safe interface in std")]

use std::ffi::{c_int, c_ulong};
use std::fs;
use std::io;
use std::ptr;

use crate::sys::{self, check, prctl};

/// The uid and gid a command is given when we are root.
pub(crate) const OTHER_ID: u32 = 65_533;

pub(crate) const CAP_SYS_ADMIN: u32 = 21;
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
const LAST_CAPABILITY: u32 = 63;

/// The id to change to, if we may: as root, with the capabilities for it, and where our user namespace maps that id.
pub(crate) fn other_id() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())?;
    let may = [CAP_SETGID, CAP_SETUID]
        .iter()
        .all(|capability| effective & (1 << capability) != 0);
    let exists = ["/proc/self/uid_map", "/proc/self/gid_map"]
        .iter()
        .all(|path| fs::read_to_string(path).is_ok_and(|map| maps(&map, OTHER_ID)));
    let groups = fs::read_to_string("/proc/self/setgroups").unwrap_or_default();
    (sys::ids().0 == 0 && may && exists && groups.trim() != "deny").then_some(OTHER_ID)
}

/// Lines of `INSIDE OUTSIDE COUNT`.
fn maps(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> = line
            .split_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect();
        matches!(numbers[..], [inside, _, count] if (inside..inside + count).contains(&u64::from(id)))
    })
}

/// Changes uid and gid to `id` for good, without supplementary groups. Permitted capabilities stay until
/// [`capabilities`] drops them.
pub(crate) fn become_id(id: u32) -> io::Result<()> {
    prctl(libc::PR_SET_KEEPCAPS, 1, 0)?;
    // SAFETY: the empty group list is never read; raw calls since only one thread exists.
    unsafe {
        check(libc::syscall(
            libc::SYS_setgroups,
            0,
            ptr::null::<libc::gid_t>(),
        ))?;
        check(libc::syscall(libc::SYS_setresgid, id, id, id))?;
        check(libc::syscall(libc::SYS_setresuid, id, id, id)).map(drop)
    }
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Makes every permitted capability effective again.
pub(crate) fn raise_capabilities() -> io::Result<()> {
    let mut header = CapabilityHeader {
        version: CAPABILITY_VERSION_3,
        pid: 0,
    };
    let mut data = [CapabilityData::default(); 2];
    // SAFETY: version 3 reads and writes exactly two data elements.
    unsafe {
        check(libc::syscall(
            libc::SYS_capget,
            &raw mut header,
            data.as_mut_ptr(),
        ))?;
        for half in &mut data {
            half.effective = half.permitted;
        }
        check(libc::syscall(
            libc::SYS_capset,
            &raw mut header,
            data.as_ptr(),
        ))
        .map(drop)
    }
}

/// Keeps only `keep`, across exec too, and nothing at all when it is `None`.
pub(crate) fn capabilities(keep: Option<u32>) -> io::Result<()> {
    if keep.is_none() {
        for capability in 0..=LAST_CAPABILITY {
            // Unknown numbers fail, and so does everything without CAP_SETPCAP: the set below decides.
            let _ = prctl(libc::PR_CAPBSET_DROP, c_ulong::from(capability), 0);
        }
    }
    let bits = keep.map_or(0, |capability| 1 << capability);
    let mut header = CapabilityHeader {
        version: CAPABILITY_VERSION_3,
        pid: 0,
    };
    let data = [
        CapabilityData {
            effective: bits,
            permitted: bits,
            inheritable: bits,
        },
        CapabilityData::default(),
    ];
    // SAFETY: version 3 reads exactly two data elements.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) })?;
    match keep {
        Some(capability) => prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_RAISE as c_ulong,
            c_ulong::from(capability),
        ),
        None => Ok(()),
    }
}
