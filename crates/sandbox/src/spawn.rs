//! From fork to exec.
//!
//! Three processes stand between us and the command. The *keeper* stays outside, waits, and kills when our end of its
//! line goes dead. *Init* is process 1 of the new pid namespace: it builds the file tree, reaps orphans, and its death
//! is the death of everything inside. The third becomes the command. Without namespaces there is no init: the keeper
//! adopts orphans and kills them one by one. Keeper and init never execute anything, hold no descriptors and cannot be
//! traced, since their memory is a copy of ours.

use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::effective::Mode;
use crate::identity::{self, CAP_SYS_ADMIN};
use crate::mounts;
use crate::plan::{IdMap, Plan};
use crate::report::{Report, Stage};
use crate::sys;

const NAMESPACES: c_int =
    libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// Forks the keeper and returns its pid. What happens behind it shows in `report`.
pub(crate) fn launch(plan: &mut Plan, report: &Report) -> io::Result<c_int> {
    if let Some(pid) = sys::fork()? {
        return Ok(pid);
    }
    let _guard = ExitOnDrop;
    keeper(plan, report)
}

/// Nothing may ever return or unwind into the caller's copy of the stack.
struct ExitOnDrop;

impl Drop for ExitOnDrop {
    fn drop(&mut self) {
        sys::exit_now(70);
    }
}

struct Steps<'a> {
    report: &'a Report,
}

impl Steps<'_> {
    fn need<T>(&self, stage: Stage, result: io::Result<T>) -> T {
        match result {
            Ok(value) => value,
            Err(error) => self.give_up(stage, 0, &error),
        }
    }

    fn give_up(&self, stage: Stage, index: usize, error: &io::Error) -> ! {
        self.report.fail(stage, index, error);
        sys::exit_now(71)
    }
}

fn keeper(plan: &mut Plan, report: &Report) -> ! {
    let steps = Steps { report };
    sys::block_signals();
    sys::setsid();
    match plan.mode {
        Mode::Root => steps.need(Stage::Namespaces, sys::unshare(NAMESPACES)),
        Mode::User => {
            // First, since root is exempt from the process limit whatever its namespace.
            become_other(plan, &steps);
            let flags = NAMESPACES | libc::CLONE_NEWUSER;
            steps.need(Stage::Namespaces, sys::unshare(flags));
            if let Some(map) = &plan.outer_map {
                steps.need(Stage::IdMap, write_map(map));
            }
        }
        Mode::Plain => steps.need(
            Stage::Namespaces,
            sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0),
        ),
    }
    steps.need(Stage::Fork, sys::prctl(libc::PR_SET_DUMPABLE, 0, 0));
    let Some(first) = steps.need(Stage::Fork, sys::fork()) else {
        match plan.mode {
            Mode::Root | Mode::User => init(plan, report),
            Mode::Plain => command(plan, report),
        }
    };
    report.set_first_pid(first);
    let pidfd = match sys::pidfd_open(first) {
        Ok(pidfd) => pidfd,
        Err(error) => {
            sys::kill(first);
            steps.give_up(Stage::Fork, 0, &error)
        }
    };
    close_all_but(plan.life.as_raw_fd(), pidfd.as_raw_fd());
    let watch = |fd: c_int| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        let mut waiting = [watch(pidfd.as_raw_fd()), watch(plan.life.as_raw_fd())];
        let polled = sys::poll(&mut waiting, -1);
        if polled.is_err() || waiting[1].revents != 0 {
            sys::kill(first);
            break;
        }
        if waiting[0].revents != 0 {
            break;
        }
    }
    let ended = sys::wait(first, true);
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

fn become_other(plan: &Plan, steps: &Steps<'_>) {
    if let Some(id) = plan.other_id {
        let changed = identity::become_id(id)
            .and_then(|()| identity::raise_capabilities())
            // A change of uid hides /proc/self from ourselves.
            .and_then(|()| sys::prctl(libc::PR_SET_DUMPABLE, 1, 0));
        steps.need(Stage::Identity, changed);
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

/// The supervisor died and cannot do it.
fn remove_groups(plan: &Plan) {
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

fn init(plan: &mut Plan, report: &Report) -> ! {
    let steps = Steps { report };
    let dies_with_keeper = sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0);
    steps.need(Stage::Fork, dies_with_keeper);
    steps.need(Stage::MountNamespace, sys::unshare(libc::CLONE_NEWNS));
    if let Err((stage, index, error)) = mounts::enter(&plan.steps) {
        steps.give_up(stage, index, &error);
    }
    let Some(main) = steps.need(Stage::Fork, sys::fork()) else {
        command(plan, report)
    };
    sys::close_range(0, u32::MAX, false);
    loop {
        match sys::wait(-1, true) {
            Ok((pid, status)) if pid == main => {
                report.set_status(status);
                sys::exit_now(0)
            }
            Ok(_) => {}
            Err(_) => sys::exit_now(72),
        }
    }
}

fn command(plan: &mut Plan, report: &Report) -> ! {
    let steps = Steps { report };
    sys::setsid();
    for file in &plan.group {
        steps.need(Stage::Cgroup, sys::write(file.as_fd(), b"0"));
    }
    steps.need(Stage::Descriptors, place_descriptors(plan));
    for (resource, value) in &plan.limits {
        steps.need(Stage::Limits, sys::limit(*resource, *value));
    }
    if plan.mode != Mode::User {
        become_other(plan, &steps);
    }
    let inside = enter_user_namespace(plan, report);
    let (apart, shared) = plan.processes;
    if let Some(value) = if inside { apart } else { shared } {
        let limited = sys::limit(libc::RLIMIT_NPROC as c_int, value);
        steps.need(Stage::Limits, limited);
    }
    // The last capability lets a nested namespace be made where only the privileged may (Ubuntu's AppArmor). It is
    // worth nothing outside the namespace that was just made, which owns nothing yet.
    let kept = (plan.nested && inside).then_some(CAP_SYS_ADMIN);
    steps.need(Stage::Capabilities, identity::capabilities(kept));
    let folder = plan
        .program
        .as_ref()
        .map_or(c"/", |program| &program.folder);
    steps.need(Stage::WorkingDirectory, sys::chdir(folder));
    steps.need(
        Stage::NoNewPrivileges,
        sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0),
    );
    if let Some(rules) = &plan.landlock {
        steps.need(Stage::Landlock, rules.enforce());
    }
    sys::default_signals();
    steps.need(Stage::Seccomp, sys::seccomp(&plan.filter));
    match &plan.program {
        Some(program) => {
            let error = sys::execve(&program.path, &program.arguments, &program.environment);
            steps.give_up(Stage::Exec, 0, &error)
        }
        None => look_around(&steps, plan.landlock.is_some() || plan.mode != Mode::Plain),
    }
}

/// A user namespace of the command's own. Not required: without it the command merely shares ours, unprivileged.
fn enter_user_namespace(plan: &Plan, report: &Report) -> bool {
    if plan.mode == Mode::Plain {
        return false;
    }
    // Else /proc/self/uid_map belongs to root.
    let entered =
        sys::prctl(libc::PR_SET_DUMPABLE, 1, 0).and_then(|()| sys::unshare(libc::CLONE_NEWUSER));
    report.set_user_namespace(&entered);
    if entered.is_ok() {
        Steps { report }.need(Stage::IdMap, write_map(&plan.inner_map));
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
fn place_descriptors(plan: &mut Plan) -> io::Result<()> {
    let count = plan.descriptors.len() as c_int;
    // Both ways through numbers that are in nobody's way. The copy of `started` keeps that line up until exec.
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

/// The probe's last act: tries what must be impossible.
fn look_around(steps: &Steps<'_>, files_hidden: bool) -> ! {
    let escaped = io::Error::from_raw_os_error(libc::EPERM);
    if files_hidden && sys::open(c"/etc/passwd", libc::O_RDONLY).is_ok() {
        steps.give_up(Stage::FilesystemCheck, 0, &escaped);
    }
    if [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK]
        .into_iter()
        .any(sys::can_make_socket)
    {
        steps.give_up(Stage::NetworkCheck, 0, &escaped);
    }
    sys::exit_now(0)
}
