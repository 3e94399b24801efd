//! Which of several ways to spend the budget on: the one that has gained most for what it cost, with a share for those of which
//! little is known.

use std::collections::BTreeMap;

use serde::Serialize;

/// How often an arm is tried again although others gain more.
const EXPLORATION: f64 = 1.0;
/// What the first try of an arm counts as, in seconds: without it one lucky try that cost nothing would win for ever.
const LEAST_COST: f64 = 1.0;

/// Chooses among named arms by improvement per cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Bandit {
    pub arms: BTreeMap<String, ArmTally>,
}

/// What is known of an arm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ArmTally {
    /// Candidates that were made.
    pub tries: u32,
    /// Of those, how many were faster than what they were made from.
    pub improvements: u32,
    /// Sum of the logarithms of the speed-ups over what they were made from.
    pub gain: f64,
    /// Seconds of judges and policies; a dollar counts as [`SECONDS_PER_DOLLAR`].
    pub cost: f64,
}

/// What a dollar is worth in seconds of a machine: a rented GPU at about three dollars an hour.
pub(crate) const SECONDS_PER_DOLLAR: f64 = 1200.0;

impl Bandit {
    /// The arm to try next. `pending` says how often each is being tried already.
    pub(crate) fn choose<'a>(
        &self,
        arms: impl IntoIterator<Item = &'a str>,
        pending: &BTreeMap<String, u32>,
    ) -> Option<&'a str> {
        let arms: Vec<(&str, ArmTally)> = arms
            .into_iter()
            .map(|name| {
                let mut tally = self.arms.get(name).copied().unwrap_or_default();
                tally.tries += pending.get(name).copied().unwrap_or_default();
                (name, tally)
            })
            .collect();
        let total: u32 = arms.iter().map(|(_, tally)| tally.tries).sum();
        let rate = |tally: &ArmTally| tally.gain / tally.cost.max(LEAST_COST);
        let best = arms
            .iter()
            .map(|(_, tally)| rate(tally))
            .fold(0.0, f64::max);
        let score = |tally: &ArmTally| {
            if tally.tries == 0 {
                return f64::INFINITY;
            }
            let share = if best > 0.0 { rate(tally) / best } else { 0.0 };
            let unknown = f64::from(total.max(2)).ln() / f64::from(tally.tries);
            share + EXPLORATION * unknown.sqrt()
        };
        // Of equal arms the first, so that the same search chooses the same.
        let mut chosen: Option<(&str, f64)> = None;
        for (name, tally) in &arms {
            let found = score(tally);
            if chosen.is_none_or(|(_, best)| found > best) {
                chosen = Some((name, found));
            }
        }
        chosen.map(|(name, _)| name)
    }

    /// What came of a try. `gain` is the logarithm of the speed-up over the parent, zero where there is none.
    pub(crate) fn learn(&mut self, arm: &str, gain: f64, cost: f64) {
        let tally = self.arms.entry(arm.to_owned()).or_default();
        tally.tries += 1;
        tally.improvements += u32::from(gain > 0.0);
        tally.gain += gain.max(0.0);
        tally.cost += cost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(bandit: &Bandit) -> &'static str {
        bandit.choose(["a", "b"], &BTreeMap::new()).unwrap()
    }

    #[test]
    fn every_arm_is_tried_and_the_cheaper_gain_is_preferred() {
        let mut bandit = Bandit::default();
        assert_eq!(choose(&bandit), "a");
        bandit.learn("a", 0.2, 10.0);
        assert_eq!(choose(&bandit), "b");
        bandit.learn("b", 0.2, 100.0);
        let mut tries = BTreeMap::new();
        for _ in 0..40 {
            let arm = choose(&bandit);
            *tries.entry(arm).or_insert(0) += 1;
            let cost = if arm == "a" { 10.0 } else { 100.0 };
            bandit.learn(arm, 0.02, cost);
        }
        assert!(tries["a"] > 2 * tries["b"], "{tries:?}");
        assert!(tries["b"] > 1, "{tries:?}");
    }

    #[test]
    fn what_is_being_tried_counts() {
        let bandit = Bandit::default();
        let pending = BTreeMap::from([("a".to_owned(), 1)]);
        assert_eq!(bandit.choose(["a", "b"], &pending), Some("b"));
        assert_eq!(bandit.choose([], &pending), None);
    }
}
