//! What earlier processes left of a search: the one reader of its log.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use jiff::Timestamp;
use warpsmith_schema::{
    ArchiveCell, Event, EventKind, ProposedCandidate, ReferenceBound, RunHeader, Verdict,
};
use warpsmith_store::{EventLog, StoreError, event_log};

/// A search's log, read to its end.
#[derive(Debug, Default)]
pub(crate) struct LoggedSearch {
    pub(crate) head: Option<RunHeader>,
    pub(crate) proposed: BTreeMap<u32, ProposedCandidate>,
    pub(crate) verdicts: HashMap<u32, Verdict>,
    /// Candidates that could not be judged.
    failed: HashSet<u32>,
    /// The cell of a candidate that passed.
    pub(crate) cells: HashMap<u32, ArchiveCell>,
    /// By candidate and island.
    pub(crate) placed: Vec<(u32, u32)>,
    pub(crate) reference: Option<ReferenceBound>,
    pub(crate) profiles: HashMap<u32, String>,
    /// By candidate, round, and whether it is reported.
    pub(crate) finals: HashMap<(u32, u32, bool), Verdict>,
    /// How long earlier processes worked on it.
    pub(crate) seconds: f64,
    began: Option<Timestamp>,
}

impl LoggedSearch {
    pub(crate) fn read(run: &Path) -> Result<Self, StoreError> {
        let mut found = Self::default();
        let mut last = None;
        EventLog::for_each_document(&event_log(run)?, |event: Event| {
            let at: Option<Timestamp> = event.at.parse().ok();
            if matches!(event.event, EventKind::RunStarted { .. }) {
                found.close(last.take());
                found.began = at;
            }
            last = at.or(last);
            found.add(event.event);
        })?;
        found.close(last);
        Ok(found)
    }

    /// The last candidate that has a verdict: up to there the log is only read again.
    pub(crate) fn last_judged(&self) -> u32 {
        self.verdicts.keys().copied().max().unwrap_or_default()
    }

    /// Whether a candidate was left without a verdict and others were made after it: it stays so, for what followed did not
    /// know it.
    pub(crate) fn is_left_out(&self, number: u32) -> bool {
        self.failed.contains(&number)
            && number < self.last_judged()
            && !self.verdicts.contains_key(&number)
    }

    /// A process worked until then.
    fn close(&mut self, last: Option<Timestamp>) {
        if let (Some(began), Some(last)) = (self.began.take(), last) {
            self.seconds += last.duration_since(began).as_secs_f64().max(0.0);
        }
    }

    fn add(&mut self, event: EventKind) {
        match event {
            EventKind::RunStarted { run } => self.head = Some(*run),
            EventKind::CandidateProposed { candidate } => {
                self.proposed.entry(candidate.number).or_insert(*candidate);
            }
            EventKind::Judged {
                episode, verdict, ..
            } => {
                self.verdicts.entry(episode.sample).or_insert(*verdict);
            }
            EventKind::InfrastructureFailed {
                episode: Some(episode),
                retry_in_seconds: None,
                ..
            } => {
                self.failed.insert(episode.sample);
            }
            EventKind::CandidatePlaced { place } => {
                self.cells.entry(place.candidate).or_insert(place.cell);
                self.placed.push((place.candidate, place.island));
            }
            EventKind::ReferenceProfiled { reference } => self.reference = Some(reference),
            EventKind::CandidateProfiled { candidate, text } => {
                self.profiles.insert(candidate, text);
            }
            EventKind::FinalistMeasured {
                candidate,
                round,
                reported,
                verdict,
            } => {
                self.finals.insert((candidate, round, reported), *verdict);
            }
            _ => {}
        }
    }
}
