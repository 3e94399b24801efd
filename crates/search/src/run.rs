//! The loop of a search: batches of candidates, each made from the archive as the batch before left it.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use warpsmith_agent::render_profile;
use warpsmith_judge::{CANCELLED, JudgeError};
use warpsmith_rollout::{QueuedJudges, RolloutError, StopRequest};
use warpsmith_schema::{
    EpisodeId, EventKind, Failure, FailureKind, Number, ProposedCandidate, ReferenceBound,
    RunHeader, RunMetrics, SearchMove, Usage, Verdict,
};
use warpsmith_store::RunFolder;

use crate::archive::{Archive, Elite};
use crate::ask::{Answer, Asked, ask_all};
use crate::bandit::Bandit;
use crate::budget::{BudgetSpent, SearchLimit};
use crate::candidate::Candidate;
use crate::cascade::Cascade;
use crate::descriptor::cell_of;
use crate::error::SearchError;
use crate::finals::{Finals, Finish};
use crate::logged::LoggedSearch;
use crate::moves::{Decision, MoveOptions, POLICY_FAILED, PendingMoves, SearchState};
use crate::plan::{SearchPlan, SearchPolicy, SearchProgress, SearchResources};
use crate::prompt::{Question, rules_from_failures};
use crate::reply::files_of;
use crate::strategy::{SearchStrategy, strategies};

/// How often the gauges are written down.
const GAUGES_EVERY: Duration = Duration::from_secs(10);
/// After so many failures of ours in a row the next candidate would fail too.
const MAX_FAILURES: u32 = 3;
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

    fn start_candidates(&mut self) -> Result<Vec<ProposedCandidate>, SearchError> {
        let mut proposed = Vec::new();
        for (place, (name, files)) in self.plan.start.solutions.iter().enumerate() {
            let number = place as u32 + 1;
            let candidate = match self.logged.proposed.get(&number) {
                Some(known) => known.clone(),
                None => self.propose(ProposedCandidate {
                    detail: Some(name.clone()),
                    files: Some(files.clone()),
                    ..self.empty(number, SearchMove::Start)
                })?,
            };
            proposed.push(candidate);
        }
        Ok(proposed)
    }

    fn empty(&self, number: u32, made_by: SearchMove) -> ProposedCandidate {
        ProposedCandidate {
            number,
            island: self.state.island_of(number),
            made_by,
            detail: None,
            parents: Vec::new(),
            policy: None,
            files: None,
            unusable: None,
            duplicate_of: None,
            usage: Usage::default(),
            dollars: 0.0,
            reply_seconds: 0.0,
        }
    }

    /// A candidate is a line of the log before anything follows from it.
    fn propose(&self, candidate: ProposedCandidate) -> Result<ProposedCandidate, SearchError> {
        self.judges.record(EventKind::CandidateProposed {
            candidate: Box::new(candidate.clone()),
        })?;
        Ok(candidate)
    }

    /// The next candidates, as many as are missing no earlier one, and why there are no more.
    fn propose_batch(
        &mut self,
        first: u32,
    ) -> Result<(Vec<ProposedCandidate>, Option<SearchLimit>), SearchError> {
        let left = self.plan.budget.judgements_left(&self.spent());
        let size = self.plan.batch.min(left).max(1);
        let mut pending = PendingMoves::default();
        let mut decisions = Vec::new();
        for number in first..first + size {
            let options = MoveOptions {
                policies: &self.names,
                strategies: &self.strategies,
            };
            match self.state.decide(number, &options, &mut pending) {
                Some(decision) => decisions.push((number, decision)),
                None => break,
            }
        }
        let mut proposed: BTreeMap<u32, ProposedCandidate> = BTreeMap::new();
        let mut questions = Vec::new();
        for (number, decision) in decisions {
            if let Some(known) = self.logged.proposed.get(&number) {
                proposed.insert(number, known.clone());
                continue;
            }
            match decision {
                Decision::Made {
                    made_by,
                    detail,
                    parents,
                    files,
                } => {
                    let candidate = self.propose(ProposedCandidate {
                        detail: Some(detail),
                        parents,
                        files: Some(files),
                        ..self.empty(number, made_by)
                    })?;
                    proposed.insert(number, candidate);
                }
                Decision::Ask {
                    policy,
                    made_by,
                    strategy,
                    parents,
                    inspiration,
                } => {
                    self.profile_parent(parents.first().copied())?;
                    let question =
                        self.question(number, made_by, strategy, &parents, inspiration, policy);
                    let begun = ProposedCandidate {
                        detail: strategy.map(|one| one.name.to_owned()),
                        parents,
                        policy: Some(self.names[policy].clone()),
                        ..self.empty(number, made_by)
                    };
                    questions.push((begun, question, policy));
                }
            }
        }
        self.ask(questions, &mut proposed)?;
        // A number that is missing ends the batch: later ones were made as if it were there, and are found again in the log.
        let whole: Vec<ProposedCandidate> = (first..)
            .map_while(|number| proposed.remove(&number))
            .collect();
        let ended = whole.is_empty().then(|| self.limit(first)).flatten();
        Ok((whole, ended))
    }

    /// Where the time of an island's best goes, for prompts; measured once for each.
    fn profile_parent(&mut self, parent: Option<u32>) -> Result<(), SearchError> {
        let Some(number) = parent.filter(|number| !self.logged.profiles.contains_key(number))
        else {
            return Ok(());
        };
        let mut islands = self.state.archive.islands.iter();
        let leads =
            islands.any(|island| island.best().is_some_and(|best| best.candidate == number));
        let submission = self.state.candidate(number).and_then(Candidate::submission);
        let Some(submission) = submission.filter(|_| leads && !self.stopped()) else {
            return Ok(());
        };
        let since = Instant::now();
        let mut judge = self.judges.judge(self.id(number), self.plan.task.clone());
        let text = judge.profile(&self.plan.task, Some(&submission));
        self.waited += since.elapsed();
        // A profile helps, but nothing depends on it.
        let text = text.map_or_else(|_| String::new(), |report| render_profile(&report));
        self.judges.record(EventKind::CandidateProfiled {
            candidate: number,
            text: text.clone(),
        })?;
        self.logged.profiles.insert(number, text);
        Ok(())
    }

    fn question(
        &self,
        number: u32,
        made_by: SearchMove,
        strategy: Option<SearchStrategy>,
        parents: &[u32],
        inspiration: Option<u32>,
        policy: usize,
    ) -> Asked {
        let of = |number: &u32| self.state.candidate(*number);
        let shown: Vec<&Candidate> = parents.iter().filter_map(of).collect();
        let profile = parents
            .first()
            .and_then(|parent| self.logged.profiles.get(parent));
        let question = Question {
            task: &self.plan.task,
            target: self.plan.target,
            made_by,
            strategy: strategy.map(|one| one.instruction),
            parents: &shown,
            profile: profile.map(String::as_str).filter(|text| !text.is_empty()),
            inspiration: inspiration.and_then(|number| self.state.candidate(number)),
            rules: &rules_from_failures(&self.state.candidates),
        };
        let mut sampling = self.plan.sampling;
        sampling.seed = Some(self.plan.seed.wrapping_add(u64::from(number)));
        Asked {
            policy: self.policies[policy].policy.clone(),
            id: self.id(number),
            messages: question.messages(),
            sampling,
        }
    }

    fn ask(
        &mut self,
        questions: Vec<(ProposedCandidate, Asked, usize)>,
        proposed: &mut BTreeMap<u32, ProposedCandidate>,
    ) -> Result<(), SearchError> {
        if questions.is_empty() {
            return Ok(());
        }
        let since = Instant::now();
        let mut begun = Vec::new();
        let mut asked = Vec::new();
        for (place, (candidate, question, policy)) in questions.into_iter().enumerate() {
            begun.push((candidate, policy));
            asked.push((place, question));
        }
        let mut written = Ok(());
        let given_up = || self.stopped() || self.plan.budget.reached(&self.spent()).is_some();
        ask_all(asked, &given_up, &mut |place, answer| {
            let (candidate, policy) = &begun[place];
            let candidate = self.answered(candidate.clone(), *policy, &answer);
            match self.propose(candidate) {
                Ok(candidate) => {
                    proposed.insert(candidate.number, candidate);
                }
                Err(error) => written = Err(error),
            }
        });
        self.waited += since.elapsed();
        written
    }

    /// The candidate that an answer stands for.
    fn answered(
        &self,
        begun: ProposedCandidate,
        policy: usize,
        answer: &Answer,
    ) -> ProposedCandidate {
        let parent = begun.parents.first();
        let parent = parent.and_then(|number| self.state.candidate(*number)?.files());
        let files = match &answer.text {
            Ok((text, finish)) => files_of(text, *finish, parent),
            Err(why) => Err(format!("{POLICY_FAILED}{why}")),
        };
        let duplicate_of = files
            .as_ref()
            .ok()
            .and_then(|files| self.state.duplicate_of(files));
        let (files, unusable) = match files {
            Ok(files) => (Some(files), None),
            Err(why) => (None, Some(why)),
        };
        ProposedCandidate {
            files,
            unusable,
            duplicate_of,
            usage: answer.usage,
            dollars: self.policies[policy].price.of(answer.usage),
            // In tenths: a reply that takes no time costs none, however fast the machine is.
            reply_seconds: (10.0 * answer.seconds).round() / 10.0,
            ..begun
        }
    }

    /// Has a batch judged, side by side, and takes it up in the order of its numbers. Says why the search is over, if it is.
    fn judge_batch(
        &mut self,
        batch: Vec<ProposedCandidate>,
    ) -> Result<Option<SearchLimit>, SearchError> {
        let since = Instant::now();
        let mut ended = None;
        let mut waiting = Vec::new();
        let mut taken = Vec::new();
        for mut candidate in batch {
            // Two of the same batch may be the same.
            let earlier = taken.iter().find(|one: &&ProposedCandidate| {
                one.files.is_some() && one.files == candidate.files
            });
            if let Some(earlier) = earlier {
                candidate.duplicate_of.get_or_insert(earlier.number);
            }
            let is_judged = candidate.files.is_some()
                && candidate.duplicate_of.is_none()
                && !self.logged.is_left_out(candidate.number);
            let known = self.logged.verdicts.get(&candidate.number).cloned();
            if is_judged && known.is_none() {
                // Nothing new is begun once a limit is reached; what was written is judged when the search is resumed.
                if let Some(limit) = self.limit(candidate.number) {
                    ended = Some(limit);
                    break;
                }
                (self.on_progress)(SearchProgress::Judging {
                    number: candidate.number,
                });
                waiting.push(candidate.number);
            }
            taken.push(candidate);
        }
        let judged = self.judge(&taken, &waiting);
        self.waited += since.elapsed();
        for candidate in taken {
            let number = candidate.number;
            let verdict = match judged.get(&number) {
                Some(Ok(verdict)) => {
                    self.failures = 0;
                    Some(verdict.clone())
                }
                Some(Err(failure)) => {
                    if failure.code == CANCELLED || self.stopped() {
                        return Ok(Some(SearchLimit::Interrupted));
                    }
                    self.failed(number, failure)?;
                    None
                }
                None => self.logged.verdicts.get(&number).cloned(),
            };
            self.take_up(candidate, verdict)?;
        }
        Ok(ended)
    }

    fn judge(
        &self,
        batch: &[ProposedCandidate],
        waiting: &[u32],
    ) -> BTreeMap<u32, Result<Verdict, Failure>> {
        let task = &self.plan.task;
        thread::scope(|scope| {
            let jobs = batch.iter().filter(|one| waiting.contains(&one.number));
            let jobs: Vec<_> = jobs
                .filter_map(|one| {
                    let files = one.files.as_ref()?;
                    let submission = warpsmith_tasks::submission_from_text(files);
                    let mut judge = self.judges.judge(self.id(one.number), task.clone());
                    let job = scope.spawn(move || {
                        let judged = judge.judge(task, &submission);
                        judged.map_err(|error: JudgeError| error.failure())
                    });
                    Some((one.number, job))
                })
                .collect();
            jobs.into_iter()
                .map(|(number, job)| {
                    (
                        number,
                        job.join().unwrap_or_else(|_| Err(Failure::panicked())),
                    )
                })
                .collect()
        })
    }

    /// A failure of ours is no verdict. The candidate is left without one; several in a row end the search.
    fn failed(&mut self, number: u32, failure: &Failure) -> Result<(), SearchError> {
        // It ends the search at once, and nothing is made after the candidate: a resumed search has it judged.
        if failure.kind != FailureKind::Infrastructure {
            return Err(SearchError::Failed(failure.clone()));
        }
        self.judges.record(EventKind::InfrastructureFailed {
            episode: Some(self.id(number)),
            failure: failure.clone(),
            retry_in_seconds: None,
        })?;
        self.failures += 1;
        self.last_failure = Some(failure.clone());
        if self.failures >= MAX_FAILURES {
            return Err(SearchError::Failed(failure.clone()));
        }
        Ok(())
    }

    fn take_up(
        &mut self,
        proposed: ProposedCandidate,
        verdict: Option<Verdict>,
    ) -> Result<(), SearchError> {
        let (number, island) = (proposed.number, proposed.island);
        let best = self.state.archive.best();
        let mut candidate = Candidate {
            proposed,
            verdict,
            cell: None,
        };
        let us = candidate.us();
        if let (Some(files), Some(verdict), true) =
            (candidate.files(), &candidate.verdict, us.is_some())
        {
            let known = self.logged.cells.get(&number).cloned();
            candidate.cell =
                Some(known.unwrap_or_else(|| cell_of(files, verdict, self.reference.as_ref())));
        }
        let leads = us.is_some_and(|us| best.is_none_or(|best| us < best.us));
        let policy = candidate.proposed.policy.clone();
        let was_dropped = policy
            .as_ref()
            .is_some_and(|policy| self.state.is_dropped(policy));
        self.state.conclude(candidate);
        let Some(candidate) = self.state.candidates.last() else {
            return Ok(());
        };
        if let (Some(cell), Some(us)) = (candidate.cell.clone(), us) {
            let elite = Elite {
                candidate: number,
                us,
            };
            let place = self.state.archive.offer(island, cell, elite);
            if !self.logged.placed.contains(&(number, island)) {
                self.judges.record(EventKind::CandidatePlaced { place })?;
            }
        }
        let spent = self.spent();
        let best_us = self.state.archive.best().map(|best| best.us);
        let Some(candidate) = self.state.candidates.last() else {
            return Ok(());
        };
        if !self.logged.verdicts.contains_key(&number) {
            (self.on_progress)(SearchProgress::Concluded {
                candidate,
                leads,
                best_us,
                spent,
            });
        }
        if let Some(policy) = policy.filter(|policy| !was_dropped && self.state.is_dropped(policy))
        {
            let why = candidate.proposed.unusable.as_deref().unwrap_or_default();
            (self.on_progress)(SearchProgress::PolicyDropped {
                policy: &policy,
                why,
            });
        }
        Ok(())
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
