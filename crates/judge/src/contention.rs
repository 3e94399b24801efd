//! What others took of the processors while something was measured on them.
//!
//! The kernel counts, for every thread, how long it was ready to run and had no core (`schedstat`), and for the machine how
//! long its cores were at work or given to a neighbour (`/proc/stat`). The first tells of one interval whether it was
//! disturbed; a candidate can cause that itself, by more threads than there are cores. The second tells whether anybody else
//! was there, which it cannot.

use std::path::Path;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity};

/// The kernel's clock of processors, on every machine that Linux runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// A wait that means nothing: a thread is woken, and the core wakes first.
const WAIT_US: f64 = 60.0;
const WAIT_SHARE: f64 = 0.05;

/// Others may take this much of one core.
const FOREIGN_CORES: f64 = 0.15;

/// How long the threads of an interval waited for a core, so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CoreWaits {
    waited_us: f64,
}

impl CoreWaits {
    /// Of this thread and of all threads of a process; `None` where the kernel does not count.
    pub(crate) fn read(pid: u32) -> Option<Self> {
        let mut waited_us = waited_us(Path::new("/proc/thread-self/schedstat"))?;
        for thread in fs_err::read_dir(format!("/proc/{pid}/task")).ok()? {
            // A thread that has ended since was not waited for.
            waited_us += waited_us_of(&thread.ok()?.path()).unwrap_or(0.0);
        }
        Some(Self { waited_us })
    }

    /// Whether an interval of this length that began here was disturbed.
    pub(crate) fn disturbed(self, before: Self, elapsed_us: f64) -> bool {
        self.waited_us - before.waited_us > WAIT_US.max(WAIT_SHARE * elapsed_us)
    }
}

fn waited_us_of(thread: &Path) -> Option<f64> {
    waited_us(&thread.join("schedstat"))
}

fn waited_us(schedstat: &Path) -> Option<f64> {
    second_number(&fs_err::read_to_string(schedstat).ok()?).map(|waited_ns| waited_ns / 1e3)
}

/// Of time on a core, time waiting for one, and time slices.
fn second_number(schedstat: &str) -> Option<f64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

/// Work so far of the cores that this process may use, its own processes' apart. What happens on others disturbs nobody here.
#[derive(Debug)]
pub(crate) struct ForeignWork {
    started: Instant,
    allowed: CpuSet,
    pids: Vec<u32>,
    foreign_ticks: f64,
}

impl ForeignWork {
    /// `pids`: whose work is not foreign, beside this process's.
    pub(crate) fn watch(pids: Vec<u32>) -> Option<Self> {
        let pids: Vec<u32> = pids.into_iter().chain([std::process::id()]).collect();
        let allowed = sched_getaffinity(None).ok()?;
        Some(Self {
            started: Instant::now(),
            foreign_ticks: foreign_ticks(&allowed, &pids)?,
            allowed,
            pids,
        })
    }

    /// How many cores others had at work on average since.
    pub(crate) fn cores(&self) -> Option<f64> {
        let ticks = foreign_ticks(&self.allowed, &self.pids)? - self.foreign_ticks;
        let seconds = self.started.elapsed().as_secs_f64();
        // A tick more or less says nothing of a moment.
        (seconds > 0.2).then(|| (ticks / TICKS_PER_SECOND / seconds).max(0.0))
    }
}

/// Whether so much foreign work explains that intervals were disturbed.
pub(crate) fn is_crowded(foreign_cores: f64) -> bool {
    foreign_cores > FOREIGN_CORES
}

fn foreign_ticks(allowed: &CpuSet, own: &[u32]) -> Option<f64> {
    let stat = fs_err::read_to_string("/proc/stat").ok()?;
    let machine = busy_ticks(&stat, |core| core < CpuSet::MAX_CPU && allowed.is_set(core))?;
    let mut ours = 0.0;
    for pid in own {
        // Its name is its own choice, and need not be text.
        let stat = fs_err::read(format!("/proc/{pid}/stat")).ok()?;
        ours += process_ticks(&String::from_utf8_lossy(&stat))?;
    }
    Some(machine - ours)
}

/// User, nice, system, interrupts, soft interrupts and time stolen by neighbours: all but idle and waiting. `None` where the
/// kernel tells of none of these cores.
fn busy_ticks(stat: &str, counts: impl Fn(usize) -> bool) -> Option<f64> {
    let of_core = |line: &str| {
        let (name, rest) = line.split_once(' ')?;
        let core = name.strip_prefix("cpu")?.parse().ok()?;
        let ticks: Vec<f64> = rest
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        let busy = [0, 1, 2, 5, 6, 7].map(|place| ticks.get(place).copied());
        counts(core).then(|| busy.into_iter().sum::<Option<f64>>())?
    };
    let mut cores = stat.lines().filter_map(of_core).peekable();
    cores.peek()?;
    Some(cores.sum())
}

/// User and system time; the name before them may hold anything.
fn process_ticks(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut words = rest.split_whitespace().skip(11);
    let user: f64 = words.next()?.parse().ok()?;
    let system: f64 = words.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        assert_eq!(second_number("836256 2146277 2\n"), Some(2_146_277.0));
        let stat = "cpu  15 2 3 1000 50 1 2 7 0 0\ncpu0 10 2 3 500 50 1 2 7 0 0\ncpu1 5 0 0 500 0 0 0 0 0 0\nctxt 5\n";
        assert_eq!(busy_ticks(stat, |core| core == 0), Some(25.0));
        assert_eq!(busy_ticks(stat, |_| true), Some(30.0));
        assert_eq!(busy_ticks(stat, |core| core == 2), None);
        let process = "42 (a) b) S 1 42 42 0 -1 4194560 1 0 0 0 30 12 0 0 20 0 1 0";
        assert_eq!(process_ticks(process), Some(42.0));
        assert_eq!(process_ticks("nothing"), None);
    }

    #[test]
    fn a_long_wait_disturbs_and_a_waking_does_not() {
        let at = |waited_us| CoreWaits { waited_us };
        assert!(!at(1050.0).disturbed(at(1000.0), 300.0));
        assert!(at(1070.0).disturbed(at(1000.0), 300.0));
        assert!(!at(1400.0).disturbed(at(1000.0), 10_000.0));
        assert!(at(1600.0).disturbed(at(1000.0), 10_000.0));
    }

    #[test]
    fn work_of_others_is_told_from_ours() {
        let watch = ForeignWork::watch(Vec::new()).unwrap();
        let begun = Instant::now();
        let mut turns = 0_u64;
        while begun.elapsed().as_millis() < 300 {
            turns = std::hint::black_box(turns + 1);
        }
        let cores =
            f64::from(u32::try_from(std::thread::available_parallelism().unwrap().get()).unwrap());
        let seen = watch.cores().unwrap();
        assert!((0.0..=cores).contains(&seen), "{seen}");
        assert!(CoreWaits::read(std::process::id()).is_some());
    }
}
