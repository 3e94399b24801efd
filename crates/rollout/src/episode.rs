//! One episode, on a thread of its own: a policy whose replies are timed, a judge behind the queue, an observer that writes
//! the log.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use warpsmith_agent::{
    AgentError, EpisodeJudge, EpisodeObserver, EpisodeProgress, Sample, run_agent, run_single,
};
use warpsmith_model::policy::{Policy, PolicyError, PolicyReply, PolicyRequest};
use warpsmith_schema::{
    DeltaCursor, EpisodeDelta, EpisodeEnding, EpisodeId, EventKind, Failure, FailureKind, Message,
    PolicyVersion, Task, Trajectory,
};
use warpsmith_store::evidence::folder_name;

use crate::EpisodeKind;
use crate::context::RunContext;
use crate::control::RunControl;
use crate::meter::Meter;
use crate::plan::WatchEpisodes;
use crate::queued_judge::QueuedJudge;
use crate::recorder::EventRecorder;

/// Runs an episode to its end, or to where it cannot go on.
pub(crate) fn run_episode(
    context: &RunContext,
    task: &Arc<Task>,
    id: &EpisodeId,
    before: Option<Trajectory>,
) -> Result<(), Failure> {
    let recorder = &context.recorder;
    recorder.write(EventKind::EpisodeStarted {
        episode: id.clone(),
    })?;
    let replies = before.as_ref().map_or(0, |before| {
        let is_reply = |message: &&Message| matches!(message, Message::Assistant { .. });
        before.messages.iter().filter(is_reply).count()
    });
    let policy_failure = PolicyFailure::default();
    let mut policy = MeteredPolicy {
        policy: context.policy.for_episode(id, replies),
        meter: context.meter.clone(),
        failure: policy_failure.clone(),
    };
    let mut judge = QueuedJudge::new(context.queue.clone(), id.clone(), task.clone());
    let mut judge = EpisodeJudge {
        judge: &mut judge,
        task,
    };
    let mut observer = EpisodeRecorder {
        recorder,
        control: &context.control,
        watch: context.watch.as_ref(),
        episode: id,
        written: before
            .as_ref()
            .map(DeltaCursor::at_end_of)
            .unwrap_or_default(),
        policy_failure: policy_failure.clone(),
    };
    let sample = Sample {
        number: id.sample,
        before,
        start: context.start.clone(),
    };
    let ran = match &context.kind {
        EpisodeKind::Single(settings) => {
            run_single(&mut policy, &mut judge, settings, sample, &mut observer)
        }
        EpisodeKind::Agent(settings) => {
            let name = format!("{}-{:02}", folder_name(&id.task), id.sample);
            let folder = context.workspaces.join(name);
            let observer = &mut observer;
            run_agent(&mut policy, judge, &folder, settings, sample, observer)
        }
    };
    ran.map_err(|error| match error {
        AgentError::Judge(error) => error.failure(),
        AgentError::Save(failure) => failure,
        AgentError::Workspace(error) => Failure {
            kind: FailureKind::Infrastructure,
            code: "io".to_owned(),
            message: format!("the workspace could not be made: {error}"),
            hint: Some("check the permissions and the free space".to_owned()),
        },
    })?;
    match policy_failure.take() {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

/// Why the policy could not be asked, where that is none of its own doing.
#[derive(Clone, Default)]
struct PolicyFailure(Arc<Mutex<Option<Failure>>>);

impl PolicyFailure {
    fn failure(&self) -> MutexGuard<'_, Option<Failure>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, failure: Failure) {
        *self.failure() = Some(failure);
    }

    fn is_set(&self) -> bool {
        self.failure().is_some()
    }

    fn take(&self) -> Option<Failure> {
        self.failure().take()
    }
}

/// Measures how long replies take, and notes why there was none.
struct MeteredPolicy {
    policy: Box<dyn Policy>,
    meter: Arc<Meter>,
    failure: PolicyFailure,
}

impl Policy for MeteredPolicy {
    fn version(&self) -> &PolicyVersion {
        self.policy.version()
    }

    fn reply(
        &mut self,
        request: &PolicyRequest<'_>,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<PolicyReply, PolicyError> {
        let begun = Instant::now();
        self.meter.asked();
        let reply = self.policy.reply(request, on_text);
        let usage = reply.as_ref().ok().map(|reply| reply.usage);
        self.meter.replied(begun.elapsed(), usage);
        if let Err(error) = &reply
            && let Some(failure) = failure(error)
        {
            self.failure.set(failure);
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
        PolicyError::NotAnAddress { .. }
        | PolicyError::NoKey { .. }
        | PolicyError::Refused {
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
        code: POLICY_FAILED.to_owned(),
        message: causes.join(": "),
        hint: error.hint().map(str::to_owned),
    })
}

/// The code of a policy that could not be asked.
pub(crate) const POLICY_FAILED: &str = "policy";

/// Writes what an episode comes to into the log.
struct EpisodeRecorder<'a> {
    recorder: &'a EventRecorder,
    control: &'a RunControl,
    watch: Option<&'a WatchEpisodes>,
    episode: &'a EpisodeId,
    /// How much of it the log has.
    written: DeltaCursor,
    policy_failure: PolicyFailure,
}

impl EpisodeObserver for EpisodeRecorder<'_> {
    fn progress(&mut self, progress: &EpisodeProgress<'_>) {
        if let Some(watch) = self.watch {
            watch(self.episode, progress);
        }
    }

    fn save(&mut self, so_far: &Trajectory) -> Result<(), AgentError> {
        // An episode whose policy could not be asked has not ended: it is resumed another time.
        let ended = so_far.ending != EpisodeEnding::Interrupted && !self.policy_failure.is_set();
        let event = if ended {
            EventKind::EpisodeEnded {
                trajectory: Box::new(so_far.clone()),
            }
        } else {
            let now = DeltaCursor::at_end_of(so_far);
            if now == self.written {
                return Ok(());
            }
            let step = EpisodeDelta::since(&self.written, so_far);
            self.written = now;
            EventKind::EpisodeProgressed {
                episode: self.episode.clone(),
                delta: Box::new(step),
            }
        };
        self.recorder.write(event).map_err(AgentError::Save)
    }

    fn interrupted(&self) -> bool {
        !self.control.goes_on()
    }
}
