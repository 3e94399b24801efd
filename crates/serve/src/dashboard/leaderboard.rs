//! Policies beside each other, over all runs of this folder.

use std::collections::BTreeMap;

use maud::{Markup, html};
use warpsmith_schema::Status;

use super::frame::{columns, live, page as framed};
use super::shelf::Shelf;
use warpsmith_report::metrics::geomean;
use warpsmith_report::page::{percent, table, times};

#[derive(Default)]
struct Standing {
    episodes: u32,
    passed: u32,
    /// Speed-ups of those that passed.
    over_eager: Vec<f64>,
    over_compile: Vec<f64>,
}

pub(super) fn page(shelf: &Shelf) -> Markup {
    let mut policies: BTreeMap<(String, String), Standing> = BTreeMap::new();
    for name in shelf.names() {
        shelf.look(&name, |run| {
            let index = &run.index;
            let device = index.head.as_ref().map_or("", |head| head.device.as_str());
            // Other shapes are other tasks.
            if index.head.as_ref().is_some_and(|head| head.scale.is_some()) {
                return;
            }
            for result in index.episodes.iter().filter_map(|row| row.result.as_ref()) {
                let key = (result.policy.name.clone(), device.to_owned());
                let standing = policies.entry(key).or_default();
                standing.episodes += 1;
                if result.status != Some(Status::Passed) {
                    continue;
                }
                standing.passed += 1;
                if let Some(speedup) = &result.speedup {
                    standing.over_eager.push(speedup.eager.0);
                    let compile = speedup.compile.map(|one| one.0);
                    standing.over_compile.extend(compile);
                }
            }
        });
    }
    let mut standings: Vec<_> = policies.into_iter().collect();
    let share =
        |standing: &Standing| f64::from(standing.passed) / f64::from(standing.episodes.max(1));
    standings.sort_by(|(_, one), (_, other)| share(other).total_cmp(&share(one)));
    let rows: Vec<Vec<Markup>> = standings
        .iter()
        .map(|((policy, device), standing)| {
            vec![
                html! { (policy) },
                html! { (device) },
                html! { (standing.episodes) },
                html! { (percent(Some(share(standing)))) },
                html! { (times(geomean(&standing.over_eager))) },
                html! { (times(geomean(&standing.over_compile))) },
            ]
        })
        .collect();
    let head = columns(
        &[
            "policy",
            "device",
            "episodes",
            "passed",
            "over eager",
            "over compile",
        ],
        &["policy", "device"],
    );
    let body = html! {
        @if rows.is_empty() { p { "No episode has ended yet." } }
        @else {
            (table("Policies", &head, &rows))
            p.quiet { "Over whatever tasks each was asked about, which need not be the same: " code { "warpsmith report RUN…" } " compares task by task. Speed-ups are geometric means of what passed; runs with scaled shapes are left out." }
        }
    };
    framed(
        "Leaderboard",
        Some("/leaderboard"),
        &live("leaderboard", &body),
    )
}
