//! One prompt, one reply with the files, one verdict; a failed attempt may be repaired a few times.

use std::time::Instant;

use warpsmith_judge::JudgeError;
use warpsmith_model::policy::{Finish, Policy, PolicyError, Request, Sampling};
use warpsmith_schema::{
    Attempt, Ending, FORMAT, Message, Mode, Target, Task, Trajectory, Usage, Verdict,
};

use crate::feedback;
use crate::fenced::{Files, Unreadable, read_files};
use crate::prompt;

/// Judges what a policy wrote and keeps what stands behind each verdict.
pub trait Court {
    fn judge(&mut self, files: &Files) -> Result<Verdict, JudgeError>;
}

/// Sees an episode as it goes.
pub trait Watch {
    /// A policy is asked; the first attempt is number one.
    fn asking(&mut self, attempt: u32);
    /// A piece of its reply.
    fn text(&mut self, piece: &str);
    /// A reply that held nothing to judge.
    fn unreadable(&mut self, why: &Unreadable);
    fn judging(&mut self, files: &Files);
    fn judged(&mut self, verdict: &Verdict);
    /// Whether somebody wants it to end.
    fn interrupted(&self) -> bool;
}

/// How an episode is run.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub target: Target,
    /// Attempts after the first, each told what was wrong with the one before.
    pub repairs: u32,
    pub sampling: Sampling,
}

/// Why there is no trajectory. What a policy or a submission does wrong is part of one; this is neither.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("the judge failed")]
    Judge(#[from] JudgeError),
}

/// Runs one episode.
pub fn run_single(
    policy: &mut dyn Policy,
    court: &mut dyn Court,
    task: &Task,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Trajectory, AgentError> {
    let begun = Instant::now();
    let mut episode = Episode {
        messages: prompt::opening(task, settings.target),
        attempts: Vec::new(),
        usage: Usage::default(),
    };
    let ending = episode.run(policy, court, settings, watch)?;
    Ok(Trajectory {
        format: FORMAT,
        id: identity(task, &episode.messages),
        task: task.clone(),
        target: settings.target,
        policy: policy.version().clone(),
        mode: Mode::Single,
        best: best(&episode.attempts),
        messages: episode.messages,
        attempts: episode.attempts,
        ending,
        usage: episode.usage,
        seconds: begun.elapsed().as_secs_f64(),
        tokens: None,
    })
}

struct Episode {
    messages: Vec<Message>,
    attempts: Vec<Attempt>,
    usage: Usage,
}

impl Episode {
    fn run(
        &mut self,
        policy: &mut dyn Policy,
        court: &mut dyn Court,
        settings: &Settings,
        watch: &mut dyn Watch,
    ) -> Result<Ending, AgentError> {
        let mut before = None;
        for attempt in 1..=settings.repairs + 1 {
            if watch.interrupted() {
                return Ok(Ending::Interrupted);
            }
            watch.asking(attempt);
            let request = Request {
                messages: &self.messages,
                tools: &[],
                sampling: settings.sampling,
            };
            let reply = match policy.reply(&request, &mut |piece| watch.text(piece)) {
                Ok(reply) => reply,
                Err(PolicyError::ContextFull { .. }) => return Ok(Ending::ContextFull),
                Err(error) => {
                    let message = with_causes(&error);
                    return Ok(Ending::PolicyFailed { message });
                }
            };
            self.usage += reply.usage;
            let message = self.messages.len() as u32;
            self.messages.push(Message::Assistant {
                text: reply.text.clone(),
                calls: Vec::new(),
            });
            // Told what is wrong, it said the same again: so it would the next time.
            if before.as_ref() == Some(&reply.text) {
                return Ok(Ending::Looping);
            }
            let told = match readable(&reply.text, reply.finish) {
                Ok(files) => {
                    watch.judging(&files);
                    let verdict = court.judge(&files)?;
                    if watch.interrupted() {
                        return Ok(Ending::Interrupted);
                    }
                    watch.judged(&verdict);
                    let (passed, told) = (verdict.passed(), feedback::on_verdict(&verdict));
                    self.attempts.push(Attempt { message, verdict });
                    if passed {
                        return Ok(Ending::Finished);
                    }
                    told
                }
                Err(why) => {
                    watch.unreadable(&why);
                    feedback::on_unreadable(&why)
                }
            };
            before = Some(reply.text);
            if attempt <= settings.repairs {
                self.messages.push(Message::User { text: told });
            }
        }
        Ok(if self.attempts.is_empty() {
            Ending::NothingUsable
        } else {
            Ending::Finished
        })
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

fn readable(text: &str, finish: Finish) -> Result<Files, Unreadable> {
    let files = read_files(text)?;
    match files.keys().next_back() {
        // Closed or not, a reply that ran into its limit has lost what was to come.
        Some(path) if finish == Finish::Length => Err(Unreadable::CutOff { path: path.clone() }),
        _ => Ok(files),
    }
}

/// The quickest that passed.
fn best(attempts: &[Attempt]) -> Option<u32> {
    let time = |attempt: &Attempt| {
        let passed = attempt.verdict.passed();
        passed.then(|| {
            attempt
                .verdict
                .times_us
                .as_ref()
                .map(|times| times.candidate.0)
        })?
    };
    let timed = attempts
        .iter()
        .enumerate()
        .filter_map(|(number, attempt)| Some((number, time(attempt)?)));
    let quickest = timed.min_by(|first, second| first.1.total_cmp(&second.1));
    quickest.map(|(number, _)| number as u32)
}

/// The same conversation about the same task has the same name, wherever it is read.
fn identity(task: &Task, messages: &[Message]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(task.source.as_bytes());
    for message in messages {
        hasher.update(&(message.text().len() as u64).to_le_bytes());
        hasher.update(message.text().as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}
