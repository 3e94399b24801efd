//! A task's best submission beside other baselines.

use std::sync::Arc;
use std::sync::mpsc::channel;

use warpsmith_schema::{Event, EventKind, Failure, FailureKind, Task};
use warpsmith_store::RunFolder;

use crate::journal::Journal;
use crate::{EVENTS, History, Judging, RolloutError, StopRequest};

/// Judges the best submission of every task once more with a judge that compares with this mode of `torch.compile`. What
/// was compared before is not again. Gives the first failure of ours, after which it goes on with the other tasks.
pub fn compare(
    folder: &RunFolder,
    tasks: &[Arc<Task>],
    mode: &str,
    judge: &mut dyn Judging,
    wish: fn() -> StopRequest,
    on_event: &mut dyn FnMut(&Event),
) -> Result<Option<Failure>, RolloutError> {
    let history = History::read(folder.path())?;
    let (heard, events) = channel();
    let journal = Journal::new(folder.log(EVENTS)?, heard);
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
        if wish() != StopRequest::GoOn {
            break;
        }
        let written = match judge.judge(task, &best.files) {
            Ok(verdict) => journal.write(EventKind::CompileModeCompared {
                task: task.id.clone(),
                mode: mode.to_owned(),
                verdict: Box::new(verdict),
            }),
            Err(error) => {
                let failure = error.failure();
                if failure.kind != FailureKind::Task {
                    failed.get_or_insert(failure.clone());
                }
                journal.write(EventKind::InfrastructureFailed {
                    episode: None,
                    failure,
                    retry_in_seconds: None,
                })
            }
        };
        if let Err(failure) = written {
            return Ok(Some(failure));
        }
        while let Ok(event) = events.try_recv() {
            on_event(&event);
        }
    }
    Ok(failed)
}
