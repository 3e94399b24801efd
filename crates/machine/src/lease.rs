//! Exclusive use of a device while something is timed on it, among all processes of this machine.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};

/// Held until dropped; the kernel gives it back when its holder dies.
///
/// Two files, so that guests who come and go cannot keep a holder out: who wants the device alone closes the door behind
/// those who are in and waits for them to leave. The door stays closed until the lease ends; guests who waited at it then
/// come in before the next holder closes it.
#[derive(Debug)]
pub struct Lease {
    _room: File,
    _door: File,
}

impl Lease {
    /// Waits until nobody else holds `device`, a GPU's uuid or `cpu`. An error of kind `TimedOut` names who had patience.
    pub fn take(device: &str, patience: Duration) -> io::Result<Self> {
        Self::take_in(Path::new(FOLDER), device, patience)
    }

    fn take_in(folder: &Path, device: &str, patience: Duration) -> io::Result<Self> {
        let deadline = Instant::now() + patience;
        let alone = |path: &Path| {
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
        let [door, room] = places(folder, device);
        let door = alone(&door)?;
        Ok(Self {
            _room: alone(&room)?,
            _door: door,
        })
    }
}

/// Computes on a device whenever nobody has it alone.
#[derive(Debug)]
pub struct Guest {
    door: File,
    room: File,
}

/// A guest that is in, until it is dropped. Short: whoever wants the device alone waits for it.
#[derive(Debug)]
pub struct Visit<'a>(&'a File);

impl Guest {
    /// Of `device`, a GPU's uuid or `cpu`.
    pub fn of(device: &str) -> io::Result<Self> {
        Self::of_in(Path::new(FOLDER), device)
    }

    fn of_in(folder: &Path, device: &str) -> io::Result<Self> {
        let [door, room] = places(folder, device);
        Ok(Self {
            door: open(&door)?,
            room: open(&room)?,
        })
    }

    /// Waits while somebody has the device alone, or waits for that.
    pub fn enter(&self) -> io::Result<Visit<'_>> {
        flock(&self.door, FlockOperation::LockShared)?;
        let entered = flock(&self.room, FlockOperation::LockShared);
        flock(&self.door, FlockOperation::Unlock)?;
        entered?;
        Ok(Visit(&self.room))
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        // It ends with the file in any case.
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

const FOLDER: &str = "/tmp";

/// The door and the room.
fn places(folder: &Path, device: &str) -> [PathBuf; 2] {
    let name: String = device
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    ["door", "lease"].map(|what| folder.join(format!("warpsmith-{name}.{what}")))
}

/// The folder is everybody's: a link is not followed, and another user's file need not be writable to be locked.
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
        let take = |device| Lease::take_in(folder.path(), device, Duration::from_millis(20));
        let first = take("GPU/0").unwrap();
        assert_eq!(take("GPU/0").unwrap_err().kind(), io::ErrorKind::TimedOut);
        take("GPU/1").unwrap();
        drop(first);
        take("GPU/0").unwrap();
    }

    #[test]
    fn guests_wait_for_a_holder_and_a_holder_for_guests() {
        let folder = tempfile::tempdir().unwrap();
        let take = |patience| Lease::take_in(folder.path(), "cpu", Duration::from_millis(patience));
        let guests = [0, 1].map(|_| Guest::of_in(folder.path(), "cpu").unwrap());
        let visits = guests.each_ref().map(|guest| guest.enter().unwrap());
        assert_eq!(take(20).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(visits);
        let lease = take(20).unwrap();
        std::thread::scope(|scope| {
            let coming = scope.spawn(|| guests[0].enter().map(drop));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!coming.is_finished());
            drop(lease);
            coming.join().unwrap().unwrap();
        });
    }

    /// However many come and go, one who wants it alone gets it.
    #[test]
    fn guests_do_not_keep_a_holder_out() {
        let folder = tempfile::tempdir().unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let guest = Guest::of_in(folder.path(), "cpu").unwrap();
                scope.spawn({
                    let done = &done;
                    move || {
                        while !done.load(std::sync::atomic::Ordering::Relaxed) {
                            let _visit = guest.enter().unwrap();
                            std::thread::sleep(Duration::from_millis(3));
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            let lease = Lease::take_in(folder.path(), "cpu", Duration::from_secs(20));
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            drop(lease.unwrap());
        });
    }

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, folder.path().join("warpsmith-cpu.lease")).unwrap();
        assert!(Lease::take_in(folder.path(), "cpu", Duration::ZERO).is_err());
        assert!(!elsewhere.exists());
    }
}
