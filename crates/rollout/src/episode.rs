//! One episode as its thread sees it: a policy that is listened to, a court behind the docket, a watch that writes the log.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use warpsmith_agent::{AgentError, Court, Files, Sample, Unreadable, Watch, run_agent, run_single};
use warpsmith_judge::{JudgeDepth, JudgeError};
use warpsmith_model::policy::{Policy, PolicyError, Reply, Request};
use warpsmith_schema::{
    DeltaCursor, Elision, EpisodeDelta, EpisodeEnding, EpisodeId, EventKind, Failure, FailureKind,
    Message, PolicyVersion, Task, ToolCall, Trajectory, Verdict,
};

use crate::Way;
use crate::docket::{Answer, Docket, Question};
use crate::fate::Fate;
use crate::journal::Journal;
use crate::meter::Meter;
use crate::run::Shared;
use warpsmith_store::evidence::folder_name;

/// Runs it to its end, or to where it cannot go on.
pub(crate) fn play(
    shared: &Shared,
    task: &Arc<Task>,
    id: &EpisodeId,
    before: Option<Trajectory>,
) -> Result<(), Failure> {
    let journal = &shared.journal;
    journal.write(EventKind::EpisodeStarted {
        episode: id.clone(),
    })?;
    let replies = before.as_ref().map_or(0, |before| {
        let said = |message: &&Message| matches!(message, Message::Assistant { .. });
        before.messages.iter().filter(said).count()
    });
    let lost = Arc::new(Mutex::new(None));
    let mut policy = Heard {
        policy: shared.policy.for_episode(id, replies),
        meter: shared.meter.clone(),
        lost: lost.clone(),
    };
    let mut court = Bar {
        docket: &shared.docket,
        episode: id,
        task,
    };
    let mut watch = Scribe {
        journal,
        fate: &shared.fate,
        episode: id,
        told: before
            .as_ref()
            .map(DeltaCursor::at_end_of)
            .unwrap_or_default(),
        lost: &lost,
    };
    let sample = Sample {
        number: id.sample,
        before,
    };
    let played = match &shared.way {
        Way::Single(settings) => {
            let samples = vec![sample];
            run_single(&mut policy, &mut court, task, settings, samples, &mut watch)
        }
        Way::Agent(settings) => {
            let name = format!("{}-{:02}", folder_name(&id.task), id.sample);
            let folder = shared.workspaces.join(name);
            let (policy, court) = (&mut policy, &mut court);
            run_agent(policy, court, task, &folder, settings, sample, &mut watch)
        }
    };
    played.map_err(|error| match error {
        AgentError::Judge(error) => error.failure(),
        AgentError::Keep(failure) => failure,
        AgentError::Workspace(error) => Failure {
            kind: FailureKind::Infrastructure,
            code: "io".to_owned(),
            message: format!("the workspace could not be made: {error}"),
            hint: Some("check the permissions and the free space".to_owned()),
        },
    })?;
    let lost = lost.lock().unwrap_or_else(PoisonError::into_inner).take();
    match lost {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

/// Notes how long replies take, and why there was none.
struct Heard {
    policy: Box<dyn Policy>,
    meter: Arc<Meter>,
    /// The policy failed for reasons that are none of its own.
    lost: Arc<Mutex<Option<Failure>>>,
}

impl Policy for Heard {
    fn version(&self) -> &PolicyVersion {
        self.policy.version()
    }

    fn reply(
        &mut self,
        request: &Request<'_>,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<Reply, PolicyError> {
        let begun = Instant::now();
        self.meter.asks();
        let reply = self.policy.reply(request, on_text);
        let usage = reply.as_ref().ok().map(|reply| reply.usage);
        self.meter.heard(begun.elapsed(), usage);
        if let Err(error) = &reply
            && let Some(failure) = failure(error)
        {
            *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
        }
        reply
    }
}

/// `None` where it is part of the episode: a full context, the end of a script, a task that a policy does not cover.
fn failure(error: &PolicyError) -> Option<Failure> {
    let kind = match error {
        PolicyError::ContextFull { .. }
        | PolicyError::ScriptEnded { .. }
        | PolicyError::NotCovered { .. } => return None,
        PolicyError::Refused {
            status: 400..=404, ..
        } => FailureKind::Config,
        _ => FailureKind::Infrastructure,
    };
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| {
        error.source()
    });
    let causes: Vec<String> = causes.map(ToString::to_string).collect();
    Some(Failure {
        kind,
        code: "policy".to_owned(),
        message: causes.join(": "),
        hint: error.hint().map(str::to_owned),
    })
}

/// Where an episode pleads.
struct Bar<'a> {
    docket: &'a Docket,
    episode: &'a EpisodeId,
    task: &'a Arc<Task>,
}

impl Bar<'_> {
    fn ask(&self, question: Question) -> Result<Answer, JudgeError> {
        self.docket
            .ask(self.episode, self.task, question)
            .map_err(JudgeError::Around)
    }
}

impl Court for Bar<'_> {
    fn judge(&mut self, files: &Files) -> Result<Verdict, JudgeError> {
        match self.ask(Question::Judge(files.clone()))? {
            Answer::Verdict(verdict) => Ok(*verdict),
            other => Err(misheard(&other)),
        }
    }

    fn rehearse(
        &mut self,
        files: &Files,
        reach: JudgeDepth,
    ) -> Result<Option<Verdict>, JudgeError> {
        match self.ask(Question::Rehearse(files.clone(), reach))? {
            Answer::Rehearsed(verdict) => Ok(verdict.map(|verdict| *verdict)),
            other => Err(misheard(&other)),
        }
    }

    fn profile(&mut self, files: Option<&Files>) -> Result<String, JudgeError> {
        match self.ask(Question::Profile(files.cloned()))? {
            Answer::Profiled(text) => Ok(text),
            other => Err(misheard(&other)),
        }
    }
}

fn misheard(answer: &Answer) -> JudgeError {
    JudgeError::Infrastructure {
        code: "docket",
        message: format!("a judge answered another question: {answer:?}"),
        hint: None,
    }
}

/// Writes down what an episode comes to.
struct Scribe<'a> {
    journal: &'a Journal,
    fate: &'a Fate,
    episode: &'a EpisodeId,
    told: DeltaCursor,
    lost: &'a Mutex<Option<Failure>>,
}

impl Watch for Scribe<'_> {
    fn reached(&mut self, so_far: &Trajectory) -> Result<(), AgentError> {
        // An episode whose policy could not be asked has no end: it is gone on with another time.
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = so_far.ending != EpisodeEnding::Interrupted && lost.is_none();
        drop(lost);
        let event = if ended {
            EventKind::EpisodeEnded {
                trajectory: Box::new(so_far.clone()),
            }
        } else {
            let now = DeltaCursor::at_end_of(so_far);
            if now == self.told {
                return Ok(());
            }
            let step = EpisodeDelta::since(&self.told, so_far);
            self.told = now;
            EventKind::EpisodeProgressed {
                episode: self.episode.clone(),
                delta: Box::new(step),
            }
        };
        self.journal.write(event).map_err(AgentError::Keep)
    }

    fn interrupted(&self) -> bool {
        !self.fate.goes_on()
    }

    // What the log has of these is in the trajectory and in the verdicts.
    fn asking(&mut self, _: &[u32], _: u32) {}
    fn elided(&mut self, _: u32, _: &Elision) {}
    fn text(&mut self, _: u32, _: &str) {}
    fn unreadable(&mut self, _: u32, _: &Unreadable) {}
    fn called(&mut self, _: u32, _: &ToolCall) {}
    fn answered(&mut self, _: u32, _: &ToolCall, _: &str, _: bool) {}
    fn judging(&mut self, _: u32, _: &Files) {}
    fn judged(&mut self, _: u32, _: &Verdict) {}
}
