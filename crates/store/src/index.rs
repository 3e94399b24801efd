//! An index of a run's log for lists: one row an episode, and where in the log the whole of it is.
//!
//! It is derived from the log alone and kept in memory. Refreshing it reads only what was appended since.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;
use warpsmith_schema::{
    CountedAttempt, DocumentError, EpisodeEnding, EpisodeId, Event, EventKind, Failure, Number,
    OtherFormat, PolicyVersion, Reward, RunHeader, RunMetrics, Speedup, StartAuthor, Status,
    Trajectory, Usage, Verdict, Versioned, is_faster, read_document,
};

use crate::StoreError;
use crate::remeasured::Remeasured;
use crate::run::OLD_EPISODES;

/// What a run's log says so far.
#[derive(Debug)]
pub struct RunIndex {
    log: PathBuf,
    /// Bytes that have been read.
    covered: u64,
    /// Device and inode of the file that was read.
    file: Option<(u64, u64)>,
    pub head: Option<RunHeader>,
    /// When the first process began the run.
    pub started: Option<String>,
    /// When the last event was written.
    pub latest: Option<String>,
    pub metrics: Option<RunMetrics>,
    /// Set once the last process left the run in good order.
    pub ended: Option<RunEnd>,
    pub skipped: Vec<(String, Failure)>,
    /// What the policy started from, and its verdict (`optimize`).
    pub start: Option<(StartAuthor, Verdict)>,
    /// What was measured afresh: lists show that.
    pub remeasured: Remeasured,
    pub infrastructure_failures: u32,
    /// Lines that could not be read.
    pub broken: u32,
    /// Set where the log has another format: then nothing of it is read.
    pub other_format: Option<OtherFormat>,
    /// In the order they began.
    pub episodes: Vec<EpisodeRow>,
    pub totals: RunTotals,
    rows: HashMap<EpisodeId, usize>,
    remeasured_events: u32,
}

/// A log of another format is not read at all.
fn check_format(format: Option<u32>) -> Result<(), OtherFormat> {
    if format == Some(Event::FORMAT) {
        return Ok(());
    }
    Err(OtherFormat {
        document: Event::NAME,
        found: format,
        reads: Event::FORMAT,
    })
}

/// The format of a log that earlier versions kept instead of events.
fn old_episodes(log: &Path) -> Option<OtherFormat> {
    let mut line = String::new();
    let file = fs_err::File::open(log).ok()?;
    BufReader::new(file).read_line(&mut line).ok()?;
    let first: Option<BriefFormat> = serde_json::from_str(&line).ok();
    Some(OtherFormat {
        document: Trajectory::NAME,
        found: first.and_then(|first| first.format),
        reads: Trajectory::FORMAT,
    })
}

/// Sums over all episodes that ended.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RunTotals {
    pub ended: u32,
    pub compiled: u32,
    pub passed: u32,
    /// By 5 % in its own precision class.
    /// Of those that passed, how many were timed beside eager, and beside `torch.compile`.
    pub timed: u32,
    pub timed_beside_compile: u32,
    pub faster_than_eager: u32,
    pub faster_than_compile: u32,
    pub usage: Usage,
}

impl RunTotals {
    fn add(&mut self, one: &EpisodeResult) {
        self.ended += 1;
        self.compiled += u32::from(one.compiled);
        self.usage += one.usage;
        if one.status != Some(Status::Passed) {
            return;
        }
        self.passed += 1;
        if let Some(speedup) = &one.speedup {
            let compile = speedup.compile.map(|one| one.0);
            self.timed += 1;
            self.timed_beside_compile += u32::from(compile.is_some());
            self.faster_than_eager += u32::from(is_faster(1.0, speedup.eager.0));
            self.faster_than_compile += u32::from(compile.is_some_and(|one| is_faster(1.0, one)));
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct RunEnd {
    pub unfinished: u32,
    pub interrupted: bool,
    pub failure: Option<Failure>,
}

/// One episode.
#[derive(Debug, Clone, PartialEq)]
pub struct EpisodeRow {
    pub id: EpisodeId,
    /// When its last event was written.
    pub at: String,
    /// Judgements so far.
    pub judged: u32,
    /// Once it has ended.
    pub result: Option<EpisodeResult>,
    /// Offset and length of its last event in the log.
    span: Option<(u64, u64)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EpisodeResult {
    pub name: String,
    pub level: Option<u32>,
    pub policy: PolicyVersion,
    pub ending: EpisodeEnding,
    pub attempts: u32,
    pub compiled: bool,
    /// Of the attempt that counts in this run.
    pub status: Option<Status>,
    pub us: Option<Number>,
    /// In its own precision class.
    pub speedup: Option<Speedup>,
    pub reward: Option<Reward>,
    pub usage: Usage,
    pub seconds: f64,
}

/// The parts of a line that the index needs; parsing the rest would take most of the time.
#[derive(Deserialize)]
struct BriefLine<'a> {
    format: Option<u32>,
    at: String,
    #[serde(borrow)]
    event: &'a RawValue,
}

#[derive(Deserialize)]
struct BriefFormat {
    format: Option<u32>,
}

#[derive(Deserialize)]
struct BriefKind<'a> {
    kind: &'a str,
}

#[derive(Deserialize)]
struct BriefEpisode {
    episode: EpisodeId,
}

#[derive(Deserialize)]
struct BriefEnd {
    trajectory: BriefTrajectory,
}

#[derive(Deserialize)]
struct BriefTrajectory {
    task: BriefTask,
    policy: PolicyVersion,
    sample: u32,
    attempts: Vec<BriefAttempt>,
    best: Option<u32>,
    ending: EpisodeEnding,
    usage: Usage,
    seconds: f64,
}

#[derive(Deserialize)]
struct BriefTask {
    id: String,
    name: String,
    level: Option<u32>,
}

#[derive(Deserialize)]
struct BriefAttempt {
    verdict: BriefVerdict,
}

#[derive(Deserialize)]
struct BriefVerdict {
    status: Status,
    compiled: bool,
    times_us: Option<BriefTimes>,
    matched_precision: Option<BriefMatched>,
    reward: Reward,
}

#[derive(Deserialize)]
struct BriefTimes {
    candidate: Number,
}

#[derive(Deserialize)]
struct BriefMatched {
    speedup: Speedup,
}

impl RunIndex {
    /// Of a run's folder, whose log may not be there yet.
    pub fn new(run: &Path) -> Self {
        Self::of(run.join("events.jsonl"))
    }

    fn of(log: PathBuf) -> Self {
        Self {
            log,
            covered: 0,
            file: None,
            head: None,
            started: None,
            latest: None,
            metrics: None,
            ended: None,
            skipped: Vec::new(),
            start: None,
            remeasured: Remeasured::default(),
            infrastructure_failures: 0,
            broken: 0,
            other_format: None,
            episodes: Vec::new(),
            totals: RunTotals::default(),
            rows: HashMap::new(),
            remeasured_events: 0,
        }
    }

    /// Reads what was appended since the last time. Returns whether there was anything.
    pub fn refresh(&mut self) -> Result<bool, StoreError> {
        let read = |source| StoreError::Read {
            path: self.log.clone(),
            source,
        };
        let file = match fs_err::File::open(&self.log) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.other_format = old_episodes(&self.log.with_file_name(OLD_EPISODES));
                return Ok(false);
            }
            Err(error) => return Err(read(error)),
        };
        let found = file.metadata().map_err(read)?;
        let length = found.len();
        let identity = Some((found.dev(), found.ino()));
        if length < self.covered || (self.file.is_some() && self.file != identity) {
            // Another log under the same name.
            *self = Self::of(self.log.clone());
        }
        self.file = identity;
        if length == self.covered {
            return Ok(false);
        }
        let mut file = BufReader::with_capacity(1 << 20, file);
        let read = |source| StoreError::Read {
            path: self.log.clone(),
            source,
        };
        file.seek(SeekFrom::Start(self.covered)).map_err(read)?;
        let (mut line, before) = (Vec::new(), self.covered);
        let remeasured = self.remeasured_events;
        loop {
            line.clear();
            let count = file
                .read_until(b'\n', &mut line)
                .map_err(|source| StoreError::Read {
                    path: self.log.clone(),
                    source,
                })?;
            // What has no end yet is being written.
            if line.last() != Some(&b'\n') {
                if remeasured != self.remeasured_events {
                    self.show_remeasured()?;
                }
                return Ok(self.covered > before);
            }
            let span = (self.covered, count as u64);
            let added = if count > 1 {
                self.add(&line, span)
            } else {
                Ok(())
            };
            match added {
                Ok(()) => {}
                Err(DocumentError::OtherFormat(other)) => {
                    self.other_format = Some(other);
                    self.covered = length;
                    return Ok(true);
                }
                // A line that cannot be read does not hide the others.
                Err(DocumentError::Json(_)) => self.broken += 1,
            }
            self.covered += count as u64;
        }
    }

    fn add(&mut self, line: &[u8], span: (u64, u64)) -> Result<(), DocumentError> {
        let BriefLine { format, at, event } = serde_json::from_slice(line)?;
        check_format(format)?;
        let BriefKind { kind } = parse(event)?;
        match kind {
            "episode_started" | "judged" => {
                let BriefEpisode { episode } = parse(event)?;
                let judged = kind == "judged";
                let row = self.row(episode);
                row.at.clone_from(&at);
                row.judged += u32::from(judged);
            }
            "episode_ended" => {
                let BriefEnd { trajectory } = parse(event)?;
                self.end_episode(trajectory, span, &at);
            }
            "episode_progressed" | "task_accepted" => {}
            // The other kinds are few and small.
            _ => self.add_whole(serde_json::from_str(event.get())?, &at),
        }
        self.latest = Some(at);
        Ok(())
    }

    /// Where an episode ends twice the first end counts, as it does for the run.
    fn end_episode(&mut self, trajectory: BriefTrajectory, span: (u64, u64), at: &str) {
        let counts = self
            .head
            .as_ref()
            .map_or(CountedAttempt::Best, |head| head.counts);
        let row = self.row(EpisodeId {
            task: trajectory.task.id.clone(),
            sample: trajectory.sample,
        });
        if row.result.is_some() {
            return;
        }
        at.clone_into(&mut row.at);
        row.span = Some(span);
        let result = EpisodeResult::of(trajectory, counts);
        row.result = Some(result.clone());
        self.totals.add(&result);
    }

    fn add_whole(&mut self, event: EventKind, at: &str) {
        match event {
            EventKind::RunStarted { run } => {
                self.started.get_or_insert_with(|| at.to_owned());
                self.head = Some(*run);
                self.ended = None;
            }
            EventKind::TaskSkipped { task, reason } => self.skipped.push((task, reason)),
            EventKind::InfrastructureFailed { .. } => self.infrastructure_failures += 1,
            EventKind::StartJudged {
                author, verdict, ..
            } => self.start = Some((author, *verdict)),
            EventKind::Remeasured {
                task,
                submission,
                round,
                verdict,
            } => {
                self.remeasured_events += 1;
                self.remeasured.add(task, submission, round, *verdict);
            }
            EventKind::MetricsSampled { metrics } => self.metrics = Some(metrics),
            EventKind::RunEnded {
                unfinished,
                interrupted,
                failure,
            } => {
                self.ended = Some(RunEnd {
                    unfinished,
                    interrupted,
                    failure,
                });
            }
            _ => {}
        }
    }

    /// Of few episodes: only `optimize` measures afresh.
    fn show_remeasured(&mut self) -> Result<(), StoreError> {
        let counts = self
            .head
            .as_ref()
            .map_or(CountedAttempt::Best, |head| head.counts);
        for place in 0..self.episodes.len() {
            let row = &self.episodes[place];
            if row.result.is_none() || !self.remeasured.of_task(&row.id.task) {
                continue;
            }
            let Some(mut trajectory) = self.trajectory(row)? else {
                continue;
            };
            self.remeasured.apply_to(&mut trajectory);
            self.episodes[place].result = Some(EpisodeResult::of_whole(&trajectory, counts));
        }
        let mut totals = RunTotals::default();
        let results = self.episodes.iter().filter_map(|row| row.result.as_ref());
        results.for_each(|result| totals.add(result));
        self.totals = totals;
        Ok(())
    }

    fn row(&mut self, id: EpisodeId) -> &mut EpisodeRow {
        let index = *self.rows.entry(id.clone()).or_insert_with(|| {
            self.episodes.push(EpisodeRow {
                id,
                at: String::new(),
                judged: 0,
                result: None,
                span: None,
            });
            self.episodes.len() - 1
        });
        &mut self.episodes[index]
    }

    pub fn episode(&self, id: &EpisodeId) -> Option<&EpisodeRow> {
        self.episodes.get(*self.rows.get(id)?)
    }

    /// The whole of an episode that has ended.
    pub fn trajectory(&self, row: &EpisodeRow) -> Result<Option<Trajectory>, StoreError> {
        let Some((start, length)) = row.span else {
            return Ok(None);
        };
        let read = |source| StoreError::Read {
            path: self.log.clone(),
            source,
        };
        let mut file = fs_err::File::open(&self.log).map_err(read)?;
        file.seek(SeekFrom::Start(start)).map_err(read)?;
        let mut line = Vec::new();
        file.take(length).read_to_end(&mut line).map_err(read)?;
        let event: Event =
            read_document(&line).map_err(|error| StoreError::document(&self.log, 0, error))?;
        Ok(match event.event {
            EventKind::EpisodeEnded { trajectory } => Some(*trajectory),
            _ => None,
        })
    }
}

fn parse<'a, T: Deserialize<'a>>(event: &'a RawValue) -> Result<T, serde_json::Error> {
    serde_json::from_str(event.get())
}

impl EpisodeResult {
    pub fn passed(&self) -> bool {
        self.status == Some(Status::Passed)
    }

    fn of_whole(trajectory: &Trajectory, counts: CountedAttempt) -> Self {
        let attempts = &trajectory.attempts;
        let compiled = || attempts.iter().map(|one| one.verdict.compiled);
        let counted = counts.select(trajectory.best, compiled());
        let verdict = counted.map(|index| &attempts[index].verdict);
        let matched = verdict.and_then(|verdict| verdict.matched_precision.as_ref());
        Self {
            name: trajectory.task.name.clone(),
            level: trajectory.task.level,
            policy: trajectory.policy.clone(),
            ending: trajectory.ending.clone(),
            attempts: attempts.len() as u32,
            compiled: compiled().any(|compiled| compiled),
            status: verdict.map(|verdict| verdict.status),
            us: verdict
                .and_then(|verdict| verdict.times_us.as_ref())
                .map(|times| times.candidate),
            speedup: matched.map(|matched| matched.speedup),
            reward: verdict.map(|verdict| verdict.reward),
            usage: trajectory.usage,
            seconds: trajectory.seconds,
        }
    }

    fn of(brief: BriefTrajectory, counts: CountedAttempt) -> Self {
        let compiled = || brief.attempts.iter().map(|one| one.verdict.compiled);
        let counted = counts.select(brief.best, compiled());
        let verdict = counted.map(|index| &brief.attempts[index].verdict);
        let times = verdict.and_then(|verdict| verdict.times_us.as_ref());
        let matched = verdict.and_then(|verdict| verdict.matched_precision.as_ref());
        Self {
            attempts: brief.attempts.len() as u32,
            compiled: compiled().any(|compiled| compiled),
            status: verdict.map(|verdict| verdict.status),
            us: times.map(|times| times.candidate),
            speedup: matched.map(|matched| matched.speedup),
            reward: verdict.map(|verdict| verdict.reward),
            name: brief.task.name,
            level: brief.task.level,
            policy: brief.policy,
            ending: brief.ending,
            usage: brief.usage,
            seconds: brief.seconds,
        }
    }
}
