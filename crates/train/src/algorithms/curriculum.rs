//! Which tasks to practise: mostly those that are neither hopeless nor done, from simple ones upward.

use std::collections::BTreeMap;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};

/// Tasks are practised while their running pass rate is in the band.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Band {
    pub lowest: f64,
    pub highest: f64,
    /// Share of a draw that goes to tasks outside the band, at both ends alike: what once failed every time may be within
    /// reach by now, and what was solved every time may be forgotten.
    pub retry: f64,
    /// How much of what was known a new group of replies leaves: 0.7 remembers about the last three.
    pub memory: f64,
    /// Harder tasks are opened once this share of the hardest open ones that were tried is solved.
    pub step_up: f64,
}

impl Default for Band {
    fn default() -> Self {
        Self {
            lowest: 0.1,
            highest: 0.9,
            retry: 0.125,
            memory: 0.7,
            step_up: 0.4,
        }
    }
}

/// A task is solved where at least this share of its replies passes.
const SOLVED: f64 = 0.5;
/// So many tasks of a level must have been tried before it says anything, or all of it where it has fewer.
const TRIED: usize = 8;

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
        if self.hardest_is_solved() {
            let harder = self.tasks.values().map(|task| task.operators);
            let next = harder.filter(|operators| *operators > self.open).min();
            self.open = next.unwrap_or(self.open);
        }
    }

    /// Whether enough of the hardest open tasks are solved. One task says little of its level.
    fn hardest_is_solved(&self) -> bool {
        let open = self.tasks.values().filter(|task| self.is_open(task));
        let hardest = open.clone().map(|task| task.operators).max();
        let level = open.filter(|task| Some(task.operators) == hardest);
        let tried = level.clone().filter_map(|task| task.pass_rate);
        let solved = tried.clone().filter(|rate| *rate >= SOLVED).count();
        let enough = level.count().min(TRIED);
        let tried = tried.count();
        tried >= enough.max(1) && solved as f64 >= self.band.step_up * tried as f64
    }

    fn is_open(&self, task: &Standing) -> bool {
        task.operators <= self.open
    }

    /// Up to `count` open tasks, those of `tried` only where there are not enough others. Most are new or in the band.
    pub fn draw(&self, count: usize, tried: &[String], random: &mut StdRng) -> Vec<&str> {
        let mut inside = Vec::new();
        let (mut failed, mut solved) = (Vec::new(), Vec::new());
        for (name, task) in self.tasks.iter().filter(|(_, task)| self.is_open(task)) {
            match task.pass_rate {
                Some(rate) if rate < self.band.lowest => failed.push(name.as_str()),
                Some(rate) if rate > self.band.highest => solved.push(name.as_str()),
                _ => inside.push(name.as_str()),
            }
        }
        for names in [&mut inside, &mut failed, &mut solved] {
            names.shuffle(random);
        }
        if random.random() {
            std::mem::swap(&mut failed, &mut solved);
        }
        let outside = alternately(&failed, &solved);
        // Rounded at random: with one task at a time, every eighth.
        let retried = (self.band.retry * count as f64 + random.random_range(0.0..1.0)) as usize;
        let retried = retried.min(outside.len());
        let order = [&outside[..retried], &inside[..], &outside[retried..]].concat();
        let (fresh, again): (Vec<&str>, Vec<&str>) = order
            .into_iter()
            .partition(|name| !tried.iter().any(|one| one == name));
        let mut drawn = [fresh, again].concat();
        drawn.truncate(count);
        drawn
    }
}

/// One of each in turn, and then what is left of the longer.
fn alternately<'a>(one: &[&'a str], other: &[&'a str]) -> Vec<&'a str> {
    let longest = one.len().max(other.len());
    (0..longest)
        .flat_map(|place| [one.get(place), other.get(place)])
        .flatten()
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn curriculum() -> Curriculum {
        let tasks = [("relu", 1), ("softmax", 1), ("gemm_relu", 2), ("block", 5)];
        let tasks = tasks.map(|(name, operators)| (name.to_owned(), operators));
        Curriculum::new(Band::default(), 1, tasks)
    }

    /// Twenty tasks of one operator and one of two.
    fn many() -> Curriculum {
        let simple = (0..20).map(|number| (format!("simple {number:02}"), 1));
        let tasks = simple.chain([("hard".to_owned(), 2)]);
        Curriculum::new(Band::default(), 1, tasks)
    }

    fn draw(curriculum: &Curriculum, count: usize, seed: u64) -> Vec<&str> {
        let mut drawn = curriculum.draw(count, &[], &mut StdRng::seed_from_u64(seed));
        drawn.sort_unstable();
        drawn
    }

    /// How often each task is drawn in a thousand steps.
    fn drawn(curriculum: &Curriculum, count: usize) -> BTreeMap<&str, usize> {
        let mut times = BTreeMap::new();
        for name in (0..1000).flat_map(|seed| draw(curriculum, count, seed)) {
            *times.entry(name).or_default() += 1;
        }
        times
    }

    #[test]
    fn what_failed_or_was_solved_every_time_is_tried_again_now_and_then() {
        let mut curriculum = many();
        for number in 0..12 {
            curriculum.record(&format!("simple {number:02}"), 3, 8);
        }
        curriculum.record("simple 18", 0, 8);
        curriculum.record("simple 19", 8, 8);
        assert_eq!(curriculum.open(), 1);
        let times = drawn(&curriculum, 8);
        // One place in eight, and the two ends share it.
        let ends = ["simple 18", "simple 19"].map(|name| times[name]);
        assert!(ends.iter().sum::<usize>().abs_diff(1000) < 100, "{ends:?}");
        assert!(ends.iter().all(|times| *times > 300), "{ends:?}");
        let inside: usize = times.values().sum::<usize>() - ends[0] - ends[1];
        assert!(inside > 6900, "{inside}");
        // A task at a time: in one step of eight.
        let times = drawn(&curriculum, 1);
        let retried = ["simple 18", "simple 19"].map(|name| times[name]);
        assert!(
            retried.iter().all(|times| (30..100).contains(times)),
            "{retried:?}"
        );
        // Without a share, never while there are others.
        curriculum.band.retry = 0.0;
        assert_eq!(drawn(&curriculum, 8).get("simple 18"), None);
    }

    #[test]
    fn a_task_that_begins_to_pass_is_back_in_the_band() {
        let mut curriculum = curriculum();
        assert_eq!(draw(&curriculum, 4, 0), ["relu", "softmax"]);
        curriculum.record("relu", 0, 8);
        curriculum.record("relu", 3, 8);
        let rate = curriculum.standing("relu").unwrap().pass_rate.unwrap();
        assert!((rate - 0.3 * 0.375).abs() < 1e-12);
        assert!(rate >= curriculum.band.lowest);
    }

    #[test]
    fn a_second_draw_of_a_step_brings_other_tasks_while_there_are_some() {
        let curriculum = many();
        let tried: Vec<String> = draw(&curriculum, 12, 1)
            .into_iter()
            .map(str::to_owned)
            .collect();
        let mut random = StdRng::seed_from_u64(2);
        let second = curriculum.draw(12, &tried, &mut random);
        assert_eq!(second.len(), 12);
        let again = second
            .iter()
            .filter(|name| tried.iter().any(|one| one == *name));
        assert_eq!(again.count(), 4);
    }

    #[test]
    fn a_level_opens_on_a_share_of_tasks_and_not_on_one() {
        let mut curriculum = many();
        // One that is solved at once, in whichever order, says nothing of its level.
        curriculum.record("simple 00", 8, 8);
        assert_eq!(curriculum.open(), 1);
        for number in 1..7 {
            curriculum.record(
                &format!("simple {number:02}"),
                u32::from(number < 3) as usize * 8,
                8,
            );
        }
        // Three of seven are solved: too few were tried.
        assert_eq!(curriculum.open(), 1);
        curriculum.record("simple 07", 0, 8);
        // Three of eight.
        assert_eq!(curriculum.open(), 1);
        curriculum.record("simple 08", 4, 8);
        assert_eq!(curriculum.open(), 2);
        assert!(drawn(&curriculum, 8).contains_key("hard"));
    }

    #[test]
    fn harder_tasks_are_opened_one_step_at_a_time() {
        let mut curriculum = curriculum();
        curriculum.record("relu", 8, 8);
        assert_eq!(curriculum.open(), 1);
        curriculum.record("softmax", 0, 8);
        assert_eq!(curriculum.open(), 2);
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
        assert_eq!(draw(&curriculum, 2, 0), ["block"]);
    }
}
