//! A run's log as lists need it: every episode in one line, and where in the log the rest of it is.
//!
//! Made from the log alone and kept in memory; a look at a log that has grown reads only what is new.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;
use warpsmith_schema::{
    CountedAttempt, Ending, EpisodeId, Event, EventKind, Failure, Gauges, Number, PolicyVersion,
    Reward, RunHead, Speedup, Status, Trajectory, Usage, faster,
};

use crate::StoreError;

/// What a run's log says so far.
#[derive(Debug)]
pub struct RunIndex {
    log: PathBuf,
    kind: Kind,
    /// Bytes that have been read, and the file they are from.
    covered: u64,
    file: Option<(u64, u64)>,
    pub head: Option<RunHead>,
    /// When the first process took it up, and when anything was last heard of it.
    pub begun: Option<String>,
    pub latest: Option<String>,
    pub gauges: Option<Gauges>,
    /// The last process let go of it in good order.
    pub ended: Option<RunEnd>,
    pub left_out: Vec<(String, Failure)>,
    pub hitches: u32,
    /// Lines that could not be read.
    pub broken: u32,
    /// In the order they began.
    pub episodes: Vec<EpisodeRow>,
    pub totals: Totals,
    places: HashMap<EpisodeId, usize>,
}

/// What a line of the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Something that happened.
    Event,
    /// An episode that ended, and nothing else: `optimize` writes these.
    Trajectory,
}

/// All episodes that ended, in a few numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Totals {
    pub ended: u32,
    pub compiled: u32,
    pub passed: u32,
    /// By 5 % in its own precision class.
    pub faster_than_eager: u32,
    pub faster_than_compile: u32,
    pub usage: Usage,
}

impl Totals {
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
            self.faster_than_eager += u32::from(faster(1.0, speedup.eager.0));
            self.faster_than_compile += u32::from(compile.is_some_and(|one| faster(1.0, one)));
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
    /// When it was last heard of.
    pub at: String,
    /// Judgements so far.
    pub judged: u32,
    /// Once it has ended.
    pub result: Option<EpisodeResult>,
    /// Where its end is in the log.
    place: Option<(u64, u64)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EpisodeResult {
    pub name: String,
    pub level: Option<u32>,
    pub policy: PolicyVersion,
    pub ending: Ending,
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

/// A line, of which only what is needed is read.
#[derive(Deserialize)]
struct Line<'a> {
    at: String,
    #[serde(borrow)]
    event: &'a RawValue,
}

#[derive(Deserialize)]
struct Told<'a> {
    kind: &'a str,
}

#[derive(Deserialize)]
struct Begun {
    episode: EpisodeId,
}

#[derive(Deserialize)]
struct Ended {
    trajectory: BriefTrajectory,
}

#[derive(Deserialize)]
struct BriefTrajectory {
    task: BriefTask,
    policy: PolicyVersion,
    sample: u32,
    attempts: Vec<BriefAttempt>,
    best: Option<u32>,
    ending: Ending,
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
        let trajectories = run.join("trajectories.jsonl");
        if trajectories.is_file() {
            Self::of(trajectories, Kind::Trajectory)
        } else {
            Self::of(run.join("events.jsonl"), Kind::Event)
        }
    }

    fn of(log: PathBuf, kind: Kind) -> Self {
        Self {
            log,
            kind,
            covered: 0,
            file: None,
            head: None,
            begun: None,
            latest: None,
            gauges: None,
            ended: None,
            left_out: Vec::new(),
            hitches: 0,
            broken: 0,
            episodes: Vec::new(),
            totals: Totals::default(),
            places: HashMap::new(),
        }
    }

    /// Reads what was added since. Says whether there was anything.
    pub fn refresh(&mut self) -> Result<bool, StoreError> {
        let read = |source| StoreError::Read {
            path: self.log.clone(),
            source,
        };
        let file = match fs_err::File::open(&self.log) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(read(error)),
        };
        let found = file.metadata().map_err(read)?;
        let length = found.len();
        let identity = Some((found.dev(), found.ino()));
        if length < self.covered || (self.file.is_some() && self.file != identity) {
            // Another log under the same name.
            *self = Self::of(self.log.clone(), self.kind);
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
                return Ok(self.covered > before);
            }
            let place = (self.covered, count as u64);
            // One line that cannot be read hides nothing of the others.
            if count > 1 && self.take(&line, place).is_err() {
                self.broken += 1;
            }
            self.covered += count as u64;
        }
    }

    fn take(&mut self, line: &[u8], place: (u64, u64)) -> Result<(), serde_json::Error> {
        if self.kind == Kind::Trajectory {
            self.end(serde_json::from_slice(line)?, place, "");
            return Ok(());
        }
        let Line { at, event } = serde_json::from_slice(line)?;
        let Told { kind } = part(event)?;
        match kind {
            "episode_begun" | "judged" => {
                let Begun { episode } = part(event)?;
                let judged = kind == "judged";
                let row = self.row(episode);
                row.at.clone_from(&at);
                row.judged += u32::from(judged);
            }
            "episode_ended" => {
                let Ended { trajectory } = part(event)?;
                self.end(trajectory, place, &at);
            }
            "progressed" | "surveyed" => {}
            // The rest are few and small.
            _ => self.take_whole(serde_json::from_str(event.get())?, &at),
        }
        self.latest = Some(at);
        Ok(())
    }

    /// Where an episode ends twice the first end counts, as it does for the run.
    fn end(&mut self, trajectory: BriefTrajectory, place: (u64, u64), at: &str) {
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
        row.place = Some(place);
        let result = EpisodeResult::of(trajectory, counts);
        row.result = Some(result.clone());
        self.totals.add(&result);
    }

    fn take_whole(&mut self, event: EventKind, at: &str) {
        match event {
            EventKind::RunBegun { run } => {
                self.begun.get_or_insert_with(|| at.to_owned());
                self.head = Some(*run);
                self.ended = None;
            }
            EventKind::LeftOut { task, why } => self.left_out.push((task, why)),
            EventKind::Hitch { .. } => self.hitches += 1,
            EventKind::Measured { gauges } => self.gauges = Some(gauges),
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

    fn row(&mut self, id: EpisodeId) -> &mut EpisodeRow {
        let place = *self.places.entry(id.clone()).or_insert_with(|| {
            self.episodes.push(EpisodeRow {
                id,
                at: String::new(),
                judged: 0,
                result: None,
                place: None,
            });
            self.episodes.len() - 1
        });
        &mut self.episodes[place]
    }

    pub fn episode(&self, id: &EpisodeId) -> Option<&EpisodeRow> {
        self.episodes.get(*self.places.get(id)?)
    }

    /// The whole of an episode that has ended.
    pub fn trajectory(&self, row: &EpisodeRow) -> Result<Option<Trajectory>, StoreError> {
        let Some((start, length)) = row.place else {
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
        let broken = |source| StoreError::BrokenEvent {
            path: self.log.clone(),
            line: 0,
            source,
        };
        if self.kind == Kind::Trajectory {
            return serde_json::from_slice(&line).map(Some).map_err(broken);
        }
        let event: Event = serde_json::from_slice(&line).map_err(broken)?;
        Ok(match event.event {
            EventKind::EpisodeEnded { trajectory } => Some(*trajectory),
            _ => None,
        })
    }
}

fn part<'a, T: Deserialize<'a>>(event: &'a RawValue) -> Result<T, serde_json::Error> {
    serde_json::from_str(event.get())
}

impl EpisodeResult {
    fn of(brief: BriefTrajectory, counts: CountedAttempt) -> Self {
        let compiled = || brief.attempts.iter().map(|one| one.verdict.compiled);
        let counted = counts.place(brief.best, compiled());
        let verdict = counted.map(|place| &brief.attempts[place].verdict);
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
