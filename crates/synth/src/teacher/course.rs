//! What a lesson goes through: solutions from simple to fast, one of them perhaps with a mistake.

use warpsmith_compiler::{Files, NotCovered, Solution, Strategy, write};
use warpsmith_schema::{EpisodeMode, OpGraph, Target, Task, ValueSource};

use super::luck::Luck;
use super::mistake::Mistake;

/// A solution as it is first written.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    /// The last of those that come to this solution.
    pub(super) strategy: Strategy,
    pub(super) strategies: Vec<Strategy>,
    pub(super) solution: Solution,
    pub(super) mistake: Option<Mistake>,
}

impl Draft {
    /// With its mistake, if it has one.
    pub(super) fn first(&self) -> Files {
        let files = &self.solution.files;
        self.mistake
            .as_ref()
            .map_or_else(|| files.clone(), |mistake| mistake.made(files))
    }
}

#[derive(Debug, Clone)]
pub(super) struct Course {
    pub(super) drafts: Vec<Draft>,
    pub(super) facts: Facts,
}

/// What can be said about a task.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// In the order in which they are applied, with the shapes of their results.
    pub(super) ops: Vec<(String, Vec<u64>)>,
    /// Bytes that must be read and written at least.
    pub(super) bytes: u64,
}

const MISTAKES_PERCENT: u64 = 30;

impl Course {
    pub(super) fn plan(
        task: &Task,
        target: Target,
        mode: EpisodeMode,
        luck: &mut Luck,
    ) -> Result<Self, NotCovered> {
        let graph = task.graph.as_ref().ok_or(NotCovered::NoGraph)?;
        let mut drafts: Vec<Draft> = Vec::new();
        for strategy in [Strategy::Plain, Strategy::Fused, Strategy::Tuned] {
            let solution = write(task, target, strategy)?;
            // What another strategy does not change is not shown twice.
            if let Some(before) = drafts.last_mut()
                && before.solution.files == solution.files
            {
                before.strategies.push(strategy);
                continue;
            }
            drafts.push(Draft {
                strategy,
                strategies: vec![strategy],
                solution,
                mistake: None,
            });
        }
        // Not every lesson begins with the simplest.
        if mode == EpisodeMode::Agent && drafts.len() > 2 && luck.chance(40) {
            drafts.remove(luck.below(2));
        }
        let first = match mode {
            EpisodeMode::Agent => 0,
            EpisodeMode::Single => drafts.len() - 1,
        };
        if luck.chance(MISTAKES_PERCENT) {
            let files = drafts[first].solution.files.clone();
            drafts[first].mistake = Mistake::choose(&files, luck);
        }
        Ok(Self {
            drafts,
            facts: Facts::of(graph),
        })
    }
}

impl Facts {
    fn of(graph: &OpGraph) -> Self {
        let ops = graph.values.iter().filter_map(|value| match &value.from {
            ValueSource::Applied { op, .. } => Some((op.clone(), value.shape.clone())),
            _ => None,
        });
        let bytes = |place: usize| {
            let shape = graph
                .values
                .get(place)
                .map(|value| value.shape.iter().product::<u64>());
            4 * shape.unwrap_or_default()
        };
        let given = graph
            .values
            .iter()
            .enumerate()
            .filter(|(_, value)| !matches!(value.from, ValueSource::Applied { .. }));
        let read: u64 = given.map(|(place, _)| bytes(place)).sum();
        let written: u64 = graph.returns.iter().map(|place| bytes(*place)).sum();
        Self {
            ops: ops.collect(),
            bytes: read + written,
        }
    }
}
