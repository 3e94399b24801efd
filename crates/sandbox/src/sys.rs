//! System calls without allocation, so that they may be made between `fork` and `exec`.
#![expect(
    unsafe_code,
    reason = "namespaces, mounts and credentials have no safe interface in std"
)]

use std::ffi::{CStr, c_int, c_long, c_uint, c_ulong, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use seccompiler::BpfProgramRef;

pub(crate) fn check(result: c_long) -> io::Result<c_long> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn check_int(result: c_int) -> io::Result<c_int> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// `None` in the child. The child may only call what is async-signal-safe.
pub(crate) fn fork() -> io::Result<Option<c_int>> {
    // SAFETY: callers keep to this module and to memory prepared before.
    let pid = check_int(unsafe { libc::fork() })?;
    Ok((pid != 0).then_some(pid))
}

pub(crate) fn exit_now(code: c_int) -> ! {
    // SAFETY: ends the process without running destructors or handlers.
    unsafe { libc::_exit(code) }
}

pub(crate) fn unshare(flags: c_int) -> io::Result<()> {
    // SAFETY: takes no pointer.
    check_int(unsafe { libc::unshare(flags) }).map(drop)
}

pub(crate) fn setsid() {
    // SAFETY: takes no pointer; fails only for a group leader, which is as good.
    unsafe { libc::setsid() };
}

pub(crate) fn umask(mask: libc::mode_t) {
    // SAFETY: takes no pointer.
    unsafe { libc::umask(mask) };
}

pub(crate) fn prctl(option: c_int, a: c_ulong, b: c_ulong) -> io::Result<()> {
    // SAFETY: only options with integer arguments are passed.
    check_int(unsafe { libc::prctl(option, a, b, 0 as c_ulong, 0 as c_ulong) }).map(drop)
}

fn pointer(text: Option<&CStr>) -> *const libc::c_char {
    text.map_or(ptr::null(), CStr::as_ptr)
}

pub(crate) fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: c_ulong,
    data: Option<&CStr>,
) -> io::Result<()> {
    // SAFETY: every pointer is null or a live C string.
    check_int(unsafe {
        libc::mount(
            pointer(source),
            target.as_ptr(),
            pointer(kind),
            flags,
            pointer(data).cast(),
        )
    })
    .map(drop)
}

/// Adds mount attributes, to everything below as well when `recursive`.
pub(crate) fn mount_restrict(target: &CStr, attributes: u64, recursive: bool) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: attributes,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    let flags = if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: `attr` is live and its size is passed.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            target.as_ptr(),
            flags as c_uint,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    })
    .map(drop)
}

/// The mount flags in force at `path`.
pub(crate) fn mount_flags(path: &CStr) -> c_ulong {
    // SAFETY: an all-zero statvfs is valid and the call fills it.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are live.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut found) } == 0 {
        // The ST_ bits below 32 equal the MS_ bits of the same name, except for the atime ones.
        found.f_flag & 0xf
    } else {
        0
    }
}

pub(crate) fn detach(target: &CStr) -> io::Result<()> {
    // SAFETY: a live C string.
    check_int(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) }).map(drop)
}

pub(crate) fn pivot_root(new: &CStr, old: &CStr) -> io::Result<()> {
    // SAFETY: live C strings.
    check(unsafe { libc::syscall(libc::SYS_pivot_root, new.as_ptr(), old.as_ptr()) }).map(drop)
}

pub(crate) fn chdir(path: &CStr) -> io::Result<()> {
    // SAFETY: a live C string.
    check_int(unsafe { libc::chdir(path.as_ptr()) }).map(drop)
}

pub(crate) fn mkdir(path: &CStr) -> io::Result<()> {
    // SAFETY: a live C string.
    check_int(unsafe { libc::mkdir(path.as_ptr(), 0o755) }).map(drop)
}

/// An empty regular file; never opens what is there already.
pub(crate) fn make_file(path: &CStr) -> io::Result<()> {
    // SAFETY: a live C string.
    check_int(unsafe { libc::mknod(path.as_ptr(), libc::S_IFREG | 0o644, 0) }).map(drop)
}

pub(crate) fn rmdir(path: &CStr) -> io::Result<()> {
    // SAFETY: a live C string.
    check_int(unsafe { libc::rmdir(path.as_ptr()) }).map(drop)
}

pub(crate) fn symlink(target: &CStr, at: &CStr) -> io::Result<()> {
    // SAFETY: live C strings.
    check_int(unsafe { libc::symlink(target.as_ptr(), at.as_ptr()) }).map(drop)
}

pub(crate) fn open(path: &CStr, flags: c_int) -> io::Result<OwnedFd> {
    // SAFETY: a live C string; the descriptor is new and ours.
    unsafe {
        let fd = check_int(libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o644))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

pub(crate) fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the pointer and length are those of a live slice.
    check(unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) } as c_long)
        .map(drop)
}

pub(crate) fn write_file(path: &CStr, bytes: &[u8]) -> io::Result<()> {
    use std::os::fd::AsFd;
    write(open(path, libc::O_WRONLY)?.as_fd(), bytes)
}

pub(crate) fn read_into(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length are those of a live slice.
    check(unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) } as c_long)
        .map(|count| count as usize)
}

/// A copy of `fd` at `lowest` or above, closed on exec.
pub(crate) fn duplicate_above(fd: RawFd, lowest: RawFd) -> io::Result<RawFd> {
    // SAFETY: takes no pointer.
    check_int(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest) })
}

/// A copy of `fd` at exactly `at`, kept on exec.
pub(crate) fn duplicate_to(fd: RawFd, at: RawFd) -> io::Result<()> {
    // SAFETY: takes no pointer; only used in a child that owns its whole table.
    check_int(unsafe { libc::dup2(fd, at) }).map(drop)
}

/// Closes descriptors `first..=last`, now or (`on_exec`) when another program is executed.
pub(crate) fn close_range(first: c_uint, last: c_uint, on_exec: bool) {
    const CLOSE_ON_EXEC: c_uint = 4;
    if first > last {
        return;
    }
    let flags = if on_exec { CLOSE_ON_EXEC } else { 0 };
    // SAFETY: only used in a child that owns its whole table.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } == 0 {
        return;
    }
    for fd in first..=last.min(65_535) {
        // SAFETY: as above.
        unsafe {
            if on_exec {
                libc::fcntl(fd as c_int, libc::F_SETFD, libc::FD_CLOEXEC);
            } else {
                libc::close(fd as c_int);
            }
        }
    }
}

pub(crate) fn pidfd_open(pid: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is new and ours.
    unsafe {
        let fd = check(libc::syscall(libc::SYS_pidfd_open, pid, 0))?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

pub(crate) fn pidfd_kill(pidfd: BorrowedFd<'_>) {
    // SAFETY: the null pointer asks for a default siginfo.
    unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            libc::SIGKILL,
            ptr::null::<c_void>(),
            0,
        );
    }
}

pub(crate) fn kill(pid: c_int) {
    // SAFETY: takes no pointer.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// `(pid, raw status)`; `(0, _)` when nothing has ended and `block` is false.
pub(crate) fn wait(pid: c_int, block: bool) -> io::Result<(c_int, c_int)> {
    let mut status = 0;
    let flags = if block { 0 } else { libc::WNOHANG };
    loop {
        // SAFETY: `status` is live.
        match check_int(unsafe { libc::waitpid(pid, &raw mut status, flags | libc::__WALL) }) {
            Ok(found) => return Ok((found, status)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// How many of `fds` have something to report; interruptions count as none.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout_ms: c_int) -> io::Result<usize> {
    // SAFETY: the pointer and length are those of a live slice.
    match check_int(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) })
    {
        Ok(count) => Ok(count as usize),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}

pub(crate) fn block_signals() {
    // SAFETY: a zeroed set is filled before it is used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut());
    }
}

/// Default dispositions and an empty mask, as a fresh program expects.
pub(crate) fn default_signals() {
    // SAFETY: live structures; no handler is installed.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// Sets soft and hard limit to `value`, or to the present hard limit where that is lower.
pub(crate) fn limit(resource: c_int, value: u64) -> io::Result<()> {
    let mut now = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `now` is live in both calls.
    unsafe {
        check_int(libc::getrlimit(resource as _, &raw mut now))?;
        let value = value.min(now.rlim_max);
        now.rlim_cur = value;
        now.rlim_max = value;
        check_int(libc::setrlimit(resource as _, &raw const now)).map(drop)
    }
}

pub(crate) fn seccomp(filter: BpfProgramRef<'_>) -> io::Result<()> {
    seccompiler::apply_filter(filter).map_err(|error| match error {
        seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
        _ => io::Error::from_raw_os_error(libc::EINVAL),
    })
}

/// Returns only on failure. Both lists end with a null pointer.
pub(crate) fn execve(
    program: &CStr,
    arguments: &[*const libc::c_char],
    environment: &[*const libc::c_char],
) -> io::Error {
    // SAFETY: null-terminated lists of live C strings, prepared by `Plan`.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

pub(crate) fn can_make_socket(family: c_int) -> bool {
    // SAFETY: takes no pointer.
    unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) >= 0 }
}

/// A connected pair of stream sockets, closed on exec.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (a, b) = std::os::unix::net::UnixStream::pair()?;
    Ok((a.into(), b.into()))
}

pub(crate) fn shut_down(socket: BorrowedFd<'_>) {
    // SAFETY: takes no pointer.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes no pointer.
    unsafe {
        let flags = check_int(libc::fcntl(fd.as_raw_fd(), libc::F_GETFL))?;
        check_int(libc::fcntl(
            fd.as_raw_fd(),
            libc::F_SETFL,
            flags | libc::O_NONBLOCK,
        ))
        .map(drop)
    }
}

pub(crate) fn parent() -> c_int {
    // SAFETY: takes no pointer and cannot fail.
    unsafe { libc::getppid() }
}

pub(crate) fn ids() -> (u32, u32) {
    // SAFETY: take no pointer and cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}
