//! What the arguments TASK and SOLUTION mean.

use std::path::{Path, PathBuf};

use warpsmith_schema::{MODEL_NEW, Submission, Target, Task};
use warpsmith_tasks::{TaskError, load, load_solution};

use crate::examples::{self, Laid};
use crate::failure::Stop;
use crate::nearest::nearest;

/// A path of the user's, or an example.
#[derive(Debug)]
enum Place {
    Path(String),
    Example(Laid),
}

/// A task and a solution, found but not read yet.
#[derive(Debug)]
pub(crate) struct Source {
    task: Place,
    /// Where it differs from the task's place.
    solution: Option<Place>,
}

impl Source {
    pub(crate) fn example(name: &str) -> Result<Self, Stop> {
        Ok(Self {
            task: Place::Example(Laid::out(name)?),
            solution: None,
        })
    }

    /// A name of an example counts where no such path exists; without SOLUTION the task's own folder is meant.
    pub(crate) fn given(task: &str, solution: Option<&str>) -> Result<Self, Stop> {
        Ok(Self {
            task: Place::of(task)?,
            solution: solution.map(Place::of).transpose()?,
        })
    }

    pub(crate) fn task(&self) -> Result<Task, Stop> {
        match &self.task {
            Place::Path(spec) => load(spec).map_err(|error| missing(spec, error)),
            Place::Example(laid) => {
                let task = load(&laid.task().to_string_lossy())?;
                let origin = format!("example:{}", task.name);
                Ok(Task { origin, ..task })
            }
        }
    }

    /// Freezes the solution.
    pub(crate) fn solution(&self, target: Target) -> Result<Submission, Stop> {
        let path = self.solution_path(target)?;
        Ok(load_solution(&path, target == Target::Cuda)?)
    }

    fn solution_path(&self, target: Target) -> Result<PathBuf, Stop> {
        match (&self.solution, &self.task) {
            (Some(Place::Path(path)), _) => Ok(PathBuf::from(path)),
            (Some(Place::Example(laid)), _) | (None, Place::Example(laid)) => {
                Ok(laid.solution(target))
            }
            (None, Place::Path(task)) => folder(task).ok_or_else(|| {
                Stop::config(
                    "usage",
                    format!("`{task}` has no `{MODEL_NEW}` beside it, and no solution was given"),
                    Some("say `warpsmith judge TASK SOLUTION`".to_owned()),
                )
            }),
        }
    }
}

/// A task that is not there may be an example that was mistyped.
fn missing(spec: &str, error: TaskError) -> Stop {
    let meant = match &error {
        TaskError::Missing { .. } => nearest(spec, examples::names()),
        _ => None,
    };
    let mut stop = Stop::from(error);
    if let Some(meant) = meant {
        let hint = stop.0.hint.unwrap_or_default();
        stop.0.hint = Some(format!("did you mean the example `{meant}`? {hint}"));
    }
    stop
}

/// The task's own folder, if a solution lies in it.
fn folder(task: &str) -> Option<PathBuf> {
    let path = Path::new(task);
    let folder = if path.is_dir() { path } else { path.parent()? };
    let here = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    here.join(MODEL_NEW).exists().then(|| here.to_path_buf())
}

impl Place {
    fn of(text: &str) -> Result<Self, Stop> {
        if !Path::new(text).exists() && examples::names().contains(text) {
            return Ok(Self::Example(Laid::out(text)?));
        }
        Ok(Self::Path(text.to_owned()))
    }
}
