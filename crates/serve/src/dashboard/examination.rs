//! Where the time of one attempt goes. It is asked for on the page of its episode, measured once by this machine, and kept in
//! the run's folder.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde::{Deserialize, Serialize};
use warpsmith_judge::profile::ProfileReport;
use warpsmith_schema::{Attempt, Failure, OpGraph, Submission, Target, Task, Trajectory};
use warpsmith_tasks::submission_from_text;

/// What was found out about an attempt.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AttemptExamination {
    pub profile: ProfileReport,
    /// Of the module, where it can be captured.
    pub graph: Option<OpGraph>,
    /// Where the compiler wrote the solution.
    pub kernels: Vec<ExaminedKernel>,
    pub assembly: Vec<Assembly>,
}

/// A kernel and what it replaces.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExaminedKernel {
    pub name: String,
    pub what: String,
    /// That it reads and writes, by the compiler's account.
    pub bytes: Option<u64>,
    /// Operators of the graph and their lines in the module.
    pub operators: Vec<(String, Option<u32>)>,
}

/// Machine code as text, or why there is none.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Assembly {
    pub kind: String,
    pub text: Option<String>,
    pub why: Option<String>,
}

/// Examines a submission on this machine, which may take minutes.
pub type Examine =
    Arc<dyn Fn(&Task, &Submission, Target) -> Result<AttemptExamination, Failure> + Send + Sync>;

/// How an examination stands.
#[derive(Debug, Clone)]
pub(super) enum Standing {
    NotAsked,
    UnderWay,
    Failed(Failure),
    Done(Box<AttemptExamination>),
}

/// Those that were asked for since this process began, by the file that keeps each.
pub(super) struct Examiner {
    examine: Examine,
    asked: Arc<Mutex<HashMap<PathBuf, Standing>>>,
    /// Two at a time would disturb each other.
    alone: Arc<Mutex<()>>,
}

impl Examiner {
    pub(super) fn new(examine: Examine) -> Self {
        Self {
            examine,
            asked: Arc::default(),
            alone: Arc::default(),
        }
    }

    pub(super) fn standing(&self, run: &Path, attempt: &Attempt) -> Standing {
        let place = place(run, attempt);
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        match asked.get(&place) {
            Some(standing @ (Standing::UnderWay | Standing::Failed(_))) => standing.clone(),
            _ => read(&place).map_or(Standing::NotAsked, |found| Standing::Done(Box::new(found))),
        }
    }

    /// Begins with it, unless it is under way or known.
    pub(super) fn begin(&self, run: &Path, trajectory: &Trajectory, attempt: &Attempt) {
        if matches!(
            self.standing(run, attempt),
            Standing::UnderWay | Standing::Done(_)
        ) {
            return;
        }
        let place = place(run, attempt);
        let tell = {
            let (asked, place) = (self.asked.clone(), place.clone());
            move |standing| {
                let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
                asked.insert(place.clone(), standing);
            }
        };
        tell(Standing::UnderWay);
        let (task, target) = (trajectory.task.clone(), trajectory.target);
        let submission = submission_from_text(&attempt.files);
        let (examine, alone) = (self.examine.clone(), self.alone.clone());
        let work = {
            let tell = tell.clone();
            move || {
                let _alone = alone.lock().unwrap_or_else(PoisonError::into_inner);
                let found = catch_unwind(AssertUnwindSafe(|| examine(&task, &submission, target)));
                let kept = found
                    .unwrap_or_else(|_| Err(Failure::panicked()))
                    .and_then(|found| keep(&place, &found));
                tell(match kept {
                    Ok(()) => Standing::NotAsked,
                    Err(failure) => Standing::Failed(failure),
                });
            }
        };
        if thread::Builder::new()
            .name("examine".to_owned())
            .spawn(work)
            .is_err()
        {
            tell(Standing::Failed(Failure::panicked()));
        }
    }
}

fn place(run: &Path, attempt: &Attempt) -> PathBuf {
    let hash = submission_from_text(&attempt.files).content_hash();
    run.join("examined").join(format!("{hash}.json"))
}

fn read(place: &Path) -> Option<AttemptExamination> {
    serde_json::from_slice(&fs_err::read(place).ok()?).ok()
}

/// Whole or not at all.
fn keep(place: &Path, found: &AttemptExamination) -> Result<(), Failure> {
    let write = || -> std::io::Result<()> {
        fs_err::create_dir_all(place.parent().unwrap_or(place))?;
        let begun = place.with_extension("new");
        fs_err::write(&begun, serde_json::to_vec(found)?)?;
        fs_err::rename(&begun, place)
    };
    write().map_err(|error| Failure {
        kind: warpsmith_schema::FailureKind::Infrastructure,
        code: "io".to_owned(),
        message: error.to_string(),
        hint: None,
    })
}
