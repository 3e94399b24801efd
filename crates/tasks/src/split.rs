//! The 80:20 split of `KernelBench`'s level 1 into training and test.

use std::collections::BTreeSet;

use warpsmith_schema::{SplitPart, Task};

/// One of this many tasks is for testing.
const TASKS_PER_TEST_TASK: usize = 5;
const SPLIT_LEVEL: u32 = 1;

/// Which tasks of level 1 are for testing. The same seed gives the same split of the same tasks, in any order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelBenchSplit {
    test: BTreeSet<String>,
}

impl KernelBenchSplit {
    pub fn new(tasks: &[Task], seed: u64) -> Self {
        let mut ids: Vec<&String> = tasks
            .iter()
            .filter(|task| task.level == Some(SPLIT_LEVEL))
            .map(|task| &task.id)
            .collect();
        let shuffled = |id: &str| *blake3::hash(format!("{seed}:{id}").as_bytes()).as_bytes();
        ids.sort_by_key(|id| shuffled(id));
        let count = ids.len() / TASKS_PER_TEST_TASK;
        Self {
            test: ids.into_iter().take(count).cloned().collect(),
        }
    }

    /// `None` for tasks of other levels.
    pub fn part(&self, task: &Task) -> Option<SplitPart> {
        let test = self.test.contains(&task.id);
        (task.level == Some(SPLIT_LEVEL)).then_some(if test {
            SplitPart::Test
        } else {
            SplitPart::Train
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks() -> Vec<Task> {
        let task = |level: u32, number: u32| Task {
            id: format!("level{level}/{number}"),
            name: number.to_string(),
            source: String::new(),
            level: Some(level),
            problem_id: Some(number),
            origin: String::new(),
            graph: None,
        };
        (1..=100)
            .map(|number| task(1, number))
            .chain((1..=7).map(|number| task(2, number)))
            .collect()
    }

    #[test]
    fn a_fifth_of_level_one_is_for_testing_and_the_seed_decides_which() {
        let mut tasks = tasks();
        let split = KernelBenchSplit::new(&tasks, 42);
        let count = |part| {
            let of = |task: &&Task| split.part(task) == part;
            tasks.iter().filter(of).count()
        };
        assert_eq!(count(Some(SplitPart::Test)), 20);
        assert_eq!(count(Some(SplitPart::Train)), 80);
        assert_eq!(count(None), 7);
        assert_ne!(split, KernelBenchSplit::new(&tasks, 43));
        tasks.reverse();
        assert_eq!(split, KernelBenchSplit::new(&tasks, 42));
    }
}
