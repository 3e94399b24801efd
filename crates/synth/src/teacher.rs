//! A policy that solves composed tasks because it reads their graphs.
//!
//! The compiler writes the kernels. A `TeachingPlan` holds several solutions of a task, from simple to fast. A
//! `TeacherEpisode` goes through them with the same tools as any policy and reacts to what these really answer.

mod bug;
mod correction;
mod episode;
mod extents;
mod plan;
mod prose;

use std::collections::HashMap;
use std::sync::Arc;

use warpsmith_compiler::{NotCovered, SolutionFiles, Strategy};
use warpsmith_model::policy::{Policy, SharedPolicy};
use warpsmith_schema::{EpisodeId, EpisodeMode, PolicyVersion, Target, Task};

use crate::splitmix::SplitMix64;
use episode::TeacherEpisode;
use plan::TeachingPlan;

/// The policy's name on the command line.
pub const NAME: &str = "teacher";

/// The name of the same without injected bugs and without prose for a student: what the compiler writes is judged as it is.
pub const COMPILER: &str = "compiler";

/// The policy for all tasks of a run.
#[derive(Debug, Clone)]
pub struct Teacher {
    version: PolicyVersion,
    injects_bugs: bool,
    target: Target,
    mode: EpisodeMode,
    tasks: HashMap<String, Arc<Task>>,
    /// Why tasks have no graph, by id, where that was found out.
    no_graph: HashMap<String, String>,
    /// Faster solutions than the usual ones, by id, of tasks that were tuned.
    tuned: HashMap<String, SolutionFiles>,
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
            injects_bugs: true,
            target,
            mode,
            tasks: tasks
                .map(|task| (task.id.clone(), Arc::new(task.clone())))
                .collect(),
            no_graph: HashMap::new(),
            tuned: HashMap::new(),
        }
    }

    /// The policy [`COMPILER`]: the same solutions, none with an injected bug.
    #[must_use]
    pub fn without_bugs(mut self) -> Self {
        self.injects_bugs = false;
        COMPILER.clone_into(&mut self.version.name);
        self
    }

    /// Solutions that measuring found: each comes before the usual ones of its task.
    #[must_use]
    pub fn with_tuned(mut self, tuned: HashMap<String, SolutionFiles>) -> Self {
        self.tuned = tuned;
        self
    }

    /// Says of tasks without a graph why they have none.
    #[must_use]
    pub fn with_reasons(mut self, no_graph: HashMap<String, String>) -> Self {
        self.no_graph = no_graph;
        self
    }

    /// The policy for any episode of one task.
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
            // A task without a graph is refused as not covered.
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
        Box::new(TeacherEpisode {
            version: self.version.clone(),
            injects_bugs: self.injects_bugs,
            task: self
                .tasks
                .get(&episode.task)
                .cloned()
                .unwrap_or_else(unknown),
            target: self.target,
            mode: self.mode,
            sample: episode.sample,
            no_graph: self.no_graph.get(&episode.task).cloned(),
            tuned: self.tuned.get(&episode.task).cloned(),
        })
    }
}

/// Single-turn replies with the solutions of the named strategies, from simple to fast, without duplicates and without bugs.
pub fn replies(
    task: &Task,
    target: Target,
    strategies: &[Strategy],
    seed: u64,
) -> Result<Vec<String>, NotCovered> {
    let mut rng = SplitMix64::of_text(&task.source, seed);
    let plan = TeachingPlan::new(task, target, EpisodeMode::Single, &mut rng)?;
    let wanted = |strategy: &Strategy| strategies.contains(strategy);
    let attempts = plan.attempts.iter();
    Ok(attempts
        .filter(|attempt| attempt.strategies.iter().any(wanted))
        .map(|attempt| episode::standalone_reply(&plan.facts, attempt))
        .collect())
}

/// A right reply after one that failed: it names the first place where that one went astray. In the first of the strategies that
/// the task has a solution in; `None` where it has none in these.
pub fn correction(
    task: &Task,
    target: Target,
    strategies: &[Strategy],
    seed: u64,
    failed: &str,
) -> Result<Option<String>, NotCovered> {
    let right = replies(task, target, strategies, seed)?.into_iter().next();
    Ok(right.map(|right| format!("{}{right}", correction::lead(failed, &right))))
}

/// The version that trajectories of the teacher carry.
pub fn version() -> PolicyVersion {
    PolicyVersion {
        name: NAME.to_owned(),
        // The solutions change with the program.
        hash: Some(env!("CARGO_PKG_VERSION").to_owned()),
        step: None,
    }
}
