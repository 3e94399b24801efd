//! What episodes came to, for the whole of a run: every task in one look, `fast_p`, ours beside `torch.compile`, and why
//! others failed. What was not measured is not drawn.

use std::collections::{BTreeMap, HashMap};

use maud::{Markup, Render, html};
use warpsmith_schema::{EpisodeEnding, Speedup, Status};
use warpsmith_store::{EpisodeResult, EpisodeRow, RunIndex};

use crate::page::{Column, count, percent, table, times};
use crate::plot::{Axis, Lines, Scale, Scatter, ScatterPoint, Series};

/// More tasks than these are not told apart in one look: of all levels together.
const MOST_TILES: usize = 240;
/// More points than these hide each other, and make the page large.
const MOST_POINTS: usize = 240;

/// Where an episode is shown whole.
pub type EpisodeAddress<'a> = &'a dyn Fn(&EpisodeRow) -> String;

/// Of a run in which something has ended.
pub fn overview(index: &RunIndex, address: EpisodeAddress<'_>) -> Markup {
    html! {
        (heat_map(index, address))
        div.plots {
            (fast_p(index))
            @if let Some(plot) = scatter(index, address) { (plot) }
        }
        (failures(index, address))
    }
}

/// Times of one curve: how many episodes passed and were more than so many times as fast.
fn curve(ratios: &[f64], ended: u32) -> Vec<(f64, f64)> {
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    let share = |left: usize| left as f64 / f64::from(ended);
    let mut points = vec![(0.0, share(sorted.len()))];
    for (number, ratio) in sorted.iter().enumerate() {
        let at = ratio.min(MOST);
        // A step: right of this ratio there is one less.
        points.push((at, share(sorted.len() - number)));
        points.push((at, share(sorted.len() - number - 1)));
        if *ratio > MOST {
            points.truncate(points.len() - 2);
            break;
        }
    }
    let last = points.last().map_or(0.0, |point| point.1);
    points.push((MOST, last));
    thinned(points)
}

/// `fast_p` is drawn up to this many times as fast.
const MOST: f64 = 3.0;
const CORNERS: usize = 600;

fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let every = points.len().div_ceil(CORNERS).max(1);
    let last = points.last().copied();
    let kept = points.into_iter().step_by(every);
    let mut kept: Vec<(f64, f64)> = kept.collect();
    kept.extend(last.filter(|last| kept.last() != Some(last)));
    kept
}

fn fast_p(index: &RunIndex) -> Markup {
    let totals = index.totals;
    let over = |of: fn(&Speedup) -> Option<f64>| -> Vec<f64> {
        let results = index.episodes.iter().filter_map(|row| row.result.as_ref());
        results
            .filter(|result| result.passed())
            .filter_map(|result| of(result.speedup.as_ref()?))
            .collect()
    };
    let mut series = Vec::new();
    if totals.timed > 0 {
        series.push(Series {
            name: "over eager",
            points: curve(&over(|speedup| Some(speedup.eager.0)), totals.ended),
            band: Vec::new(),
        });
    }
    if totals.timed_beside_compile > 0 {
        let ratios = over(|speedup| speedup.compile.map(|one| one.0));
        series.push(Series {
            name: "over torch.compile",
            points: curve(&ratios, totals.ended),
            band: Vec::new(),
        });
    }
    let unmeasured = match (totals.passed, totals.timed, totals.timed_beside_compile) {
        (0, ..) => Some("Nothing passed, so there is no speed-up to show."),
        (_, 0, _) => Some("Speed-ups were not measured: nothing was timed."),
        (_, _, 0) => Some("Speed-ups over torch.compile were not measured."),
        _ => None,
    };
    let lines = Lines {
        name: "Correct and more than p times as fast (fast_p)",
        x: Axis {
            name: "p",
            scale: Scale::linear([0.0, MOST]),
        },
        y: Axis {
            name: "share of episodes",
            scale: Scale::linear([0.0, 1.0]),
        },
        series,
    };
    html! {
        div {
            @if !lines.series.is_empty() { (lines.render()) }
            @if let Some(words) = unmeasured { p.quiet { (words) } }
        }
    }
}

/// Ours against `torch.compile`, or against eager where that was not measured.
fn scatter(index: &RunIndex, address: EpisodeAddress<'_>) -> Option<Markup> {
    let beside_compile = index.totals.timed_beside_compile > 0;
    let times = |row: &EpisodeRow| {
        let result = row.result.as_ref().filter(|result| result.passed())?;
        let us = result.us?.0;
        let speedup = result.speedup.as_ref()?;
        let ratio = if beside_compile {
            speedup.compile?.0
        } else {
            speedup.eager.0
        };
        (us > 0.0 && ratio > 0.0).then_some((us * ratio, us))
    };
    let timed: Vec<(&EpisodeRow, (f64, f64))> = index
        .episodes
        .iter()
        .filter_map(|row| Some((row, times(row)?)))
        .collect();
    if timed.len() < 2 {
        return None;
    }
    let every = timed.len().div_ceil(MOST_POINTS);
    let points: Vec<ScatterPoint> = timed
        .iter()
        .step_by(every)
        .map(|(row, (x, y))| ScatterPoint {
            name: format!("{}, sample {}", row.id.task, row.id.sample),
            x: *x,
            y: *y,
            address: address(row),
        })
        .collect();
    let shown = points.len();
    let scale = Scale::log_around(points.iter().flat_map(|point| [point.x, point.y]));
    let baseline = if beside_compile {
        "torch.compile"
    } else {
        "eager"
    };
    let (name, x) = (
        format!("Ours against {baseline}: below the line is faster"),
        format!("{baseline}, us"),
    );
    let plot = Scatter {
        name: &name,
        x: Axis { name: &x, scale },
        y: Axis {
            name: "ours, us",
            scale,
        },
        points,
    };
    Some(html! {
        div {
            (plot)
            @if every > 1 { p.quiet { "One in " (every) " is drawn: " (shown) " of " (timed.len()) "." } }
        }
    })
}

/// How a task did: its best episode.
struct Tile<'a> {
    row: &'a EpisodeRow,
    passed: u32,
    ended: u32,
}

/// Every task by level, each with its best episode.
fn heat_map(index: &RunIndex, address: EpisodeAddress<'_>) -> Markup {
    let mut tiles: HashMap<&str, Tile<'_>> = HashMap::new();
    let mut order: Vec<&str> = Vec::new();
    for row in &index.episodes {
        let Some(result) = &row.result else { continue };
        let tile = tiles.entry(&row.id.task).or_insert_with(|| {
            order.push(&row.id.task);
            Tile {
                row,
                passed: 0,
                ended: 0,
            }
        });
        tile.ended += 1;
        tile.passed += u32::from(result.passed());
        if merit(result) > tile.row.result.as_ref().map_or(-2.0, merit) {
            tile.row = row;
        }
    }
    let mut levels: BTreeMap<Option<u32>, Vec<&Tile<'_>>> = BTreeMap::new();
    for task in &order {
        let tile = &tiles[task];
        let level = tile.row.result.as_ref().and_then(|result| result.level);
        levels.entry(level).or_default().push(tile);
    }
    let most = MOST_TILES / levels.len().max(1);
    html! {
        p.quiet { "The best episode of each: times as fast as eager where it passed, else what became of it. A green edge is faster than eager by 5 %, a grey one passed and is not, a red one did not pass." }
        @for (level, tiles) in &levels {
            @if levels.len() > 1 {
                h3 { @match level { Some(level) => { "Level " (level) }, None => "Other tasks" } }
            }
            @let long = tiles.iter().any(|tile| tile.row.id.task.len() > SHORT);
            ul.heat.long[long] aria-label="Tasks" {
                @for tile in tiles.iter().take(most) { (tile.render(address)) }
            }
            @if tiles.len() > most { p.quiet { "and " (count(tiles.len() - most, "task")) " more, in the list below" } }
        }
    }
}

/// Names longer than this do not fit into a small tile, and those longer than that not into a large one.
const SHORT: usize = 10;
const LONG: usize = 20;

/// Long names of one set begin alike: their ends tell them apart.
fn tail(name: &str) -> String {
    let letters = name.chars().count();
    if letters <= LONG {
        return name.to_owned();
    }
    let tail: String = name.chars().skip(letters - LONG + 1).collect();
    format!("…{tail}")
}

fn merit(result: &EpisodeResult) -> f64 {
    match (&result.speedup, result.passed()) {
        (Some(speedup), true) => speedup.eager.0,
        (None, true) => 0.0,
        (_, false) => -1.0,
    }
}

impl Tile<'_> {
    fn render(&self, address: EpisodeAddress<'_>) -> Markup {
        let Some(result) = &self.row.result else {
            return html! {};
        };
        let eager = result.speedup.as_ref().map(|speedup| speedup.eager.0);
        let (class, word) = match (result.passed(), eager) {
            (true, Some(ratio)) if ratio > 1.05 => ("h-fast", times(eager)),
            (true, Some(_)) => ("h-slow", times(eager)),
            (true, None) => ("h-slow", "passed".to_owned()),
            (false, _) => ("h-bad", short(result.status).to_owned()),
        };
        let title = format!(
            "{}: {} of {} episodes passed",
            result.name, self.passed, self.ended
        );
        html! {
            li class=(class) {
                a href=(address(self.row)) title=(title) { b { (word) } (tail(&self.row.id.task)) }
            }
        }
    }
}

fn short(status: Option<Status>) -> &'static str {
    match status {
        None => "nothing",
        Some(Status::CompileFailed) => "compile",
        Some(status) => status.name(),
    }
}

/// Why episodes did not pass, by kind, with one to look at.
fn failures(index: &RunIndex, address: EpisodeAddress<'_>) -> Markup {
    let mut kinds: BTreeMap<&'static str, (u32, &EpisodeRow)> = BTreeMap::new();
    let mut failed = 0;
    for row in &index.episodes {
        let Some(result) = row.result.as_ref().filter(|result| !result.passed()) else {
            continue;
        };
        failed += 1;
        let kind = match (result.status, &result.ending) {
            (Some(status), _) => status.name(),
            (None, EpisodeEnding::NotCovered { .. }) => "not covered by the policy",
            (None, EpisodeEnding::NothingUsable) => "no usable reply",
            (None, _) => "nothing judged",
        };
        kinds.entry(kind).or_insert((0, row)).0 += 1;
    }
    if failed == 0 {
        return html! {};
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, found)| std::cmp::Reverse(found.0));
    let rows: Vec<Vec<Markup>> = kinds
        .iter()
        .map(|(kind, (number, row))| {
            let share = f64::from(*number) / f64::from(failed);
            vec![
                html! { (kind.replace('_', " ")) },
                html! { (number) },
                html! { (percent(Some(share))) " " meter min="0" max="1" value=(share) aria-label="share of the failures" {} },
                html! { a href=(address(row)) { (row.id.task) } },
            ]
        })
        .collect();
    let column = |name| Column {
        name,
        words: ["failure", "for example"].contains(&name),
    };
    let head = ["failure", "episodes", "share", "for example"].map(column);
    table(
        &format!("Why {} did not pass", count(failed as usize, "episode")),
        &head,
        &rows,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_p_falls_in_steps() {
        let points = curve(&[1.0, 2.0, 5.0], 4);
        let expected = [
            (0.0, 0.75),
            (1.0, 0.75),
            (1.0, 0.5),
            (2.0, 0.5),
            (2.0, 0.25),
            (3.0, 0.25),
        ];
        assert_eq!(points, expected);
        assert_eq!(curve(&[], 4), [(0.0, 0.0), (3.0, 0.0)]);
        let many: Vec<f64> = (0..100_000).map(|n| f64::from(n % 3000) / 1000.0).collect();
        assert!(curve(&many, 100_000).len() <= CORNERS + 1);
    }
}
