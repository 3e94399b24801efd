use maud::{Markup, Render, html};

use super::{Mark, Scale, figure, short};

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;
/// Names closer than this lie over each other.
const LINE: f64 = 16.0;

/// What a machine can reach at most, by how much is computed with each byte, and how far some implementations get.
pub struct RooflineChart<'a> {
    pub name: &'a str,
    /// Of the machine.
    pub bandwidth_gbps: f64,
    pub gflops: f64,
    /// Operations per byte that cannot be avoided: the same for all, as they compute the same.
    pub intensity: f64,
    pub points: Vec<RooflinePoint<'a>>,
}

pub struct RooflinePoint<'a> {
    pub name: &'a str,
    pub gflops: f64,
}

impl RooflineChart<'_> {
    fn at(&self, intensity: f64) -> f64 {
        (self.bandwidth_gbps * intensity).min(self.gflops)
    }

    fn told(&self) -> String {
        let roof = self.at(self.intensity);
        let points = self.points.iter().map(|point| {
            let share = 100.0 * point.gflops / roof;
            format!(
                "{} reaches {} GFLOP/s, {share:.0} % of it",
                point.name,
                short(point.gflops)
            )
        });
        let points: Vec<String> = points.collect();
        let (at, roof) = (short(self.intensity), short(roof));
        format!(
            "{}: at {at} operations a byte the roof is {roof} GFLOP/s. {}.",
            self.name,
            points.join(". ")
        )
    }
}

impl Render for RooflineChart<'_> {
    fn render(&self) -> Markup {
        let ridge = self.gflops / self.bandwidth_gbps;
        let x = Scale::log_around([
            self.intensity / 4.0,
            self.intensity * 4.0,
            ridge / 2.0,
            ridge * 4.0,
        ]);
        let rates = self.points.iter().map(|point| point.gflops);
        let (from, to) = x.ends();
        let y = Scale::log_around(rates.chain([self.at(from), self.gflops]));
        let right = |value: f64| LEFT + x.place(value) * (WIDTH - LEFT - RIGHT);
        let down = |value: f64| TOP + (1.0 - y.place(value)) * (HEIGHT - TOP - BOTTOM);
        let floor = HEIGHT - BOTTOM;
        let mut names: Vec<(usize, &RooflinePoint<'_>)> = self.points.iter().enumerate().collect();
        names.sort_by(|one, other| other.1.gflops.total_cmp(&one.1.gflops));
        // Down from the quickest, each below the one before.
        let mut last = f64::NEG_INFINITY;
        let names: Vec<(usize, &RooflinePoint<'_>, f64)> = names
            .into_iter()
            .map(|(number, point)| {
                last = (down(point.gflops) + 4.0).max(last + LINE);
                (number, point, last)
            })
            .collect();
        let plot = html! {
            svg.plot viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(self.told()) {
                @for value in y.ticks(6) {
                    line.grid x1=(LEFT) x2=(WIDTH - RIGHT) y1=(place(down(value))) y2=(place(down(value))) {}
                    text x=(LEFT - 8.0) y=(place(down(value) + 4.0)) text-anchor="end" { (short(value)) }
                }
                @for value in x.ticks(6) {
                    line.grid x1=(place(right(value))) x2=(place(right(value))) y1=(TOP) y2=(floor) {}
                    text x=(place(right(value))) y=(floor + 18.0) text-anchor="middle" { (short(value)) }
                }
                text x=(f64::midpoint(LEFT, WIDTH - RIGHT)) y=(HEIGHT - 6.0) text-anchor="middle" { "operations per byte" }
                text x="14" y=(TOP + 130.0) text-anchor="middle" transform={ "rotate(-90 14 " (TOP + 130.0) ")" } { "GFLOP/s" }
                path.one.roof d={ "M" (place(right(from))) " " (place(down(self.at(from)))) "L" (place(right(ridge.clamp(from, to)))) " " (place(down(self.at(ridge.clamp(from, to))))) "L" (place(right(to))) " " (place(down(self.at(to)))) } {}
                text x=(WIDTH - RIGHT + 8.0) y=(place(down(self.gflops) + 4.0)) { "roof" }
                @for (number, point, at) in &names {
                    circle class={ "s" (number % super::COLOURS) } cx=(place(right(self.intensity))) cy=(place(down(point.gflops))) r="5" {}
                    line.grid x1=(place(right(self.intensity) + 6.0)) y1=(place(down(point.gflops))) x2=(WIDTH - RIGHT + 4.0) y2=(place(at - 4.0)) {}
                    text x=(WIDTH - RIGHT + 8.0) y=(place(*at)) { (point.name) " " (short(point.gflops)) }
                }
            }
        };
        figure(self.name, &[], &Mark::Block, &plot)
    }
}

fn place(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_below_the_roof_and_names_do_not_hide_each_other() {
        let point = |name, gflops| RooflinePoint { name, gflops };
        let roofline = RooflineChart {
            name: "Roofline",
            bandwidth_gbps: 10.0,
            gflops: 100.0,
            intensity: 0.5,
            points: vec![
                point("<ours>", 4.0),
                point("eager", 3.99),
                point("compile", 1.0),
            ],
        };
        let told = roofline.told();
        assert!(
            told.contains("the roof is 5 GFLOP/s. <ours> reaches 4 GFLOP/s, 80 % of it"),
            "{told}"
        );
        let text = roofline.render().into_string();
        assert!(
            !text.contains("<ours>") && text.matches("<circle").count() == 3,
            "{text}"
        );
        let height = |name: &str| -> f64 {
            let at = text.find(&format!(">{name} ")).unwrap();
            let y = text[..at].rfind(" y=\"").unwrap() + 4;
            text[y..].split('"').next().unwrap().parse().unwrap()
        };
        assert!(
            height("eager") - height("&lt;ours&gt;") >= LINE - 0.1,
            "{text}"
        );
    }
}
