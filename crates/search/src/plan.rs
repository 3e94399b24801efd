//! What a search is to do, and with what.

use std::sync::Arc;

use warpsmith_judge::{Judge, JudgeError};
use warpsmith_model::policy::{SamplingParams, SharedPolicy};
use warpsmith_rollout::StopRequest;
use warpsmith_schema::{RunHeader, Target, Task, Usage, Verdict};

use crate::{BudgetSpent, Candidate, SearchBudget, SearchStart};

/// Everything that decides what a search does.
#[derive(Debug, Clone)]
pub struct SearchPlan {
    pub task: Arc<Task>,
    pub target: Target,
    pub seed: u64,
    pub islands: u32,
    /// The best of an island goes on to the next after so many candidates of each.
    pub migrate_every: u32,
    /// Candidates that are made from the same archive, asked for and judged side by side.
    pub batch: u32,
    pub budget: SearchBudget,
    pub start: SearchStart,
    pub sampling: SamplingParams,
    /// How many of the best are measured afresh.
    pub finalists: u32,
    /// How often each of them.
    pub rounds: u32,
    /// What the log says of the run.
    pub head: RunHeader,
}

/// One of the policies that write candidates.
#[derive(Clone)]
pub struct SearchPolicy {
    /// As it was asked for.
    pub name: String,
    pub policy: Arc<dyn SharedPolicy>,
    pub price: TokenPrice,
}

/// Dollars for a million tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TokenPrice {
    pub prompt: f64,
    pub completion: f64,
}

impl TokenPrice {
    pub(crate) fn of(self, usage: Usage) -> f64 {
        const MILLION: f64 = 1e6;
        let prompt = usage.prompt_tokens as f64 * self.prompt;
        (prompt + usage.completion_tokens as f64 * self.completion) / MILLION
    }
}

/// What a search works with.
pub struct SearchResources<'a> {
    pub policies: Vec<SearchPolicy>,
    pub judges: Vec<Box<dyn Judge>>,
    /// The judge of the finish, started once the others have ended.
    pub final_judge: &'a mut dyn FnMut() -> Result<Box<dyn Judge>, JudgeError>,
    pub stop: fn() -> StopRequest,
    pub on_progress: &'a mut dyn FnMut(SearchProgress<'_>),
}

/// News of a search, for a person who waits.
#[derive(Debug)]
pub enum SearchProgress<'a> {
    /// Where the time of the reference goes is being measured.
    Profiling,
    /// An earlier process had judged so many.
    Resumed {
        judged: u32,
    },
    Judging {
        number: u32,
    },
    /// A candidate is done with: judged, or nothing to judge.
    Concluded {
        candidate: &'a Candidate,
        /// Whether it is the fastest so far.
        leads: bool,
        best_us: Option<f64>,
        spent: BudgetSpent,
    },
    /// A policy is not asked any more.
    PolicyDropped {
        policy: &'a str,
        why: &'a str,
    },
    /// A finalist is measured afresh.
    Measuring {
        candidate: u32,
        round: u32,
        of: u32,
        reported: bool,
    },
    Measured {
        candidate: u32,
        verdict: &'a Verdict,
    },
}
