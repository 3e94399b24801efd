//! How many tasks of each kind a set has.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::grammar::MAX_OPS;
use crate::splitmix::SplitMix64;

/// A kind of task: so many operators of `torch` stacked, or a class of `transformers` by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TaskGroup {
    Stacked(usize),
    Transformers,
}

impl TaskGroup {
    /// As the public set says it: `torch#2`.
    pub fn data_source(self) -> String {
        match self {
            Self::Stacked(ops) => format!("torch#{ops}"),
            Self::Transformers => "transformers".into(),
        }
    }
}

impl fmt::Display for TaskGroup {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stacked(ops) => write!(to, "{ops}"),
            Self::Transformers => write!(to, "transformers"),
        }
    }
}

impl From<TaskGroup> for String {
    fn from(group: TaskGroup) -> Self {
        group.to_string()
    }
}

impl TryFrom<String> for TaskGroup {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for TaskGroup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "transformers" {
            return Ok(Self::Transformers);
        }
        match text.parse() {
            Ok(ops) if (1..=MAX_OPS).contains(&ops) => Ok(Self::Stacked(ops)),
            _ => Err(format!(
                "`{text}` is neither 1 to {MAX_OPS} nor `transformers`"
            )),
        }
    }
}

/// Shares of the groups. They need not add up to anything: only their ratios count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TaskMix(BTreeMap<TaskGroup, f64>);

/// As in the public set of CUDA Agent.
const PUBLIC_SET_MIX: &str = "1:3.4,2:83.8,3:7.6,4:2.8,5:1.2,transformers:1.2";

impl Default for TaskMix {
    fn default() -> Self {
        PUBLIC_SET_MIX
            .parse()
            .unwrap_or_else(|_| Self(BTreeMap::new()))
    }
}

impl TaskMix {
    /// Without a group; the others take its share.
    #[must_use]
    pub fn without(mut self, group: TaskGroup) -> Self {
        self.0.remove(&group);
        self
    }

    /// How many of `count` tasks each group gets. What rounding leaves goes to the largest remainders.
    pub fn quotas(&self, count: usize) -> BTreeMap<TaskGroup, usize> {
        let total: f64 = self.0.values().sum();
        let exact = |share: f64| share / total * count as f64;
        let mut quotas: BTreeMap<TaskGroup, usize> = self
            .0
            .iter()
            .map(|(group, share)| (*group, exact(*share) as usize))
            .collect();
        let mut remainders: Vec<(f64, TaskGroup)> = self
            .0
            .iter()
            .map(|(group, share)| (exact(*share).fract(), *group))
            .collect();
        remainders.sort_by(|left, right| right.0.total_cmp(&left.0).then(left.1.cmp(&right.1)));
        let mut left = count - quotas.values().sum::<usize>();
        for (_, group) in remainders {
            if left == 0 {
                break;
            }
            *quotas.entry(group).or_default() += 1;
            left -= 1;
        }
        quotas
    }

    /// Which group the `index`-th candidate is of. Groups that a set has too few of come up as often as any of their kind.
    pub(crate) fn group(&self, seed: u64, index: u64) -> Option<TaskGroup> {
        let mut rng = SplitMix64::of_index(seed ^ 0x6d69_7800, index);
        let groups: Vec<TaskGroup> = self.0.keys().copied().collect();
        let weights: Vec<usize> = self
            .0
            .values()
            .map(|share| (share * 1000.0) as usize)
            .collect();
        Some(groups[rng.weighted(&weights)?])
    }
}

impl fmt::Display for TaskMix {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self
            .0
            .iter()
            .map(|(group, share)| format!("{group}:{share}"))
            .collect();
        write!(to, "{}", parts.join(","))
    }
}

impl From<TaskMix> for String {
    fn from(mix: TaskMix) -> Self {
        mix.to_string()
    }
}

impl TryFrom<String> for TaskMix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for TaskMix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut shares = BTreeMap::new();
        for part in text.split(',') {
            let (group, share) = part
                .split_once(':')
                .ok_or_else(|| format!("`{part}` is not `GROUP:SHARE`"))?;
            let group: TaskGroup = group.trim().parse()?;
            let share: f64 = share
                .trim()
                .parse()
                .ok()
                .filter(|share: &f64| share.is_finite() && *share >= 0.0)
                .ok_or_else(|| format!("`{share}` is no share"))?;
            if shares.insert(group, share).is_some() {
                return Err(format!("group `{group}` is there twice"));
            }
        }
        shares.retain(|_, share| *share > 0.0);
        if shares.is_empty() {
            return Err("all shares are zero".into());
        }
        Ok(Self(shares))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_add_up_and_follow_the_shares() {
        let quotas = TaskMix::default().quotas(6000);
        let expected = [
            (TaskGroup::Stacked(1), 204),
            (TaskGroup::Stacked(2), 5028),
            (TaskGroup::Stacked(3), 456),
            (TaskGroup::Stacked(4), 168),
            (TaskGroup::Stacked(5), 72),
            (TaskGroup::Transformers, 72),
        ];
        assert_eq!(quotas, BTreeMap::from(expected));
        for count in [0, 1, 7, 200] {
            assert_eq!(
                TaskMix::default().quotas(count).values().sum::<usize>(),
                count
            );
        }
    }

    #[test]
    fn what_is_no_mix_is_refused() {
        for (text, why) in [
            ("6:1", "`6` is neither 1 to 5 nor `transformers`"),
            ("1", "`1` is not `GROUP:SHARE`"),
            ("1:x", "`x` is no share"),
            ("1:1,1:2", "group `1` is there twice"),
            ("1:0", "all shares are zero"),
        ] {
            assert_eq!(text.parse::<TaskMix>(), Err(why.to_owned()), "{text}");
        }
        let mix: TaskMix = "2:1,1:3".parse().unwrap();
        assert_eq!(mix.to_string(), "1:3,2:1");
    }
}
