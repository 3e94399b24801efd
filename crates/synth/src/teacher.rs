//! A policy that solves composed tasks because it reads their graphs.
//!
//! The compiler writes the kernels. A `course` of several solutions, from simple to fast, is what a `lesson` goes through, by the
//! same tools as any policy and with whatever they really answer.

mod course;
mod lesson;
mod luck;
mod mistake;
mod prose;

use std::collections::HashMap;
use std::sync::Arc;

use warpsmith_compiler::{NotCovered, Strategy};
use warpsmith_model::policy::{Policy, SharedPolicy};
use warpsmith_schema::{EpisodeId, EpisodeMode, PolicyVersion, Target, Task};

use course::Course;
use lesson::Lesson;
use luck::Luck;

/// What it is called on the command line.
pub const NAME: &str = "teacher";

/// Teaches all tasks of a run.
#[derive(Debug, Clone)]
pub struct Teacher {
    version: PolicyVersion,
    target: Target,
    mode: EpisodeMode,
    tasks: HashMap<String, Arc<Task>>,
}

impl Teacher {
    pub fn new<'a>(
        tasks: impl IntoIterator<Item = &'a Task>,
        target: Target,
        mode: EpisodeMode,
    ) -> Self {
        let tasks = tasks.into_iter();
        Self {
            version: version(),
            target,
            mode,
            tasks: tasks
                .map(|task| (task.id.clone(), Arc::new(task.clone())))
                .collect(),
        }
    }

    /// For episodes of one task, whichever they are.
    pub fn of_task(task: &Task, target: Target, mode: EpisodeMode) -> Box<dyn Policy> {
        let teacher = Self::new([task], target, mode);
        let episode = EpisodeId {
            task: task.id.clone(),
            sample: 1,
        };
        teacher.for_episode(&episode, 0)
    }
}

impl SharedPolicy for Teacher {
    fn version(&self) -> &PolicyVersion {
        &self.version
    }

    fn for_episode(&self, episode: &EpisodeId, _: usize) -> Box<dyn Policy> {
        let unknown = || {
            // Not of this run: it has no graph either.
            Arc::new(Task {
                id: episode.task.clone(),
                name: episode.task.clone(),
                source: String::new(),
                level: None,
                problem_id: None,
                origin: String::new(),
                graph: None,
            })
        };
        Box::new(Lesson {
            version: self.version.clone(),
            task: self
                .tasks
                .get(&episode.task)
                .cloned()
                .unwrap_or_else(unknown),
            target: self.target,
            mode: self.mode,
            sample: episode.sample,
        })
    }
}

/// What a single turn could reply with, from simple to fast, by the named strategies: none twice, none with a mistake.
pub fn replies(
    task: &Task,
    target: Target,
    strategies: &[Strategy],
    seed: u64,
) -> Result<Vec<String>, NotCovered> {
    let mut luck = Luck::new(&task.source, seed);
    let course = Course::plan(task, target, EpisodeMode::Single, &mut luck)?;
    let wanted = |strategy: &Strategy| strategies.contains(strategy);
    let drafts = course.drafts.iter();
    Ok(drafts
        .filter(|draft| draft.strategies.iter().any(wanted))
        .map(|draft| lesson::only(&course.facts, draft, &mut luck))
        .collect())
}

/// Who says so.
pub fn version() -> PolicyVersion {
    PolicyVersion {
        name: NAME.to_owned(),
        // What it writes changes with the program.
        hash: Some(env!("CARGO_PKG_VERSION").to_owned()),
        step: None,
    }
}
