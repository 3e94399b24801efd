//! Several judges side by side: each compiles for itself, and they take turns on the device.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::work::Work;
use crate::{Cancellation, JudgeError, Judged, LocalJudge};

/// Tries of one judgement on a machine that is too noisy.
const TRIES: u32 = 4;

/// Judged work, and how often the machine was too noisy.
pub(super) struct Done {
    pub(super) name: String,
    pub(super) judged: Judged,
    pub(super) noisy: u32,
}

pub(super) struct Crew<'a> {
    judges: Vec<LocalJudge>,
    cancellation: &'a Cancellation,
}

impl<'a> Crew<'a> {
    pub(super) fn new(judges: Vec<LocalJudge>, cancellation: &'a Cancellation) -> Self {
        Self {
            judges,
            cancellation,
        }
    }

    pub(super) fn size(&self) -> usize {
        self.judges.len()
    }

    /// Judges everything, in any order; a group stays with one judge, which has its task loaded then.
    pub(super) fn work(&mut self, groups: Vec<Vec<Work>>) -> Result<Vec<Done>, JudgeError> {
        let cancellation = self.cancellation;
        let queue = Mutex::new(VecDeque::from(groups));
        let next = || {
            queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_front()
        };
        let each = |judge: &mut LocalJudge| {
            let mut done = Vec::new();
            while let Some(group) = next() {
                for one in group {
                    done.push(judge_one(judge, &one, cancellation)?);
                }
            }
            Ok::<_, JudgeError>(done)
        };
        thread::scope(|scope| {
            let running: Vec<_> = self
                .judges
                .iter_mut()
                .map(|judge| scope.spawn(|| each(judge)))
                .collect();
            let mut all = Vec::new();
            for one in running {
                all.extend(one.join().map_err(|_| panicked())??);
            }
            Ok(all)
        })
    }
}

pub(super) fn judge_one(
    judge: &mut LocalJudge,
    work: &Work,
    cancellation: &Cancellation,
) -> Result<Done, JudgeError> {
    let mut noisy = 0;
    loop {
        let result = judge.judge_unrecorded(&work.task, &work.submission);
        // A killed process looks like a crash of the candidate's.
        if cancellation.is_requested() {
            return Err(JudgeError::cancelled());
        }
        match result {
            Ok(judged) => {
                return Ok(Done {
                    name: work.name.clone(),
                    judged,
                    noisy,
                });
            }
            Err(error) if error.failure().code == "noisy_machine" && noisy + 1 < TRIES => {
                noisy += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn panicked() -> JudgeError {
    JudgeError::Config {
        code: "panic",
        message: "a judging thread panicked".to_owned(),
        hint: None,
    }
}
