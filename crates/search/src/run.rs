//! The loop of a search: batches of candidates, each made from the archive as the batch before left it.

mod judging;
mod proposing;

use std::time::{Duration, Instant};

use warpsmith_judge::JudgeError;
use warpsmith_rollout::{QueuedJudges, RolloutError, StopRequest};
use warpsmith_schema::{
    EpisodeId, EventKind, Failure, Number, ReferenceBound, RunHeader, RunMetrics, Usage,
};
use warpsmith_store::RunFolder;

use crate::archive::Archive;
use crate::bandit::Bandit;
use crate::budget::{BudgetSpent, SearchLimit};
use crate::candidate::Candidate;
use crate::cascade::Cascade;
use crate::error::SearchError;
use crate::finals::{Finals, Finish};
use crate::logged::LoggedSearch;
use crate::moves::SearchState;
use crate::plan::{SearchPlan, SearchPolicy, SearchProgress, SearchResources};
use crate::strategy::{SearchStrategy, strategies};

/// How often the gauges are written down.
const GAUGES_EVERY: Duration = Duration::from_secs(10);
/// Operators of the reference that count.
const OPERATORS: usize = 8;

/// What came of a search.
#[derive(Debug)]
pub struct SearchOutcome {
    pub candidates: Vec<Candidate>,
    pub archive: Archive,
    pub spent: BudgetSpent,
    pub limit: SearchLimit,
    pub cascade: Cascade,
    /// Tuning and each policy.
    pub arms: Bandit,
    pub strategies: Bandit,
    pub usage: Usage,
    pub reference: Option<ReferenceBound>,
    /// None where the finish was interrupted, or nothing passed.
    pub finals: Option<Finals>,
    /// Seconds of this process that neither judges nor policies had, before the finish, and all of its seconds until then.
    pub overhead_seconds: f64,
    pub search_seconds: f64,
}

/// Searches in a folder, or goes on with the search that is there.
pub fn search(
    folder: &RunFolder,
    plan: &SearchPlan,
    resources: SearchResources<'_>,
) -> Result<SearchOutcome, SearchError> {
    if plan.start.solutions.is_empty() && resources.policies.is_empty() {
        return Err(SearchError::NothingToStartFrom);
    }
    let logged = LoggedSearch::read(folder.path())?;
    if let Some(head) = &logged.head
        && head.policy != plan.head.policy
    {
        return Err(SearchError::Rollout(RolloutError::OtherPolicy {
            before: Box::new(head.policy.clone()),
            now: Box::new(plan.head.policy.clone()),
        }));
    }
    let SearchResources {
        policies,
        judges,
        final_judge,
        stop,
        on_progress,
    } = resources;
    let judges = QueuedJudges::start(folder, judges, stop)?;
    judges.record(EventKind::RunStarted {
        run: Box::new(RunHeader {
            resumed: folder.resumed(),
            ..plan.head.clone()
        }),
    })?;
    let mut running = RunningSearch {
        state: SearchState::new(plan.islands, plan.seed),
        names: policies.iter().map(|one| one.name.clone()).collect(),
        plan,
        policies,
        judges,
        logged,
        reference: None,
        strategies: Vec::new(),
        stop,
        on_progress,
        begun: Instant::now(),
        waited: Duration::ZERO,
        gauged: Instant::now(),
        failures: 0,
        last_failure: None,
    };
    let searched = running.run();
    let limit = match searched {
        Ok(limit) => limit,
        Err(error) => {
            let failure = error.failure();
            let _ = running.judges.record(EventKind::RunEnded {
                unfinished: 0,
                interrupted: false,
                failure: Some(failure),
            });
            return Err(error);
        }
    };
    running.finish(limit, final_judge)
}

struct RunningSearch<'a> {
    plan: &'a SearchPlan,
    policies: Vec<SearchPolicy>,
    names: Vec<String>,
    judges: QueuedJudges,
    logged: LoggedSearch,
    state: SearchState,
    reference: Option<ReferenceBound>,
    strategies: Vec<SearchStrategy>,
    stop: fn() -> StopRequest,
    on_progress: &'a mut dyn FnMut(SearchProgress<'_>),
    begun: Instant,
    /// For judges and policies.
    waited: Duration,
    gauged: Instant,
    failures: u32,
    last_failure: Option<Failure>,
}

impl RunningSearch<'_> {
    fn run(&mut self) -> Result<SearchLimit, SearchError> {
        let judged = self.logged.verdicts.len() as u32;
        if judged > 0 {
            (self.on_progress)(SearchProgress::Resumed { judged });
        }
        if !self.profile_reference()? {
            return Ok(SearchLimit::Interrupted);
        }
        self.strategies = strategies(self.plan.target, self.reference.as_ref());
        let mut proposed = self.start_candidates()?;
        loop {
            let ended = self.judge_batch(proposed)?;
            // Without a single verdict there is nothing to go on from, and nothing to conclude.
            if let Some(failure) = self.last_failure.take_if(|_| self.state.judgements == 0) {
                return Err(SearchError::Failed(failure));
            }
            self.settle()?;
            self.write_gauges(false)?;
            if let Some(limit) = ended {
                return Ok(limit);
            }
            let next = self.state.candidates.len() as u32 + 1;
            if let Some(limit) = self.limit(next) {
                return Ok(limit);
            }
            let (batch, ended) = self.propose_batch(next)?;
            if batch.is_empty() {
                return Ok(ended.unwrap_or(SearchLimit::Exhausted));
            }
            proposed = batch;
        }
    }

    fn spent(&self) -> BudgetSpent {
        BudgetSpent {
            judgements: self.state.judgements,
            seconds: self.logged.seconds + self.begun.elapsed().as_secs_f64(),
            dollars: self.state.dollars,
        }
    }

    fn stopped(&self) -> bool {
        (self.stop)() != StopRequest::Continue
    }

    /// Why a candidate is not begun. What the log has is only read again, whatever the limits say.
    fn limit(&self, number: u32) -> Option<SearchLimit> {
        if number <= self.logged.last_judged() {
            return None;
        }
        if self.stopped() {
            return Some(SearchLimit::Interrupted);
        }
        self.plan.budget.reached(&self.spent())
    }

    fn id(&self, number: u32) -> EpisodeId {
        EpisodeId {
            task: self.plan.task.id.clone(),
            sample: number,
        }
    }

    /// False where it was interrupted.
    fn profile_reference(&mut self) -> Result<bool, SearchError> {
        if let Some(known) = self.logged.reference.take() {
            self.reference = Some(known);
            return Ok(true);
        }
        (self.on_progress)(SearchProgress::Profiling);
        let since = Instant::now();
        let mut judge = self.judges.judge(self.id(0), self.plan.task.clone());
        let profiled = judge.profile(&self.plan.task, None);
        self.waited += since.elapsed();
        let reference = match profiled {
            Ok(report) => {
                let found = report.reference;
                let operators = found.operators.into_iter().take(OPERATORS);
                ReferenceBound {
                    bound: found.bound.name().to_owned(),
                    floor_us: Number(found.floor_us),
                    operators: operators.map(|one| one.name).collect(),
                }
            }
            Err(_) if self.stopped() => return Ok(false),
            // The search does without: nothing is ruled out, and cells do not know the roofline.
            Err(_) => ReferenceBound {
                bound: "unknown".to_owned(),
                floor_us: Number(0.0),
                operators: Vec::new(),
            },
        };
        self.judges.record(EventKind::ReferenceProfiled {
            reference: reference.clone(),
        })?;
        self.reference = Some(reference);
        Ok(true)
    }

    /// After a batch: islands without a candidate get the best there is, and now and then the best of each goes on to the next.
    fn settle(&mut self) -> Result<(), SearchError> {
        let count = self.state.archive.islands.len();
        let leaders: Vec<_> = self
            .state
            .archive
            .islands
            .iter()
            .map(|island| {
                island
                    .best_cell()
                    .map(|(cell, elite)| (cell.clone(), elite))
            })
            .collect();
        let best = leaders.iter().flatten();
        let best = best
            .min_by(|(_, one), (_, other)| one.us.total_cmp(&other.us))
            .cloned();
        let mut moved = Vec::new();
        let done = self.state.candidates.len() as u32;
        let every = self.plan.migrate_every.max(1) * count as u32;
        let before = done.saturating_sub(self.plan.batch);
        let migrates = count > 1 && done / every > before / every;
        for (island, leader) in leaders.into_iter().enumerate() {
            match leader {
                None => moved.extend(best.clone().map(|best| (island as u32, best))),
                Some(leader) if migrates => moved.push((((island + 1) % count) as u32, leader)),
                Some(_) => {}
            }
        }
        for (island, (cell, elite)) in moved {
            let place = self.state.archive.offer(island, cell, elite);
            if place.kept && !self.logged.placed.contains(&(elite.candidate, island)) {
                self.judges.record(EventKind::CandidatePlaced { place })?;
            }
        }
        Ok(())
    }

    fn write_gauges(&mut self, now: bool) -> Result<(), SearchError> {
        if !now && self.gauged.elapsed() < GAUGES_EVERY {
            return Ok(());
        }
        self.gauged = Instant::now();
        let metrics = self.judges.gauges(RunMetrics {
            episodes_planned: self.plan.budget.judgements.unwrap_or_default(),
            episodes_ended: self.state.judgements,
            ..RunMetrics::default()
        });
        Ok(self.judges.record(EventKind::MetricsSampled { metrics })?)
    }

    /// Measures the best afresh, with a judge of their own, after the others have ended.
    fn finish(
        mut self,
        limit: SearchLimit,
        final_judge: &mut dyn FnMut() -> Result<Box<dyn warpsmith_judge::Judge>, JudgeError>,
    ) -> Result<SearchOutcome, SearchError> {
        self.write_gauges(true)?;
        let spent = self.spent();
        let total = self.begun.elapsed();
        let overhead = total.saturating_sub(self.waited);
        let Self {
            plan,
            judges,
            state,
            logged,
            reference,
            stop,
            on_progress,
            ..
        } = self;
        let log = judges.log();
        drop(judges.stop());
        let record = |event: EventKind| -> Result<(), SearchError> { Ok(log.record(event)?) };
        let stopped = || stop() != StopRequest::Continue;
        let some_passed = state.candidates.iter().any(|one| one.us().is_some());
        let mut finals = None;
        if some_passed && !stopped() {
            let mut judge = final_judge()?;
            let finish = Finish {
                task: &plan.task,
                candidates: &state.candidates,
                judge: judge.as_mut(),
                logged: &logged,
                finalists: plan.finalists,
                rounds: plan.rounds,
                record: &record,
                stopped: &stopped,
                on_progress,
            };
            finals = finish.run()?;
        }
        record(EventKind::RunEnded {
            unfinished: 0,
            interrupted: stopped(),
            failure: None,
        })?;
        let verdicts = finals.iter().flat_map(|finals| &finals.verdicts);
        Ok(SearchOutcome {
            cascade: Cascade::of(&state.candidates, verdicts),
            candidates: state.candidates,
            archive: state.archive,
            spent,
            limit: if stopped() {
                SearchLimit::Interrupted
            } else {
                limit
            },
            arms: state.arms,
            strategies: state.strategies,
            usage: state.usage,
            reference,
            finals,
            overhead_seconds: overhead.as_secs_f64(),
            search_seconds: total.as_secs_f64(),
        })
    }
}
