//! From fork to exec.
//!
//! Three processes are forked. The *monitor* stays outside the namespaces, waits, and kills the rest when our end of
//! its lifeline is closed. *Init* is process 1 of the new pid namespace: it builds the file tree and reaps orphans, and
//! when it dies the kernel kills everything inside. The third becomes the command. Without namespaces there is no
//! init: the monitor adopts orphans and kills them one by one. Monitor and init never execute anything, hold no
//! descriptors and cannot be traced, since their memory is a copy of ours.

use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::effective::Mode;
use crate::identity::{self, CAP_SYS_ADMIN};
use crate::mounts;
use crate::plan::{IdMap, LaunchPlan};
use crate::setup_report::{SetupReport, SetupStage};
use crate::sys;

const NAMESPACES: c_int =
    libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// Forks the monitor and returns its pid. `report` tells how far the setup came.
pub(crate) fn launch(plan: &mut LaunchPlan, report: &SetupReport) -> io::Result<c_int> {
    if let Some(pid) = sys::fork()? {
        return Ok(pid);
    }
    let _guard = ExitOnDrop;
    monitor(plan, report)
}

/// The child must never return or unwind into its copy of the caller's stack.
struct ExitOnDrop;

impl Drop for ExitOnDrop {
    fn drop(&mut self) {
        sys::exit_now(70);
    }
}

/// Ends the process at the first step of the setup that fails.
struct SetupGuard<'a> {
    report: &'a SetupReport,
}

impl SetupGuard<'_> {
    fn require<T>(&self, stage: SetupStage, result: io::Result<T>) -> T {
        match result {
            Ok(value) => value,
            Err(error) => self.fail(stage, 0, &error),
        }
    }

    fn fail(&self, stage: SetupStage, index: usize, error: &io::Error) -> ! {
        self.report.fail(stage, index, error);
        sys::exit_now(71)
    }
}

fn monitor(plan: &mut LaunchPlan, report: &SetupReport) -> ! {
    let setup = SetupGuard { report };
    sys::block_signals();
    sys::setsid();
    match plan.mode {
        Mode::Root => setup.require(SetupStage::Namespaces, sys::unshare(NAMESPACES)),
        Mode::User => {
            // Before the namespaces, since root is exempt from the process limit in every namespace.
            change_identity(plan, &setup);
            let flags = NAMESPACES | libc::CLONE_NEWUSER;
            setup.require(SetupStage::Namespaces, sys::unshare(flags));
            if let Some(map) = &plan.outer_map {
                setup.require(SetupStage::IdMap, write_map(map));
            }
        }
        Mode::Plain => setup.require(
            SetupStage::Namespaces,
            sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0),
        ),
    }
    setup.require(SetupStage::Fork, sys::prctl(libc::PR_SET_DUMPABLE, 0, 0));
    let Some(first_pid) = setup.require(SetupStage::Fork, sys::fork()) else {
        match plan.mode {
            Mode::Root | Mode::User => init(plan, report),
            Mode::Plain => command(plan, report),
        }
    };
    report.set_first_pid(first_pid);
    let pidfd = match sys::pidfd_open(first_pid) {
        Ok(pidfd) => pidfd,
        Err(error) => {
            sys::kill(first_pid);
            setup.fail(SetupStage::Fork, 0, &error)
        }
    };
    close_all_but(plan.lifeline.as_raw_fd(), pidfd.as_raw_fd());
    let readable = |fd: c_int| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        let mut waiting = [
            readable(pidfd.as_raw_fd()),
            readable(plan.lifeline.as_raw_fd()),
        ];
        let polled = sys::poll(&mut waiting, -1);
        if polled.is_err() || waiting[1].revents != 0 {
            sys::kill(first_pid);
            break;
        }
        if waiting[0].revents != 0 {
            break;
        }
    }
    let ended = sys::wait(first_pid, true);
    if plan.mode == Mode::Plain {
        if let Ok((_, status)) = ended {
            report.set_status(status);
        }
        kill_orphans();
    }
    if sys::parent() != plan.supervisor {
        remove_groups(plan);
    }
    sys::exit_now(0)
}

fn change_identity(plan: &LaunchPlan, setup: &SetupGuard<'_>) {
    if let Some(id) = plan.other_id {
        let changed = identity::become_id(id)
            .and_then(|()| identity::raise_capabilities())
            // After a change of uid /proc/self belongs to root.
            .and_then(|()| sys::prctl(libc::PR_SET_DUMPABLE, 1, 0));
        setup.require(SetupStage::Identity, changed);
    }
}

fn close_all_but(one: c_int, other: c_int) {
    let (low, high) = (one.min(other) as u32, one.max(other) as u32);
    if low > 0 {
        sys::close_range(0, low - 1, false);
    }
    sys::close_range(low + 1, high - 1, false);
    sys::close_range(high + 1, u32::MAX, false);
}

/// In place of the supervisor, which died.
fn remove_groups(plan: &LaunchPlan) {
    for folder in &plan.group_folders {
        for _ in 0..1000 {
            match sys::rmdir(folder) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    let _ = sys::poll(&mut [], 1);
                }
                _ => break,
            }
        }
    }
}

/// Kills adopted processes until there are none; killing one hands us its children.
fn kill_orphans() {
    let mut buffer = [0_u8; 4096];
    for _ in 0..10_000 {
        loop {
            match sys::wait(-1, false) {
                Ok((0, _)) => break,
                Ok(_) => {}
                Err(_) => return,
            }
        }
        let Ok(list) = sys::open(c"/proc/thread-self/children", libc::O_RDONLY) else {
            return;
        };
        let length = sys::read_into(list.as_fd(), &mut buffer).unwrap_or(0);
        let mut pid: c_int = 0;
        for byte in buffer.iter().take(length) {
            if byte.is_ascii_digit() {
                pid = pid
                    .wrapping_mul(10)
                    .wrapping_add(c_int::from(byte.wrapping_sub(b'0')));
            } else if pid > 1 {
                sys::kill(pid);
                pid = 0;
            }
        }
        let _ = sys::poll(&mut [], 1);
    }
}

fn init(plan: &mut LaunchPlan, report: &SetupReport) -> ! {
    let setup = SetupGuard { report };
    let dies_with_monitor = sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0);
    setup.require(SetupStage::Fork, dies_with_monitor);
    setup.require(SetupStage::MountNamespace, sys::unshare(libc::CLONE_NEWNS));
    if let Err((stage, index, error)) = mounts::enter(&plan.steps) {
        setup.fail(stage, index, &error);
    }
    let Some(command_pid) = setup.require(SetupStage::Fork, sys::fork()) else {
        command(plan, report)
    };
    sys::close_range(0, u32::MAX, false);
    loop {
        match sys::wait(-1, true) {
            Ok((pid, status)) if pid == command_pid => {
                report.set_status(status);
                sys::exit_now(0)
            }
            Ok(_) => {}
            Err(_) => sys::exit_now(72),
        }
    }
}

fn command(plan: &mut LaunchPlan, report: &SetupReport) -> ! {
    let setup = SetupGuard { report };
    sys::setsid();
    for file in &plan.group {
        setup.require(SetupStage::Cgroup, sys::write(file.as_fd(), b"0"));
    }
    setup.require(SetupStage::Descriptors, place_descriptors(plan));
    for (resource, value) in &plan.limits {
        setup.require(SetupStage::Limits, sys::limit(*resource, *value));
    }
    if plan.mode != Mode::User {
        change_identity(plan, &setup);
    }
    let inside = enter_user_namespace(plan, report);
    let limit = if inside {
        plan.processes.in_user_namespace
    } else {
        plan.processes.of_uid
    };
    if let Some(value) = limit {
        let limited = sys::limit(libc::RLIMIT_NPROC as c_int, value);
        setup.require(SetupStage::Limits, limited);
    }
    // This capability permits a nested namespace where only privileged processes may make one (Ubuntu's AppArmor). It
    // is worth nothing outside the namespace that was just made, which owns nothing yet.
    let kept = (plan.nested && inside).then_some(CAP_SYS_ADMIN);
    setup.require(SetupStage::Capabilities, identity::capabilities(kept));
    let folder = plan
        .program
        .as_ref()
        .map_or(c"/", |program| &program.folder);
    setup.require(SetupStage::WorkingDirectory, sys::chdir(folder));
    setup.require(
        SetupStage::NoNewPrivileges,
        sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0),
    );
    if let Some(rules) = &plan.landlock {
        setup.require(SetupStage::Landlock, rules.enforce());
    }
    sys::default_signals();
    setup.require(SetupStage::Seccomp, sys::seccomp(&plan.filter));
    match &plan.program {
        Some(program) => {
            let error = sys::execve(&program.path, &program.arguments, &program.environment);
            setup.fail(SetupStage::Exec, 0, &error)
        }
        None => check_containment(&setup, plan.landlock.is_some() || plan.mode != Mode::Plain),
    }
}

/// A user namespace of the command's own. It is optional: without it the command shares ours, unprivileged.
fn enter_user_namespace(plan: &LaunchPlan, report: &SetupReport) -> bool {
    if plan.mode == Mode::Plain {
        return false;
    }
    // Otherwise /proc/self/uid_map belongs to root.
    let entered =
        sys::prctl(libc::PR_SET_DUMPABLE, 1, 0).and_then(|()| sys::unshare(libc::CLONE_NEWUSER));
    report.set_user_namespace(&entered);
    if entered.is_ok() {
        SetupGuard { report }.require(SetupStage::IdMap, write_map(&plan.inner_map));
    }
    entered.is_ok()
}

fn write_map(map: &IdMap) -> io::Result<()> {
    let write = |path: &CStr, text: &CStr| sys::write_file(path, text.to_bytes());
    write(c"/proc/self/setgroups", c"deny")?;
    write(c"/proc/self/uid_map", &map.uid)?;
    write(c"/proc/self/gid_map", &map.gid)
}

/// Moves the descriptors to 0, 1, 2, … and has all others closed on exec.
fn place_descriptors(plan: &mut LaunchPlan) -> io::Result<()> {
    let count = plan.descriptors.len() as c_int;
    // First to numbers above all the targets, so that no move overwrites a descriptor that is still to be moved. The
    // copy of `started` keeps that pipe open until exec.
    sys::duplicate_above(plan.started.as_raw_fd(), count)?;
    for (slot, descriptor) in plan.moved.iter_mut().zip(&plan.descriptors) {
        *slot = sys::duplicate_above(descriptor.as_raw_fd(), count)?;
    }
    for (at, from) in plan.moved.iter().enumerate() {
        sys::duplicate_to(*from, at as c_int)?;
    }
    sys::close_range(count as u32, u32::MAX, true);
    Ok(())
}

/// The end of a probe: tries what must be impossible.
fn check_containment(setup: &SetupGuard<'_>, files_hidden: bool) -> ! {
    let escaped = io::Error::from_raw_os_error(libc::EPERM);
    if files_hidden && sys::open(c"/etc/passwd", libc::O_RDONLY).is_ok() {
        setup.fail(SetupStage::FilesystemCheck, 0, &escaped);
    }
    if [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK]
        .into_iter()
        .any(sys::can_make_socket)
    {
        setup.fail(SetupStage::NetworkCheck, 0, &escaped);
    }
    sys::exit_now(0)
}
