//! The lock of a run folder.

use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::process;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::StoreError;

/// The process that works in a run folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHolder {
    pub pid: u32,
    pub host: String,
    pub since: String,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "process {} on {} since {}",
            self.pid, self.host, self.since
        )
    }
}

/// A folder's lock, held until it is dropped.
///
/// The kernel's lock decides. It ends with the process, however that ends, so what the file says
/// about a dead process does not matter. Only where the file system has no locks (some network file
/// systems) does the written process id decide.
#[derive(Debug)]
pub(crate) struct RunLock {
    file: File,
}

/// Retries for a moment: another process may only be checking whether the lock is taken.
fn try_lock_patiently(file: &File) -> Result<(), TryLockError> {
    const TRIES: u32 = 10;
    for _ in 0..TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(20)),
            other => return other,
        }
    }
    file.try_lock()
}

impl RunLock {
    /// Whether another process has it.
    pub(crate) fn is_taken(folder: &Path) -> bool {
        let Ok(mut file) = File::open(folder.join("lock")) else {
            return false;
        };
        // Shared, and released at once; a process that takes it at this very moment tries again.
        match file.try_lock_shared() {
            Ok(()) => {
                let _ = file.unlock();
                false
            }
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(_)) => read_holder(&mut file).as_ref().is_some_and(is_alive),
        }
    }

    pub(crate) fn take(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join("lock");
        let write = |source: io::Error| StoreError::Write {
            path: path.clone(),
            source,
        };
        let mut file = fs_err::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(write)?
            .into_file();
        let locked = |holder: Option<LockHolder>| StoreError::Locked {
            folder: folder.to_path_buf(),
            // Its holder has not written the file yet.
            holder: holder.unwrap_or(LockHolder {
                pid: 0,
                host: "this machine".into(),
                since: "now".into(),
            }),
        };
        match try_lock_patiently(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(locked(read_holder(&mut file))),
            Err(TryLockError::Error(_)) => {
                if let Some(holder) = read_holder(&mut file).filter(is_alive) {
                    return Err(locked(Some(holder)));
                }
            }
        }
        let holder = LockHolder {
            pid: process::id(),
            host: host(),
            since: jiff::Timestamp::now().to_string(),
        };
        let text = serde_json::to_string(&holder).map_err(|source| StoreError::Json {
            path: path.clone(),
            source,
        })?;
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(text.as_bytes()))
            .map_err(write)?;
        Ok(Self { file })
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // The file stays: deleting it would let two processes lock two files of one name.
        let _ = self.file.set_len(0);
        let _ = self.file.unlock();
    }
}

fn read_holder(file: &mut File) -> Option<LockHolder> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// A process on another host cannot be checked; it counts as alive.
fn is_alive(holder: &LockHolder) -> bool {
    holder.host != host() || Path::new("/proc").join(holder.pid.to_string()).exists()
}

fn host() -> String {
    fs_err::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "this machine".into(), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_gone_is_not_alive() {
        let holder = |pid| LockHolder {
            pid,
            host: host(),
            since: String::new(),
        };
        assert!(is_alive(&holder(process::id())));
        // Beyond the largest process id Linux allows.
        assert!(!is_alive(&holder(u32::MAX)));
        assert!(is_alive(&LockHolder {
            host: "elsewhere".into(),
            ..holder(u32::MAX)
        }));
    }
}
