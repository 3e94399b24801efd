//! Leases of a device among all processes of this machine: exclusive while something is timed on it, shared otherwise.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::thread::{CpuSet, sched_getaffinity};
use tracing::debug;

/// Exclusive use of a device until it is dropped; the kernel releases it when the process dies.
///
/// Of the processor it is the cores that this process may run on: whoever is kept to other cores is not waited for.
///
/// There are two locks, so that a stream of shared users cannot starve an exclusive one. An exclusive user takes the
/// turnstile first: new shared users wait there while those inside finish. The turnstile is held until the lease ends;
/// shared users that wait at it then get the device before the next exclusive user takes it.
#[derive(Debug)]
pub struct DeviceLease {
    _locks: Vec<[File; 2]>,
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
        let mut locks = Vec::new();
        for [turnstile, device] in lock_files(folder, device) {
            locks.push([lock_exclusively(&turnstile)?, lock_exclusively(&device)?]);
        }
        let waited_ms = begun.elapsed().as_millis() as u64;
        debug!(device, waited_ms, "device leased");
        Ok(Self { _locks: locks })
    }
}

/// A device that is used whenever nobody has leased it exclusively.
#[derive(Debug)]
pub struct SharedDevice {
    locks: Vec<[File; 2]>,
}

/// Shared use of a device until it is dropped. It should be short: exclusive users wait for it.
#[derive(Debug)]
pub struct SharedLease<'a>(&'a [[File; 2]]);

impl SharedDevice {
    /// `device` is a GPU's uuid or `cpu`.
    pub fn open(device: &str) -> io::Result<Self> {
        Self::open_in(Path::new(FOLDER), device)
    }

    fn open_in(folder: &Path, device: &str) -> io::Result<Self> {
        let open = |[turnstile, device]: [PathBuf; 2]| Ok([open(&turnstile)?, open(&device)?]);
        let locks: io::Result<Vec<[File; 2]>> =
            lock_files(folder, device).into_iter().map(open).collect();
        Ok(Self { locks: locks? })
    }

    /// Waits while somebody has the device exclusively, or waits for that.
    pub fn acquire(&self) -> io::Result<SharedLease<'_>> {
        // Dropped where one of them fails, with what was had until then.
        let lease = SharedLease(&self.locks);
        for [turnstile, device] in &self.locks {
            flock(turnstile, FlockOperation::LockShared)?;
            let entered = flock(device, FlockOperation::LockShared);
            flock(turnstile, FlockOperation::Unlock)?;
            entered?;
        }
        Ok(lease)
    }
}

impl Drop for SharedLease<'_> {
    fn drop(&mut self) {
        for [_, device] in self.0 {
            // Closing the file releases it in any case.
            let _ = flock(device, FlockOperation::Unlock);
        }
    }
}

const FOLDER: &str = "/tmp";

/// The turnstile and the device itself, for each part of a device. Everybody locks them in this order: nobody waits for one who
/// waits for them.
fn lock_files(folder: &Path, device: &str) -> Vec<[PathBuf; 2]> {
    let files = |name: &str| {
        ["turnstile", "lease"].map(|what| folder.join(format!("warpsmith-{name}.{what}")))
    };
    if device == CPU {
        let cores = allowed_cores().into_iter();
        return cores.map(|core| files(&format!("core-{core}"))).collect();
    }
    let name: String = device
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    vec![files(&name)]
}

const CPU: &str = "cpu";

/// Those that this process was given, in ascending order; the first one where that cannot be told.
fn allowed_cores() -> Vec<usize> {
    let whole_process = Some(rustix::process::getpid());
    match sched_getaffinity(whole_process) {
        Ok(allowed) => (0..CpuSet::MAX_CPU)
            .filter(|&core| allowed.is_set(core))
            .collect(),
        Err(_) => vec![0],
    }
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
    fn the_processor_is_leased_core_by_core() {
        let folder = tempfile::tempdir().unwrap();
        let take = || DeviceLease::acquire_in(folder.path(), "cpu", Duration::from_millis(20));
        let cores = allowed_cores();
        drop(take().unwrap());
        let leases = fs_err::read_dir(folder.path()).unwrap();
        assert_eq!(leases.count(), 2 * cores.len());
        // Whoever is kept to the last core takes that one alone; with it goes the whole processor.
        let last = format!("core-{}", cores.last().unwrap());
        let other = DeviceLease::acquire_in(folder.path(), &last, Duration::ZERO).unwrap();
        assert_eq!(take().unwrap_err().kind(), io::ErrorKind::TimedOut);
        if cores.len() > 1 {
            let first = format!("core-{}", cores[0]);
            DeviceLease::acquire_in(folder.path(), &first, Duration::ZERO).unwrap();
        }
        drop(other);
        take().unwrap();
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
        let lock = folder.path().join("warpsmith-GPU-0.lease");
        std::os::unix::fs::symlink(&elsewhere, lock).unwrap();
        assert!(DeviceLease::acquire_in(folder.path(), "GPU-0", Duration::ZERO).is_err());
        assert!(!elsewhere.exists());
    }
}
