//! What earlier processes left of a run.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use warpsmith_schema::{
    EpisodeDelta, EpisodeId, EpisodeMode, Event, EventKind, Failure, PolicyVersion, RunHeader,
    RunMetrics, Target, Task, Trajectory, Verdict,
};
use warpsmith_store::{EventLog, StoreError};

use crate::{EVENTS, Tally};

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
    underway: HashMap<EpisodeId, Vec<EpisodeDelta>>,
}

impl History {
    pub fn read(run: &Path) -> Result<Self, StoreError> {
        let mut history = Self::default();
        EventLog::for_each_document(&log(run), |event: Event| history.add(event.event))?;
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
            EventKind::RunStarted { run } => self.head = Some(*run),
            EventKind::MetricsSampled { metrics: gauges } => self.gauges = Some(gauges),
            EventKind::EpisodeStarted { .. }
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

fn log(run: &Path) -> PathBuf {
    run.join(format!("{EVENTS}.jsonl"))
}

/// Every episode of a run that ended, one after the other and each once.
pub fn trajectories(run: &Path, mut hear: impl FnMut(Trajectory)) -> Result<(), StoreError> {
    let mut seen = HashSet::new();
    EventLog::for_each_document(&log(run), |event: Event| {
        if let EventKind::EpisodeEnded { trajectory } = event.event
            && seen.insert(EpisodeId::of(&trajectory))
        {
            hear(*trajectory);
        }
    })
    .map(drop)
}
