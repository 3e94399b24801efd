//! A page of memory shared with the processes that set up a sandbox: how far they came and how the command ended. The
//! command itself has no mapping of it, since exec removes it.
#![expect(unsafe_code, reason = "memory shared across fork is mapped by hand")]

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, Ordering};

/// A step of the setup, in the words that follow "failed to".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum SetupStage {
    Namespaces = 1,
    IdMap,
    Fork,
    MountNamespace,
    Root,
    Mount,
    Proc,
    Pivot,
    Cgroup,
    Descriptors,
    Limits,
    Identity,
    Capabilities,
    WorkingDirectory,
    NoNewPrivileges,
    Landlock,
    Seccomp,
    Exec,
    FilesystemCheck,
    NetworkCheck,
}

impl SetupStage {
    pub(crate) const ALL: [(SetupStage, &str); 20] = [
        (SetupStage::Namespaces, "make namespaces"),
        (SetupStage::IdMap, "map the user into its namespace"),
        (SetupStage::Fork, "fork"),
        (SetupStage::MountNamespace, "make a mount namespace"),
        (SetupStage::Root, "prepare an empty root"),
        (SetupStage::Mount, "mount"),
        (SetupStage::Proc, "mount a fresh /proc"),
        (SetupStage::Pivot, "change the root"),
        (SetupStage::Cgroup, "join the control group"),
        (SetupStage::Descriptors, "place descriptors"),
        (SetupStage::Limits, "set resource limits"),
        (SetupStage::Identity, "change to another uid"),
        (SetupStage::Capabilities, "give up capabilities"),
        (SetupStage::WorkingDirectory, "enter the working directory"),
        (SetupStage::NoNewPrivileges, "forbid new privileges"),
        (SetupStage::Landlock, "restrict files with landlock"),
        (SetupStage::Seccomp, "install the system-call filter"),
        (SetupStage::Exec, "execute the program"),
        (
            SetupStage::FilesystemCheck,
            "hide files (a forbidden one could be opened)",
        ),
        (
            SetupStage::NetworkCheck,
            "cut the network (a socket could be made)",
        ),
    ];
}

#[repr(C)]
struct Page {
    failed_stage: AtomicI32,
    failed_errno: AtomicI32,
    failed_index: AtomicI32,
    first_pid: AtomicI32,
    /// The raw wait status plus one; zero while the command runs.
    status: AtomicI32,
    /// Errno of making the inner user namespace plus one; zero when not tried.
    user_namespace: AtomicI32,
}

pub(crate) struct SetupReport {
    page: NonNull<Page>,
}

// SAFETY: the page holds nothing but atomics and lives until the drop.
unsafe impl Send for SetupReport {}
// SAFETY: as above.
unsafe impl Sync for SetupReport {}

/// Where a setup stopped; `index` counts mount steps.
#[derive(Debug)]
pub(crate) struct SetupFailure {
    pub(crate) stage: &'static str,
    pub(crate) index: Option<usize>,
    pub(crate) error: io::Error,
}

impl SetupReport {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a fresh anonymous mapping, zero-filled, which is a valid `Page`.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Page>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(address.cast())
            .map(|page| Self { page })
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped until the drop, and only atomics are inside.
        unsafe { self.page.as_ref() }
    }

    pub(crate) fn fail(&self, stage: SetupStage, index: usize, error: &io::Error) {
        let page = self.page();
        page.failed_errno
            .store(error.raw_os_error().unwrap_or(0), Ordering::Relaxed);
        page.failed_index.store(index as i32, Ordering::Relaxed);
        page.failed_stage.store(stage as i32, Ordering::Release);
    }

    pub(crate) fn failure(&self) -> Option<SetupFailure> {
        let page = self.page();
        let number = page.failed_stage.load(Ordering::Acquire);
        let (stage, name) = SetupStage::ALL
            .into_iter()
            .find(|(stage, _)| *stage as i32 == number)?;
        let index = page.failed_index.load(Ordering::Relaxed);
        Some(SetupFailure {
            stage: name,
            index: (stage == SetupStage::Mount).then_some(index as usize),
            error: io::Error::from_raw_os_error(page.failed_errno.load(Ordering::Relaxed)),
        })
    }

    pub(crate) fn set_first_pid(&self, pid: i32) {
        self.page().first_pid.store(pid, Ordering::Release);
    }

    pub(crate) fn first_pid(&self) -> Option<i32> {
        Some(self.page().first_pid.load(Ordering::Acquire)).filter(|pid| *pid > 0)
    }

    pub(crate) fn set_status(&self, status: i32) {
        self.page()
            .status
            .store(status.wrapping_add(1), Ordering::Release);
    }

    pub(crate) fn status(&self) -> Option<i32> {
        match self.page().status.load(Ordering::Acquire) {
            0 => None,
            value => Some(value.wrapping_sub(1)),
        }
    }

    pub(crate) fn set_user_namespace(&self, result: &io::Result<()>) {
        let errno = match result {
            Ok(()) => 0,
            Err(error) => error.raw_os_error().unwrap_or(libc::EINVAL),
        };
        self.page()
            .user_namespace
            .store(errno + 1, Ordering::Release);
    }

    /// `None` when the command never came that far.
    pub(crate) fn user_namespace(&self) -> Option<io::Result<()>> {
        match self.page().user_namespace.load(Ordering::Acquire) {
            0 => None,
            1 => Some(Ok(())),
            value => Some(Err(io::Error::from_raw_os_error(value - 1))),
        }
    }
}

impl Drop for SetupReport {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, which nothing borrows any more.
        unsafe { libc::munmap(self.page.as_ptr().cast(), size_of::<Page>()) };
    }
}
