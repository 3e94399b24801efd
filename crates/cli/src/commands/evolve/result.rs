//! What came out, for a person and for a script.

use std::path::Path;

use serde_json::{Value, json};
use warpsmith_judge::ImportCheck;
use warpsmith_schema::{FORMAT, Number, Task};
use warpsmith_search::{Candidate, SearchOutcome, SearchWinner, SpeedInterval};

use super::show::name;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::render::{Table, import_check, time};

/// What is told at the end.
pub(super) struct EvolveReport<'a> {
    pub(super) task: &'a Task,
    pub(super) outcome: &'a SearchOutcome,
    /// Why the compiler has no solution, where it was asked.
    pub(super) absent: Option<&'a str>,
    pub(super) imported: Option<&'a ImportCheck>,
    pub(super) result: &'a Path,
    pub(super) run: &'a Path,
}

impl EvolveReport<'_> {
    pub(super) fn print(&self, printer: &Printer) -> Result<(), Stop> {
        if printer.json() {
            printer.object(&self.object())
        } else {
            Ok(printer.data(&self.table())?)
        }
    }

    fn winner(&self) -> Option<&SearchWinner> {
        self.outcome.finals.as_ref()?.winner.as_ref()
    }

    fn candidate(&self, number: u32) -> Option<&Candidate> {
        self.outcome.candidates.get(number.checked_sub(1)? as usize)
    }

    /// The candidate and its first parents, back to what the search started from.
    fn lineage(&self, number: u32) -> Vec<u32> {
        let mut line = vec![number];
        while let Some(parent) = line
            .last()
            .and_then(|last| self.candidate(*last)?.proposed.parents.first().copied())
        {
            // Parents are older, so that this ends.
            line.push(parent);
        }
        line
    }

    fn object(&self) -> Value {
        let outcome = self.outcome;
        let winner = self.winner();
        let finals = outcome.finals.iter().flat_map(|finals| &finals.finalists);
        let finalists: Vec<Value> = finals
            .map(|one| {
                json!({ "candidate": one.number, "first_us": one.first_us, "chosen_by": one.chosen_by.map(interval) })
            })
            .collect();
        let islands = outcome.archive.islands.iter().enumerate();
        let archive: Vec<Value> = islands
            .flat_map(|(number, island)| {
                let cells = island.cells.iter();
                cells.map(move |(cell, elite)| {
                    json!({ "island": number, "cell": cell, "candidate": elite.candidate, "us": elite.us })
                })
            })
            .collect();
        let best = winner.map(|winner| {
            let made = self.candidate(winner.number).map(|one| &one.proposed);
            json!({
                "candidate": winner.number, "made_by": made.map(|one| one.made_by.name()), "detail": made.map(|one| &one.detail),
                "policy": made.map(|one| &one.policy), "lineage": self.lineage(winner.number), "first_us": winner.first_us,
                "us": interval(winner.us), "speedup_eager": winner.speedup_eager.map(interval),
                "speedup_compile": winner.speedup_compile.map(interval), "speedup_start": winner.speedup_start.map(interval),
            })
        });
        let challenger = winner.and_then(|winner| winner.challenger);
        let passed = outcome.candidates.iter().filter(|one| one.us().is_some());
        json!({
            "format": FORMAT, "task": self.task.name, "ended_by": outcome.limit, "spent": outcome.spent, "usage": outcome.usage,
            "candidates": outcome.candidates.len(), "passed": passed.count(), "improved": self.improved(), "best": best,
            "challenger": challenger.map(|one| json!({ "candidate": one.number, "speedup_start": interval(one.speedup_start) })),
            "verdict": winner.map(|winner| &winner.verdict), "finalists": finalists, "archive": archive,
            "stages": outcome.cascade.stages, "arms": outcome.arms.arms, "strategies": outcome.strategies.arms,
            "reference": outcome.reference, "overhead": self.overhead(), "compiler": self.absent,
            "import": self.imported.map(|check| matches!(check, ImportCheck::Works { .. })),
            "result": self.result, "run": self.run,
        })
    }

    /// Whether what lies in the result is faster than the original by more than the interval.
    pub(super) fn improved(&self) -> bool {
        self.winner().is_some_and(SearchWinner::improves)
    }

    fn overhead(&self) -> f64 {
        let all = self.outcome.search_seconds;
        if all > 0.0 {
            self.outcome.overhead_seconds / all
        } else {
            0.0
        }
    }

    fn table(&self) -> String {
        let outcome = self.outcome;
        let mut table = Table::titled(&self.task.name);
        match self.winner() {
            Some(winner) => self.winner_rows(&mut table, winner),
            None => table.row("result", "nothing passed; the original module is kept"),
        }
        if let Some(absent) = self.absent {
            table.row("compiler", &format!("does not cover it: {absent}"));
        }
        let spent = &outcome.spent;
        let dollars = if spent.dollars > 0.0 {
            format!(", {:.2} dollars", spent.dollars)
        } else {
            String::new()
        };
        table.row(
            "budget",
            &format!(
                "{} judgements, {:.1} minutes{dollars}; {}",
                spent.judgements,
                spent.seconds / 60.0,
                outcome.limit.words()
            ),
        );
        let passed = outcome
            .candidates
            .iter()
            .filter(|one| one.us().is_some())
            .count();
        let cells: usize = outcome
            .archive
            .islands
            .iter()
            .map(|island| island.cells.len())
            .sum();
        table.row(
            "candidates",
            &format!(
                "{}, {passed} passed; {cells} cells of {} islands",
                outcome.candidates.len(),
                outcome.archive.islands.len()
            ),
        );
        for stage in outcome
            .cascade
            .stages
            .iter()
            .filter(|stage| stage.entered > 0)
        {
            table.row(
                stage.name,
                &format!(
                    "{} entered, {} ended there; {:.0} s, {:.0} %",
                    stage.entered,
                    stage.ended,
                    stage.seconds,
                    100.0 * stage.share
                ),
            );
        }
        for (arm, tally) in &outcome.arms.arms {
            table.row(
                arm,
                &format!(
                    "{} candidates, {} faster than their parent",
                    tally.tries, tally.improvements
                ),
            );
        }
        table.row(
            "overhead",
            &format!("{:.1} % of the search's time", 100.0 * self.overhead()),
        );
        table.row("folder", &self.result.display().to_string());
        if let Some(check) = self.imported {
            table.row("checked", &import_check(check));
        }
        table.row("next", &format!("warpsmith report {}", self.run.display()));
        table.text()
    }

    fn winner_rows(&self, table: &mut Table, winner: &SearchWinner) {
        table.row("ours", &format!("{}, measured afresh", times(&winner.us)));
        table.row(
            "first",
            &format!("{} when it was chosen", time(winner.first_us)),
        );
        for (over, interval) in [
            ("eager", winner.speedup_eager),
            ("torch.compile", winner.speedup_compile),
            ("start", winner.speedup_start),
        ] {
            if let Some(interval) = interval {
                table.row(&format!("over {over}"), &factor(&interval));
            }
        }
        if let Some(challenger) = winner.challenger {
            table.row(
                "search",
                &format!(
                    "nothing better than the start was found: candidate {} is {} of its speed",
                    challenger.number,
                    factor(&challenger.speedup_start)
                ),
            );
        } else if winner.speedup_start.is_none() && self.outcome.candidates.len() > 1 {
            let is_start = self
                .candidate(winner.number)
                .is_some_and(|one| one.proposed.parents.is_empty());
            if is_start
                && self
                    .candidate(winner.number)
                    .is_some_and(|one| one.proposed.policy.is_none())
            {
                table.row(
                    "search",
                    "nothing better than the start was found within the budget",
                );
            }
        }
        if !self.improved() {
            table.row(
                "result",
                "no faster than the original by more than the interval; the original is kept",
            );
        }
        if let Some(candidate) = self.candidate(winner.number) {
            table.row("made as", &name(candidate));
        }
        let line: Vec<String> = self
            .lineage(winner.number)
            .iter()
            .map(ToString::to_string)
            .collect();
        table.row("lineage", &line.join(" <- "));
    }
}

fn times(interval: &SpeedInterval) -> String {
    format!(
        "{} ({} to {})",
        time(interval.mean),
        time(interval.low),
        time(interval.high)
    )
}

fn factor(interval: &SpeedInterval) -> String {
    format!(
        "{:.3}x ({:.3} to {:.3})",
        interval.mean, interval.low, interval.high
    )
}

fn interval(interval: SpeedInterval) -> Value {
    json!({
        "mean": Number(interval.mean), "low": Number(interval.low), "high": Number(interval.high),
        "measurements": interval.measurements,
    })
}
