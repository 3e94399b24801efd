use maud::{Markup, Render, html};

use super::{COLOURS, Mark, figure};

const WIDTH: f64 = 720.0;
const ROW: f64 = 46.0;
const BAR: f64 = 20.0;

/// Wholes and their parts, each whole a bar of the same length.
pub struct Stack<'a> {
    pub name: &'a str,
    /// Each with as many parts, in the same order.
    pub wholes: Vec<(&'a str, Vec<StackPart>)>,
}

pub struct StackPart {
    pub name: &'static str,
    pub value: f64,
    /// The value in words.
    pub told: String,
}

impl Render for Stack<'_> {
    fn render(&self) -> Markup {
        let names = self
            .wholes
            .first()
            .map(|(_, parts)| parts.iter().map(|part| part.name).collect());
        let names: Vec<&str> = names.unwrap_or_default();
        let height = self.wholes.len() as f64 * ROW;
        let plot = html! {
            svg.plot viewBox={ "0 0 " (WIDTH) " " (height) } role="img" aria-label=(self.told()) {
                @for (row, (whole, parts)) in self.wholes.iter().enumerate() {
                    @let top = row as f64 * ROW;
                    text x="0" y=(top + 14.0) { (whole) }
                    @for (number, (part, from)) in parts.iter().zip(offsets(parts)).enumerate() {
                        rect class={ "s" (number % COLOURS) } x=(place(from * WIDTH)) y=(top + BAR)
                            width=(place(share(part, parts) * WIDTH)) height=(BAR) {
                            title { (part.name) ": " (part.told) }
                        }
                    }
                }
            }
        };
        figure(self.name, &names, &Mark::Block, &plot)
    }
}

impl Stack<'_> {
    fn told(&self) -> String {
        let whole = |(name, parts): &(&str, Vec<StackPart>)| {
            let parts: Vec<String> = parts
                .iter()
                .map(|part| format!("{} {}", part.name, part.told))
                .collect();
            format!("{name}: {}", parts.join(", "))
        };
        let wholes: Vec<String> = self.wholes.iter().map(whole).collect();
        format!("{}. {}", self.name, wholes.join(". "))
    }
}

fn share(part: &StackPart, parts: &[StackPart]) -> f64 {
    let total: f64 = parts.iter().map(|part| part.value).sum();
    if total > 0.0 { part.value / total } else { 0.0 }
}

/// Where each part begins.
fn offsets(parts: &[StackPart]) -> Vec<f64> {
    let shares = parts.iter().map(|part| share(part, parts));
    let begin = |sum: &mut f64, share: f64| {
        let from = *sum;
        *sum += share;
        Some(from)
    };
    shares.scan(0.0, begin).collect()
}

fn place(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other() {
        let part = |name, value: f64| StackPart {
            name,
            value,
            told: format!("{value} s"),
        };
        let stack = Stack {
            name: "seconds",
            wholes: vec![
                ("run", vec![part("compile", 1.0), part("time", 3.0)]),
                ("none", vec![part("compile", 0.0)]),
            ],
        };
        let text = stack.render().into_string();
        assert!(
            text.contains("x=\"180.0\" y=\"20\" width=\"540.0\""),
            "{text}"
        );
        assert!(
            text.contains("aria-label=\"seconds. run: compile 1 s, time 3 s. none: compile 0 s\""),
            "{text}"
        );
    }
}
