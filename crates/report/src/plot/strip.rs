use maud::{Markup, Render, html};

use super::{Mark, Scale, figure, short};

const WIDTH: f64 = 720.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 20.0;
const ROW: f64 = 40.0;
const BOTTOM: f64 = 40.0;
/// More dots than these cannot be told apart.
const DOTS: usize = 400;

/// Every single measurement as a dot, sets of them in rows over one axis.
pub struct Strip<'a> {
    pub name: &'a str,
    pub unit: &'a str,
    pub rows: Vec<StripRow<'a>>,
}

pub struct StripRow<'a> {
    pub name: &'a str,
    pub values: Vec<f64>,
}

impl Render for Strip<'_> {
    fn render(&self) -> Markup {
        let all = || {
            self.rows
                .iter()
                .flat_map(|row| row.values.iter().copied())
                .filter(|value| value.is_finite() && *value > 0.0)
        };
        let (low, high) = all().fold((f64::MAX, 0.0_f64), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        // Times that lie far apart are told apart on a logarithmic axis only.
        let scale = if high > 8.0 * low {
            Scale::log_around(all())
        } else {
            Scale::linear(all())
        };
        let floor = self.rows.len() as f64 * ROW;
        let height = floor + BOTTOM;
        let right = |value: f64| LEFT + scale.place(value) * (WIDTH - LEFT - RIGHT);
        let plot = html! {
            svg.plot viewBox={ "0 0 " (WIDTH) " " (height) } role="img" aria-label=(self.told()) {
                @for value in scale.ticks(7) {
                    line.grid x1=(place(right(value))) x2=(place(right(value))) y1="0" y2=(floor) {}
                    text x=(place(right(value))) y=(floor + 16.0) text-anchor="middle" { (short(value)) }
                }
                text x=(f64::midpoint(LEFT, WIDTH - RIGHT)) y=(height - 6.0) text-anchor="middle" { (self.unit) }
                @for (number, row) in self.rows.iter().enumerate() {
                    @let middle = number as f64 * ROW + ROW / 2.0;
                    text x=(LEFT - 10.0) y=(middle + 4.0) text-anchor="end" { (row.name) }
                    @for (at, value) in shown(&row.values) {
                        circle.dot.{ "s" (number % super::COLOURS) } cx=(place(right(value))) cy=(place(middle + jitter(at))) r="2.5" {}
                    }
                    @if let Some(median) = median(&row.values) {
                        line.one x1=(place(right(median))) x2=(place(right(median))) y1=(middle - 15.0) y2=(middle + 15.0) {
                            title { (row.name) ", median " (short(median)) " " (self.unit) }
                        }
                    }
                }
            }
        };
        figure(self.name, &[], &Mark::Block, &plot)
    }
}

impl Strip<'_> {
    fn told(&self) -> String {
        let row = |row: &StripRow<'_>| {
            let median = median(&row.values).map_or_else(|| "none".to_owned(), short);
            let count = row.values.len();
            format!("{}: {count} measurements, median {median}", row.name)
        };
        let rows: Vec<String> = self.rows.iter().map(row).collect();
        format!("{} in {}. {}.", self.name, self.unit, rows.join(". "))
    }
}

/// As many as can be seen, with their numbers.
fn shown(values: &[f64]) -> impl Iterator<Item = (usize, f64)> {
    let every = values.len().div_ceil(DOTS).max(1);
    let positive = values.iter().copied().enumerate().step_by(every);
    positive.filter(|(_, value)| value.is_finite() && *value > 0.0)
}

/// Up and down by turns, so that equal values do not hide each other. The same value always lies at the same place.
fn jitter(number: usize) -> f64 {
    (number * 7 % 11) as f64 * 2.0 - 10.0
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values
        .iter()
        .copied()
        .filter(|one| one.is_finite())
        .collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len().checked_sub(1)? / 2;
    Some(f64::midpoint(sorted[middle], sorted[sorted.len() / 2]))
}

fn place(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_share_an_axis_and_are_told_in_words() {
        let strip = Strip {
            name: "Times",
            unit: "us",
            rows: vec![
                StripRow {
                    name: "single",
                    values: vec![10.0, 12.0, 20.0, f64::NAN],
                },
                StripRow {
                    name: "eager",
                    values: vec![20.0, 22.0],
                },
            ],
        };
        let text = strip.render().into_string();
        assert!(
            text.contains(
                "Times in us. single: 4 measurements, median 12. eager: 2 measurements, median 21."
            ),
            "{text}"
        );
        assert_eq!(text.matches("<circle").count(), 5, "{text}");
        // 20 lies at the same place in both rows.
        let at_twenty = text.matches("cx=\"605.0\"").count();
        assert_eq!(at_twenty, 2, "{text}");
        let far = Strip {
            name: "Times",
            unit: "us",
            rows: vec![StripRow {
                name: "single",
                values: (0..5000).map(|n| 1.0 + f64::from(n)).collect(),
            }],
        };
        let text = far.render().into_string();
        assert!(
            text.matches("<circle").count() <= DOTS,
            "many are thinned out"
        );
    }
}
