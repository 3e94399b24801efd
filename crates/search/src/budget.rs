//! Limits of a search. The first that is reached ends it.

use std::time::Duration;

use serde::Serialize;

/// What a search may spend. The finish comes on top.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchBudget {
    pub judgements: Option<u32>,
    pub time: Option<Duration>,
    pub dollars: Option<f64>,
}

/// What a search has spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct BudgetSpent {
    pub judgements: u32,
    /// Of all processes that worked on it.
    pub seconds: f64,
    pub dollars: f64,
}

/// Why a search is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchLimit {
    Judgements,
    Minutes,
    Dollars,
    /// Nothing is left to try that was not tried.
    Exhausted,
    /// Somebody stopped it; it can be resumed.
    Interrupted,
}

impl SearchLimit {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Judgements => "the judgements were used up",
            Self::Minutes => "the time was up",
            Self::Dollars => "the money was spent",
            Self::Exhausted => "nothing was left to try",
            Self::Interrupted => "it was interrupted",
        }
    }
}

impl SearchBudget {
    /// The limit that is reached.
    pub(crate) fn reached(&self, spent: &BudgetSpent) -> Option<SearchLimit> {
        let reaches = |limit: Option<f64>, spent: f64| limit.is_some_and(|limit| spent >= limit);
        if reaches(self.judgements.map(f64::from), f64::from(spent.judgements)) {
            Some(SearchLimit::Judgements)
        } else if reaches(self.time.map(|time| time.as_secs_f64()), spent.seconds) {
            Some(SearchLimit::Minutes)
        } else if reaches(self.dollars, spent.dollars) {
            Some(SearchLimit::Dollars)
        } else {
            None
        }
    }

    /// How many more may be judged.
    pub(crate) fn judgements_left(&self, spent: &BudgetSpent) -> u32 {
        self.judgements
            .map_or(u32::MAX, |limit| limit.saturating_sub(spent.judgements))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_limit_that_is_reached_counts() {
        let budget = SearchBudget {
            judgements: Some(10),
            time: Some(Duration::from_mins(1)),
            dollars: Some(0.5),
        };
        let spent = |judgements, seconds, dollars| BudgetSpent {
            judgements,
            seconds,
            dollars,
        };
        assert_eq!(budget.reached(&spent(9, 59.0, 0.4)), None);
        assert_eq!(
            budget.reached(&spent(10, 0.0, 0.0)),
            Some(SearchLimit::Judgements)
        );
        assert_eq!(
            budget.reached(&spent(0, 60.0, 0.0)),
            Some(SearchLimit::Minutes)
        );
        assert_eq!(
            budget.reached(&spent(0, 0.0, 0.5)),
            Some(SearchLimit::Dollars)
        );
        assert_eq!(budget.judgements_left(&spent(7, 0.0, 0.0)), 3);
    }
}
