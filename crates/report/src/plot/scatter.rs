use maud::{Markup, Render, html};

use super::{Axis, Mark, figure, short};

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 46.0;

/// Points over two axes, with the line on which both are the same. What lies below the line is a triangle as well as of
/// another colour.
pub struct Scatter<'a> {
    pub name: &'a str,
    pub x: Axis<'a>,
    pub y: Axis<'a>,
    pub points: Vec<ScatterPoint>,
}

pub struct ScatterPoint {
    pub name: String,
    pub x: f64,
    pub y: f64,
    /// Where it leads.
    pub address: String,
}

impl Render for Scatter<'_> {
    fn render(&self) -> Markup {
        let right = |value: f64| LEFT + self.x.scale.place(value) * (WIDTH - LEFT - RIGHT);
        let down = |value: f64| TOP + (1.0 - self.y.scale.place(value)) * (HEIGHT - TOP - BOTTOM);
        let floor = HEIGHT - BOTTOM;
        let (from, to) = self.x.scale.ends();
        let plot = html! {
            svg.plot viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(self.told()) {
                @for value in self.y.scale.ticks(6) {
                    line.grid x1=(LEFT) x2=(WIDTH - RIGHT) y1=(place(down(value))) y2=(place(down(value))) {}
                    text x=(LEFT - 8.0) y=(place(down(value) + 4.0)) text-anchor="end" { (short(value)) }
                }
                @for value in self.x.scale.ticks(6) {
                    line.grid x1=(place(right(value))) x2=(place(right(value))) y1=(TOP) y2=(floor) {}
                    text x=(place(right(value))) y=(floor + 18.0) text-anchor="middle" { (short(value)) }
                }
                line.one x1=(place(right(from))) y1=(place(down(from))) x2=(place(right(to))) y2=(place(down(to))) {}
                text x=(f64::midpoint(LEFT, WIDTH - RIGHT)) y=(HEIGHT - 6.0) text-anchor="middle" { (self.x.name) }
                text x="14" y=(TOP + 140.0) text-anchor="middle" transform={ "rotate(-90 14 " (TOP + 140.0) ")" } { (self.y.name) }
                @for point in &self.points {
                    @let (x, y) = (right(point.x), down(point.y));
                    a href=(point.address) {
                        title { (point.name) ": " (self.y.name) " " (short(point.y)) ", " (self.x.name) " " (short(point.x)) }
                        @if point.y <= point.x {
                            circle.dot.s2 cx=(place(x)) cy=(place(y)) r="5" {}
                        } @else {
                            path.dot.s1 d={ "M" (place(x - 5.5)) " " (place(y + 4.5)) "L" (place(x + 5.5)) " " (place(y + 4.5)) "L" (place(x)) " " (place(y - 5.5)) "Z" } {}
                        }
                    }
                }
            }
        };
        figure(self.name, &[], &Mark::Block, &plot)
    }
}

impl Scatter<'_> {
    fn told(&self) -> String {
        let below = self
            .points
            .iter()
            .filter(|point| point.y <= point.x)
            .count();
        format!(
            "{}: {} by {}. {below} of {} points lie at or below the line where both are the same.",
            self.name,
            self.y.name,
            self.x.name,
            self.points.len()
        )
    }
}

fn place(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::super::Scale;
    use super::*;

    #[test]
    fn slower_is_another_shape_too() {
        let point = |name: &str, x: f64, y: f64| ScatterPoint {
            name: name.to_owned(),
            x,
            y,
            address: format!("#{name}"),
        };
        let axis = |name| Axis {
            name,
            scale: Scale::log([1.0, 100.0]),
        };
        let text = Scatter {
            name: "Ours against compile",
            x: axis("compile"),
            y: axis("ours"),
            points: vec![point("<a>", 10.0, 5.0), point("b", 10.0, 20.0)],
        }
        .render()
        .into_string();
        assert_eq!(text.matches("<circle").count(), 1, "{text}");
        assert_eq!(text.matches("<path class=\"dot s1\"").count(), 1, "{text}");
        assert!(text.contains("1 of 2 points lie at or below"), "{text}");
        assert!(!text.contains("<a>"), "{text}");
    }
}
