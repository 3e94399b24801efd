//! The best submissions of a run beside further baselines.

use std::sync::Arc;

use warpsmith_judge::Judge;
use warpsmith_schema::{EventKind, Failure, FailureKind, Task};
use warpsmith_store::RunFolder;
use warpsmith_tasks::submission_from_text;

use crate::recorder::EventRecorder;
use crate::{History, RolloutError, StopRequest};

/// Judges the best submission of every task once more, with a judge that compares with this mode of `torch.compile`. What
/// was compared before is not compared again. Gives the first failure of ours, after which it goes on with the other tasks.
pub fn compare_baselines(
    folder: &RunFolder,
    tasks: &[Arc<Task>],
    mode: &str,
    judge: &mut dyn Judge,
    stop: fn() -> StopRequest,
) -> Result<Option<Failure>, RolloutError> {
    let history = History::read(folder.path())?;
    let recorder = EventRecorder::new(folder.events()?, None);
    let mut failed = None;
    for task in tasks {
        let tally = history.tally.tasks.get(&task.id);
        let best = tally.and_then(|tally| tally.best.as_ref());
        let done = history
            .compared
            .contains_key(&(task.id.clone(), mode.to_owned()));
        let Some(best) = best.filter(|_| !done) else {
            continue;
        };
        if stop() != StopRequest::Continue {
            break;
        }
        let written = match judge.judge(task, &submission_from_text(&best.files)) {
            Ok(verdict) => recorder.write(EventKind::CompileModeCompared {
                task: task.id.clone(),
                mode: mode.to_owned(),
                verdict: Box::new(verdict),
            }),
            Err(error) => {
                let failure = error.failure();
                if failure.kind != FailureKind::Task {
                    failed.get_or_insert(failure.clone());
                }
                recorder.write(EventKind::InfrastructureFailed {
                    episode: None,
                    failure,
                    retry_in_seconds: None,
                })
            }
        };
        if let Err(failure) = written {
            return Ok(Some(failure));
        }
    }
    Ok(failed)
}
