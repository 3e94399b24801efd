//! Episodes collected by real rollouts: the policy as it is now, tasks of a curriculum, judges that stay.
//!
//! Each collection, and each examination by tasks that are held out, is a run of its own below the learner's, which can be
//! killed and goes on. What it collected is there when a step is made again, so that a resumed run learns from the same.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use warpsmith_model::Weights;
use warpsmith_model::policy::{ChatCodec, ChatModel, LocalPolicy, RunsOn};
use warpsmith_rollout::{
    EpisodeKind, Judge, RolloutPlan, RolloutResources, StopRequest, run, trajectories,
};
use warpsmith_schema::{
    Event, Failure, FailureKind, PlannedTask, PolicyVersion, RunHeader, RunMetrics, Task,
    Trajectory, ValueSource,
};
use warpsmith_store::RunFolder;

use super::llm_judge::{Bonuses, LlmJudge};
use super::policy::Collector;
use crate::TrainError;
use crate::algorithms::{Band, Curriculum};
use crate::data::{RewardRule, TokenEpisode};
use crate::metrics::Numbers;
use crate::network::Published;

/// The model that speaks.
pub struct Voice {
    /// As on the command line.
    pub name: String,
    /// The file or folder it was read from, and its hash where it is known.
    pub path: PathBuf,
    pub hash: Option<String>,
    /// Without what is learnt.
    pub weights: Weights,
    pub on: RunsOn,
    /// Has it speak; while somebody is judged alone it should rest.
    pub start: Box<dyn Fn(ChatModel) -> io::Result<LocalPolicy>>,
}

/// Which episodes are collected, and how they are rewarded.
pub struct CollectSettings {
    pub tasks: Vec<Arc<Task>>,
    /// Tasks and episodes of each for one collection.
    pub tasks_per_step: usize,
    pub samples: u32,
    pub kind: EpisodeKind,
    pub concurrency: usize,
    pub reward_rule: RewardRule,
    /// Whose scores are rewarded beside that, if anybody's.
    pub llm_judge: Option<LlmJudge>,
    pub band: Band,
    /// Tasks with this many operators or fewer are open from the beginning.
    pub open: u32,
    /// Of the choice of tasks.
    pub seed: u64,
    /// What is never learnt from, where there is something.
    pub examination: Option<Examination>,
}

/// Tasks that are held out, and the episodes of each at every look.
pub struct Examination {
    pub tasks: Vec<Arc<Task>>,
    pub samples: u32,
}

pub struct Rollouts<'a> {
    folder: PathBuf,
    voice: Voice,
    settings: CollectSettings,
    judges: Vec<Box<dyn Judge>>,
    /// What the log of each collection says of it, but for the policy and the tasks.
    head: RunHeader,
    stop_request: fn() -> StopRequest,
    watch: &'a mut dyn FnMut(Option<&Event>, &RunMetrics),
    curriculum: Curriculum,
    /// Tasks of this step so far, round after round.
    tried: Vec<String>,
    pace: Pace,
    /// Whoever speaks, from one collection to the next while nothing is learnt.
    speaking: Option<(PolicyVersion, Arc<LocalPolicy>)>,
    /// LLM-judge scores of this step's submissions, collection after collection.
    llm_scores: Vec<Numbers>,
}

/// How quickly this process has had episodes.
#[derive(Default)]
struct Pace {
    seconds: f64,
    tokens: f64,
    judgements: f64,
    judging: f64,
}

impl Pace {
    fn add(&mut self, gauges: &RunMetrics) {
        self.seconds += gauges.seconds;
        self.tokens += gauges.completion_tokens as f64;
        self.judgements += f64::from(gauges.judgements);
        self.judging += gauges.seconds * gauges.judges_busy;
    }
}

/// Episodes to be had: a run.
struct Round {
    place: PathBuf,
    tasks: Vec<Arc<Task>>,
    samples: u32,
    kind: EpisodeKind,
    version: PolicyVersion,
}

impl<'a> Rollouts<'a> {
    /// Collections and examinations are folders below `folder`.
    pub fn new(
        folder: PathBuf,
        voice: Voice,
        settings: CollectSettings,
        judges: Vec<Box<dyn Judge>>,
        head: RunHeader,
        stop_request: fn() -> StopRequest,
        watch: &'a mut dyn FnMut(Option<&Event>, &RunMetrics),
    ) -> Self {
        let tasks = settings.tasks.iter();
        let tasks = tasks.map(|task| (task.id.clone(), operators(task)));
        let curriculum = Curriculum::new(settings.band, settings.open, tasks);
        Self {
            folder,
            voice,
            settings,
            judges,
            head,
            stop_request,
            watch,
            curriculum,
            tried: Vec::new(),
            pace: Pace::default(),
            speaking: None,
            llm_scores: Vec::new(),
        }
    }

    /// The tasks of one collection, by a draw of the curriculum. A later round of a step has others while there are some.
    fn chosen(&mut self, step: u64, round: u32) -> Vec<Arc<Task>> {
        if round == 0 {
            self.tried.clear();
        }
        let mut random = StdRng::seed_from_u64(round_seed(self.settings.seed, step, round));
        let count = self.settings.tasks_per_step;
        let names = self.curriculum.draw(count, &self.tried, &mut random);
        let mut names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        names.sort_unstable();
        let named = |task: &&Arc<Task>| names.binary_search(&task.id).is_ok();
        let chosen = self.settings.tasks.iter().filter(named).cloned().collect();
        self.tried.extend(names);
        chosen
    }

    /// Of the policy after so many steps.
    fn version(&self, step: u64, policy: &Published) -> PolicyVersion {
        let trained = match policy {
            Published::Adapter(adapter) => adapter.hash(),
            // Whole weights are not worth hashing: the run and its step tell them apart.
            Published::Weights(_) => format!("step {step}"),
        };
        let base = self.voice.hash.clone();
        let base = base.unwrap_or_else(|| self.voice.path.display().to_string());
        let hash = blake3::hash(format!("{base}\n{trained}").as_bytes());
        PolicyVersion {
            name: self.voice.name.clone(),
            hash: Some(hash.to_hex().to_string()),
            step: Some(step),
        }
    }

    /// With a seed of its own in every round of every step. Each episode makes its own of it, by its task and its number.
    fn kind(&self, step: u64, round: u32) -> EpisodeKind {
        let mut kind = self.settings.kind.clone();
        let sampling = match &mut kind {
            EpisodeKind::Single(settings) => &mut settings.sampling,
            EpisodeKind::Agent(settings) => &mut settings.sampling,
        };
        let seed = sampling.seed.unwrap_or(self.settings.seed);
        sampling.seed = Some(round_seed(seed, step, round));
        kind
    }

    /// The policy of this version, which may be speaking already.
    fn speaking(
        &mut self,
        version: &PolicyVersion,
        policy: &Published,
    ) -> Result<Arc<LocalPolicy>, TrainError> {
        if let Some((known, local)) = &self.speaking
            && known == version
        {
            return Ok(local.clone());
        }
        self.rest();
        let weights = policy.on(&self.voice.weights)?;
        let codec = ChatCodec::open(&self.voice.path, self.voice.hash.as_deref())?;
        let longest = longest(&self.settings.kind);
        let model = ChatModel::new(weights, codec, version.clone(), self.voice.on, longest)?;
        let local = (self.voice.start)(model).map_err(|error| failed(&error.to_string()))?;
        let local = Arc::new(local);
        self.speaking = Some((version.clone(), local.clone()));
        Ok(local)
    }

    fn play(&mut self, round: &Round, policy: &Published) -> Result<(), TrainError> {
        let names: Vec<&str> = round.tasks.iter().map(|task| task.id.as_str()).collect();
        let config = json!({ "policy": round.version, "tasks": names, "samples": round.samples });
        let folder = RunFolder::at(&round.place, &config)?;
        let speaking = self.speaking(&round.version, policy)?;
        let planned = |task: &Arc<Task>| PlannedTask::of(task, None);
        let plan = RolloutPlan {
            tasks: round.tasks.clone(),
            samples: round.samples,
            kind: round.kind.clone(),
            concurrency: self.settings.concurrency,
            start: None,
            survey: false,
            left_out: Vec::new(),
            head: RunHeader {
                policy: round.version.clone(),
                resumed: folder.resumed(),
                tasks: round.tasks.iter().map(planned).collect(),
                samples: round.samples,
                ..self.head.clone()
            },
        };
        let resources = RolloutResources {
            policy: speaking,
            judges: &mut self.judges,
            device_busy: Box::new(|| None),
            watch: None,
            stop: self.stop_request,
        };
        let outcome = run(&folder, plan, resources, self.watch)
            .map_err(|error| TrainError::Collect(error.failure()))?;
        self.pace.add(&outcome.gauges);
        match outcome.failure {
            _ if outcome.interrupted => Err(TrainError::Interrupted),
            Some(failure) if outcome.unfinished > 0 => Err(TrainError::Collect(failure)),
            _ => Ok(()),
        }
    }

    /// Plays where that has not been done, and gives what was played.
    fn played(&mut self, round: &Round, policy: &Published) -> Result<Vec<Trajectory>, TrainError> {
        self.play(round, policy)?;
        let mut found: Vec<Trajectory> = Vec::new();
        trajectories(&round.place, |trajectory| found.push(trajectory))?;
        // Whoever ended first is first in the log; what is learnt must not depend on that.
        found.sort_by(|one, other| (&one.task.id, one.sample).cmp(&(&other.task.id, other.sample)));
        Ok(found)
    }

    /// With the reward of each beside what judges found.
    fn episodes(
        &self,
        found: &[Trajectory],
        bonuses: &[f64],
    ) -> Result<Vec<TokenEpisode>, TrainError> {
        let codec = ChatCodec::open(&self.voice.path, self.voice.hash.as_deref())?;
        let (name, reward_rule) = (&self.voice.name, &self.settings.reward_rule);
        let mut episodes = Vec::with_capacity(found.len());
        for (number, one) in found.iter().enumerate() {
            if let Some(mut episode) = TokenEpisode::of(one, reward_rule, &codec, name)? {
                episode.reward += bonuses.get(number).copied().unwrap_or_default();
                episodes.push(episode);
            }
        }
        Ok(episodes)
    }

    fn bonuses(&self, place: &Path, found: &[Trajectory]) -> Result<Bonuses, TrainError> {
        match &self.settings.llm_judge {
            None => Ok(Bonuses::default()),
            Some(one) => one.bonuses(
                place,
                found,
                self.settings.reward_rule.counts,
                self.stop_request,
            ),
        }
    }
}

impl Collector for Rollouts<'_> {
    fn collect(
        &mut self,
        step: u64,
        round: u32,
        policy: &Published,
    ) -> Result<Vec<TokenEpisode>, TrainError> {
        let round = Round {
            place: self.folder.join(format!("step-{step:06}-{round}")),
            tasks: self.chosen(step, round),
            samples: self.settings.samples,
            kind: self.kind(step, round),
            version: self.version(step - 1, policy),
        };
        let found = self.played(&round, policy)?;
        let bonuses = self.bonuses(&round.place, &found)?;
        let episodes = self.episodes(&found, &bonuses.each)?;
        self.llm_scores.extend(bonuses.numbers);
        for task in &round.tasks {
            let own = episodes.iter().filter(|episode| episode.task == task.id);
            let passed = own.clone().filter(|episode| episode.finding.passed());
            self.curriculum
                .record(&task.id, passed.count(), own.count());
        }
        Ok(episodes)
    }

    fn examine(
        &mut self,
        step: u64,
        policy: &Published,
    ) -> Result<Option<Vec<TokenEpisode>>, TrainError> {
        let Some(examination) = &self.settings.examination else {
            return Ok(None);
        };
        let round = Round {
            place: self.folder.join(format!("validation-{step:06}")),
            tasks: examination.tasks.clone(),
            samples: examination.samples,
            // With the same seed every time: what differs is the policy.
            kind: self.kind(0, 0),
            version: self.version(step, policy),
        };
        let found = self.played(&round, policy)?;
        self.episodes(&found, &[]).map(Some)
    }

    fn rest(&mut self) {
        let speaking = self.speaking.take();
        if let Some(local) = speaking.and_then(|(_, local)| Arc::into_inner(local)) {
            local.end();
        }
    }

    fn numbers(&mut self) -> Numbers {
        let pace = std::mem::take(&mut self.pace);
        let mut numbers = means(&std::mem::take(&mut self.llm_scores));
        // A collection that was whole already took no time.
        if pace.tokens > 0.0 {
            let seconds = pace.seconds.max(1e-9);
            numbers.extend([
                ("tokens_per_second_generate", pace.tokens / seconds),
                ("judgements_per_minute", 60.0 * pace.judgements / seconds),
                ("judges_busy", pace.judging / seconds),
            ]);
        }
        numbers
    }

    fn memory(&self) -> Value {
        json!(self.curriculum)
    }

    fn recall(&mut self, memory: Value) -> Result<(), serde_json::Error> {
        self.curriculum = serde_json::from_value(memory)?;
        Ok(())
    }
}

/// No two rounds of a run draw the same, and one that is made again draws what it drew.
fn round_seed(run: u64, step: u64, round: u32) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for number in [run, step, u64::from(round)] {
        hasher.update(&number.to_le_bytes());
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}

/// Of each number, over collections of a step: they are alike in size.
fn means(all: &[Numbers]) -> Numbers {
    let mut means = Numbers::new();
    for (name, value) in all.iter().flatten() {
        *means.entry(name).or_default() += value / all.len() as f64;
    }
    means
}

fn failed(message: &str) -> TrainError {
    TrainError::Collect(Failure {
        kind: FailureKind::Infrastructure,
        code: "io".to_owned(),
        message: message.to_owned(),
        hint: None,
    })
}

/// How hard a task is by its looks.
fn operators(task: &Task) -> u32 {
    let graph = task.graph.as_ref();
    let applied = graph.map(|graph| {
        let values = graph.values.iter();
        let applied = values.filter(|value| matches!(value.from, ValueSource::Applied { .. }));
        applied.count() as u32
    });
    applied.or(task.level).unwrap_or(1)
}

/// How many tokens a conversation can come to. The policy has no room for longer ones, and the more for others.
fn longest(kind: &EpisodeKind) -> usize {
    /// Of the largest task that anybody wrote, and of what a repair is told.
    const TASK: usize = 4096;
    const FEEDBACK: usize = 1024;
    match kind {
        EpisodeKind::Single(settings) => {
            let attempts = 1 + settings.repairs as usize;
            TASK + attempts * (settings.sampling.max_tokens as usize + FEEDBACK)
        }
        EpisodeKind::Agent(settings) => {
            settings.limits.tokens as usize + settings.sampling.max_tokens as usize
        }
    }
}
