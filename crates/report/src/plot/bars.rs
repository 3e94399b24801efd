use maud::{Markup, Render, html};

use super::{COLOURS, Mark, Scale, figure};

const WIDTH: f64 = 720.0;
const LABELS: f64 = 224.0;
const VALUES: f64 = 86.0;
const BAR: f64 = 14.0;
const GAP: f64 = 8.0;
const TOP: f64 = 24.0;
/// Letters of a name that fit beside the bars.
const LETTERS: usize = 27;

/// Ratios, one group of bars each, on a logarithmic scale from 1.
pub struct Bars<'a> {
    pub name: &'a str,
    /// What each bar of a group is of.
    pub series: Vec<&'a str>,
    pub groups: Vec<Bar<'a>>,
}

/// One group.
pub struct Bar<'a> {
    pub name: &'a str,
    /// Where in the page there is more about it.
    pub anchor: String,
    /// As many as there are series.
    pub lengths: Vec<Length<'a>>,
}

pub enum Length<'a> {
    Ratio(f64),
    /// There is none, and this is why.
    Word(&'a str),
}

impl Render for Bars<'_> {
    fn render(&self) -> Markup {
        let ratios = self
            .groups
            .iter()
            .flat_map(|group| &group.lengths)
            .filter_map(|length| match length {
                Length::Ratio(ratio) => Some(*ratio),
                Length::Word(_) => None,
            });
        let scale = Scale::log(ratios);
        let right = |ratio: f64| LABELS + scale.place(ratio) * (WIDTH - LABELS - VALUES);
        let tall = self.series.len() as f64 * BAR + GAP;
        let height = TOP + self.groups.len() as f64 * tall;
        let told = format!(
            "{}: {} bars, the same numbers are in the table of tasks",
            self.name,
            self.groups.len()
        );
        let plot = html! {
            div.tall {
                svg.plot viewBox={ "0 0 " (WIDTH) " " (height) } role="group" aria-label=(told) {
                    @for ratio in scale.ticks(7) {
                        line.grid x1=(place(right(ratio))) x2=(place(right(ratio))) y1=(TOP - 4.0) y2=(height) {}
                        text x=(place(right(ratio))) y=(TOP - 10.0) text-anchor="middle" { (ratio) "x" }
                    }
                    @for (row, group) in self.groups.iter().enumerate() {
                        @let top = TOP + row as f64 * tall + GAP / 2.0;
                        a href={ "#" (group.anchor) } {
                            text x=(LABELS - 8.0) y=(place(top + tall / 2.0)) text-anchor="end" {
                                title { (group.name) }
                                (clipped(group.name))
                            }
                        }
                        @for (number, length) in group.lengths.iter().enumerate() {
                            @let y = top + number as f64 * BAR;
                            @match length {
                                Length::Ratio(ratio) => {
                                    @let (from, to) = (right(1.0).min(right(*ratio)), right(1.0).max(right(*ratio)));
                                    rect class={ "s" (number % COLOURS) } x=(place(from)) y=(place(y + 1.0))
                                        width=(place((to - from).max(1.0))) height=(BAR - 2.0) {
                                        title { (group.name) ": " (ratio) "x" }
                                    }
                                    text x=(place(to + 6.0)) y=(place(y + BAR - 3.0)) { (format!("{ratio:.2}x")) }
                                },
                                Length::Word(word) => {
                                    text x=(place(right(1.0) + 6.0)) y=(place(y + BAR - 3.0)) { (word) }
                                },
                            }
                        }
                    }
                    line.one x1=(place(right(1.0))) x2=(place(right(1.0))) y1=(TOP - 4.0) y2=(height) {}
                }
            }
        };
        figure(self.name, &self.series, &Mark::Block, &plot)
    }
}

fn place(value: f64) -> String {
    format!("{value:.1}")
}

fn clipped(name: &str) -> String {
    if name.chars().count() <= LETTERS {
        return name.to_owned();
    }
    let kept: String = name.chars().take(LETTERS - 1).collect();
    kept + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_go_from_one_to_both_sides() {
        let bars = Bars {
            name: "speed-up",
            series: vec!["a"],
            groups: [
                ("fast", Length::Ratio(2.0)),
                ("slow", Length::Ratio(0.5)),
                ("wrong", Length::Word("mismatch")),
            ]
            .into_iter()
            .map(|(name, length)| Bar {
                name,
                anchor: name.to_owned(),
                lengths: vec![length],
            })
            .collect(),
        };
        let text = bars.render().into_string();
        // 1 lies in the middle between 224 and 634.
        assert!(
            text.contains("x=\"429.0\" y=\"29.0\" width=\"205.0\""),
            "{text}"
        );
        assert!(
            text.contains("x=\"224.0\" y=\"51.0\" width=\"205.0\""),
            "{text}"
        );
        assert!(text.contains(">mismatch</text>") && text.contains("href=\"#slow\""));
        assert!(!text.contains("legend"));
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(clipped(&"ä".repeat(40)).chars().count(), LETTERS);
        assert_eq!(clipped("short"), "short");
    }
}
