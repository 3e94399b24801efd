//! Corrections of replies that failed in earlier runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use warpsmith_agent::{failed_reply, repaired_trajectory};
use warpsmith_compiler::Strategy;
use warpsmith_decontaminate::FingerprintIndex;
use warpsmith_schema::{EpisodeId, Target, Task, Trajectory};
use warpsmith_synth::{has_relatives, teacher};
use warpsmith_train::data::read_trajectories;

use crate::failure::Stop;

/// The failed episodes of these runs for this target, each reply once; none of a task that is like one of `except`.
pub(super) fn failed_episodes(
    runs: &[PathBuf],
    except: &[Task],
    target: Target,
) -> Result<Vec<Trajectory>, Stop> {
    let excluded = FingerprintIndex::of(except)?;
    let mut seen = BTreeSet::new();
    let mut failed = Vec::new();
    for run in runs {
        for episode in read_trajectories(run)? {
            let reply = failed_reply(&episode).filter(|_| episode.target == target);
            if reply.is_some_and(|reply| seen.insert((episode.task.id.clone(), reply.to_owned())))
                && !has_relatives(&episode.task, &excluded)
            {
                failed.push(episode);
            }
        }
    }
    Ok(failed)
}

/// Corrections, and why the teacher has none for some tasks.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    pub(super) trajectories: Vec<Trajectory>,
    pub(super) not_covered: BTreeMap<String, u32>,
}

/// `tasks` are those of the episodes, in their order, with graphs.
pub(super) fn repairs(
    failed: &[Trajectory],
    tasks: &[Task],
    strategies: &[Strategy],
    seed: u64,
) -> Repairs {
    let (mut found, policy) = (Repairs::default(), teacher::version());
    for (episode, task) in failed.iter().zip(tasks) {
        let reply = failed_reply(episode).unwrap_or_default();
        match teacher::correction(task, episode.target, strategies, seed, reply) {
            Ok(Some(right)) => found
                .trajectories
                .extend(repaired_trajectory(episode, &policy, right)),
            Ok(None) => {}
            Err(why) => *found.not_covered.entry(why.to_string()).or_default() += 1,
        }
    }
    number_samples(&mut found.trajectories);
    found
}

/// Several runs have a first sample of the same task; in one file each has a number of its own.
fn number_samples(trajectories: &mut [Trajectory]) {
    let mut taken = BTreeSet::new();
    for one in trajectories {
        while !taken.insert(EpisodeId::of(one)) {
            one.sample += 1;
        }
    }
}
