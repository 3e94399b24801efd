//! Tasks to be taught by: composed, and not run.

use warpsmith_decontaminate::Benchmark;
use warpsmith_schema::Task;

use crate::compose::{Composer, Grammar};
use crate::grammar::{Luck, Size};
use crate::mix::{Group, Mix};
use crate::seeds::Seeds;

/// Composed tasks without end, by the usual mix and in all sizes but the one for checks. None is in KernelBench. Whether they
/// are worth judging (long enough, neither constant nor indifferent to an input) nobody looked: how to write them in
/// kernels can be learnt all the same.
pub fn exercises(seeds: &Seeds, seed: u64) -> impl Iterator<Item = Task> {
    let mix = Mix::default().without(Group::Transformers);
    let benchmark = Benchmark::kernelbench();
    let mut composer = Grammar {
        seeds,
        layers: &[],
        seed,
    };
    (0_u64..).filter_map(move |index| {
        let group = mix.group(seed, index)?;
        let candidate = composer.compose(index, group).ok()?;
        if benchmark.twin(&candidate.structure).is_some() {
            return None;
        }
        let size = 1 + Luck::new(seed ^ 0x7369_7a65, index).below(Size::COUNT - 1);
        let size = Size::new(size)?;
        Some(Task {
            id: format!("exercise-{seed}-{}", candidate.name),
            name: candidate.name,
            source: candidate.made.code(size),
            level: None,
            problem_id: None,
            origin: "composed".into(),
            graph: candidate.made.graph(size),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exercises_are_many_in_many_sizes_and_the_same_again() {
        let seeds = Seeds::torch().unwrap();
        let some: Vec<Task> = exercises(&seeds, 3).take(60).collect();
        let again: Vec<Task> = exercises(&seeds, 3).take(60).collect();
        assert_eq!(some, again);
        assert!(some.iter().all(|task| task.graph.is_some()));
        let names: std::collections::BTreeSet<_> = some.iter().map(|task| &task.id).collect();
        assert_eq!(names.len(), 60);
        let other: Vec<Task> = exercises(&seeds, 4).take(60).collect();
        assert!(
            some.iter()
                .all(|task| other.iter().all(|other| other.source != task.source))
        );
    }
}
