//! A run, live, for the person who waits: a bar on a terminal, a line now and then elsewhere.

use std::time::Duration;

use warpsmith_schema::{Event, EventKind, RunMetrics, Trajectory};

use crate::live::Live;
use crate::printer::Printer;
use crate::render::time;

/// After so long a silence a person wonders.
const SILENCE: Duration = Duration::from_secs(30);
/// More letters of a failure are for the log.
const CLIPPED: usize = 120;

pub(super) struct Show<'a> {
    printer: &'a Printer,
    live: Live,
    /// The fastest over eager that passed, and of which task.
    best: Option<(f64, String)>,
    /// What failed last, be it a candidate or this machine.
    last_failure: Option<String>,
}

impl<'a> Show<'a> {
    pub(super) fn new(printer: &'a Printer, tasks: usize) -> Self {
        printer.note(&format!("{tasks} tasks"));
        let mut live = Live::new(printer, "episodes", SILENCE);
        live.quiet_until_due();
        Self {
            printer,
            live,
            best: None,
            last_failure: None,
        }
    }

    pub(super) fn hear(&mut self, event: Option<&Event>, gauges: &RunMetrics) {
        if let Some(event) = event {
            if let Some(line) = line(&event.event, self.printer.verbose()) {
                self.live.say(&line);
            }
            self.take_up(&event.event);
        }
        let (ended, planned) = (gauges.episodes_ended, gauges.episodes_planned);
        self.live
            .show(ended.into(), planned.into(), &self.words(gauges));
    }

    fn take_up(&mut self, event: &EventKind) {
        match event {
            EventKind::InfrastructureFailed { failure, .. } => {
                self.last_failure = Some(clip(&failure.message));
            }
            EventKind::EpisodeEnded { trajectory } => {
                let id = &trajectory.task.id;
                let best = trajectory.best.map(|best| best as usize);
                let best = best.and_then(|best| trajectory.attempts.get(best));
                let Some(best) = best else {
                    let last = trajectory.attempts.last();
                    let reason = last.and_then(|attempt| attempt.verdict.reason.as_deref());
                    let reason = reason.and_then(|reason| reason.lines().next());
                    self.last_failure = Some(clip(&format!(
                        "{id}: {}",
                        reason.unwrap_or("nothing judged")
                    )));
                    return;
                };
                let speedup = best.verdict.speedup.as_ref().map(|found| found.eager.0);
                if let Some(speedup) = speedup
                    && self.best.as_ref().is_none_or(|(best, _)| speedup > *best)
                {
                    self.best = Some((speedup, id.clone()));
                }
            }
            _ => {}
        }
    }

    fn words(&self, gauges: &RunMetrics) -> String {
        let best = self.best.as_ref();
        let best =
            best.map(|(speedup, task)| format!("best so far {speedup:.2}x over eager ({task})"));
        let failure = self.last_failure.as_ref();
        let failure = failure.map(|failure| format!("last failure: {failure}"));
        let parts = [Some(words(gauges)), best, failure].into_iter().flatten();
        parts.collect::<Vec<_>>().join("; ")
    }

    pub(super) fn finish(&self) {
        self.live.finish();
    }
}

fn clip(text: &str) -> String {
    let end = text.char_indices().nth(CLIPPED);
    end.map_or_else(|| text.to_owned(), |(end, _)| format!("{}…", &text[..end]))
}

/// How the machine is used, in one line.
fn words(gauges: &RunMetrics) -> String {
    format!(
        "{} running, {} of them asking; {} waiting for a judge; {}",
        gauges.episodes_running,
        gauges.asking,
        gauges.judge_queue,
        rates(gauges)
    )
}

/// The same without what is of the moment.
pub(super) fn rates(gauges: &RunMetrics) -> String {
    let busy = gauges.device_busy;
    let busy = busy.map(|busy| format!(", device busy {:.0} %", 100.0 * busy));
    format!(
        "{:.1} judgements/min after {:.1} s in the queue, device leased {:.0} %{}",
        gauges.judgements_per_minute,
        gauges.judge_wait_seconds,
        100.0 * gauges.device_leased,
        busy.unwrap_or_default(),
    )
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
