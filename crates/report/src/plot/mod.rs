//! Plots as SVG within a page. Each has a name for those who do not see it, a legend where there are several series, and
//! colours of the page's style; series differ by dashes too.

mod bars;
mod columns;
mod graph;
mod lines;
mod roofline;
mod scale;
mod scatter;
mod sparkline;
mod stack;
mod strip;

use maud::{Markup, html};

pub use bars::{Bar, Bars, Length};
pub use columns::ColumnChart;
pub use graph::{Graph, GraphNode};
pub use lines::{Axis, Lines, Series};
pub use roofline::{RooflineChart, RooflinePoint};
pub use scale::Scale;
pub use scatter::{Scatter, ScatterPoint};
pub use sparkline::sparkline;
pub use stack::{Stack, StackPart};
pub use strip::{Strip, StripRow};

/// As many as there are colours.
const COLOURS: usize = 6;
const DASHES: usize = 4;

/// What sets a series apart.
fn look(number: usize) -> String {
    // Dashes change first among few, so that neighbours never differ by colour alone.
    format!("s{} d{}", number % COLOURS, number % DASHES)
}

/// A number without more digits than it needs.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1e5 || (size > 0.0 && size < 1e-3) => format!("{value:.1e}"),
        size if size >= 100.0 => format!("{value:.0}"),
        _ => {
            let text = format!("{value:.3}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

/// What stands for a series in the legend.
enum Mark {
    Line,
    Block,
}

/// A plot with its name and, for several series, its legend.
fn figure(name: &str, series: &[&str], mark: &Mark, plot: &Markup) -> Markup {
    html! {
        figure {
            figcaption { (name) }
            @if series.len() > 1 {
                ul.legend {
                    @for (number, name) in series.iter().enumerate() {
                        li {
                            svg viewBox="0 0 28 12" aria-hidden="true" {
                                @match mark {
                                    Mark::Line => line class={ "curve " (look(number)) } x1="0" y1="6" x2="28" y2="6" {},
                                    Mark::Block => rect class={ "s" (number % COLOURS) } x="8" width="12" height="12" {},
                                }
                            }
                            (name)
                        }
                    }
                }
            }
            div.scroll role="region" aria-label={ "plot: " (name) } tabindex="0" { (plot) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn numbers_are_short() {
        let found = [0.0, 0.25, 1.0, 2.5, 128.0, 1e6, 0.00012].map(short);
        assert_eq!(found, ["0", "0.25", "1", "2.5", "128", "1.0e6", "1.2e-4"]);
    }
}
