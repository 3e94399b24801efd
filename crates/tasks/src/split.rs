//! The 80 : 20 split of `KernelBench`'s level 1.

use std::collections::BTreeSet;

use warpsmith_schema::SplitPart;

use crate::LoadedTask;

/// Of five tasks of level 1 one is for testing.
const TEST_SHARE: usize = 5;
const LEVEL: u32 = 1;

/// Which tasks of level 1 are for testing. The same seed gives the same split of the same tasks, in whatever order they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    test: BTreeSet<String>,
}

impl Split {
    pub fn new(tasks: &[LoadedTask], seed: u64) -> Self {
        let mut ids: Vec<&String> = tasks
            .iter()
            .filter(|task| task.level == Some(LEVEL))
            .map(|task| &task.id)
            .collect();
        let luck = |id: &str| *blake3::hash(format!("{seed}:{id}").as_bytes()).as_bytes();
        ids.sort_by_key(|id| luck(id));
        let count = ids.len() / TEST_SHARE;
        Self {
            test: ids.into_iter().take(count).cloned().collect(),
        }
    }

    /// `None` for tasks of other levels.
    pub fn part(&self, task: &LoadedTask) -> Option<SplitPart> {
        let test = self.test.contains(&task.id);
        (task.level == Some(LEVEL)).then_some(if test {
            SplitPart::Test
        } else {
            SplitPart::Train
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks() -> Vec<LoadedTask> {
        let task = |level: u32, number: u32| LoadedTask {
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
        let split = Split::new(&tasks, 42);
        let count = |part| {
            let of = |task: &&LoadedTask| split.part(task) == part;
            tasks.iter().filter(of).count()
        };
        assert_eq!(count(Some(SplitPart::Test)), 20);
        assert_eq!(count(Some(SplitPart::Train)), 80);
        assert_eq!(count(None), 7);
        assert_ne!(split, Split::new(&tasks, 43));
        tasks.reverse();
        assert_eq!(split, Split::new(&tasks, 42));
    }
}
