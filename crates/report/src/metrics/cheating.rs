use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use warpsmith_schema::{Rule, Status};

use super::{EpisodeMetrics, Share};

/// What broke the rules, over all attempts of all episodes, whichever counts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cheating {
    pub attempts: usize,
    /// Caught by a check made while running.
    pub cheating: usize,
    /// Found before running: in the sources or the built library.
    pub rejected: usize,
    /// Episodes with at least one of either.
    pub episodes: Share,
    /// How often each rule was broken by these attempts.
    pub rules: BTreeMap<String, usize>,
}

impl Cheating {
    pub(super) fn of(episodes: &[EpisodeMetrics<'_>]) -> Self {
        let mut found = Self {
            attempts: 0,
            cheating: 0,
            rejected: 0,
            episodes: Share {
                count: 0,
                of: episodes.len(),
            },
            rules: BTreeMap::new(),
        };
        for episode in episodes {
            let before = found.cheating + found.rejected;
            for attempt in &episode.trajectory.attempts {
                let verdict = &attempt.verdict;
                found.attempts += 1;
                match verdict.status {
                    Status::Cheating => found.cheating += 1,
                    Status::Rejected => found.rejected += 1,
                    _ => continue,
                }
                if let Some(rule) = verdict.rule {
                    *found.rules.entry(word(rule)).or_default() += 1;
                }
            }
            found.episodes.count += usize::from(found.cheating + found.rejected > before);
        }
        found
    }
}

/// The word that a verdict's JSON has.
fn word(rule: Rule) -> String {
    match serde_json::to_value(rule) {
        Ok(Value::String(word)) => word,
        _ => String::new(),
    }
}
