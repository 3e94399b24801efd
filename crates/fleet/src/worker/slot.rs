//! A thread with judges, which answers one job at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;

use tokio::sync::oneshot;
use warpsmith_judge::{CheckDepth, Judge, JudgeError};
use warpsmith_schema::{Failure, FailureKind};

use super::MakeJudge;
use crate::evidence::pack;
use crate::wire::{FleetJudging, JobAnswer, JobCall, JobRequest};

/// Ways of judging whose processes stay warm at the same time. Controllers that take turns rarely differ in more.
const WARM_JUDGES: usize = 2;

pub(super) struct Slot {
    requests: mpsc::Sender<(JobRequest, oneshot::Sender<SlotAnswer>)>,
}

pub(super) struct SlotAnswer {
    pub(super) result: Result<JobAnswer, Failure>,
    /// The bundle behind a verdict, where it was wanted.
    pub(super) bundle: Option<Vec<u8>>,
}

impl SlotAnswer {
    pub(super) fn failed(failure: Failure) -> Self {
        Self {
            result: Err(failure),
            bundle: None,
        }
    }
}

impl Slot {
    pub(super) fn start(number: usize, make_judge: MakeJudge) -> std::io::Result<Self> {
        let (requests, received) = mpsc::channel::<(JobRequest, oneshot::Sender<SlotAnswer>)>();
        thread::Builder::new()
            .name(format!("slot-{}", number + 1))
            .spawn(move || {
                let mut judges = WarmJudges {
                    make_judge,
                    warm: Vec::new(),
                };
                while let Ok((request, answer)) = received.recv() {
                    // Whoever asked may have been told to stop.
                    let _ = answer.send(judges.answer(&request));
                }
            })?;
        Ok(Self { requests })
    }

    pub(super) fn ask(&self, request: JobRequest) -> oneshot::Receiver<SlotAnswer> {
        let (answer, answered) = oneshot::channel();
        // Where the thread has ended the sender is dropped, and so the answer fails.
        let _ = self.requests.send((request, answer));
        answered
    }
}

/// The one used last stands last.
struct WarmJudges {
    make_judge: MakeJudge,
    warm: Vec<(FleetJudging, Box<dyn Judge>)>,
}

impl WarmJudges {
    fn answer(&mut self, request: &JobRequest) -> SlotAnswer {
        let (judging, mut judge) = match self.judge(&request.judging) {
            Ok(found) => found,
            Err(error) => return SlotAnswer::failed(error.failure()),
        };
        let asked = catch_unwind(AssertUnwindSafe(|| ask(judge.as_mut(), request)));
        let result = match asked {
            Ok(result) => {
                self.warm.push((judging, judge));
                result.map_err(|error| error.failure())
            }
            // Nobody knows what state it is in: it is dropped, and the next job has another.
            Err(_) => Err(Failure::panicked()),
        };
        with_evidence(result, request.evidence)
    }

    fn judge(
        &mut self,
        judging: &FleetJudging,
    ) -> Result<(FleetJudging, Box<dyn Judge>), JudgeError> {
        if let Some(at) = self.warm.iter().position(|(known, _)| known == judging) {
            return Ok(self.warm.remove(at));
        }
        while self.warm.len() >= WARM_JUDGES {
            self.warm.remove(0);
        }
        Ok((judging.clone(), (self.make_judge)(judging)?))
    }
}

fn ask(judge: &mut dyn Judge, request: &JobRequest) -> Result<JobAnswer, JudgeError> {
    let task = &request.task;
    let submission = || {
        request.submission.as_ref().ok_or_else(|| {
            JudgeError::Around(Failure {
                kind: FailureKind::Config,
                code: "no_submission".to_owned(),
                message: "the job has no submission".to_owned(),
                hint: None,
            })
        })
    };
    Ok(match request.call {
        JobCall::Survey => {
            judge.survey(task)?;
            JobAnswer::Surveyed
        }
        JobCall::Judge => JobAnswer::Verdict(judge.judge(task, submission()?)?),
        JobCall::JudgeAfresh => JobAnswer::Verdict(judge.judge_afresh(task, submission()?)?),
        JobCall::CheckCompile => {
            JobAnswer::Checked(judge.check(task, submission()?, CheckDepth::Compile)?)
        }
        JobCall::CheckVerify => {
            JobAnswer::Checked(judge.check(task, submission()?, CheckDepth::Verify)?)
        }
        JobCall::Profile => JobAnswer::Profiled(judge.profile(task, request.submission.as_ref())?),
    })
}

/// A verdict's bundle is on this machine, which the asker cannot read: it goes with the answer, or is of no use to it.
fn with_evidence(mut result: Result<JobAnswer, Failure>, wanted: bool) -> SlotAnswer {
    let mut bundle = None;
    if let Ok(JobAnswer::Verdict(verdict)) = &mut result
        && let Some(place) = verdict.evidence.take()
    {
        let place = PathBuf::from(place);
        if wanted {
            match pack(&place) {
                Ok(bytes) => bundle = Some(bytes),
                Err(error) => {
                    result = Err(error.failure());
                }
            }
        }
        // The asker's copy is the one that counts.
        let _ = fs_err::remove_dir_all(&place);
    }
    SlotAnswer { result, bundle }
}
