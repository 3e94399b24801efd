use std::fmt::Write;

use maud::{Markup, Render, html};

use super::{Mark, Scale, figure, look, short};

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 46.0;

/// Curves over the same axes.
pub struct Lines<'a> {
    pub name: &'a str,
    pub x: Axis<'a>,
    pub y: Axis<'a>,
    pub series: Vec<Series<'a>>,
}

pub struct Axis<'a> {
    pub name: &'a str,
    pub scale: Scale,
}

pub struct Series<'a> {
    pub name: &'a str,
    /// What is not finite breaks the curve.
    pub points: Vec<(f64, f64)>,
    /// How far it may be from there, as place, lower and upper end; none where that is not known.
    pub band: Vec<(f64, f64, f64)>,
}

impl Render for Lines<'_> {
    fn render(&self) -> Markup {
        let names: Vec<&str> = self.series.iter().map(|series| series.name).collect();
        let right = |value: f64| LEFT + self.x.scale.place(value) * (WIDTH - LEFT - RIGHT);
        let down = |value: f64| TOP + (1.0 - self.y.scale.place(value)) * (HEIGHT - TOP - BOTTOM);
        let floor = HEIGHT - BOTTOM;
        let plot = html! {
            svg.plot viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(self.told()) {
                @for value in self.y.scale.ticks(5) {
                    line.grid x1=(LEFT) x2=(WIDTH - RIGHT) y1=(place(down(value))) y2=(place(down(value))) {}
                    text x=(LEFT - 8.0) y=(place(down(value) + 4.0)) text-anchor="end" { (short(value)) }
                }
                @for value in self.x.scale.ticks(7) {
                    line.grid x1=(place(right(value))) x2=(place(right(value))) y1=(TOP) y2=(floor) {}
                    text x=(place(right(value))) y=(floor + 18.0) text-anchor="middle" { (short(value)) }
                }
                text x=(f64::midpoint(LEFT, WIDTH - RIGHT)) y=(HEIGHT - 6.0) text-anchor="middle" { (self.x.name) }
                @for (number, series) in self.series.iter().enumerate() {
                    @if series.band.len() > 1 { path.band.{ "s" (number % super::COLOURS) } d=(around(&series.band, right, down)) {} }
                    @let path = path(&series.points, right, down);
                    path class={ "curve " (look(number)) } d=(path) { title { (series.name) } }
                    // One point makes no line.
                    @if let [(x, y)] = series.points[..] {
                        circle class=(look(number)) cx=(place(right(x))) cy=(place(down(y))) r="4" {}
                    }
                }
            }
        };
        figure(self.name, &names, &Mark::Line, &plot)
    }
}

impl Lines<'_> {
    /// For those who do not see it: where each curve begins and ends.
    fn told(&self) -> String {
        let mut told = format!("{}: {} by {}.", self.name, self.y.name, self.x.name);
        for series in &self.series {
            if let (Some(first), Some(last)) = (series.points.first(), series.points.last()) {
                let ends = [first.1, first.0, last.1, last.0].map(short);
                let [from, at, to, end] = ends;
                // Writing to a text does not fail.
                let _ = write!(told, " {}: {from} at {at}, {to} at {end}.", series.name);
            }
        }
        told
    }
}

/// The lower ends there and the upper ends back.
fn around(
    band: &[(f64, f64, f64)],
    right: impl Fn(f64) -> f64,
    down: impl Fn(f64) -> f64,
) -> String {
    let lower = band.iter().map(|(x, low, _)| (*x, *low));
    let upper = band.iter().rev().map(|(x, _, high)| (*x, *high));
    let points: Vec<(f64, f64)> = lower.chain(upper).collect();
    path(&points, right, down) + "Z"
}

/// No more digits than can be seen.
fn place(value: f64) -> String {
    format!("{value:.1}")
}

fn path(points: &[(f64, f64)], right: impl Fn(f64) -> f64, down: impl Fn(f64) -> f64) -> String {
    let mut path = String::new();
    let mut pen_down = false;
    for &(x, y) in points {
        let drawn = x.is_finite() && y.is_finite();
        if drawn {
            let command = if pen_down { 'L' } else { 'M' };
            let _ = write!(path, "{command}{} {}", place(right(x)), place(down(y)));
        }
        pen_down = drawn;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_drawn_and_told() {
        let lines = Lines {
            name: "loss",
            x: Axis {
                name: "step",
                scale: Scale::linear([0.0, 10.0]),
            },
            y: Axis {
                name: "nats",
                scale: Scale::linear([0.0, 1.0]),
            },
            series: vec![
                Series {
                    name: "<a>",
                    points: vec![(0.0, 1.0), (5.0, f64::NAN), (10.0, 0.0)],
                    band: vec![(0.0, 0.5, 1.0), (10.0, 0.0, 0.5)],
                },
                Series {
                    name: "b",
                    points: vec![(5.0, 0.5)],
                    band: Vec::new(),
                },
            ],
        };
        let text = lines.render().into_string();
        // Broken where there is no number.
        assert!(text.contains("d=\"M58.0 12.0M604.0 254.0\""), "{text}");
        assert!(
            text.contains("d=\"M58.0 133.0L604.0 254.0L604.0 133.0L58.0 12.0Z\""),
            "{text}"
        );
        assert!(text.contains(
            "aria-label=\"loss: nats by step. &lt;a&gt;: 1 at 0, 0 at 10. b: 0.5 at 5, 0.5 at 5.\""
        ));
        assert!(
            text.contains("<circle class=\"s1 d1\" cx=\"331.0\" cy=\"133.0\""),
            "{text}"
        );
    }
}
