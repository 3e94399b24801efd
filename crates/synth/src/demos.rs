//! The teacher's demonstrations for many tasks at once, without a judge.

use std::collections::BTreeMap;

use warpsmith_compiler::Strategy;
use warpsmith_decontaminate::{FAMILY_THRESHOLD, FingerprintIndex, Structure};
use warpsmith_schema::{Target, Task};
use warpsmith_tasks::TaskError;

use crate::teacher;

/// What is taught, and how.
#[derive(Debug, Clone, Copy)]
pub struct DemoPlan<'a> {
    pub tasks: &'a [Task],
    /// Neither these nor relatives of theirs are taught.
    pub except: &'a [Task],
    pub target: Target,
    /// Which solutions of a task become demonstrations.
    pub strategies: &'a [Strategy],
    /// Of the words around the code.
    pub seed: u64,
}

/// A reply that solves a task, the first of it numbered 1.
#[derive(Debug, Clone, Copy)]
pub struct Demo<'a> {
    pub task: &'a Task,
    pub sample: u32,
}

/// What came of a plan.
#[derive(Debug, Clone)]
pub struct Demos<T> {
    pub demos: Vec<T>,
    /// Why the teacher cannot solve a task, and how many it cannot for that reason.
    pub not_covered: BTreeMap<String, u32>,
    /// Tasks that were among the excluded ones, or relatives of theirs.
    pub excluded: u32,
}

/// Each reply in the form that `make` gives it.
pub fn demos<T>(
    plan: &DemoPlan<'_>,
    make: impl Fn(Demo<'_>, String) -> T,
) -> Result<Demos<T>, TaskError> {
    let excluded = FingerprintIndex::of(plan.except)?;
    let mut found = Demos {
        demos: Vec::new(),
        not_covered: BTreeMap::new(),
        excluded: 0,
    };
    for task in plan.tasks {
        if has_relatives(task, &excluded) {
            found.excluded += 1;
            continue;
        }
        match teacher::replies(task, plan.target, plan.strategies, plan.seed) {
            Ok(replies) => {
                let each = replies.into_iter().zip(1..);
                found
                    .demos
                    .extend(each.map(|(reply, sample)| make(Demo { task, sample }, reply)));
            }
            Err(why) => *found.not_covered.entry(why.to_string()).or_default() += 1,
        }
    }
    Ok(found)
}

/// Whether one of those is this task, or too much like it.
pub fn has_relatives(task: &Task, among: &FingerprintIndex) -> bool {
    let near = Structure::of(&task.source).map(|structure| among.nearest(&structure));
    matches!(near, Ok(Some(near)) if near.similarity > FAMILY_THRESHOLD)
}
