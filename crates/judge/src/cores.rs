//! Which cores measure and which are measured, where a GPU is the target.
//!
//! Supervisor and trusted process spin while they wait for an answer, since a core that sleeps takes longer to wake than many
//! kernels run. On the sibling of the core that launches kernels such a spin halves its speed: seen on a virtual machine
//! with an H200, in phases, as the scheduler moved processes about. So the two sides are kept on different physical cores.
//!
//! On a virtual machine a sibling may also be a neighbour's: there the same loop took 130 us on one core and 280 on another,
//! and seconds later the other way round. A process stays where it is for long, so all its single calls are quick, or all
//! slow. Where that matters, for the constant and for a candidate in doubt, cores are dealt: some of several are quick. (Not
//! for every interval: it was tried, and a thread that may not leave a core waits for it.)

use rand::seq::{IndexedRandom, IteratorRandom};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Below this each side would have too little.
const MIN_CORES: usize = 8;

/// Both sides' cores.
#[derive(Debug, Clone)]
pub(crate) struct CoreSplit {
    judge_cores: CpuSet,
    candidate_cores: CpuSet,
}

impl CoreSplit {
    /// Halves what this process may use; `None` where that is little, or siblings cannot be kept together.
    pub(crate) fn split() -> Option<Self> {
        let allowed = sched_getaffinity(None).ok()?;
        let count = allowed.count() as usize;
        // A mask with holes says nothing of siblings.
        if count < MIN_CORES
            || !count.is_multiple_of(8)
            || (0..count).any(|core| !allowed.is_set(core))
        {
            return None;
        }
        let mut cores = Self {
            judge_cores: CpuSet::new(),
            candidate_cores: CpuSet::new(),
        };
        for core in 0..count {
            if is_judge_core(core, count) {
                cores.judge_cores.set(core);
            } else {
                cores.candidate_cores.set(core);
            }
        }
        Some(cores)
    }

    /// For a candidate's worker or a baseline. A process that is gone already is told by its next request.
    pub(crate) fn pin_candidate(&self, pid: u32) {
        pin(pid, &self.candidate_cores);
    }

    pub(crate) fn pin_judge(&self, pid: u32) {
        pin(pid, &self.judge_cores);
    }

    /// Deals cores to a runner, to the trusted process and to this thread until the answer is dropped.
    pub(crate) fn rotate(&self, runner: Option<u32>, trusted: u32) -> CoreRotation {
        CoreRotation {
            cores: self.clone(),
            runner,
            trusted,
        }
    }

    /// This thread stays on the judge's side until the guard is dropped.
    pub(crate) fn pin_this_thread(&self) -> Option<PinnedThread> {
        let before = sched_getaffinity(None).ok()?;
        sched_setaffinity(None, &self.judge_cores).ok()?;
        Some(PinnedThread { before })
    }
}

/// Three threads that sit on one core each, another one whenever they are told.
pub(crate) struct CoreRotation {
    cores: CoreSplit,
    runner: Option<u32>,
    trusted: u32,
}

impl CoreRotation {
    /// The main threads alone are moved; other threads of a candidate stay on any core of its side.
    pub(crate) fn next(&self) {
        let mut random = rand::rng();
        let judged: Vec<usize> = core_numbers(&self.cores.candidate_cores);
        if let (Some(runner), Some(&core)) = (self.runner, judged.choose(&mut random)) {
            pin(runner, &single_core(core));
        }
        let judging = core_numbers(&self.cores.judge_cores);
        if let [ours, theirs] = judging.into_iter().choose_multiple(&mut random, 2)[..] {
            pin(self.trusted, &single_core(theirs));
            let _ = sched_setaffinity(None, &single_core(ours));
        }
    }
}

impl Drop for CoreRotation {
    fn drop(&mut self) {
        if let Some(runner) = self.runner {
            self.cores.pin_candidate(runner);
        }
        self.cores.pin_judge(self.trusted);
        let _ = sched_setaffinity(None, &self.cores.judge_cores);
    }
}

fn core_numbers(cores: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU)
        .filter(|&core| cores.is_set(core))
        .collect()
}

fn single_core(core: usize) -> CpuSet {
    let mut cores = CpuSet::new();
    cores.set(core);
    cores
}

fn pin(pid: u32, cores: &CpuSet) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        let _ = sched_setaffinity(Some(pid), cores);
    }
}

/// Siblings are numbered `2k, 2k + 1` or `k, k + count / 2`, and a virtual machine does not tell: they are on one side in
/// either case.
fn is_judge_core(core: usize, count: usize) -> bool {
    core % (count / 2) < count / 4
}

/// Puts a thread back where it was.
pub(crate) struct PinnedThread {
    before: CpuSet,
}

impl Drop for PinnedThread {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dealt_cores_are_given_back() {
        let before = sched_getaffinity(None).unwrap();
        let mut cores = CoreSplit {
            judge_cores: before,
            candidate_cores: before,
        };
        if let [first, .., last] = core_numbers(&before)[..] {
            cores.judge_cores = single_core(first);
            cores.judge_cores.set(last);
        }
        let dealt = cores.rotate(None, std::process::id());
        dealt.next();
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        drop(dealt);
        assert_eq!(sched_getaffinity(None).unwrap(), cores.judge_cores);
        sched_setaffinity(None, &before).unwrap();
    }

    #[test]
    fn siblings_are_never_parted() {
        for count in [8, 16, 24, 64, 192] {
            for core in 0..count {
                assert_eq!(
                    is_judge_core(core, count),
                    is_judge_core(core ^ 1, count),
                    "{core} of {count}"
                );
                let other = (core + count / 2) % count;
                assert_eq!(
                    is_judge_core(core, count),
                    is_judge_core(other, count),
                    "{core} of {count}"
                );
            }
            let judging = (0..count)
                .filter(|&core| is_judge_core(core, count))
                .count();
            assert_eq!(judging, count / 2);
        }
    }
}
