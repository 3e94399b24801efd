//! A run, live, for the person who waits: a bar on a terminal, a line now and then elsewhere.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use warpsmith_schema::{Event, EventKind, RunMetrics, Trajectory};

use crate::printer::Printer;
use crate::render::time;

/// After so long a silence a person wonders.
const SILENCE: Duration = Duration::from_secs(30);

pub(super) struct Show<'a> {
    printer: &'a Printer,
    bar: Option<ProgressBar>,
    spoken: Instant,
}

impl<'a> Show<'a> {
    pub(super) fn new(printer: &'a Printer, tasks: usize) -> Self {
        printer.note(&format!("{tasks} tasks"));
        Self {
            printer,
            bar: (io::stderr().is_terminal() && !printer.quiet()).then(bar),
            spoken: Instant::now(),
        }
    }

    pub(super) fn hear(&mut self, event: Option<&Event>, gauges: &RunMetrics) {
        if let Some(line) = event.and_then(|event| line(&event.event, self.printer.verbose())) {
            self.say(&line);
        }
        match &self.bar {
            Some(bar) => {
                bar.set_length(gauges.episodes_planned.into());
                bar.set_position(gauges.episodes_ended.into());
                bar.set_message(words(gauges));
            }
            None if self.spoken.elapsed() > SILENCE => {
                let (ended, planned) = (gauges.episodes_ended, gauges.episodes_planned);
                self.say(&format!("{ended} of {planned} episodes; {}", words(gauges)));
            }
            None => {}
        }
    }

    fn say(&mut self, line: &str) {
        self.spoken = Instant::now();
        match &self.bar {
            Some(bar) => bar.suspend(|| self.printer.note(line)),
            None => self.printer.note(line),
        }
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let template = "{wide_bar} {pos}/{len} episodes, {elapsed}, about {eta} left\n{msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// How the machine is used, in one line.
pub(super) fn words(gauges: &RunMetrics) -> String {
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
