//! Leases of a device among all processes of this machine: exclusive while something is timed on it, shared otherwise.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use tracing::debug;

/// Exclusive use of a device until it is dropped; the kernel releases it when the process dies.
///
/// There are two locks, so that a stream of shared users cannot starve an exclusive one. An exclusive user takes the
/// turnstile first: new shared users wait there while those inside finish. The turnstile is held until the lease ends;
/// shared users that wait at it then get the device before the next exclusive user takes it.
#[derive(Debug)]
pub struct DeviceLease {
    _device: File,
    _turnstile: File,
}

impl DeviceLease {
    /// Waits until nobody else uses `device`, a GPU's uuid or `cpu`. After `patience` the error is of kind `TimedOut`.
    pub fn acquire(device: &str, patience: Duration) -> io::Result<Self> {
        Self::acquire_in(Path::new(FOLDER), device, patience)
    }

    fn acquire_in(folder: &Path, device: &str, patience: Duration) -> io::Result<Self> {
        let begun = Instant::now();
        let deadline = begun + patience;
        let lock_exclusively = |path: &Path| {
            let file = open(path)?;
            loop {
                match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => return Ok(file),
                    Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    Err(rustix::io::Errno::WOULDBLOCK) => {
                        let text = format!(
                            "another process held `{}` for {} s",
                            path.display(),
                            patience.as_secs()
                        );
                        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        };
        let [turnstile, lock] = lock_files(folder, device);
        let turnstile = lock_exclusively(&turnstile)?;
        let lease = Self {
            _device: lock_exclusively(&lock)?,
            _turnstile: turnstile,
        };
        let waited_ms = begun.elapsed().as_millis() as u64;
        debug!(device, waited_ms, "device leased");
        Ok(lease)
    }
}

/// A device that is used whenever nobody has leased it exclusively.
#[derive(Debug)]
pub struct SharedDevice {
    turnstile: File,
    device: File,
}

/// Shared use of a device until it is dropped. It should be short: exclusive users wait for it.
#[derive(Debug)]
pub struct SharedLease<'a>(&'a File);

impl SharedDevice {
    /// `device` is a GPU's uuid or `cpu`.
    pub fn open(device: &str) -> io::Result<Self> {
        Self::open_in(Path::new(FOLDER), device)
    }

    fn open_in(folder: &Path, device: &str) -> io::Result<Self> {
        let [turnstile, device] = lock_files(folder, device);
        Ok(Self {
            turnstile: open(&turnstile)?,
            device: open(&device)?,
        })
    }

    /// Waits while somebody has the device exclusively, or waits for that.
    pub fn acquire(&self) -> io::Result<SharedLease<'_>> {
        flock(&self.turnstile, FlockOperation::LockShared)?;
        let entered = flock(&self.device, FlockOperation::LockShared);
        flock(&self.turnstile, FlockOperation::Unlock)?;
        entered?;
        Ok(SharedLease(&self.device))
    }
}

impl Drop for SharedLease<'_> {
    fn drop(&mut self) {
        // Closing the file releases it in any case.
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

const FOLDER: &str = "/tmp";

/// The turnstile and the device itself.
fn lock_files(folder: &Path, device: &str) -> [PathBuf; 2] {
    let name: String = device
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    ["turnstile", "lease"].map(|what| folder.join(format!("warpsmith-{name}.{what}")))
}

/// Every user can write to the folder: a link is not followed, and another user's file is opened for reading, which
/// suffices to lock it.
fn open(path: &Path) -> io::Result<File> {
    let links = OFlags::NOFOLLOW.bits().cast_signed();
    let made = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o666)
        .custom_flags(links)
        .open(path);
    match made {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            OpenOptions::new().read(true).custom_flags(links).open(path)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_one_holder_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let take =
            |device| DeviceLease::acquire_in(folder.path(), device, Duration::from_millis(20));
        let first = take("GPU/0").unwrap();
        assert_eq!(take("GPU/0").unwrap_err().kind(), io::ErrorKind::TimedOut);
        take("GPU/1").unwrap();
        drop(first);
        take("GPU/0").unwrap();
    }

    #[test]
    fn shared_users_wait_for_an_exclusive_one_and_it_waits_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let take = |patience| {
            DeviceLease::acquire_in(folder.path(), "cpu", Duration::from_millis(patience))
        };
        let shared = [0, 1].map(|_| SharedDevice::open_in(folder.path(), "cpu").unwrap());
        let leases = shared.each_ref().map(|device| device.acquire().unwrap());
        assert_eq!(take(20).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(leases);
        let lease = take(20).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| shared[0].acquire().map(drop));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished());
            drop(lease);
            waiting.join().unwrap().unwrap();
        });
    }

    #[test]
    fn shared_users_do_not_starve_an_exclusive_one() {
        let folder = tempfile::tempdir().unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let device = SharedDevice::open_in(folder.path(), "cpu").unwrap();
                scope.spawn({
                    let done = &done;
                    move || {
                        while !done.load(std::sync::atomic::Ordering::Relaxed) {
                            let _lease = device.acquire().unwrap();
                            std::thread::sleep(Duration::from_millis(3));
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            let lease = DeviceLease::acquire_in(folder.path(), "cpu", Duration::from_secs(20));
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            drop(lease.unwrap());
        });
    }

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, folder.path().join("warpsmith-cpu.lease")).unwrap();
        assert!(DeviceLease::acquire_in(folder.path(), "cpu", Duration::ZERO).is_err());
        assert!(!elsewhere.exists());
    }
}
