//! What `optimize` adds to a rollout of one task: a solution to start from, the best submission, measured afresh, and a folder
//! with the result.

mod finals;
mod import;
mod package;
mod result;
mod start;

use std::path::{Path, PathBuf};

use warpsmith_judge::Judge;
use warpsmith_schema::{EpisodeEnding, Failure, Submission, Task, Trajectory, Verdict};
use warpsmith_store::RunFolder;

use crate::RolloutError;
use crate::episode::POLICY_FAILED;
use crate::history::{History, episodes_of};
use crate::recorder::EventRecorder;

use finals::Finals;
pub use finals::{Author, FinalRound, Winner};
pub use import::import;
pub use package::{FOLDER as PACKAGE_FOLDER, PackageOptions, name as package_name};
pub use start::{
    NoSolution, Start, StartContext, StartProgress, StartRequest, StartSolution, StartTuning,
    TunedStart,
};

/// What came of the episodes of one task.
#[derive(Debug)]
pub struct OptimizeOutcome {
    /// Every episode that was begun, those without an end as far as they came.
    pub trajectories: Vec<Trajectory>,
    pub winner: Option<Winner>,
    /// Where a correct module lies: the winner, or the original.
    pub result: PathBuf,
}

impl OptimizeOutcome {
    /// Of the winner.
    pub fn verdict(&self) -> Option<&Verdict> {
        self.winner.as_ref().map(|winner| &winner.verdict)
    }

    /// Whether the winner is faster than the original. One that is right but no faster is not a result.
    pub fn improved(&self) -> bool {
        self.winner.as_ref().is_some_and(Winner::improves)
    }
}

/// Whether a rollout that failed like this has a result nevertheless. A policy that cannot be asked any more ends its episodes
/// where they stand; any other failure of ours leaves nothing to conclude.
pub fn ends_episodes(failure: &Failure) -> bool {
    failure.code == POLICY_FAILED
}

/// Who watches, and what the result is to be.
pub struct Conclusion<'a> {
    /// Why episodes have no end, where that [ends them](ends_episodes).
    pub failure: Option<&'a Failure>,
    pub package: &'a PackageOptions,
    pub on_round: &'a mut dyn FnMut(FinalRound),
}

/// Chooses the best submission of a run, be it of an episode or what these started from, measures it afresh, and lays out the result in `result/`.
pub fn conclude(
    folder: &RunFolder,
    task: &Task,
    start: Option<&StartSolution>,
    judge: &mut dyn Judge,
    how: Conclusion<'_>,
) -> Result<OptimizeOutcome, RolloutError> {
    let Conclusion {
        failure,
        package,
        on_round,
    } = how;
    let mut trajectories = episodes_of(folder.path(), task)?;
    for unfinished in &mut trajectories {
        if let (EpisodeEnding::Interrupted, Some(failure)) = (&unfinished.ending, failure) {
            unfinished.ending = EpisodeEnding::PolicyFailed {
                message: failure.message.clone(),
            };
        }
    }
    let mut finals = Finals {
        task,
        judge,
        recorder: EventRecorder::new(folder.events()?, None),
        measured: History::read(folder.path())?.remeasured,
        on_round,
    };
    let winner = finals.choose(start, &trajectories)?;
    let result = folder.path().join("result");
    let faster = winner.as_ref().filter(|winner| winner.improves());
    let faster = faster.map(|winner| &winner.submission);
    write_result(&result, task, faster, package)?;
    Ok(OptimizeOutcome {
        trajectories,
        winner,
        result,
    })
}

/// Lays out a result: a submission as a module and as a package, or the original.
pub fn write_result(
    folder: &Path,
    task: &Task,
    faster: Option<&Submission>,
    package: &PackageOptions,
) -> Result<(), RolloutError> {
    result::lay_out(folder, &result::files(task, faster, package)).map_err(|source| {
        RolloutError::Result {
            path: folder.to_path_buf(),
            source,
        }
    })
}
