//! The episodes of a run on disk. Those that ended are lines of `trajectories.jsonl`; one under way is a file of its own,
//! replaced at every step, so that whatever ends this process, the next one goes on from there.

use std::collections::BTreeMap;
use std::path::PathBuf;

use warpsmith_agent::Sample;
use warpsmith_schema::{Attempt, EpisodeEnding, Message, Trajectory};
use warpsmith_store::{EventLog, RunFolder, StoreError};

use crate::failure::Stop;

const ENDED: &str = "trajectories";
const UNDERWAY: &str = "underway";

pub(super) struct Journal {
    log: EventLog,
    underway: PathBuf,
    /// The latest of each sample.
    latest: BTreeMap<u32, Trajectory>,
}

/// A policy that failed may answer the next time.
fn is_over(trajectory: &Trajectory) -> bool {
    !matches!(
        trajectory.ending,
        EpisodeEnding::Interrupted | EpisodeEnding::PolicyFailed { .. }
    )
}

impl Journal {
    pub(super) fn open(run: &RunFolder, samples: u32) -> Result<Self, Stop> {
        let mut journal = Self {
            log: run.log(ENDED)?,
            underway: run.path().join(UNDERWAY),
            latest: BTreeMap::new(),
        };
        fs_err::create_dir_all(&journal.underway)?;
        let ended =
            EventLog::read_documents::<Trajectory>(&run.path().join(format!("{ENDED}.jsonl")))?;
        for trajectory in ended.lines {
            journal.latest.insert(trajectory.sample, trajectory);
        }
        for sample in 1..=samples {
            let path = journal.place(sample);
            let over = journal.latest.get(&sample).is_some_and(is_over);
            if path.exists() && !over {
                let text = fs_err::read(&path)?;
                let trajectory = serde_json::from_slice(&text)
                    .map_err(|source| StoreError::Json { path, source })?;
                journal.latest.insert(sample, trajectory);
            }
        }
        Ok(journal)
    }

    fn place(&self, sample: u32) -> PathBuf {
        self.underway.join(format!("{sample:02}.json"))
    }

    /// Those of so many that have not come to an end, with what there is of them.
    pub(super) fn missing(&self, samples: u32) -> Vec<Sample> {
        let missing = |number: &u32| !self.latest.get(number).is_some_and(is_over);
        (1..=samples)
            .filter(missing)
            .map(|number| Sample {
                number,
                before: self.latest.get(&number).cloned(),
            })
            .collect()
    }

    pub(super) fn keep(&mut self, so_far: &Trajectory) -> Result<(), Stop> {
        let place = self.place(so_far.sample);
        if so_far.ending == EpisodeEnding::Interrupted {
            // In one step, so that there is always a whole one.
            let temporary = place.with_extension("new");
            fs_err::write(&temporary, serde_json::to_vec(so_far)?)?;
            fs_err::rename(&temporary, &place)?;
        } else {
            let before = self.latest.get(&so_far.sample);
            let same = |before: &Trajectory| {
                before.ending == so_far.ending && before.messages == so_far.messages
            };
            if !before.is_some_and(same) {
                self.log.append(so_far)?;
            }
            if place.exists() {
                fs_err::remove_file(&place)?;
            }
        }
        self.latest.insert(so_far.sample, so_far.clone());
        Ok(())
    }

    /// The latest of each sample that was begun.
    pub(super) fn trajectories(&self) -> impl Iterator<Item = &Trajectory> {
        self.latest.values()
    }

    pub(super) fn attempts(&self) -> impl Iterator<Item = &Attempt> {
        self.trajectories().flat_map(|one| &one.attempts)
    }

    /// How often a policy has replied, in all.
    pub(super) fn replies(&self) -> usize {
        let messages = self.trajectories().flat_map(|one| &one.messages);
        messages
            .filter(|message| matches!(message, Message::Assistant { .. }))
            .count()
    }

    pub(super) fn policy_failed(&self, sample: u32) -> bool {
        let ending = self.latest.get(&sample).map(|one| &one.ending);
        matches!(ending, Some(EpisodeEnding::PolicyFailed { .. }))
    }
}
