//! A search, live, for the person who waits.

use std::time::Duration;

use warpsmith_search::{Candidate, SearchProgress};

use crate::commands::optimize::verdict_line;
use crate::live::Live;
use crate::printer::Printer;
use crate::render::time;

const SILENCE: Duration = Duration::from_secs(30);

pub(super) struct Show {
    live: Live,
    judgements: u32,
}

impl Show {
    pub(super) fn new(printer: &Printer, judgements: u32) -> Self {
        Self {
            live: Live::new(printer, "judgements", SILENCE),
            judgements,
        }
    }

    pub(super) fn hear(&mut self, progress: &SearchProgress<'_>) {
        match progress {
            SearchProgress::Profiling => self.live.say("profiling the reference"),
            SearchProgress::Resumed { judged } => {
                self.live
                    .say(&format!("resumed: {judged} candidates had been judged"));
            }
            SearchProgress::Judging { number } => {
                if *number == 1 {
                    self.live.say(
                        "judging what the search starts from: about a minute where the task's baselines are new",
                    );
                }
            }
            SearchProgress::Concluded {
                candidate,
                leads,
                best_us,
                spent,
            } => {
                if *leads {
                    self.live
                        .say(&format!("  {}: {}", name(candidate), outcome(candidate)));
                }
                let best = best_us.map_or_else(
                    || "nothing passed yet".to_owned(),
                    |us| format!("best {}", time(us)),
                );
                let last = format!("{best}; last, {}: {}", name(candidate), outcome(candidate));
                self.live.show(
                    u64::from(spent.judgements),
                    u64::from(self.judgements),
                    &last,
                );
            }
            SearchProgress::PolicyDropped { policy, why } => {
                self.live
                    .say(&format!("`{policy}` is not asked any more: {why}"));
            }
            SearchProgress::Measuring {
                candidate,
                round,
                of,
                reported,
            } => {
                let what = if *reported { "to report" } else { "to choose" };
                self.live.say(&format!(
                    "measuring candidate {candidate} afresh, {what}, round {round} of {of}"
                ));
            }
            SearchProgress::Measured { verdict, .. } => {
                self.live.say(&format!("  {}", verdict_line(verdict)));
            }
        }
    }

    pub(super) fn finish(&self) {
        self.live.finish();
    }
}

/// `12 (tune, unroll: 4 -> 8)`
pub(super) fn name(candidate: &Candidate) -> String {
    let proposed = &candidate.proposed;
    let made_by = proposed.made_by.name();
    let detail = proposed.detail.as_ref().map(|detail| format!(", {detail}"));
    let policy = proposed
        .policy
        .as_ref()
        .map(|policy| format!(" by {policy}"));
    format!(
        "candidate {} ({made_by}{}{})",
        proposed.number,
        policy.unwrap_or_default(),
        detail.unwrap_or_default()
    )
}

fn outcome(candidate: &Candidate) -> String {
    let proposed = &candidate.proposed;
    match (
        &candidate.verdict,
        proposed.duplicate_of,
        &proposed.unusable,
    ) {
        (Some(verdict), ..) => verdict_line(verdict),
        (None, Some(number), _) => format!("the same as candidate {number}"),
        (None, None, Some(why)) => why.clone(),
        (None, None, None) => "not judged: a failure of ours".to_owned(),
    }
}
