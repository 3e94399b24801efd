//! The processes of a running sandbox, from outside: their streams, how they end, and how they are killed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::cgroup::ControlGroup;
use crate::effective::{Effective, Mode};
use crate::error::{Context, SandboxError};
use crate::mounts::MountStep;
use crate::output::{Sink, Stream};
use crate::plan::{ChildChannels, ExecProgram, LaunchPlan};
use crate::policy::{Command, Exit, Isolation, SandboxPolicy};
use crate::probe;
use crate::processes;
use crate::setup_report::SetupReport;
use crate::spawn::launch;
use crate::sys;

const START_LIMIT: Duration = Duration::from_secs(30);
pub(crate) const END_LIMIT: Duration = Duration::from_secs(10);
const WATCH_EVERY: Duration = Duration::from_millis(50);
const BUFFER_BYTES: usize = 64 << 10;

/// The processes of one sandbox.
pub(crate) struct Running {
    monitor: i32,
    /// Init, or the command itself where there is none.
    first: Option<OwnedFd>,
    lifeline: OwnedFd,
    report: SetupReport,
    group: Option<ControlGroup>,
    /// The memory limit of the tree, where no control group enforces it.
    watched_bytes: Option<u64>,
    out_of_memory: AtomicBool,
    exit: Mutex<Option<Exit>>,
}

pub(crate) struct Started {
    pub(crate) running: Running,
    pub(crate) stdout: Stream,
    pub(crate) stderr: Stream,
}

/// Starts `command`, or a probe that runs nothing, without checking the required protections.
pub(crate) fn start_with(
    mode: Mode,
    command: Option<Command>,
    policy: &SandboxPolicy,
    group: Option<ControlGroup>,
) -> Result<Started, SandboxError> {
    let (program, fds, stderr_to) = match command {
        Some(command) => {
            let (program, fds, stderr_to) = ExecProgram::new(command)?;
            (Some(program), fds, stderr_to)
        }
        None => (None, Vec::new(), None),
    };
    let null = File::open("/dev/null").context("open /dev/null")?;
    let (stdout, stdout_child) = io::pipe().context("make a pipe")?;
    let (stderr, stderr_child) = if let Some(fd) = stderr_to {
        (None, fd)
    } else {
        let (ours, theirs) = io::pipe().context("make a pipe")?;
        (Some(ours), theirs.into())
    };
    let (lifeline, life_child) = sys::socket_pair().context("make a socket pair")?;
    let (started, started_child) = io::pipe().context("make a pipe")?;
    let mut descriptors = vec![null.into(), stdout_child.into(), stderr_child];
    descriptors.extend(fds);
    let channels = ChildChannels {
        descriptors,
        lifeline: life_child,
        started: started_child.into(),
    };
    let mut plan = LaunchPlan::new(mode, program, policy, group.as_ref(), channels)?;
    let report = SetupReport::new().context("map a page")?;
    let monitor = launch(&mut plan, &report).context("fork")?;
    // Our copies of the child's descriptors are closed, so that the streams end when the child closes them.
    let steps = std::mem::take(&mut plan.steps);
    drop(plan);
    let limited = group.as_ref().is_some_and(ControlGroup::limits_memory);
    let mut running = Running {
        monitor,
        first: None,
        lifeline,
        report,
        watched_bytes: (!limited).then_some(policy.limits.memory_bytes),
        group,
        out_of_memory: AtomicBool::new(false),
        exit: Mutex::new(None),
    };
    let in_time = wait_for_end(&started.into(), START_LIMIT);
    if let Some(failure) = running.failure(&steps) {
        return Err(failure);
    }
    if !in_time {
        return Err(SandboxError::Setup {
            stage: "start the command in time".to_owned(),
            source: io::ErrorKind::TimedOut.into(),
        });
    }
    running.first = running
        .report
        .first_pid()
        .and_then(|pid| sys::pidfd_open(pid).ok());
    Ok(Started {
        running,
        stdout: Stream::new(Some(stdout.into())).context("set up a pipe")?,
        stderr: Stream::new(stderr.map(Into::into)).context("set up a pipe")?,
    })
}

/// True once every copy of the other end is closed.
fn wait_for_end(pipe: &OwnedFd, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut waiting = [poll_for(pipe.as_raw_fd())];
        match sys::poll(&mut waiting, milliseconds(left)) {
            Ok(_) if waiting[0].revents != 0 => return true,
            Ok(_) if left.is_zero() => return false,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

fn poll_for(fd: i32) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Rounded up, so that a wait never ends just before its deadline.
fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
}

/// Starts `command` with every protection this machine has, and says which these are.
pub(crate) fn start(
    command: Command,
    policy: &SandboxPolicy,
) -> Result<(Started, Effective), SandboxError> {
    let probe = probe::get();
    let group = if probe.groups {
        ControlGroup::create(&policy.limits)
    } else {
        None
    };
    let effective = match &probe.failed {
        Some(why) => Effective::nothing(why),
        None => Effective::of(probe, group.as_ref(), policy.nested),
    };
    if policy.isolation == Isolation::Strict && !effective.contained() {
        return Err(SandboxError::Uncontained {
            missing: effective.missing_required(),
        });
    }
    let started = start_with(probe.mode, Some(command), policy, group)?;
    Ok((started, effective))
}

impl Running {
    /// How the setup failed, if it did; `steps` are the mount steps, of which the failure names one.
    pub(crate) fn failure(&self, steps: &[MountStep]) -> Option<SandboxError> {
        self.report.failure().map(|failure| {
            let step = failure.index.and_then(|index| steps.get(index));
            SandboxError::Setup {
                stage: step.map_or_else(|| failure.stage.to_owned(), MountStep::describe),
                source: failure.error,
            }
        })
    }

    pub(crate) fn user_namespace(&self) -> Option<io::Result<()>> {
        self.report.user_namespace()
    }

    /// The command's pid in our pid namespace.
    pub(crate) fn command_pid(&self) -> u32 {
        let first = self.report.first_pid().unwrap_or(self.monitor);
        let below = self
            .has_init()
            .then(|| processes::child_of(first))
            .flatten();
        below.unwrap_or(first) as u32
    }

    /// Without namespaces no user namespace was tried.
    fn has_init(&self) -> bool {
        self.user_namespace().is_some()
    }

    fn signal_all(&self) {
        if let Some(first) = &self.first {
            sys::pidfd_kill(first.as_fd());
        }
        sys::shut_down(self.lifeline.as_fd());
        if let Some(group) = &self.group {
            group.kill();
        }
    }

    /// Kills the tree and waits until it is gone.
    pub(crate) fn kill_and_wait(&self) {
        let deadline = Instant::now() + END_LIMIT;
        if matches!(self.try_wait(), Ok(None)) {
            self.signal_all();
        }
        while matches!(self.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                // A process is stuck in the kernel. Once the monitor is dead, init dies as soon as it can.
                sys::kill(self.monitor);
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        if let Some(group) = &self.group {
            group.kill();
        }
    }

    pub(crate) fn try_wait(&self) -> io::Result<Option<Exit>> {
        let mut exit = lock(&self.exit);
        if exit.is_none() {
            let (pid, _) = sys::wait(self.monitor, false)?;
            if pid == self.monitor {
                *exit = Some(self.exit_of_command());
            }
        }
        Ok(*exit)
    }

    fn exit_of_command(&self) -> Exit {
        let exit = match self.report.status() {
            Some(status) if libc::WIFEXITED(status) => Exit::Code(libc::WEXITSTATUS(status)),
            Some(status) if libc::WIFSIGNALED(status) => Exit::Signal(libc::WTERMSIG(status)),
            // Init was killed before it could report.
            _ => Exit::Signal(libc::SIGKILL),
        };
        let starved = self.out_of_memory.load(Ordering::Acquire)
            || self.group.as_ref().is_some_and(ControlGroup::out_of_memory);
        if starved && exit != Exit::Code(0) {
            Exit::OutOfMemory
        } else {
            exit
        }
    }

    /// Kills the tree if it uses more memory than it may, where no control group limits it.
    fn watch_memory(&self) {
        // Init is a copy of this process and shares most of its memory.
        let init = self.report.first_pid().filter(|_| self.has_init());
        if let Some(limit) = self.watched_bytes
            && processes::memory_below(self.monitor, init) > limit
        {
            self.out_of_memory.store(true, Ordering::Release);
            self.signal_all();
        }
    }

    /// Reads the streams until the sandbox ends (true) or the deadline passes (false).
    pub(crate) fn drain(
        &self,
        streams: &mut [(Stream, Sink<'_>); 2],
        deadline: Option<Instant>,
    ) -> bool {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut next_watch = Instant::now();
        loop {
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return false;
            }
            if self.watched_bytes.is_some() && now >= next_watch {
                self.watch_memory();
                next_watch = Instant::now() + WATCH_EVERY;
            }
            let wake = [deadline, self.watched_bytes.map(|_| next_watch)]
                .into_iter()
                .flatten()
                .min();
            let timeout = wake.map_or(-1, |wake| milliseconds(wake.saturating_duration_since(now)));
            let mut waiting = [
                poll_for(streams[0].0.number()),
                poll_for(streams[1].0.number()),
                poll_for(self.lifeline.as_raw_fd()),
            ];
            let polled = sys::poll(&mut waiting, timeout);
            let ended = polled.is_err() || waiting[2].revents != 0;
            loop {
                let mut received = false;
                for (stream, sink) in &mut *streams {
                    received |= stream.take(&mut buffer, &mut **sink);
                }
                if !(received && ended) {
                    break;
                }
            }
            if ended {
                return true;
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill_and_wait();
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
