//! Which tasks to practise: those that are neither hopeless nor done, from simple ones upward.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Tasks are practised while their running pass rate is in the band.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Band {
    pub lowest: f64,
    pub highest: f64,
    /// How much of what was known a new group of replies leaves: 0.7 remembers about the last three.
    pub memory: f64,
    /// Harder tasks are opened once this share of the hardest open ones' replies passes.
    pub step_up: f64,
}

impl Default for Band {
    fn default() -> Self {
        Self {
            lowest: 0.1,
            highest: 0.9,
            memory: 0.7,
            step_up: 0.4,
        }
    }
}

/// What is known of one task.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// How hard it is by its looks: the number of operators.
    pub operators: u32,
    /// `None` until it was tried.
    pub pass_rate: Option<f64>,
}

/// All of it is kept in a checkpoint, so that a resumed run goes on with what was known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curriculum {
    band: Band,
    /// The most operators a task may have by now.
    open: u32,
    tasks: BTreeMap<String, Standing>,
}

impl Curriculum {
    /// Tasks by name with their number of operators; those with `open` or fewer are practised first.
    pub fn new(band: Band, open: u32, tasks: impl IntoIterator<Item = (String, u32)>) -> Self {
        let standing = |operators| Standing {
            operators,
            pass_rate: None,
        };
        let mut curriculum = Self {
            band,
            open,
            tasks: tasks
                .into_iter()
                .map(|(name, operators)| (name, standing(operators)))
                .collect(),
        };
        // With nothing to practise at first, the simplest there is.
        let simplest = curriculum.tasks.values().map(|task| task.operators).min();
        curriculum.open = curriculum.open.max(simplest.unwrap_or(open));
        curriculum
    }

    pub fn standing(&self, task: &str) -> Option<Standing> {
        self.tasks.get(task).copied()
    }

    pub fn open(&self) -> u32 {
        self.open
    }

    /// Takes in how a group of replies did, and opens harder tasks where it is time.
    pub fn record(&mut self, task: &str, passed: usize, replies: usize) {
        let Some(standing) = self.tasks.get_mut(task).filter(|_| replies > 0) else {
            return;
        };
        let rate = passed as f64 / replies as f64;
        let memory = self.band.memory;
        let known = standing.pass_rate;
        standing.pass_rate =
            Some(known.map_or(rate, |known| memory * known + (1.0 - memory) * rate));
        let hardest = self
            .tasks
            .values()
            .filter(|task| task.operators <= self.open)
            .map(|task| task.operators)
            .max();
        let rates: Vec<f64> = self
            .tasks
            .values()
            .filter(|task| Some(task.operators) == hardest)
            .filter_map(|task| task.pass_rate)
            .collect();
        let mean = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        if !rates.is_empty() && mean >= self.band.step_up {
            let harder = self.tasks.values().map(|task| task.operators);
            let next = harder.filter(|operators| *operators > self.open).min();
            self.open = next.unwrap_or(self.open);
        }
    }

    /// Tasks to practise now, by name. If none is in the band, all that are open: a rate may have changed since.
    pub fn practised(&self) -> Vec<&str> {
        let names = |chosen: &dyn Fn(&Standing) -> bool| -> Vec<&str> {
            let open = self.tasks.iter();
            open.filter(|(_, task)| task.operators <= self.open && chosen(task))
                .map(|(name, _)| name.as_str())
                .collect()
        };
        let within = |rate: f64| (self.band.lowest..=self.band.highest).contains(&rate);
        let practised = names(&|task| task.pass_rate.is_none_or(within));
        if practised.is_empty() {
            return names(&|_| true);
        }
        practised
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curriculum() -> Curriculum {
        let tasks = [("relu", 1), ("softmax", 1), ("gemm_relu", 2), ("block", 5)];
        let tasks = tasks.map(|(name, operators)| (name.to_owned(), operators));
        Curriculum::new(Band::default(), 1, tasks)
    }

    #[test]
    fn what_is_done_or_hopeless_is_left() {
        let mut curriculum = curriculum();
        assert_eq!(curriculum.practised(), ["relu", "softmax"]);
        curriculum.record("relu", 0, 8);
        assert_eq!(curriculum.practised(), ["softmax"]);
        // Nothing is left: everything open is tried again.
        curriculum.record("softmax", 0, 8);
        assert_eq!(curriculum.practised(), ["relu", "softmax"]);
        curriculum.record("relu", 3, 8);
        let rate = curriculum.standing("relu").unwrap().pass_rate.unwrap();
        assert!((rate - 0.3 * 0.375).abs() < 1e-12);
        assert_eq!(curriculum.practised(), ["relu"]);
    }

    #[test]
    fn harder_tasks_are_opened_one_step_at_a_time() {
        let mut curriculum = curriculum();
        curriculum.record("relu", 8, 8);
        assert_eq!(curriculum.open(), 2);
        assert_eq!(curriculum.practised(), ["gemm_relu", "softmax"]);
        // What simple tasks do no longer counts.
        curriculum.record("softmax", 8, 8);
        assert_eq!(curriculum.open(), 2);
        curriculum.record("gemm_relu", 4, 8);
        assert_eq!(curriculum.open(), 5);
        curriculum.record("unknown", 1, 1);
        curriculum.record("block", 0, 0);
        assert_eq!(curriculum.standing("block").unwrap().pass_rate, None);
    }

    #[test]
    fn the_simplest_are_open_however_hard_they_are() {
        let curriculum = Curriculum::new(Band::default(), 1, [("block".to_owned(), 4)]);
        assert_eq!(curriculum.practised(), ["block"]);
    }
}
