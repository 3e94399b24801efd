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
const LEAST: usize = 8;

/// Both sides' cores.
#[derive(Debug, Clone)]
pub(crate) struct Cores {
    judging: CpuSet,
    judged: CpuSet,
}

impl Cores {
    /// Halves what this process may use; `None` where that is little, or siblings cannot be kept together.
    pub(crate) fn split() -> Option<Self> {
        let allowed = sched_getaffinity(None).ok()?;
        let count = allowed.count() as usize;
        // A mask with holes says nothing of siblings.
        if count < LEAST || !count.is_multiple_of(8) || (0..count).any(|core| !allowed.is_set(core))
        {
            return None;
        }
        let mut cores = Self {
            judging: CpuSet::new(),
            judged: CpuSet::new(),
        };
        for core in 0..count {
            if of_judge(core, count) {
                cores.judging.set(core);
            } else {
                cores.judged.set(core);
            }
        }
        Some(cores)
    }

    /// For a candidate's worker or a baseline. A process that is gone already is told by its next request.
    pub(crate) fn give_judged(&self, pid: u32) {
        give(pid, &self.judged);
    }

    pub(crate) fn give_judging(&self, pid: u32) {
        give(pid, &self.judging);
    }

    /// Deals cores to a runner, to the trusted process and to this thread until the answer is dropped.
    pub(crate) fn deal(&self, runner: Option<u32>, trusted: u32) -> Dealt {
        Dealt {
            cores: self.clone(),
            runner,
            trusted,
        }
    }

    /// This thread stays on the judge's side until the guard is dropped.
    pub(crate) fn hold(&self) -> Option<Held> {
        let before = sched_getaffinity(None).ok()?;
        sched_setaffinity(None, &self.judging).ok()?;
        Some(Held { before })
    }
}

/// Three threads that sit on one core each, another one whenever they are told.
pub(crate) struct Dealt {
    cores: Cores,
    runner: Option<u32>,
    trusted: u32,
}

impl Dealt {
    /// The main threads alone are moved; other threads of a candidate stay on any core of its side.
    pub(crate) fn next(&self) {
        let mut random = rand::rng();
        let judged: Vec<usize> = members(&self.cores.judged);
        if let (Some(runner), Some(&core)) = (self.runner, judged.choose(&mut random)) {
            give(runner, &only(core));
        }
        let judging = members(&self.cores.judging);
        if let [ours, theirs] = judging.into_iter().choose_multiple(&mut random, 2)[..] {
            give(self.trusted, &only(theirs));
            let _ = sched_setaffinity(None, &only(ours));
        }
    }
}

impl Drop for Dealt {
    fn drop(&mut self) {
        if let Some(runner) = self.runner {
            self.cores.give_judged(runner);
        }
        self.cores.give_judging(self.trusted);
        let _ = sched_setaffinity(None, &self.cores.judging);
    }
}

fn members(cores: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU)
        .filter(|&core| cores.is_set(core))
        .collect()
}

fn only(core: usize) -> CpuSet {
    let mut cores = CpuSet::new();
    cores.set(core);
    cores
}

fn give(pid: u32, cores: &CpuSet) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        let _ = sched_setaffinity(Some(pid), cores);
    }
}

/// Siblings are numbered `2k, 2k + 1` or `k, k + count / 2`, and a virtual machine does not tell: they are on one side in
/// either case.
fn of_judge(core: usize, count: usize) -> bool {
    core % (count / 2) < count / 4
}

/// Puts a thread back where it was.
pub(crate) struct Held {
    before: CpuSet,
}

impl Drop for Held {
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
        let mut cores = Cores {
            judging: before,
            judged: before,
        };
        if let [first, .., last] = members(&before)[..] {
            cores.judging = only(first);
            cores.judging.set(last);
        }
        let dealt = cores.deal(None, std::process::id());
        dealt.next();
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        drop(dealt);
        assert_eq!(sched_getaffinity(None).unwrap(), cores.judging);
        sched_setaffinity(None, &before).unwrap();
    }

    #[test]
    fn siblings_are_never_parted() {
        for count in [8, 16, 24, 64, 192] {
            for core in 0..count {
                assert_eq!(
                    of_judge(core, count),
                    of_judge(core ^ 1, count),
                    "{core} of {count}"
                );
                let other = (core + count / 2) % count;
                assert_eq!(
                    of_judge(core, count),
                    of_judge(other, count),
                    "{core} of {count}"
                );
            }
            let judging = (0..count).filter(|&core| of_judge(core, count)).count();
            assert_eq!(judging, count / 2);
        }
    }
}
