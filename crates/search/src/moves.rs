//! What a search knows so far, and the next move that follows from it. Nothing here depends on the clock: the same log leads to the
//! same moves.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rand::Rng;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use warpsmith_agent::FencedFiles;
use warpsmith_compiler::{SourceParameter, parameters, skeleton};
use warpsmith_schema::{SearchMove, Usage};

use crate::archive::{Archive, Elite};
use crate::bandit::Bandit;
use crate::candidate::Candidate;
use crate::source::normalized_hash;
use crate::strategy::SearchStrategy;

/// The arm of moves without a policy.
pub(crate) const TUNING: &str = "tuning";
/// How a reply that never came begins.
pub(crate) const POLICY_FAILED: &str = "the policy failed: ";
/// A policy that failed so often in a row is not asked any more.
const MAX_FAILURES: u32 = 3;
/// How often the same near miss is mended.
const MAX_REPAIRS: usize = 2;
/// Changes of two parameters that are drawn before a parent counts as exhausted.
const PAIRS: u32 = 200;
/// A parent is the best of its island, else any of its cells.
const BEST_PARENT: f64 = 0.6;
/// How often parameters are mixed, where two candidates allow it.
const MIXED: f64 = 0.2;
/// Less is noise.
const LEAST_GAIN: f64 = 0.01;

/// Everything that the next move depends on.
pub(crate) struct SearchState {
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) archive: Archive,
    /// Tuning and each policy.
    pub(crate) arms: Bandit,
    /// The moves of policies.
    pub(crate) moves: Bandit,
    pub(crate) strategies: Bandit,
    pub(crate) parameter_kinds: Bandit,
    /// The first candidate with a normalised source.
    seen: HashMap<String, u32>,
    failures: BTreeMap<String, u32>,
    pub(crate) judgements: u32,
    pub(crate) dollars: f64,
    pub(crate) usage: Usage,
    seed: u64,
}

/// What other candidates of the same batch are being made by.
#[derive(Default)]
pub(crate) struct PendingMoves {
    tries: BTreeMap<String, u32>,
    seen: BTreeSet<String>,
}

/// The next candidate, or whom to ask for it.
pub(crate) enum Decision {
    Made {
        made_by: SearchMove,
        detail: String,
        parents: Vec<u32>,
        files: FencedFiles,
    },
    Ask {
        policy: usize,
        made_by: SearchMove,
        strategy: Option<SearchStrategy>,
        parents: Vec<u32>,
        inspiration: Option<u32>,
    },
}

/// Who and what there is to choose from.
pub(crate) struct MoveOptions<'a> {
    pub(crate) policies: &'a [String],
    pub(crate) strategies: &'a [SearchStrategy],
}

impl SearchState {
    pub(crate) fn new(islands: u32, seed: u64) -> Self {
        Self {
            candidates: Vec::new(),
            archive: Archive::new(islands),
            arms: Bandit::default(),
            moves: Bandit::default(),
            strategies: Bandit::default(),
            parameter_kinds: Bandit::default(),
            seen: HashMap::new(),
            failures: BTreeMap::new(),
            judgements: 0,
            dollars: 0.0,
            usage: Usage::default(),
            seed,
        }
    }

    pub(crate) fn candidate(&self, number: u32) -> Option<&Candidate> {
        self.candidates.get(number.checked_sub(1)? as usize)
    }

    /// The candidate whose source is the same, if there is one.
    pub(crate) fn duplicate_of(&self, files: &FencedFiles) -> Option<u32> {
        self.seen.get(&normalized_hash(files)).copied()
    }

    pub(crate) fn is_dropped(&self, policy: &str) -> bool {
        self.failures.get(policy).copied().unwrap_or_default() >= MAX_FAILURES
    }

    /// The next move. `None` where nothing is left to try.
    pub(crate) fn decide(
        &self,
        number: u32,
        options: &MoveOptions<'_>,
        pending: &mut PendingMoves,
    ) -> Option<Decision> {
        let mut random = self.random(number);
        let island = self.island_of(number);
        let tuned = self.tune(island, &mut random, pending);
        let policies = options.policies.iter().map(String::as_str);
        let policies = policies.filter(|policy| !self.is_dropped(policy));
        let arms = tuned.iter().map(|_| TUNING).chain(policies);
        let arm = self.arms.choose(arms, &pending.tries)?.to_owned();
        *pending.tries.entry(arm.clone()).or_default() += 1;
        if arm == TUNING {
            let tuned = tuned?;
            if let Decision::Made { files, .. } = &tuned {
                pending.seen.insert(normalized_hash(files));
            }
            return Some(tuned);
        }
        let policy = options.policies.iter().position(|one| *one == arm)?;
        Some(self.ask(policy, island, options, &mut random, pending))
    }

    pub(crate) fn island_of(&self, number: u32) -> u32 {
        (number - 1) % self.archive.islands.len() as u32
    }

    fn random(&self, number: u32) -> StdRng {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.seed.to_le_bytes());
        hasher.update(&number.to_le_bytes());
        StdRng::from_seed(*hasher.finalize().as_bytes())
    }

    fn parent(&self, island: u32, random: &mut StdRng) -> Option<Elite> {
        let cells = &self.archive.islands[island as usize].cells;
        if random.random_bool(BEST_PARENT) {
            return self.archive.islands[island as usize].best();
        }
        let elites: Vec<Elite> = cells.values().copied().collect();
        elites.choose(random).copied()
    }

    /// A change of parameters that was not tried, of the parent that was drawn, else of any.
    fn tune(&self, island: u32, random: &mut StdRng, pending: &PendingMoves) -> Option<Decision> {
        let drawn = self.parent(island, random);
        let own = self.archive.islands[island as usize].cells.values();
        let mut own: Vec<Elite> = own.copied().collect();
        let others = self
            .archive
            .islands
            .iter()
            .flat_map(|one| one.cells.values());
        let mut others: Vec<Elite> = others.copied().collect();
        for elites in [&mut own, &mut others] {
            elites.sort_by(|one, other| {
                one.us
                    .total_cmp(&other.us)
                    .then(one.candidate.cmp(&other.candidate))
            });
        }
        if random.random_bool(MIXED)
            && let Some(mixed) = self.mix(&others, random, pending)
        {
            return Some(mixed);
        }
        let mut tried = BTreeSet::new();
        let parents: Vec<u32> = drawn
            .into_iter()
            .chain(own)
            .chain(others)
            .map(|elite| elite.candidate)
            .filter(|number| tried.insert(*number))
            .collect();
        let one = parents
            .iter()
            .find_map(|parent| self.change_one(*parent, random, pending));
        one.or_else(|| {
            parents
                .iter()
                .find_map(|parent| self.change_two(*parent, random, pending))
        })
    }

    fn is_new(&self, files: &FencedFiles, pending: &PendingMoves) -> bool {
        let hash = normalized_hash(files);
        !self.seen.contains_key(&hash) && !pending.seen.contains(&hash)
    }

    fn change_one(
        &self,
        parent: u32,
        random: &mut StdRng,
        pending: &PendingMoves,
    ) -> Option<Decision> {
        let files = self.candidate(parent)?.files()?;
        let mut by_kind: BTreeMap<&str, Vec<(String, FencedFiles)>> = BTreeMap::new();
        for parameter in parameters(files) {
            for choice in &parameter.choices {
                let changed = parameter.set(files, choice);
                if self.is_new(&changed, pending) {
                    let detail = described(&parameter, choice);
                    by_kind
                        .entry(parameter.kind.name())
                        .or_default()
                        .push((detail, changed));
                }
            }
        }
        let kind = self
            .parameter_kinds
            .choose(by_kind.keys().copied(), &BTreeMap::new())?;
        let (detail, files) = by_kind.get(kind)?.choose(random)?.clone();
        Some(made(SearchMove::Tune, detail, vec![parent], files))
    }

    fn change_two(
        &self,
        parent: u32,
        random: &mut StdRng,
        pending: &PendingMoves,
    ) -> Option<Decision> {
        let files = self.candidate(parent)?.files()?;
        for _ in 0..PAIRS {
            let (first, changed) = random_change(files, random)?;
            let (second, changed) = random_change(&changed, random)?;
            if self.is_new(&changed, pending) {
                return Some(made(
                    SearchMove::Tune,
                    format!("{first}; {second}"),
                    vec![parent],
                    changed,
                ));
            }
        }
        None
    }

    /// Parameters of two candidates that differ in nothing else, each from one or the other.
    fn mix(
        &self,
        elites: &[Elite],
        random: &mut StdRng,
        pending: &PendingMoves,
    ) -> Option<Decision> {
        let first = elites.choose(random)?.candidate;
        let files = self.candidate(first)?.files()?;
        let bones = skeleton(files);
        let passed = self
            .candidates
            .iter()
            .filter(|one| one.us().is_some() && one.number() != first);
        let alike: Vec<&Candidate> = passed
            .filter(|one| one.files().is_some_and(|files| skeleton(files) == bones))
            .collect();
        let other = alike.choose(random)?;
        let values: Vec<String> = parameters(other.files()?)
            .into_iter()
            .map(|one| one.value)
            .collect();
        let mut mixed = files.clone();
        for (place, value) in values.iter().enumerate() {
            // Places move with every change, so they are found again.
            let parameter = parameters(&mixed).into_iter().nth(place)?;
            if random.random_bool(0.5) && parameter.value != *value {
                mixed = parameter.set(&mixed, value);
            }
        }
        let parents = vec![first, other.number()];
        self.is_new(&mixed, pending).then(|| {
            made(
                SearchMove::Mix,
                "parameters of both".to_owned(),
                parents,
                mixed,
            )
        })
    }

    fn ask(
        &self,
        policy: usize,
        island: u32,
        options: &MoveOptions<'_>,
        random: &mut StdRng,
        pending: &mut PendingMoves,
    ) -> Decision {
        let parent = self.parent(island, random).or_else(|| self.archive.best());
        let near_miss = self.near_miss(pending);
        let elites = self
            .archive
            .islands
            .iter()
            .flat_map(|one| one.cells.values());
        let others: Vec<u32> = elites
            .map(|elite| elite.candidate)
            .filter(|number| parent.is_none_or(|parent| parent.candidate != *number))
            .collect();
        let mut moves = vec![SearchMove::Rewrite];
        if parent.is_some() {
            moves.insert(0, SearchMove::Diff);
        }
        if parent.is_some() && !others.is_empty() {
            moves.push(SearchMove::Crossover);
        }
        if near_miss.is_some() {
            moves.push(SearchMove::Repair);
        }
        let names = moves.iter().map(|one| one.name());
        let chosen = self.moves.choose(names, &pending.tries);
        let made_by = moves.iter().copied().find(|one| Some(one.name()) == chosen);
        let made_by = made_by.unwrap_or(SearchMove::Rewrite);
        *pending.tries.entry(made_by.name().to_owned()).or_default() += 1;
        let other = others.choose(random).copied();
        let parents = match made_by {
            SearchMove::Repair => near_miss.into_iter().collect(),
            SearchMove::Crossover => parent
                .map(|one| one.candidate)
                .into_iter()
                .chain(other)
                .collect(),
            _ => parent.map(|one| one.candidate).into_iter().collect(),
        };
        if made_by == SearchMove::Repair {
            // Not twice in the same batch.
            let marks = near_miss.map(repair_mark);
            pending.seen.extend(marks);
        }
        let strategy = matches!(made_by, SearchMove::Diff | SearchMove::Rewrite)
            .then(|| {
                let names = options.strategies.iter().map(|one| one.name);
                let chosen = self.strategies.choose(names, &pending.tries)?;
                *pending.tries.entry(chosen.to_owned()).or_default() += 1;
                options
                    .strategies
                    .iter()
                    .copied()
                    .find(|one| one.name == chosen)
            })
            .flatten();
        Decision::Ask {
            policy,
            made_by,
            strategy,
            parents,
            inspiration: other.filter(|_| made_by == SearchMove::Rewrite),
        }
    }

    /// The latest candidate that nearly passed and was not mended too often.
    fn near_miss(&self, pending: &PendingMoves) -> Option<u32> {
        let repairs = |number: u32| {
            let of = |one: &&Candidate| {
                one.proposed.made_by == SearchMove::Repair && one.proposed.parents.contains(&number)
            };
            self.candidates.iter().filter(of).count()
        };
        let latest = self.candidates.iter().rev();
        latest
            .filter(|one| one.proposed.made_by != SearchMove::Tune && one.is_near_miss())
            .map(Candidate::number)
            .find(|number| {
                repairs(*number) < MAX_REPAIRS && !pending.seen.contains(&repair_mark(*number))
            })
    }

    /// Takes up a candidate with what came of it, except for its place in the archive.
    pub(crate) fn conclude(&mut self, candidate: Candidate) {
        let proposed = &candidate.proposed;
        if let Some(files) = &proposed.files {
            self.seen
                .entry(normalized_hash(files))
                .or_insert(proposed.number);
        }
        self.judgements += u32::from(candidate.verdict.is_some());
        self.dollars += proposed.dollars;
        self.usage += proposed.usage;
        if proposed.made_by != SearchMove::Start {
            let (gain, cost) = (self.gain(&candidate), candidate.cost());
            let arm = proposed.policy.as_deref().unwrap_or(TUNING);
            self.arms.learn(arm, gain, cost);
            let detail = proposed.detail.as_deref();
            if proposed.policy.is_some() {
                self.moves.learn(proposed.made_by.name(), gain, cost);
                if let Some(strategy) = detail {
                    self.strategies.learn(strategy, gain, cost);
                }
            } else if let Some((kind, _)) = detail.and_then(|detail| detail.split_once(": ")) {
                self.parameter_kinds.learn(kind, gain, cost);
            }
        }
        if let Some(policy) = &proposed.policy {
            let unusable = proposed.unusable.as_deref().unwrap_or_default();
            let failures = self.failures.entry(policy.clone()).or_default();
            *failures = if unusable.starts_with(POLICY_FAILED) {
                *failures + 1
            } else {
                0
            };
        }
        self.candidates.push(candidate);
    }

    /// The logarithm of the speed-up over the parent, or over the best of the island where the parent did not pass.
    fn gain(&self, candidate: &Candidate) -> f64 {
        let Some(us) = candidate.us() else { return 0.0 };
        let parents = candidate.proposed.parents.iter();
        let parent = parents.filter_map(|number| self.candidate(*number)?.us());
        let best = self.archive.islands[candidate.proposed.island as usize].best();
        let eager = candidate
            .verdict
            .as_ref()
            .and_then(|verdict| verdict.times_us.as_ref());
        let before = parent.reduce(f64::min).or(best.map(|best| best.us));
        let before = before.or(eager.map(|times| times.eager.0)).unwrap_or(us);
        let gain = (before / us).ln();
        if gain >= LEAST_GAIN { gain } else { 0.0 }
    }
}

fn repair_mark(number: u32) -> String {
    format!("repair {number}")
}

fn made(made_by: SearchMove, detail: String, parents: Vec<u32>, files: FencedFiles) -> Decision {
    Decision::Made {
        made_by,
        detail,
        parents,
        files,
    }
}

/// `unroll: 4 -> 8`, `constant: TILE 32 -> 64`.
fn described(parameter: &SourceParameter, value: &str) -> String {
    format!("{}: {}", parameter.kind.name(), parameter.describe(value))
}

fn random_change(files: &FencedFiles, random: &mut StdRng) -> Option<(String, FencedFiles)> {
    let all = parameters(files);
    let parameter = all.choose(random)?;
    let choice = parameter.choices.choose(random)?;
    Some((described(parameter, choice), parameter.set(files, choice)))
}
