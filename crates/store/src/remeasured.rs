//! Measurements that were made afresh. The fastest of many measurements is the luckiest: what is reported of a submission is a
//! later one, wherever there is one.

use std::collections::HashMap;

use warpsmith_schema::{Submission, SubmissionForm, Trajectory, Verdict};

const FORMS: [SubmissionForm; 4] = [
    SubmissionForm::Plain,
    SubmissionForm::CudaAgent,
    SubmissionForm::Inline,
    SubmissionForm::Triton,
];

/// What was measured afresh in a run.
#[derive(Debug, Default)]
pub struct Remeasured {
    /// By task and hash of the submission, with the round of the measurement that counts.
    verdicts: HashMap<(String, String), (u32, Verdict)>,
}

impl Remeasured {
    /// Takes up an event of the log.
    pub fn add(&mut self, task: String, submission: String, round: u32, verdict: Verdict) {
        let known = self.verdicts.entry((task, submission));
        let known = known.or_insert_with(|| (round, verdict.clone()));
        if round >= known.0 {
            *known = (round, verdict);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.verdicts.is_empty()
    }

    /// Whether anything of a task was measured afresh.
    pub fn of_task(&self, task: &str) -> bool {
        self.verdicts.keys().any(|(of, _)| of == task)
    }

    /// What the run came to: the fastest that passed in the latest round.
    pub fn reported(&self) -> Option<&Verdict> {
        let passed = || self.verdicts.values().filter(|(_, one)| one.passed());
        let latest = passed().map(|(round, _)| *round).max()?;
        let us = |verdict: &Verdict| verdict.times_us.as_ref().map(|times| times.candidate.0);
        let of_latest = passed().filter(|(round, _)| *round == latest);
        let timed = of_latest.filter_map(|(_, verdict)| Some((us(verdict)?, verdict)));
        timed
            .min_by(|(one, _), (other, _)| one.total_cmp(other))
            .map(|(_, verdict)| verdict)
    }

    /// Puts them in the place of the measurements that attempts were chosen by.
    pub fn apply_to(&self, trajectory: &mut Trajectory) {
        if !self.of_task(&trajectory.task.id) {
            return;
        }
        for attempt in &mut trajectory.attempts {
            let files: std::collections::BTreeMap<String, Vec<u8>> = attempt
                .files
                .iter()
                .map(|(path, text)| (path.clone(), text.clone().into_bytes()))
                .collect();
            // The form is part of the hash, and the log does not say which it was.
            let found = FORMS.iter().find_map(|form| {
                let submission = Submission {
                    form: *form,
                    files: files.clone(),
                };
                let key = (trajectory.task.id.clone(), submission.content_hash());
                self.verdicts.get(&key)
            });
            if let Some((_, verdict)) = found {
                attempt.verdict = verdict.clone();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use warpsmith_schema::{Profile, Status, Target};

    use super::*;

    fn verdict(us: f64, status: Status) -> Verdict {
        let mut verdict = Verdict::unreached(status, Target::Cpu, Profile::Rl, String::new());
        let times = serde_json::json!({
            "candidate": us, "eager": 40, "compile": null, "spread": 0.0, "samples": 1, "single": us, "burst": null, "constant": 0,
        });
        verdict.times_us = Some(serde_json::from_value(times).unwrap());
        verdict
    }

    fn reported(measured: &[(&str, u32, f64, Status)]) -> Option<f64> {
        let mut all = Remeasured::default();
        for (submission, round, us, status) in measured {
            let verdict = verdict(*us, *status);
            all.add("task".to_owned(), (*submission).to_owned(), *round, verdict);
        }
        all.reported()
            .map(|verdict| verdict.times_us.as_ref().unwrap().candidate.0)
    }

    #[test]
    fn what_is_reported_chose_nothing() {
        use Status::{Mismatch, Passed};
        assert_eq!(reported(&[]), None);
        assert_eq!(reported(&[("a", 1, 9.0, Passed)]), Some(9.0));
        // The winner of several is measured once more, and that is what counts, even if it is slower.
        let several = [
            ("a", 1, 9.0, Passed),
            ("b", 1, 10.0, Passed),
            ("a", 2, 11.0, Passed),
        ];
        assert_eq!(reported(&several), Some(11.0));
        let failed = [
            ("a", 1, 9.0, Passed),
            ("b", 1, 10.0, Passed),
            ("a", 2, 8.0, Mismatch),
            ("b", 2, 12.0, Passed),
        ];
        assert_eq!(reported(&failed), Some(12.0));
    }
}
