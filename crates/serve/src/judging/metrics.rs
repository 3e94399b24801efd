//! What the judges have done, for Prometheus: `GET /metrics` in its text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use warpsmith_schema::{Failure, FailureKind, Verdict};

use super::jobs::JobRefusal;

/// Counted since the server began.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// By the verdict's status.
    verdicts: BTreeMap<&'static str, u64>,
    /// By kind and code.
    failures: BTreeMap<(&'static str, String), u64>,
    /// By reason.
    refused: BTreeMap<&'static str, u64>,
    pub(super) cancelled: u64,
    /// From coming to a judge's beginning.
    pub(super) waiting: Histogram,
    pub(super) judging: Histogram,
    /// What the queue itself adds: until a free judge has the job, and from its end until who waits for it is told.
    pub(super) overhead: Histogram,
}

/// What there is at the moment.
#[derive(Debug, Default)]
pub(super) struct Moment {
    pub(super) waiting: Vec<(String, usize)>,
    pub(super) judging: usize,
    pub(super) judges: usize,
    pub(super) draining: bool,
    /// Index of a GPU and its share of time in use, where that can be read.
    pub(super) gpus: Vec<(u32, Option<f64>)>,
}

/// Upper ends in seconds.
const BOUNDS: [f64; 14] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0,
];

#[derive(Debug, Default)]
pub(super) struct Histogram {
    /// One more than there are bounds.
    counts: [u64; BOUNDS.len() + 1],
    sum: f64,
}

impl Histogram {
    pub(super) fn observe(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        let place = BOUNDS.partition_point(|bound| *bound < seconds);
        self.counts[place] += 1;
        self.sum += seconds;
    }

    fn write(&self, text: &mut String, name: &str, help: &str) {
        head(text, name, help, "histogram");
        let mut total = 0;
        for (bound, count) in BOUNDS.iter().zip(self.counts) {
            total += count;
            let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {total}");
        }
        total += self.counts[BOUNDS.len()];
        let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {total}");
        let _ = writeln!(text, "{name}_sum {}\n{name}_count {total}", self.sum);
    }
}

impl Counts {
    pub(super) fn ended(&mut self, judged: Result<&Verdict, &Failure>) {
        match judged {
            Ok(verdict) => *self.verdicts.entry(verdict.status.name()).or_default() += 1,
            Err(failure) => {
                let kind = match failure.kind {
                    FailureKind::Task => "task",
                    FailureKind::Config => "config",
                    FailureKind::Infrastructure => "infrastructure",
                };
                let key = (kind, failure.code.clone());
                *self.failures.entry(key).or_default() += 1;
            }
        }
    }

    pub(super) fn refused(&mut self, why: JobRefusal) {
        let reason = match why {
            JobRefusal::Full => "queue_full",
            JobRefusal::Draining => "draining",
            JobRefusal::Unknown | JobRefusal::TooLate => return,
        };
        *self.refused.entry(reason).or_default() += 1;
    }

    /// Everything in Prometheus' text format 0.0.4.
    pub(super) fn text(&self, now: &Moment) -> String {
        let mut text = String::new();
        let out = &mut text;
        let name = "warpsmith_verdicts_total";
        head(out, name, "Verdicts, by status", "counter");
        for (status, count) in &self.verdicts {
            let _ = writeln!(out, "{name}{{status=\"{status}\"}} {count}");
        }
        let name = "warpsmith_failures_total";
        head(out, name, "Judgements without a verdict", "counter");
        for ((kind, code), count) in &self.failures {
            let code = escaped(code);
            let _ = writeln!(out, "{name}{{kind=\"{kind}\",code=\"{code}\"}} {count}");
        }
        let name = "warpsmith_refused_total";
        head(out, name, "Submissions that were not taken", "counter");
        for (reason, count) in &self.refused {
            let _ = writeln!(out, "{name}{{reason=\"{reason}\"}} {count}");
        }
        let name = "warpsmith_cancelled_total";
        head(out, name, "Submissions taken back while waiting", "counter");
        let _ = writeln!(out, "{name} {}", self.cancelled);
        let name = "warpsmith_jobs_waiting";
        head(out, name, "Jobs in the queue, by client", "gauge");
        for (client, count) in &now.waiting {
            let client = escaped(client);
            let _ = writeln!(out, "{name}{{client=\"{client}\"}} {count}");
        }
        for (name, help, value) in [
            (
                "warpsmith_jobs_judging",
                "Jobs that a judge is at",
                now.judging,
            ),
            ("warpsmith_judges", "Judges side by side", now.judges),
            (
                "warpsmith_draining",
                "Whether the server takes no more submissions",
                usize::from(now.draining),
            ),
        ] {
            head(out, name, help, "gauge");
            let _ = writeln!(out, "{name} {value}");
        }
        let name = "warpsmith_queue_wait_seconds";
        self.waiting
            .write(out, name, "From a submission to its judge");
        let name = "warpsmith_judging_seconds";
        self.judging.write(out, name, "From there to its end");
        let name = "warpsmith_queue_overhead_seconds";
        let help = "Until a free judge has a job, and from its end until who waits for it is told";
        self.overhead.write(out, name, help);
        let name = "warpsmith_gpu_busy_ratio";
        let help = "Share of the last moment in which a GPU was in use, where the driver says it";
        head(out, name, help, "gauge");
        for (gpu, busy) in &now.gpus {
            if let Some(busy) = busy {
                let _ = writeln!(out, "{name}{{gpu=\"{gpu}\"}} {busy}");
            }
        }
        text
    }
}

fn head(text: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_in_its_bucket_and_all_larger_ones() {
        let mut found = Histogram::default();
        for millis in [1, 3, 20, 7_200_000] {
            found.observe(Duration::from_millis(millis));
        }
        let mut text = String::new();
        found.write(&mut text, "x", "help");
        for line in [
            "x_bucket{le=\"0.001\"} 1",
            "x_bucket{le=\"0.005\"} 2",
            "x_bucket{le=\"0.01\"} 2",
            "x_bucket{le=\"0.02\"} 3",
            "x_bucket{le=\"1800\"} 3",
            "x_bucket{le=\"+Inf\"} 4",
            "x_count 4",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in:\n{text}");
        }
    }

    #[test]
    fn labels_are_escaped_and_what_cannot_be_read_is_left_out() {
        let mut counts = Counts::default();
        counts.ended(Err(&Failure::panicked()));
        counts.refused(JobRefusal::Full);
        let now = Moment {
            waiting: vec![("a\"b\\".to_owned(), 2)],
            gpus: vec![(0, Some(0.5)), (1, None)],
            ..Moment::default()
        };
        let text = counts.text(&now);
        for line in [
            "warpsmith_failures_total{kind=\"infrastructure\",code=\"panic\"} 1",
            "warpsmith_refused_total{reason=\"queue_full\"} 1",
            "warpsmith_jobs_waiting{client=\"a\\\"b\\\\\"} 2",
            "warpsmith_gpu_busy_ratio{gpu=\"0\"} 0.5",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in:\n{text}");
        }
        assert!(!text.contains("gpu=\"1\""));
    }
}
