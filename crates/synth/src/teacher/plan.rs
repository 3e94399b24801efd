//! What a demonstration shows: solutions from simple to fast, one of them perhaps with an injected bug.

use std::collections::BTreeMap;

use warpsmith_compiler::{NotCovered, Solution, SolutionFiles, Strategy, compile};
use warpsmith_schema::{EpisodeMode, GraphValue, OpGraph, Target, Task, ValueSource};

use super::bug::InjectedBug;
use super::extents;
use crate::splitmix::SplitMix64;

/// A solution, and the bug it has when it is first written.
#[derive(Debug, Clone)]
pub(super) struct SolutionAttempt {
    /// The simplest strategy that gives this solution.
    pub(super) strategy: Strategy,
    /// All strategies that give it.
    pub(super) strategies: Vec<Strategy>,
    pub(super) solution: Solution,
    pub(super) bug: Option<InjectedBug>,
}

impl SolutionAttempt {
    /// The files with the bug, if there is one.
    pub(super) fn first_files(&self) -> SolutionFiles {
        let files = &self.solution.files;
        match &self.bug {
            Some(bug) => bug.apply(files),
            None => files.clone(),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct TeachingPlan {
    /// From simple to fast; at least one.
    pub(super) attempts: Vec<SolutionAttempt>,
    pub(super) facts: TaskFacts,
}

/// An operator, the shape of its result, and the sums that lead to it where it has a window.
#[derive(Debug, Clone)]
pub(super) struct AppliedOperator {
    /// With a number where it is not the first of its kind.
    pub(super) name: String,
    /// What it works on, where that is not just the result before.
    pub(super) operands: Vec<String>,
    pub(super) settings: Option<String>,
    pub(super) shape: Vec<u64>,
    pub(super) extents: Option<String>,
}

/// What the teacher says about a task.
#[derive(Debug, Clone)]
pub(super) struct TaskFacts {
    /// Parameters and buffers by their names in the state dict, with their shapes; inputs are named by the solution.
    pub(super) states: Vec<(String, Vec<u64>)>,
    /// Shapes of the inputs, in order.
    pub(super) inputs: Vec<Vec<u64>>,
    /// Constants that the source writes as products, multiplied.
    pub(super) constants: Vec<String>,
    /// Operators in the order of application.
    pub(super) ops: Vec<AppliedOperator>,
    /// Bytes that any solution reads and writes.
    pub(super) bytes: u64,
}

/// How often the first solution of an episode has a bug.
const BUG_PERCENT: usize = 30;
/// How often one of the simpler solutions is left out of an agent's episode.
const SKIP_PERCENT: usize = 40;

impl TeachingPlan {
    pub(super) fn new(
        task: &Task,
        target: Target,
        mode: EpisodeMode,
        rng: &mut SplitMix64,
    ) -> Result<Self, NotCovered> {
        let graph = task.graph.as_ref().ok_or(NotCovered::NoGraph)?;
        let mut attempts: Vec<SolutionAttempt> = Vec::new();
        for strategy in [Strategy::Plain, Strategy::Fused, Strategy::Tuned] {
            let solution = compile(task, target, strategy)?;
            // A solution that another strategy gives too is shown once.
            if let Some(before) = attempts.last_mut()
                && before.solution.files == solution.files
            {
                before.strategies.push(strategy);
                continue;
            }
            attempts.push(SolutionAttempt {
                strategy,
                strategies: vec![strategy],
                solution,
                bug: None,
            });
        }
        // Not every episode begins with the simplest solution.
        if mode == EpisodeMode::Agent && attempts.len() > 2 && rng.chance(SKIP_PERCENT) {
            attempts.remove(rng.below(2));
        }
        let first = match mode {
            EpisodeMode::Agent => 0,
            EpisodeMode::Single => attempts.len() - 1,
        };
        if rng.chance(BUG_PERCENT) {
            let files = attempts[first].solution.files.clone();
            attempts[first].bug = InjectedBug::choose(&files, rng);
        }
        Ok(Self {
            attempts,
            facts: TaskFacts::of(graph, &task.source),
        })
    }
}

impl TaskFacts {
    fn of(graph: &OpGraph, source: &str) -> Self {
        let bytes = |value: &GraphValue| 4 * value.shape.iter().product::<u64>();
        let is_given = |value: &&GraphValue| !matches!(value.from, ValueSource::Applied { .. });
        let read: u64 = graph.values.iter().filter(is_given).map(bytes).sum();
        let returned = graph.returns.iter();
        let returned = returned.filter_map(|index| graph.values.get(*index));
        let written: u64 = returned.map(bytes).sum();
        let states = graph.values.iter().filter_map(|value| match &value.from {
            // A counter of batches is state too, and nobody's business.
            ValueSource::State { name } if !name.ends_with("num_batches_tracked") => {
                Some((name.clone(), value.shape.clone()))
            }
            _ => None,
        });
        let mut inputs: Vec<(usize, Vec<u64>)> = graph
            .values
            .iter()
            .filter_map(|value| match &value.from {
                ValueSource::Input { position } => Some((*position, value.shape.clone())),
                _ => None,
            })
            .collect();
        inputs.sort();
        Self {
            states: states.collect(),
            inputs: inputs.into_iter().map(|(_, shape)| shape).collect(),
            constants: source.lines().filter_map(extents::multiplied).collect(),
            ops: applied_operators(graph),
            bytes: read + written,
        }
    }
}

/// Operators in the order of application.
fn applied_operators(graph: &OpGraph) -> Vec<AppliedOperator> {
    let mut names: Vec<Option<String>> = vec![None; graph.values.len()];
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    let mut before: Option<usize> = None;
    let mut found = Vec::new();
    for (place, value) in graph.values.iter().enumerate() {
        let ValueSource::Applied {
            op,
            inputs,
            arguments,
            ..
        } = &value.from
        else {
            continue;
        };
        let count = counts.entry(op).or_default();
        *count += 1;
        let name = match *count {
            1 => op.clone(),
            number => format!("{op}{number}"),
        };
        names[place] = Some(name.clone());
        let shape_of = |place: usize| {
            let input = inputs.get(place).copied().flatten()?;
            graph.values.get(input).map(|value| value.shape.as_slice())
        };
        let extents = shape_of(0)
            .and_then(|input| extents::worked_out(op, input, shape_of(1), arguments, &value.shape));
        let given: Vec<usize> = inputs.iter().copied().flatten().collect();
        let computed: Vec<usize> = given
            .iter()
            .copied()
            .filter(|one| names[*one].is_some())
            .collect();
        let goes_on = before.is_none_or(|before| computed == [before] && given[0] == before);
        let operands = if goes_on {
            Vec::new()
        } else {
            let named = given.iter().filter_map(|one| {
                let value = graph.values.get(*one)?;
                match (&value.from, &names[*one]) {
                    (_, Some(name)) => Some(format!("`{name}`")),
                    (ValueSource::Input { position }, _) => Some(format!("input {}", position + 1)),
                    (ValueSource::State { name }, _) if given.len() == 2 => {
                        Some(format!("`{name}`"))
                    }
                    _ => None,
                }
            });
            named.collect()
        };
        before = Some(place);
        found.push(AppliedOperator {
            name,
            operands,
            settings: extents::settings(op, arguments),
            shape: value.shape.clone(),
            extents,
        });
    }
    found
}
