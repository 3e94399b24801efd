//! Tasks to be taught by: composed, and not run.

use warpsmith_decontaminate::FingerprintIndex;
use warpsmith_schema::Task;
use warpsmith_tasks::TaskError;

use crate::compose::{GrammarComposer, TaskComposer};
use crate::grammar::TaskSize;
use crate::mix::{TaskGroup, TaskMix};
use crate::seeds::SeedCatalogue;
use crate::splitmix::SplitMix64;

/// Composed tasks without end, by the usual mix and in all sizes but the one for checks. None is in KernelBench. Whether they
/// are worth judging (long enough, neither constant nor indifferent to an input) nobody looked: how to write them in
/// kernels can be learnt all the same.
pub fn exercises(
    seeds: &SeedCatalogue,
    seed: u64,
) -> Result<impl Iterator<Item = Task>, TaskError> {
    let mix = TaskMix::default().without(TaskGroup::Transformers);
    let benchmark = FingerprintIndex::kernelbench()?;
    let mut composer = GrammarComposer {
        seeds,
        layers: &[],
        seed,
    };
    Ok((0_u64..).filter_map(move |index| {
        let group = mix.group(seed, index)?;
        let candidate = composer.compose(index, group).ok()?;
        if benchmark.near_duplicate(&candidate.structure).is_some() {
            return None;
        }
        let size = 1 + SplitMix64::of_index(seed ^ 0x7369_7a65, index).below(TaskSize::COUNT - 1);
        let size = TaskSize::new(size)?;
        Some(Task {
            id: format!("exercise-{seed}-{}", candidate.name),
            name: candidate.name,
            source: candidate.source.code(size),
            level: None,
            problem_id: None,
            origin: "composed".into(),
            graph: candidate.source.graph(size),
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exercises_are_many_in_many_sizes_and_the_same_again() {
        let seeds = SeedCatalogue::torch().unwrap();
        let some: Vec<Task> = exercises(&seeds, 3).unwrap().take(60).collect();
        let again: Vec<Task> = exercises(&seeds, 3).unwrap().take(60).collect();
        assert_eq!(some, again);
        assert!(some.iter().all(|task| task.graph.is_some()));
        let names: std::collections::BTreeSet<_> = some.iter().map(|task| &task.id).collect();
        assert_eq!(names.len(), 60);
        let other: Vec<Task> = exercises(&seeds, 4).unwrap().take(60).collect();
        assert!(
            some.iter()
                .all(|task| other.iter().all(|other| other.source != task.source))
        );
    }
}
