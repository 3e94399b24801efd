//! How many tasks of each kind a set has.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::grammar::{Luck, MOST_OPS};

/// A kind of task: so many operators of `torch` stacked, or a class of `transformers` by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Group {
    Stacked(usize),
    Transformers,
}

impl Group {
    /// As the public set says it: `torch#2`.
    pub fn data_source(self) -> String {
        match self {
            Self::Stacked(ops) => format!("torch#{ops}"),
            Self::Transformers => "transformers".into(),
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stacked(ops) => write!(to, "{ops}"),
            Self::Transformers => write!(to, "transformers"),
        }
    }
}

impl From<Group> for String {
    fn from(group: Group) -> Self {
        group.to_string()
    }
}

impl TryFrom<String> for Group {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "transformers" {
            return Ok(Self::Transformers);
        }
        match text.parse() {
            Ok(ops) if (1..=MOST_OPS).contains(&ops) => Ok(Self::Stacked(ops)),
            _ => Err(format!(
                "`{text}` is neither 1 to {MOST_OPS} nor `transformers`"
            )),
        }
    }
}

/// Shares of the groups. They need not add up to anything: only their ratios count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mix(BTreeMap<Group, f64>);

/// As in the public set of CUDA Agent.
const USUAL: &str = "1:3.4,2:83.8,3:7.6,4:2.8,5:1.2,transformers:1.2";

impl Default for Mix {
    fn default() -> Self {
        USUAL.parse().unwrap_or_else(|_| Self(BTreeMap::new()))
    }
}

impl Mix {
    /// Without a group; the others take its share.
    #[must_use]
    pub fn without(mut self, group: Group) -> Self {
        self.0.remove(&group);
        self
    }

    /// How many of `count` tasks each group gets. What rounding leaves goes to the largest remainders.
    pub fn quotas(&self, count: usize) -> BTreeMap<Group, usize> {
        let total: f64 = self.0.values().sum();
        let exact = |share: f64| share / total * count as f64;
        let mut quotas: BTreeMap<Group, usize> = self
            .0
            .iter()
            .map(|(group, share)| (*group, exact(*share) as usize))
            .collect();
        let mut remainders: Vec<(f64, Group)> = self
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
    pub(crate) fn group(&self, seed: u64, index: u64) -> Option<Group> {
        let mut luck = Luck::new(seed ^ 0x6d69_7800, index);
        let groups: Vec<Group> = self.0.keys().copied().collect();
        let weights: Vec<usize> = self
            .0
            .values()
            .map(|share| (share * 1000.0) as usize)
            .collect();
        Some(groups[luck.weighted(&weights)?])
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self
            .0
            .iter()
            .map(|(group, share)| format!("{group}:{share}"))
            .collect();
        write!(to, "{}", parts.join(","))
    }
}

impl From<Mix> for String {
    fn from(mix: Mix) -> Self {
        mix.to_string()
    }
}

impl TryFrom<String> for Mix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut shares = BTreeMap::new();
        for part in text.split(',') {
            let (group, share) = part
                .split_once(':')
                .ok_or_else(|| format!("`{part}` is not `GROUP:SHARE`"))?;
            let group: Group = group.trim().parse()?;
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
        let quotas = Mix::default().quotas(6000);
        let expected = [
            (Group::Stacked(1), 204),
            (Group::Stacked(2), 5028),
            (Group::Stacked(3), 456),
            (Group::Stacked(4), 168),
            (Group::Stacked(5), 72),
            (Group::Transformers, 72),
        ];
        assert_eq!(quotas, BTreeMap::from(expected));
        for count in [0, 1, 7, 200] {
            assert_eq!(Mix::default().quotas(count).values().sum::<usize>(), count);
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
            assert_eq!(text.parse::<Mix>(), Err(why.to_owned()), "{text}");
        }
        let mix: Mix = "2:1,1:3".parse().unwrap();
        assert_eq!(mix.to_string(), "1:3,2:1");
    }
}
