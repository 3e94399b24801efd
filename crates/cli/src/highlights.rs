//! What the live view says of episodes beside how many there are: the best so far, the last failure, how the machine is used.

use warpsmith_schema::{EventKind, RunMetrics};

/// More letters of a failure are for the log.
const CLIPPED: usize = 120;

#[derive(Default)]
pub(crate) struct Highlights {
    /// The fastest over eager that passed, and of which task.
    best: Option<(f64, String)>,
    /// What failed last, be it a candidate or this machine.
    last_failure: Option<String>,
}

impl Highlights {
    pub(crate) fn take_up(&mut self, event: &EventKind) {
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

    pub(crate) fn words(&self, gauges: &RunMetrics) -> String {
        let best = self.best.as_ref();
        let best =
            best.map(|(speedup, task)| format!("best so far {speedup:.2}x over eager ({task})"));
        let failure = self.last_failure.as_ref();
        let failure = failure.map(|failure| format!("last failure: {failure}"));
        let parts = [Some(words(gauges)), best, failure].into_iter().flatten();
        parts.collect::<Vec<_>>().join("; ")
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
pub(crate) fn rates(gauges: &RunMetrics) -> String {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_live_line_has_the_last_failure_and_the_use_of_the_machine() {
        let gauges: RunMetrics = serde_json::from_value(json!({
            "seconds": 60.0, "episodes_planned": 4, "episodes_ended": 1, "episodes_running": 3, "judgements": 6, "judgements_per_minute": 6.0,
            "judge_queue": 1, "judge_wait_seconds": 2.0, "judges_busy": 0.5, "device_leased": 0.25, "device_busy": null, "asking": 2,
            "replies": 4, "reply_seconds": 1.0, "completion_tokens": 10,
        }))
        .unwrap();
        let mut highlights = Highlights::default();
        let usual = "3 running, 2 of them asking; 1 waiting for a judge; \
                     6.0 judgements/min after 2.0 s in the queue, device leased 25 %";
        assert_eq!(highlights.words(&gauges), usual);
        let failed = json!({
            "kind": "infrastructure_failed", "episode": null, "retry_in_seconds": 8.0,
            "failure": { "kind": "infrastructure", "code": "x", "message": "m".repeat(200), "hint": null },
        });
        highlights.take_up(&serde_json::from_value(failed).unwrap());
        let clipped = "m".repeat(CLIPPED);
        let expected = format!("{usual}; last failure: {clipped}…");
        assert_eq!(highlights.words(&gauges), expected);
    }
}
