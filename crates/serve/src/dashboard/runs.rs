//! All runs.

use maud::{Markup, html};

use super::frame::{columns, encoded, live, page as framed};
use super::shelf::Shelf;
use warpsmith_report::page::{percent, table};

pub(super) fn page(shelf: &Shelf) -> Markup {
    let mut rows = Vec::new();
    for name in shelf.names() {
        let row = shelf.look(&name, |index| {
            let head = index.head.as_ref();
            let policy = head.map(|head| head.policy.name.clone()).or_else(|| {
                let first = index.episodes.first()?.result.as_ref()?;
                Some(first.policy.name.clone())
            });
            let planned = index.metrics.map(|metrics| metrics.episodes_planned);
            let doing = shelf.doing(&name, index);
            let totals = index.totals;
            let share =
                (totals.ended > 0).then(|| f64::from(totals.passed) / f64::from(totals.ended));
            vec![
                html! { a href={ "/runs/" (encoded(&name)) } { (name) } },
                html! { (policy.unwrap_or_default()) },
                html! { (head.map_or("", |head| head.device.as_str())) },
                html! { (totals.ended) @if let Some(planned) = planned { " of " (planned) } },
                html! { (percent(share)) },
                html! { span.good[doing.word() == "running"] { (doing.word()) } },
            ]
        });
        let unreadable = || {
            let mut cells = vec![html! { (name) }, html! { "its log cannot be read" }];
            cells.resize_with(6, || html! {});
            cells
        };
        rows.push(row.unwrap_or_else(unreadable));
    }
    let body = html! {
        @if rows.is_empty() {
            p { "No runs in " code { (shelf.folder().display()) } " yet. " code { "warpsmith bench" } ", " code { "rollout" } " and " code { "optimize" } " make them." }
        } @else {
            (table("Runs, the latest first", &columns(&["run", "policy", "device", "episodes", "passed", ""], &["run", "policy", "device", ""]), &rows))
        }
    };
    framed("Runs", Some("/"), &live("runs", &body))
}
