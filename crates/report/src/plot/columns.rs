use maud::{Markup, Render, html};

use super::{COLOURS, Mark, figure, short};

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 46.0;
/// More columns than these are thinner than a line.
const MOST: usize = 240;

/// Stacked columns over steps: how a whole is made up, and how that changes.
pub struct ColumnChart<'a> {
    pub name: &'a str,
    pub y: &'a str,
    /// From below to above.
    pub parts: Vec<&'a str>,
    /// A step, and a value for each part.
    pub columns: Vec<(f64, Vec<f64>)>,
}

impl Render for ColumnChart<'_> {
    fn render(&self) -> Markup {
        let every = self.columns.len().div_ceil(MOST).max(1);
        let shown: Vec<&(f64, Vec<f64>)> = self.columns.iter().step_by(every).collect();
        let whole = |column: &(f64, Vec<f64>)| column.1.iter().sum::<f64>();
        let most = shown.iter().map(|column| whole(column)).fold(0.0, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        let each = (WIDTH - LEFT - RIGHT) / shown.len().max(1) as f64;
        let down = |value: f64| TOP + (1.0 - value / most) * (HEIGHT - TOP - BOTTOM);
        let labelled = shown.len().div_ceil(8).max(1);
        let plot = html! {
            svg.plot viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(self.told()) {
                @for value in (super::Scale::Linear { from: 0.0, to: most }).ticks(5) {
                    line.grid x1=(LEFT) x2=(WIDTH - RIGHT) y1=(place(down(value))) y2=(place(down(value))) {}
                    text x=(LEFT - 8.0) y=(place(down(value) + 4.0)) text-anchor="end" { (short(value)) }
                }
                text x=(f64::midpoint(LEFT, WIDTH - RIGHT)) y=(HEIGHT - 6.0) text-anchor="middle" { "step" }
                @for (number, column) in shown.iter().enumerate() {
                    @let left = LEFT + number as f64 * each;
                    @for (part, (value, from)) in column.1.iter().zip(below(&column.1)).enumerate() {
                        @if *value > 0.0 {
                            rect class={ "s" (part % COLOURS) } x=(place(left + 0.5)) width=(place((each - 1.0).max(0.8)))
                                y=(place(down(from + value))) height=(place(down(from) - down(from + value))) {
                                title { "step " (short(column.0)) ", " (self.parts[part]) ": " (short(*value)) }
                            }
                        }
                    }
                    @if number % labelled == 0 {
                        text x=(place(left + each / 2.0)) y=(HEIGHT - BOTTOM + 18.0) text-anchor="middle" { (short(column.0)) }
                    }
                }
            }
        };
        figure(self.name, &self.parts, &Mark::Block, &plot)
    }
}

impl ColumnChart<'_> {
    /// For those who do not see it: the first and the last column.
    fn told(&self) -> String {
        let one = |column: &(f64, Vec<f64>)| {
            let parts = self.parts.iter().zip(&column.1);
            let parts: Vec<String> = parts
                .map(|(name, value)| format!("{name} {}", short(*value)))
                .collect();
            format!("step {}: {}", short(column.0), parts.join(", "))
        };
        let ends = [self.columns.first(), self.columns.last()];
        let ends: Vec<String> = ends.into_iter().flatten().map(one).collect();
        format!("{}: {} by step. {}.", self.name, self.y, ends.join(". "))
    }
}

/// Where each part begins.
fn below(values: &[f64]) -> Vec<f64> {
    let mut sum = 0.0;
    values
        .iter()
        .map(|value| {
            let from = sum;
            sum += value;
            from
        })
        .collect()
}

fn place(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_on_each_other() {
        let columns = ColumnChart {
            name: "Rewards",
            y: "share",
            parts: vec!["wrong", "<right>"],
            columns: vec![(1.0, vec![1.0, 0.0]), (2.0, vec![0.25, 0.75])],
        };
        let text = columns.render().into_string();
        // What is nothing has no rectangle.
        let drawn = text.matches("<rect class=\"s0\" x").count()
            + text.matches("<rect class=\"s1\" x").count();
        assert_eq!(drawn - 2, 3, "{text}");
        assert!(
            text.contains("step 2: wrong 0.25, &lt;right&gt; 0.75"),
            "{text}"
        );
        assert_eq!(below(&[0.25, 0.5, 0.25]), [0.0, 0.25, 0.75]);
    }
}
