//! Exclusive use of a device while something is timed on it, among all processes of this machine.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};

/// Held until dropped; the kernel gives it back when its holder dies.
#[derive(Debug)]
pub struct Lease {
    _file: File,
}

impl Lease {
    /// Waits until nobody else holds `device`, a GPU's uuid or `cpu`. An error of kind `TimedOut` names who had patience.
    pub fn take(device: &str, patience: Duration) -> io::Result<Self> {
        Self::take_in(Path::new("/tmp"), device, patience)
    }

    fn take_in(folder: &Path, device: &str, patience: Duration) -> io::Result<Self> {
        let name: String = device
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let path = folder.join(format!("warpsmith-{name}.lease"));
        let file = open(&path)?;
        let deadline = Instant::now() + patience;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
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
    }
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
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, folder.path().join("warpsmith-cpu.lease")).unwrap();
        assert!(Lease::take_in(folder.path(), "cpu", Duration::ZERO).is_err());
        assert!(!elsewhere.exists());
    }
}
