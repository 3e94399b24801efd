//! What a search left: candidates with their lineage, the archive, and how the best came about over the budget (`evolve`).

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use serde::Serialize;
use warpsmith_schema::{CandidatePlace, EventKind, ProposedCandidate, SearchMove, Verdict};

use crate::html::verdict_line;
use crate::page::{UNKNOWN, code, count, line_diff, runtime, times};
use crate::plot::{Axis, Lines, Scale, Series};
use crate::tables::{Cell, Table};

/// The candidates of a run and what is known of them.
#[derive(Debug, Default, Serialize)]
pub struct SearchHistory {
    /// By number.
    pub candidates: BTreeMap<u32, ProposedCandidate>,
    pub verdicts: BTreeMap<u32, Verdict>,
    /// Numbers in the order of their verdicts.
    pub order: Vec<u32>,
    pub places: Vec<CandidatePlace>,
    /// Measurements of the finish, as candidate, round, whether it is reported, and time.
    pub finals: Vec<FinalMeasurement>,
}

/// A measurement of the finish.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FinalMeasurement {
    pub candidate: u32,
    pub round: u32,
    /// Else it chose.
    pub reported: bool,
    pub us: Option<f64>,
    pub speedup_eager: Option<f64>,
}

/// The fastest so far after a judgement.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Lead {
    judgement: usize,
    candidate: u32,
    us: f64,
    eager: Option<f64>,
}

fn passed_us(verdict: &Verdict) -> Option<f64> {
    let us = verdict.times_us.as_ref()?.candidate.0;
    verdict.passed().then_some(us)
}

fn eager(verdict: &Verdict) -> Option<f64> {
    Some(verdict.matched_precision?.speedup.eager.0)
}

impl SearchHistory {
    /// Takes up what is a search's; gives back what is not.
    pub(crate) fn take(&mut self, event: EventKind) -> Option<EventKind> {
        match event {
            EventKind::CandidateProposed { candidate } => {
                self.candidates
                    .entry(candidate.number)
                    .or_insert(*candidate);
            }
            EventKind::Judged {
                episode, verdict, ..
            } if self.candidates.contains_key(&episode.sample) => {
                if self.verdicts.insert(episode.sample, *verdict).is_none() {
                    self.order.push(episode.sample);
                }
            }
            EventKind::CandidatePlaced { place } => self.places.push(place),
            EventKind::FinalistMeasured {
                candidate,
                round,
                reported,
                verdict,
            } => self.finals.push(FinalMeasurement {
                candidate,
                round,
                reported,
                us: passed_us(&verdict),
                speedup_eager: eager(&verdict),
            }),
            other => return Some(other),
        }
        None
    }

    pub fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    fn leads(&self) -> Vec<Lead> {
        let mut leads: Vec<Lead> = Vec::new();
        for (place, number) in self.order.iter().enumerate() {
            let Some(verdict) = self.verdicts.get(number) else {
                continue;
            };
            let Some(us) = passed_us(verdict) else {
                continue;
            };
            if leads.last().is_none_or(|last| us < last.us) {
                leads.push(Lead {
                    judgement: place + 1,
                    candidate: *number,
                    us,
                    eager: eager(verdict),
                });
            }
        }
        leads
    }

    /// The candidate and its first parents, back to what the search started from.
    pub fn lineage(&self, number: u32) -> Vec<u32> {
        let mut line = vec![number];
        while let Some(last) = line.last()
            && let Some(parent) = self
                .candidates
                .get(last)
                .and_then(|one| one.parents.first())
        {
            if line.contains(parent) {
                break;
            }
            line.push(*parent);
        }
        line
    }

    /// The fastest of every cell of every island, as it stands.
    fn archive(&self) -> Vec<&CandidatePlace> {
        let mut cells: BTreeMap<(u32, &warpsmith_schema::ArchiveCell), &CandidatePlace> =
            BTreeMap::new();
        for place in self.places.iter().filter(|place| place.kept) {
            cells.insert((place.island, &place.cell), place);
        }
        cells.into_values().collect()
    }

    fn us(&self, number: u32) -> Option<f64> {
        self.verdicts.get(&number).and_then(passed_us)
    }

    fn made(&self, number: u32) -> String {
        let Some(one) = self.candidates.get(&number) else {
            return UNKNOWN.to_owned();
        };
        let detail = one.detail.as_ref().map(|detail| format!(", {detail}"));
        let policy = one.policy.as_ref().map(|policy| format!(" by {policy}"));
        let name = one.made_by.name();
        format!(
            "{name}{}{}",
            policy.unwrap_or_default(),
            detail.unwrap_or_default()
        )
    }

    /// As a terminal shows it.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let leads = self.leads().into_iter().map(|lead| {
            let cells = [
                format!("candidate {}", lead.candidate),
                lead.judgement.to_string(),
                runtime(Some(lead.us)),
                times(lead.eager),
                self.made(lead.candidate),
            ];
            cells.map(Cell::from).to_vec()
        });
        let archive = self.archive().into_iter().map(|place| {
            let cell = &place.cell;
            let cells = [
                format!("candidate {}", place.candidate),
                place.island.to_string(),
                runtime(self.us(place.candidate)),
                cell.roofline.clone(),
                cell.launches.clone(),
                cell.registers.clone(),
                cell.shared.clone(),
                cell.precision.clone(),
            ];
            cells.map(Cell::from).to_vec()
        });
        let mut tables = vec![
            Table {
                title: "Search: the best over the budget, by first measurements".to_owned(),
                head: words(&["candidate", "judgement", "time", "over eager", "made by"]),
                rows: leads.collect(),
            },
            Table {
                title: "Archive".to_owned(),
                head: words(&[
                    "candidate",
                    "island",
                    "time",
                    "roofline",
                    "launches",
                    "registers",
                    "shared",
                    "precision",
                ]),
                rows: archive.collect(),
            },
        ];
        if !self.finals.is_empty() {
            let finals = self.finals.iter().map(|one| {
                let cells = [
                    format!("candidate {}", one.candidate),
                    one.round.to_string(),
                    if one.reported { "report" } else { "choose" }.to_owned(),
                    runtime(one.us),
                    times(one.speedup_eager),
                    runtime(self.us(one.candidate)),
                ];
                cells.map(Cell::from).to_vec()
            });
            tables.push(Table {
                title: "Finish: measured afresh, in turn".to_owned(),
                head: words(&["candidate", "round", "to", "time", "over eager", "first"]),
                rows: finals.collect(),
            });
        }
        if let Some(best) = self.best() {
            let lineage = self.lineage(best).into_iter().map(|number| {
                let cells = [
                    format!("candidate {number}"),
                    runtime(self.us(number)),
                    self.made(number),
                ];
                cells.map(Cell::from).to_vec()
            });
            tables.push(Table {
                title: "Lineage of the result".to_owned(),
                head: words(&["candidate", "time", "made by"]),
                rows: lineage.collect(),
            });
        }
        tables
    }

    /// The candidate that is reported, else the fastest so far.
    fn best(&self) -> Option<u32> {
        let reported = self.finals.iter().filter(|one| one.reported);
        let fastest = reported.min_by(|one, other| {
            let us = |one: &FinalMeasurement| one.us.unwrap_or(f64::INFINITY);
            us(one).total_cmp(&us(other))
        });
        let lead = self.leads().last().map(|lead| lead.candidate);
        fastest.map(|one| one.candidate).or(lead)
    }

    /// As a page shows it: curve, archive whose cells lead to the code, tree.
    pub(crate) fn html(&self) -> Markup {
        let archive = self.archive();
        let mut shown: BTreeSet<u32> = archive.iter().map(|place| place.candidate).collect();
        shown.extend(self.best().into_iter().flat_map(|best| self.lineage(best)));
        let roots = self
            .candidates
            .values()
            .filter(|one| one.parents.is_empty());
        let roots: Vec<u32> = roots.map(|one| one.number).collect();
        html! {
            (self.curve())
            (grid(&archive, |number| self.us(number)))
            p.label { "Lineage: who was made from whom, by first parents" }
            (self.tree(&roots, &shown))
            @for number in &shown { (self.candidate(*number)) }
        }
    }

    fn curve(&self) -> Markup {
        let leads = self.leads();
        let mut points: Vec<(f64, f64)> = Vec::new();
        for lead in &leads {
            let at = lead.judgement as f64;
            points.extend(points.last().map(|(_, before)| (at, *before)));
            points.push((at, lead.us));
        }
        points.extend(leads.last().map(|lead| (self.order.len() as f64, lead.us)));
        let judgements = points.iter().map(|(at, _)| *at);
        let us = points.iter().map(|(_, us)| *us).chain([0.0]);
        let lines = Lines {
            name: "Best over the budget, by first measurements",
            x: Axis {
                name: "judgements",
                scale: Scale::linear(judgements.chain([0.0])),
            },
            y: Axis {
                name: "us",
                scale: Scale::linear(us),
            },
            series: vec![Series {
                name: "best so far",
                points,
                band: Vec::new(),
            }],
        };
        html! { div.plots { (lines) } }
    }

    fn tree(&self, numbers: &[u32], shown: &BTreeSet<u32>) -> Markup {
        html! {
            ul {
                @for number in numbers {
                    li {
                        @if shown.contains(number) { a href={ "#candidate-" (number) } { (number) } } @else { (number) }
                        " " (self.made(*number)) ", " (self.came_to(*number))
                        @let children = self.children(*number);
                        @if !children.is_empty() { (self.tree(&children, shown)) }
                    }
                }
            }
        }
    }

    /// Candidates whose first parent it is. A child is younger, so that a tree ends.
    fn children(&self, number: u32) -> Vec<u32> {
        let all = self.candidates.values();
        all.filter(|one| one.parents.first() == Some(&number) && one.number > number)
            .map(|one| one.number)
            .collect()
    }

    fn came_to(&self, number: u32) -> String {
        let Some(one) = self.candidates.get(&number) else {
            return UNKNOWN.to_owned();
        };
        match (self.verdicts.get(&number), one.duplicate_of, &one.unusable) {
            (Some(verdict), ..) => match passed_us(verdict) {
                Some(us) => runtime(Some(us)),
                None => verdict.status.name().replace('_', " "),
            },
            (None, Some(same), _) => format!("the same as {same}"),
            (None, None, Some(why)) => why.clone(),
            (None, None, None) => "not judged".to_owned(),
        }
    }

    fn candidate(&self, number: u32) -> Markup {
        let Some(one) = self.candidates.get(&number) else {
            return html! {};
        };
        let parent = one
            .parents
            .first()
            .and_then(|parent| self.candidates.get(parent));
        let empty = BTreeMap::new();
        let files = one.files.as_ref().unwrap_or(&empty);
        let before = parent.and_then(|parent| parent.files.as_ref());
        html! {
            details id={ "candidate-" (number) } {
                summary {
                    "Candidate " (number) ": " (self.made(number)) ", " (self.came_to(number))
                    @if let Some(parent) = parent { ", made from " (parent.number) }
                }
                @if let Some(verdict) = self.verdicts.get(&number) { p { (verdict_line(verdict)) } }
                @for (path, text) in files {
                    @let old = before.and_then(|before| before.get(path));
                    @if let Some(old) = old.filter(|old| *old != text) {
                        @let changes = line_diff(old, text);
                        p { code { (path) } ": " (changes.added()) " added, " (changes.removed()) " removed since its parent" }
                        (changes)
                    }
                    details {
                        summary { code { (path) } ", " (count(text.lines().count(), "line")) }
                        (code(path, text))
                    }
                }
                @if one.made_by == SearchMove::Start { p.quiet { "The search started from it." } }
            }
        }
    }
}

/// Islands across, cells down; each leads to the code of its fastest.
fn grid(archive: &[&CandidatePlace], us: impl Fn(u32) -> Option<f64>) -> Markup {
    let islands: BTreeSet<u32> = archive.iter().map(|place| place.island).collect();
    let cells: BTreeSet<String> = archive.iter().map(|place| place.cell.to_string()).collect();
    let names: Vec<String> = islands
        .iter()
        .map(|island| format!("island {island}"))
        .collect();
    let mut columns = vec![crate::page::Column {
        name: "cell",
        words: true,
    }];
    columns.extend(
        names
            .iter()
            .map(|name| crate::page::Column { name, words: false }),
    );
    let find = |cell: &String, island: u32| {
        let mut all = archive.iter();
        all.find(|place| place.island == island && place.cell.to_string() == *cell)
    };
    let rows: Vec<Vec<Markup>> = cells
        .iter()
        .map(|cell| {
            let own = islands.iter().map(|island| {
                let Some(place) = find(cell, *island) else {
                    return html! { (UNKNOWN) };
                };
                html! {
                    a href={ "#candidate-" (place.candidate) } { (runtime(us(place.candidate))) }
                    span.quiet { " " (place.candidate) }
                }
            });
            std::iter::once(html! { (cell) }).chain(own).collect()
        })
        .collect();
    crate::page::table("Archive: the fastest of every cell", &columns, &rows)
}
