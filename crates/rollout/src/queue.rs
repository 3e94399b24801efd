//! The queue in front of the judges.
//!
//! Every running episode has at most one request here, so the queue is never longer than there are episodes. To load a task
//! costs a judge as much as to look at a wrong submission, and meanwhile nobody else can use the device. So a free judge takes
//! a request about the task it has loaded, else about a task that no other judge has loaded, else one whose judges are all
//! busy. What fails for reasons of ours is tried again, a few times and each time later. The same submission of the same task is
//! judged once: whoever asks meanwhile waits for the same verdict.
//!
//! A policy that pauses while judges have its device would write one token between two judgements. So judges let it finish:
//! first all replies under way are written, then everything that waits is judged, task by task.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use warpsmith_judge::profile::ProfileReport;
use warpsmith_judge::{CANCELLED, CheckDepth, Judge, JudgeError};
use warpsmith_schema::{EpisodeId, EventKind, Failure, FailureKind, Submission, Task, Verdict};

use crate::control::RunControl;
use crate::meter::Meter;
use crate::recorder::{EventRecorder, cancelled};

/// How often a request is tried, and how long until the second time; each pause after that is twice as long.
const MAX_TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(50);
/// The longest that judges wait for replies to be written.
const MAX_WAIT_FOR_REPLIES: Duration = Duration::from_mins(1);

/// What a judge is asked.
#[derive(Debug, Clone)]
pub(crate) enum JudgeCall {
    Survey,
    Judge(Submission),
    JudgeAfresh(Submission),
    Check(Submission, CheckDepth),
    Profile(Option<Submission>),
}

#[derive(Debug, Clone)]
pub(crate) enum JudgeReply {
    Surveyed,
    Verdict(Box<Verdict>),
    Checked(Option<Box<Verdict>>),
    Profiled(Box<ProfileReport>),
}

pub(crate) type JudgeResult = Result<JudgeReply, Failure>;

/// A call that waits for a judge or is with one.
struct Request {
    episode: EpisodeId,
    task: Arc<Task>,
    call: JudgeCall,
    /// Of a submission whose verdict is remembered.
    hash: Option<String>,
    since: Instant,
    reply: Sender<JudgeResult>,
}

/// By task and hash of the submission.
type VerdictKey = (String, String);

enum KnownVerdict {
    /// Being judged; these wait for the verdict too.
    Pending(Vec<Sender<JudgeResult>>),
    Reached(Box<Verdict>),
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<Request>,
    /// What the run's log has, and what is being judged now.
    verdicts: HashMap<VerdictKey, KnownVerdict>,
    judges: Vec<JudgeState>,
    /// Judges were let in, and stay until nothing waits.
    judging_phase: bool,
    closed: bool,
}

/// What one judge of the pool is doing.
#[derive(Default)]
struct JudgeState {
    /// The task that it has loaded.
    task: Option<String>,
    busy: bool,
}

impl QueueState {
    /// The request that the judge of this number takes next.
    fn take(&mut self, judge: usize) -> Option<Request> {
        let first = |wanted: &dyn Fn(&str) -> bool| {
            let mut waiting = self.waiting.iter();
            waiting.position(|request| wanted(&request.task.id))
        };
        let has_loaded = |judge: &JudgeState, task: &str| judge.task.as_deref() == Some(task);
        let loaded_here = || first(&|task| has_loaded(&self.judges[judge], task));
        let loaded_nowhere =
            || first(&|task| !self.judges.iter().any(|judge| has_loaded(judge, task)));
        // A judge that is free and has the task loaded takes it without help.
        let loaded_by_busy_judges = || {
            first(&|task| {
                let mut judges = self.judges.iter();
                !judges.any(|judge| !judge.busy && has_loaded(judge, task))
            })
        };
        let chosen = loaded_here()
            .or_else(loaded_nowhere)
            .or_else(loaded_by_busy_judges)?;
        let request = self.waiting.remove(chosen)?;
        self.judges[judge] = JudgeState {
            task: Some(request.task.id.clone()),
            busy: true,
        };
        Some(request)
    }

    fn busy_judges(&self) -> usize {
        self.judges.iter().filter(|judge| judge.busy).count()
    }
}

/// How much there is to judge now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueLoad {
    pub(crate) waiting: usize,
    pub(crate) busy_judges: usize,
}

/// Whether replies are written while submissions are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phases {
    /// Both at any time.
    Overlapping,
    /// Judges wait until no reply is being written.
    Alternating,
}

pub(crate) struct JudgeQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
    recorder: Arc<EventRecorder>,
    meter: Arc<Meter>,
    control: Arc<RunControl>,
    phases: Phases,
}

impl JudgeQueue {
    pub(crate) fn new(
        verdicts: HashMap<VerdictKey, Verdict>,
        recorder: Arc<EventRecorder>,
        meter: Arc<Meter>,
        control: Arc<RunControl>,
        phases: Phases,
    ) -> Self {
        let verdicts = verdicts
            .into_iter()
            .map(|(key, verdict)| (key, KnownVerdict::Reached(Box::new(verdict))));
        Self {
            state: Mutex::new(QueueState {
                verdicts: verdicts.collect(),
                ..QueueState::default()
            }),
            changed: Condvar::new(),
            recorder,
            meter,
            control,
            phases,
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the reply.
    pub(crate) fn call(
        &self,
        episode: &EpisodeId,
        task: &Arc<Task>,
        call: JudgeCall,
    ) -> JudgeResult {
        match self.enter(episode, task, call) {
            Entered::Known(verdict) => Ok(JudgeReply::Verdict(verdict)),
            Entered::Waiting(reply) => reply.recv().unwrap_or_else(|_| Err(cancelled())),
        }
    }

    fn enter(&self, episode: &EpisodeId, task: &Arc<Task>, call: JudgeCall) -> Entered {
        let hash = match &call {
            JudgeCall::Judge(submission) => Some(submission.content_hash()),
            _ => None,
        };
        let (reply, replied) = channel();
        let mut state = self.state();
        if let Some(hash) = &hash {
            let key = (task.id.clone(), hash.clone());
            match state.verdicts.get_mut(&key) {
                Some(KnownVerdict::Reached(verdict)) => return Entered::Known(verdict.clone()),
                Some(KnownVerdict::Pending(others)) => {
                    others.push(reply);
                    return Entered::Waiting(replied);
                }
                None => {}
            }
            if !state.closed {
                let pending = KnownVerdict::Pending(Vec::new());
                state.verdicts.insert(key, pending);
            }
        }
        // Once the queue is closed the sender is dropped here, and the caller finds the call cancelled.
        if !state.closed {
            state.waiting.push_back(Request {
                episode: episode.clone(),
                task: task.clone(),
                call,
                hash,
                since: Instant::now(),
                reply,
            });
            // The one that is woken may not be the one that has the task loaded.
            self.changed.notify_all();
        }
        Entered::Waiting(replied)
    }

    /// Works through the queue until it is closed. Gives the judge back, or the one that took its place.
    pub(crate) fn serve(&self, mut judge: Box<dyn Judge>) -> Box<dyn Judge> {
        let number = {
            let mut state = self.state();
            state.judges.push(JudgeState::default());
            state.judges.len() - 1
        };
        let mut panicked = false;
        while let Some(request) = self.next(number) {
            let (waited, begun) = (request.since.elapsed(), Instant::now());
            let result = catch_unwind(AssertUnwindSafe(|| {
                if panicked {
                    judge = judge.replacement().map_err(|error| error.failure())?;
                    panicked = false;
                }
                self.answer(judge.as_mut(), &request)
            }));
            let result = result.unwrap_or_else(|_| {
                // Nobody knows what state it is in: the next call goes to another.
                panicked = true;
                self.state().judges[number].task = None;
                Err(Failure::panicked())
            });
            let worked = begun.elapsed();
            self.meter.judge_worked(worked);
            let result = result.and_then(|reply| self.record(&request, reply, waited, worked));
            self.finish(number, request, &result);
        }
        if panicked && let Ok(fresh) = judge.replacement() {
            judge = fresh;
        }
        judge
    }

    fn next(&self, judge: usize) -> Option<Request> {
        let mut state = self.state();
        loop {
            let mut poll = POLL;
            if self.may_judge(&mut state) {
                if let Some(request) = state.take(judge) {
                    return Some(request);
                }
                // Whoever enters or closes will say so.
                poll = Duration::MAX;
            }
            if state.closed {
                return None;
            }
            let waited = self.changed.wait_timeout(state, poll);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn may_judge(&self, state: &mut QueueState) -> bool {
        if self.phases == Phases::Overlapping {
            return true;
        }
        if state.waiting.is_empty() {
            state.judging_phase &= state.busy_judges() > 0;
        } else {
            let oldest = state.waiting.front().map(|request| request.since.elapsed());
            state.judging_phase |= self.meter.asking() == 0 || oldest > Some(MAX_WAIT_FOR_REPLIES);
        }
        state.judging_phase
    }

    /// Asks a judge, more than once where the failure is ours.
    fn answer(&self, judge: &mut dyn Judge, request: &Request) -> JudgeResult {
        let mut pause = FIRST_PAUSE;
        for tried in 1.. {
            let failure = match ask(judge, request) {
                Ok(_) if self.control.aborted() => return Err(cancelled()),
                Ok(reply) => return Ok(reply),
                Err(error) => error.failure(),
            };
            let ours = failure.kind == FailureKind::Infrastructure && failure.code != CANCELLED;
            if !ours || tried >= MAX_TRIES || !self.control.goes_on() {
                return Err(failure);
            }
            self.recorder.write(EventKind::InfrastructureFailed {
                episode: Some(request.episode.clone()),
                failure,
                retry_in_seconds: Some(pause.as_secs_f64()),
            })?;
            let until = Instant::now() + pause;
            while Instant::now() < until && self.control.goes_on() {
                thread::sleep(POLL);
            }
            pause *= 2;
        }
        Err(cancelled())
    }

    /// A verdict is a line of the log before anybody hears of it.
    fn record(
        &self,
        request: &Request,
        reply: JudgeReply,
        waited: Duration,
        worked: Duration,
    ) -> JudgeResult {
        if let (JudgeReply::Verdict(verdict), Some(hash)) = (&reply, &request.hash) {
            self.meter.judged(verdict, waited);
            self.recorder.write(EventKind::Judged {
                episode: request.episode.clone(),
                submission: hash.clone(),
                verdict: verdict.clone(),
                waited_seconds: waited.as_secs_f64(),
                seconds: worked.as_secs_f64(),
            })?;
        }
        Ok(reply)
    }

    fn finish(&self, judge: usize, request: Request, result: &JudgeResult) {
        let mut callers = vec![request.reply];
        let mut state = self.state();
        state.judges[judge].busy = false;
        if let Some(hash) = request.hash {
            let key = (request.task.id.clone(), hash);
            if let Some(KnownVerdict::Pending(others)) = state.verdicts.remove(&key) {
                callers.extend(others);
            }
            if let Ok(JudgeReply::Verdict(verdict)) = result {
                let reached = KnownVerdict::Reached(verdict.clone());
                state.verdicts.insert(key, reached);
            }
        }
        drop(state);
        for caller in callers {
            // An episode that was left behind does not listen any more.
            let _ = caller.send(result.clone());
        }
    }

    /// Takes no more requests, and drops those that no judge has begun with.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let dropped: Vec<Request> = state.waiting.drain(..).collect();
        for request in &dropped {
            if let Some(hash) = &request.hash {
                // The senders of all who waited for it are dropped too.
                let key = (request.task.id.clone(), hash.clone());
                state.verdicts.remove(&key);
            }
        }
        drop(state);
        drop(dropped);
        self.changed.notify_all();
    }

    pub(crate) fn load(&self) -> QueueLoad {
        let state = self.state();
        QueueLoad {
            waiting: state.waiting.len(),
            busy_judges: state.busy_judges(),
        }
    }
}

enum Entered {
    Known(Box<Verdict>),
    Waiting(Receiver<JudgeResult>),
}

fn ask(judge: &mut dyn Judge, request: &Request) -> Result<JudgeReply, JudgeError> {
    let task = &request.task;
    Ok(match &request.call {
        JudgeCall::Survey => {
            judge.survey(task)?;
            JudgeReply::Surveyed
        }
        JudgeCall::Judge(submission) => {
            JudgeReply::Verdict(Box::new(judge.judge(task, submission)?))
        }
        JudgeCall::JudgeAfresh(submission) => {
            JudgeReply::Verdict(Box::new(judge.judge_afresh(task, submission)?))
        }
        JudgeCall::Check(submission, depth) => {
            JudgeReply::Checked(judge.check(task, submission, *depth)?.map(Box::new))
        }
        JudgeCall::Profile(submission) => {
            JudgeReply::Profiled(Box::new(judge.profile(task, submission.as_ref())?))
        }
    })
}
