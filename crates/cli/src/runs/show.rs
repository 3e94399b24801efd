//! A run, live, for the person who waits: a bar on a terminal, a line now and then elsewhere.

use std::time::Duration;

use warpsmith_schema::{Event, EventKind, RunMetrics, Trajectory};

use crate::highlights::Highlights;
use crate::live::Live;
use crate::printer::Printer;
use crate::render::time;

/// After so long a silence a person wonders.
const SILENCE: Duration = Duration::from_secs(30);

pub(super) struct Show<'a> {
    printer: &'a Printer,
    live: Live,
    highlights: Highlights,
}

impl<'a> Show<'a> {
    pub(super) fn new(printer: &'a Printer, tasks: usize) -> Self {
        printer.note(&format!("{tasks} tasks"));
        let mut live = Live::new(printer, "episodes", SILENCE);
        live.quiet_until_due();
        Self {
            printer,
            live,
            highlights: Highlights::default(),
        }
    }

    pub(super) fn hear(&mut self, event: Option<&Event>, gauges: &RunMetrics) {
        if let Some(event) = event {
            if let Some(line) = line(&event.event, self.printer.verbose()) {
                self.live.say(&line);
            }
            self.highlights.take_up(&event.event);
        }
        let (ended, planned) = (gauges.episodes_ended, gauges.episodes_planned);
        self.live
            .show(ended.into(), planned.into(), &self.highlights.words(gauges));
    }

    pub(super) fn finish(&self) {
        self.live.finish();
    }
}

/// What is worth a line of its own.
fn line(event: &EventKind, verbose: bool) -> Option<String> {
    match event {
        EventKind::TaskSkipped { task, reason: why } => {
            Some(format!("left out: {task}: {}", why.message))
        }
        EventKind::InfrastructureFailed {
            episode,
            failure,
            retry_in_seconds: again_in_seconds,
        } => {
            let whose = episode.as_ref().map(|id| format!("{id}: "));
            let then = again_in_seconds.map_or("given up for now".to_owned(), |seconds| {
                format!("again in {seconds:.0} s")
            });
            let message = &failure.message;
            let whose = whose.unwrap_or_default();
            Some(format!("{whose}{message} ({then})"))
        }
        EventKind::EpisodeEnded { trajectory } if verbose => Some(ended(trajectory)),
        _ => None,
    }
}

fn ended(trajectory: &Trajectory) -> String {
    let best = trajectory.best.map(|best| best as usize);
    let best = best.and_then(|best| trajectory.attempts.get(best));
    let last = best.or(trajectory.attempts.last());
    let how = match last.map(|attempt| &attempt.verdict) {
        Some(verdict) => match &verdict.times_us {
            Some(times) => format!("passed, {}", time(times.candidate.0)),
            None => verdict.status.name().to_owned(),
        },
        None => "nothing was judged".to_owned(),
    };
    let (task, sample) = (&trajectory.task.id, trajectory.sample);
    format!("{task}, sample {sample}: {how}")
}
