//! How long something will still take, from what ended lately. Silent until it knows.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So many of the latest ends are looked at: what came before may have been quicker or slower.
const LATELY: usize = 16;
/// Fewer ends say nothing about the next.
const LEAST: usize = 2;

/// Ends of episodes or steps, as this process saw them.
#[derive(Debug, Default)]
pub(crate) struct Remaining {
    ends: VecDeque<(Instant, u64)>,
}

impl Remaining {
    /// So many have ended by now. The first time says only where this process began.
    pub(crate) fn ended(&mut self, now: Instant, ended: u64) {
        if self.ends.back().is_some_and(|(_, before)| *before >= ended) {
            return;
        }
        self.ends.push_back((now, ended));
        if self.ends.len() > LATELY + 1 {
            self.ends.pop_front();
        }
    }

    /// Until all of them have ended.
    pub(crate) fn left(&self, now: Instant, planned: u64) -> Option<Duration> {
        let (first, last) = (self.ends.front()?, self.ends.back()?);
        if self.ends.len() <= LEAST {
            return None;
        }
        let ended = (last.1 - first.1) as f64;
        let mean = (last.0 - first.0).as_secs_f64() / ended;
        // One that takes longer than those before it may be the new measure.
        let since = (now - last.0).as_secs_f64();
        let mean = mean.max((now - first.0).as_secs_f64() / (ended + 1.0));
        let left = planned.saturating_sub(last.1) as f64 * mean - since;
        Duration::try_from_secs_f64(left.max(0.0)).ok()
    }

    /// `, about 12 min left`, or nothing.
    pub(crate) fn words(&self, planned: u64) -> String {
        let begun = self.ends.back().is_some_and(|last| last.1 < planned);
        let left = self.left(Instant::now(), planned).filter(|_| begun);
        let left = left.map(in_words);
        left.map_or_else(String::new, |left| format!(", about {left} left"))
    }
}

/// `40 s`, `12 min`, `3.5 h`
pub(crate) fn in_words(duration: Duration) -> String {
    match duration.as_secs_f64() {
        seconds if seconds < 100.0 => format!("{seconds:.0} s"),
        seconds if seconds < 6000.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(ends: &[(u64, u64)], now: u64, planned: u64) -> Option<f64> {
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let mut remaining = Remaining::default();
        for (second, ended) in ends {
            remaining.ended(at(*second), *ended);
        }
        let left = remaining.left(at(now), planned)?;
        Some(left.as_secs_f64())
    }

    #[test]
    fn it_is_silent_until_it_knows() {
        assert_eq!(left(&[], 10, 6), None);
        assert_eq!(left(&[(0, 0)], 89, 6), None);
        // The run of which `about 8h left` was said after 2 of 6 episodes in 89 seconds: it took five minutes.
        assert_eq!(left(&[(0, 0), (60, 1)], 61, 6), None);
        assert_eq!(left(&[(0, 0), (60, 1), (89, 2)], 89, 6), Some(178.0));
    }

    #[test]
    fn what_was_long_ago_does_not_count() {
        let slow = (0..10).map(|n| (100 * n, n));
        let quick = (1..=20).map(|n| (900 + n, 9 + n));
        let ends: Vec<(u64, u64)> = slow.chain(quick).collect();
        assert_eq!(left(&ends, 920, 39), Some(10.0));
    }

    #[test]
    fn one_that_takes_longer_moves_the_estimate() {
        let ends = [(0, 0), (10, 1), (20, 2)];
        assert_eq!(left(&ends, 25, 4), Some(15.0));
        // Nothing for a hundred seconds: the rest will not take none.
        assert_eq!(left(&ends, 120, 4), Some(0.0_f64.max(2.0 * 40.0 - 100.0)));
        assert_eq!(left(&ends, 120, 10), Some(8.0 * 40.0 - 100.0));
    }

    #[test]
    fn what_earlier_processes_did_is_no_measure() {
        assert_eq!(left(&[(0, 90), (30, 91), (60, 92)], 60, 94), Some(60.0));
    }
}
