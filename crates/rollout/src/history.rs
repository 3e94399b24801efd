//! What earlier processes left of a run: the one reader of its event log.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use warpsmith_schema::{
    EpisodeDelta, EpisodeId, EpisodeMode, Event, EventKind, Failure, PolicyVersion, RunHeader,
    RunMetrics, Target, Task, Trajectory, Verdict,
};
use warpsmith_store::{EventLog, StoreError, event_log};

use crate::Tally;

/// By task, hash of the submission, and round.
pub type RemeasuredKey = (String, String, u32);

/// A run's log, read to its end.
#[derive(Debug, Default)]
pub struct History {
    /// As the last process began.
    pub head: Option<RunHeader>,
    /// As they stood last.
    pub gauges: Option<RunMetrics>,
    pub ended: HashSet<EpisodeId>,
    pub tally: Tally,
    /// Tasks that cannot be judged here, each once, in the order they were found.
    pub left_out: Vec<(String, Failure)>,
    pub surveyed: BTreeSet<String>,
    /// By task and hash of the submission.
    pub verdicts: HashMap<(String, String), Verdict>,
    /// Comparisons that were made, by task and mode.
    pub compared: BTreeMap<(String, String), Verdict>,
    /// Submissions that were measured afresh.
    pub remeasured: HashMap<RemeasuredKey, Verdict>,
    underway: HashMap<EpisodeId, Vec<EpisodeDelta>>,
}

impl History {
    pub fn read(run: &Path) -> Result<Self, StoreError> {
        let mut history = Self::default();
        EventLog::for_each_document(&event_log(run)?, |event: Event| history.add(event.event))?;
        Ok(history)
    }

    fn add(&mut self, event: EventKind) {
        match event {
            EventKind::TaskAccepted { task } => {
                self.surveyed.insert(task);
            }
            EventKind::TaskSkipped { task, reason: why } => self.left_out.push((task, why)),
            EventKind::EpisodeProgressed {
                episode,
                delta: step,
            } => {
                self.underway.entry(episode).or_default().push(*step);
            }
            EventKind::Judged {
                episode,
                submission,
                verdict,
                ..
            } => {
                self.verdicts.insert((episode.task, submission), *verdict);
            }
            EventKind::StartJudged {
                task,
                submission,
                verdict,
                ..
            } => {
                self.verdicts.insert((task, submission), *verdict);
            }
            EventKind::EpisodeEnded { trajectory } => {
                let id = EpisodeId::of(&trajectory);
                self.underway.remove(&id);
                if self.ended.insert(id) {
                    self.tally.add(&trajectory);
                }
            }
            EventKind::CompileModeCompared {
                task,
                mode,
                verdict,
            } => {
                self.compared.insert((task, mode), *verdict);
            }
            EventKind::Remeasured {
                task,
                submission,
                round,
                verdict,
            } => {
                self.remeasured.insert((task, submission, round), *verdict);
            }
            EventKind::RunStarted { run } => self.head = Some(*run),
            EventKind::MetricsSampled { metrics: gauges } => self.gauges = Some(gauges),
            EventKind::EpisodeStarted { .. }
            | EventKind::ReferenceProfiled { .. }
            | EventKind::CandidateProfiled { .. }
            | EventKind::CandidateProposed { .. }
            | EventKind::CandidatePlaced { .. }
            | EventKind::FinalistMeasured { .. }
            | EventKind::InfrastructureFailed { .. }
            | EventKind::RunEnded { .. } => {}
        }
    }

    /// What there is of an episode that did not end.
    pub(crate) fn take_underway(
        &mut self,
        episode: &EpisodeId,
        task: &Task,
        (mode, target): (EpisodeMode, Target),
        policy: &PolicyVersion,
    ) -> Option<Trajectory> {
        let steps = self.underway.remove(episode)?;
        let mut so_far = Trajectory::begin(task, target, policy, episode.sample, mode);
        for step in steps {
            step.add_to(&mut so_far);
        }
        Some(so_far)
    }
}

/// Every episode of a run that ended, one after the other and each once.
pub fn trajectories(run: &Path, mut visit: impl FnMut(Trajectory)) -> Result<(), StoreError> {
    let mut seen = HashSet::new();
    EventLog::for_each_document(&event_log(run)?, |event: Event| {
        if let EventKind::EpisodeEnded { trajectory } = event.event
            && seen.insert(EpisodeId::of(&trajectory))
        {
            visit(*trajectory);
        }
    })
    .map(drop)
}

/// Every episode of a task that was begun, by sample: those that ended, and the others as far as they came.
pub(crate) fn episodes_of(run: &Path, task: &Task) -> Result<Vec<Trajectory>, StoreError> {
    let mut history = History::default();
    let mut found = BTreeMap::new();
    EventLog::for_each_document(&event_log(run)?, |event: Event| {
        if let EventKind::EpisodeEnded { trajectory } = &event.event
            && trajectory.task.id == task.id
        {
            found
                .entry(trajectory.sample)
                .or_insert_with(|| (**trajectory).clone());
        }
        history.add(event.event);
    })?;
    if let Some(head) = history.head.take() {
        let mut underway: Vec<EpisodeId> = history.underway.keys().cloned().collect();
        underway.retain(|id| id.task == task.id);
        for id in underway {
            let kind = (head.mode, head.target);
            let so_far = history.take_underway(&id, task, kind, &head.policy);
            found.extend(so_far.map(|so_far| (id.sample, so_far)));
        }
    }
    Ok(found.into_values().collect())
}
