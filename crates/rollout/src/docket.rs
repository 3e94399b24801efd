//! The queue in front of the judges.
//!
//! Every running episode has at most one question here, so the queue is never longer than there are episodes. To load a task
//! costs a judge as much as to look at a wrong submission, and the device meanwhile is nobody else's. So one that is free takes
//! a question about the task it has loaded, else about one that no other has, else one that would have to wait for others. What fails for reasons of ours
//! is tried again, a few times and each time later, and so is a task that seems too large while other judges are at work. The
//! same submission of the same task is judged once: who asks meanwhile waits for the same verdict.
//!
//! A policy that rests while judges have its device would write a token between two judgements. So judges let it finish: first
//! all replies under way are written, then all that waits is judged, task by task.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use warpsmith_agent::Files;
use warpsmith_judge::{JudgeDepth, JudgeError};
use warpsmith_schema::{EpisodeId, EventKind, Failure, FailureKind, Task, Verdict};
use warpsmith_tasks::{solution_hash, submission};

use crate::Judging;
use crate::fate::Fate;
use crate::journal::{CANCELLED, Journal, over};
use crate::meter::Meter;

/// Times that something is tried, and how long until the second; each time after that is twice as long.
const TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(50);
/// So long judges wait for replies to be written.
const COURTESY: Duration = Duration::from_mins(1);

/// The judge's word for a task whose tensors do not fit beside what is there already.
const TOO_LARGE: &str = "too_large";

/// What a judge is asked.
#[derive(Debug, Clone)]
pub(crate) enum Question {
    Survey,
    Judge(Files),
    Rehearse(Files, JudgeDepth),
    Profile(Option<Files>),
}

#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Fits,
    Verdict(Box<Verdict>),
    Rehearsed(Option<Box<Verdict>>),
    Profiled(String),
}

type Answered = Result<Answer, Failure>;

/// A question on its way.
struct Case {
    episode: EpisodeId,
    task: Arc<Task>,
    question: Question,
    /// Of a submission that is to be judged.
    hash: Option<String>,
    since: Instant,
    answer: Sender<Answered>,
}

/// By task and hash of the submission.
type Key = (String, String);

enum Known {
    /// Who else wants to know.
    Underway(Vec<Sender<Answered>>),
    Verdict(Box<Verdict>),
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Case>,
    known: HashMap<Key, Known>,
    seats: Vec<Seat>,
    /// Judges were let in, and stay until nothing waits.
    in_session: bool,
    closed: bool,
}

/// A judge's.
#[derive(Default)]
struct Seat {
    /// The task that it has loaded.
    task: Option<String>,
    busy: bool,
}

impl State {
    /// What the judge on this seat takes next.
    fn take(&mut self, seat: usize) -> Option<Case> {
        let first = |wanted: &dyn Fn(&str) -> bool| {
            let mut waiting = self.waiting.iter();
            waiting.position(|case| wanted(&case.task.id))
        };
        let has = |seat: &Seat, task: &str| seat.task.as_deref() == Some(task);
        let mine = || first(&|task| has(&self.seats[seat], task));
        let nobodys = || first(&|task| !self.seats.iter().any(|seat| has(seat, task)));
        // Who has nothing to do and the task loaded takes it without our help.
        let late = || first(&|task| !self.seats.iter().any(|seat| !seat.busy && has(seat, task)));
        let chosen = mine().or_else(nobodys).or_else(late)?;
        let case = self.waiting.remove(chosen)?;
        self.seats[seat] = Seat {
            task: Some(case.task.id.clone()),
            busy: true,
        };
        Some(case)
    }

    fn busy(&self) -> usize {
        self.seats.iter().filter(|seat| seat.busy).count()
    }
}

pub(crate) struct Docket {
    state: Mutex<State>,
    changed: Condvar,
    journal: Arc<Journal>,
    meter: Arc<Meter>,
    fate: Arc<Fate>,
    /// Whether replies are written and judged in turns.
    in_turns: bool,
    first_pause: Duration,
}

impl Docket {
    pub(crate) fn new(
        verdicts: HashMap<Key, Verdict>,
        journal: Arc<Journal>,
        meter: Arc<Meter>,
        fate: Arc<Fate>,
        in_turns: bool,
    ) -> Self {
        let known = verdicts
            .into_iter()
            .map(|(key, verdict)| (key, Known::Verdict(Box::new(verdict))));
        Self {
            state: Mutex::new(State {
                known: known.collect(),
                ..State::default()
            }),
            changed: Condvar::new(),
            journal,
            meter,
            fate,
            in_turns,
            first_pause: FIRST_PAUSE,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the answer.
    pub(crate) fn ask(
        &self,
        episode: &EpisodeId,
        task: &Arc<Task>,
        question: Question,
    ) -> Answered {
        match self.enter(episode, task, question) {
            Entered::Known(verdict) => Ok(Answer::Verdict(verdict)),
            Entered::Waiting(answer) => answer.recv().unwrap_or_else(|_| Err(over())),
        }
    }

    fn enter(&self, episode: &EpisodeId, task: &Arc<Task>, question: Question) -> Entered {
        let hash = match &question {
            Question::Judge(files) => Some(solution_hash(&submission(files))),
            _ => None,
        };
        let (answer, answered) = channel();
        let mut state = self.state();
        if let Some(hash) = &hash {
            let key = (task.id.clone(), hash.clone());
            match state.known.get_mut(&key) {
                Some(Known::Verdict(verdict)) => return Entered::Known(verdict.clone()),
                Some(Known::Underway(others)) => {
                    others.push(answer);
                    return Entered::Waiting(answered);
                }
                None => {}
            }
            if !state.closed {
                state.known.insert(key, Known::Underway(Vec::new()));
            }
        }
        // Once closed, the sender is dropped here and the asker hears that it is over.
        if !state.closed {
            state.waiting.push_back(Case {
                episode: episode.clone(),
                task: task.clone(),
                question,
                hash,
                since: Instant::now(),
                answer,
            });
            // Who is woken may not be who has the task.
            self.changed.notify_all();
        }
        Entered::Waiting(answered)
    }

    /// A judge's working life.
    pub(crate) fn serve(&self, mut judge: Box<dyn Judging>) {
        let seat = {
            let mut state = self.state();
            state.seats.push(Seat::default());
            state.seats.len() - 1
        };
        let mut sound = true;
        while let Some(case) = self.next(seat) {
            let (waited, begun) = (case.since.elapsed(), Instant::now());
            let heard = catch_unwind(AssertUnwindSafe(|| {
                if !sound {
                    judge = judge.another().map_err(|error| error.failure())?;
                    sound = true;
                }
                self.hear(judge.as_mut(), &case)
            }));
            let answer = heard.unwrap_or_else(|_| {
                // Whatever state it is in, the next question is put to another.
                sound = false;
                self.state().seats[seat].task = None;
                Err(Failure::panicked())
            });
            let worked = begun.elapsed();
            self.meter.judge_worked(worked);
            let answer = answer.and_then(|answer| self.keep(&case, answer, waited, worked));
            self.settle(seat, case, &answer);
        }
    }

    fn next(&self, seat: usize) -> Option<Case> {
        let mut state = self.state();
        loop {
            let mut look = LOOK;
            if self.may_judge(&mut state) {
                if let Some(case) = state.take(seat) {
                    return Some(case);
                }
                // Who comes or closes will say so.
                look = Duration::MAX;
            }
            if state.closed {
                return None;
            }
            let waited = self.changed.wait_timeout(state, look);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn may_judge(&self, state: &mut State) -> bool {
        if !self.in_turns {
            return true;
        }
        if state.waiting.is_empty() {
            state.in_session &= state.busy() > 0;
        } else {
            let oldest = state.waiting.front().map(|case| case.since.elapsed());
            state.in_session |= self.meter.asking() == 0 || oldest > Some(COURTESY);
        }
        state.in_session
    }

    fn hear(&self, judge: &mut dyn Judging, case: &Case) -> Answered {
        let mut pause = self.first_pause;
        for tried in 1.. {
            let company = self.has_company();
            let failure = match put(judge, case) {
                Ok(_) if self.fate.abandoned() => return Err(over()),
                Ok(answer) => return Ok(answer),
                Err(error) => error.failure(),
            };
            let ours = failure.kind == FailureKind::Infrastructure && failure.code != CANCELLED;
            // Others hold memory: alone the task may well fit.
            let crowded = failure.kind == FailureKind::Task
                && failure.code == TOO_LARGE
                && (company || self.has_company());
            if !(ours || crowded) || tried >= TRIES || !self.fate.goes_on() {
                return Err(failure);
            }
            self.journal.write(EventKind::InfrastructureFailed {
                episode: Some(case.episode.clone()),
                failure,
                retry_in_seconds: Some(pause.as_secs_f64()),
            })?;
            let until = Instant::now() + pause;
            while Instant::now() < until && self.fate.goes_on() {
                thread::sleep(LOOK);
            }
            pause *= 2;
        }
        Err(over())
    }

    /// Whether another judge is at work too.
    fn has_company(&self) -> bool {
        self.state().busy() > 1
    }

    /// A verdict is a line of the log before anybody hears of it.
    fn keep(&self, case: &Case, answer: Answer, waited: Duration, worked: Duration) -> Answered {
        if let (Answer::Verdict(verdict), Some(hash)) = (&answer, &case.hash) {
            self.meter.judged(verdict, waited);
            self.journal.write(EventKind::Judged {
                episode: case.episode.clone(),
                submission: hash.clone(),
                verdict: verdict.clone(),
                waited_seconds: waited.as_secs_f64(),
                seconds: worked.as_secs_f64(),
            })?;
        }
        Ok(answer)
    }

    fn settle(&self, seat: usize, case: Case, answer: &Answered) {
        let mut told = vec![case.answer];
        let mut state = self.state();
        state.seats[seat].busy = false;
        if let Some(hash) = case.hash {
            let key = (case.task.id.clone(), hash);
            if let Some(Known::Underway(others)) = state.known.remove(&key) {
                told.extend(others);
            }
            if let Ok(Answer::Verdict(verdict)) = answer {
                state.known.insert(key, Known::Verdict(verdict.clone()));
            }
        }
        drop(state);
        for one in told {
            // An episode that was left behind does not listen any more.
            let _ = one.send(answer.clone());
        }
    }

    /// Takes nothing more in and lets go of what no judge has begun with.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let left: Vec<Case> = state.waiting.drain(..).collect();
        for case in &left {
            if let Some(hash) = &case.hash {
                let key = (case.task.id.clone(), hash.clone());
                // The senders of those who waited too are dropped with it.
                state.known.remove(&key);
            }
        }
        drop(state);
        drop(left);
        self.changed.notify_all();
    }

    /// What waits, and judges at work.
    pub(crate) fn load(&self) -> (usize, usize) {
        let state = self.state();
        (state.waiting.len(), state.busy())
    }
}

enum Entered {
    Known(Box<Verdict>),
    Waiting(Receiver<Answered>),
}

fn put(judge: &mut dyn Judging, case: &Case) -> Result<Answer, JudgeError> {
    let task = &case.task;
    Ok(match &case.question {
        Question::Survey => {
            judge.survey(task)?;
            Answer::Fits
        }
        Question::Judge(files) => Answer::Verdict(Box::new(judge.judge(task, files)?)),
        Question::Rehearse(files, reach) => {
            Answer::Rehearsed(judge.rehearse(task, files, *reach)?.map(Box::new))
        }
        Question::Profile(files) => Answer::Profiled(judge.profile(task, files.as_ref())?),
    })
}
