//! How a batch of candidates comes about: decisions of the state, and replies of policies.

use super::RunningSearch;
use crate::ask::Answer;
use crate::ask::Asked;
use crate::ask::ask_all;
use crate::budget::SearchLimit;
use crate::candidate::Candidate;
use crate::error::SearchError;
use crate::moves::Decision;
use crate::moves::MoveOptions;
use crate::moves::POLICY_FAILED;
use crate::moves::PendingMoves;
use crate::prompt::Question;
use crate::prompt::rules_from_failures;
use crate::reply::files_of;
use crate::strategy::SearchStrategy;
use std::collections::BTreeMap;
use std::time::Instant;
use warpsmith_agent::render_profile;
use warpsmith_schema::EventKind;
use warpsmith_schema::ProposedCandidate;
use warpsmith_schema::SearchMove;
use warpsmith_schema::Usage;

impl RunningSearch<'_> {
    pub(super) fn start_candidates(&mut self) -> Result<Vec<ProposedCandidate>, SearchError> {
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
    pub(super) fn propose_batch(
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
}
