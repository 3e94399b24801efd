use maud::{Markup, Render, html};

use super::{COLOURS, Mark, figure};

const WIDTH: f64 = 720.0;
const ROW: f64 = 26.0;
/// Arcs lie to the left of it.
const LEFT: f64 = 110.0;
const FIRST: f64 = 16.0;
/// More rows than these are no picture.
const MOST: usize = 160;

/// Operators one below the other in the order in which they run, with arcs from each to those that use its result. Those that
/// one kernel computes have its colour and its name.
pub struct Graph<'a> {
    pub name: &'a str,
    pub nodes: Vec<GraphNode>,
    /// Kernels, in the order of their numbers in `nodes`.
    pub kernels: Vec<&'a str>,
}

pub struct GraphNode {
    pub name: String,
    /// Its shape and its line, say.
    pub about: String,
    /// Earlier nodes whose results it reads.
    pub inputs: Vec<usize>,
    pub kernel: Option<usize>,
}

impl Render for Graph<'_> {
    fn render(&self) -> Markup {
        let nodes = &self.nodes[..self.nodes.len().min(MOST)];
        let height = nodes.len() as f64 * ROW + FIRST;
        let middle = |number: usize| FIRST + number as f64 * ROW;
        let arcs = nodes.iter().enumerate().flat_map(|(to, node)| {
            let before = node.inputs.iter().filter(move |from| **from < to);
            before.map(move |from| (*from, to))
        });
        let arc = |from: usize, to: usize| {
            let reach = (10.0 + 6.0 * (to - from) as f64).min(LEFT - 12.0);
            let (above, below) = (middle(from), middle(to));
            if to == from + 1 {
                format!("M{LEFT} {above}L{LEFT} {below}")
            } else {
                let left = LEFT - reach;
                format!("M{LEFT} {above}C{left} {above} {left} {below} {LEFT} {below}")
            }
        };
        let plot = html! {
            svg.plot viewBox={ "0 0 " (WIDTH) " " (height) } role="img" aria-label=(self.told()) {
                @for (from, to) in arcs { path.edge d=(arc(from, to)) {} }
                @for (number, node) in nodes.iter().enumerate() {
                    @let y = middle(number);
                    @match node.kernel {
                        Some(kernel) => rect class={ "s" (kernel % COLOURS) } x=(LEFT - 6.0) y=(y - 8.0) width="12" height="16" {},
                        None => circle.edge cx=(LEFT) cy=(y) r="5" {},
                    }
                    text x=(LEFT + 16.0) y=(y + 4.0) { (node.name) }
                    text.soft x=(LEFT + 190.0) y=(y + 4.0) { (node.about) }
                    @if let Some(kernel) = node.kernel.and_then(|kernel| self.kernels.get(kernel)) {
                        text x=(LEFT + 370.0) y=(y + 4.0) { (kernel) }
                    }
                }
            }
        };
        let more = self.nodes.len() - nodes.len();
        html! {
            (figure(self.name, &[], &Mark::Block, &plot))
            @if more > 0 { p.quiet { "and " (more) " more operators, which are not drawn" } }
        }
    }
}

impl Graph<'_> {
    fn told(&self) -> String {
        let fused = self
            .nodes
            .iter()
            .filter(|node| node.kernel.is_some())
            .count();
        let (nodes, kernels) = (self.nodes.len(), self.kernels.len());
        format!(
            "{}: {nodes} operators, {fused} of them in {kernels} kernels.",
            self.name
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_have_the_name_of_their_kernel_not_its_colour_alone() {
        let node = |name: &str, inputs: &[usize], kernel| GraphNode {
            name: name.to_owned(),
            about: "4 x 4".to_owned(),
            inputs: inputs.to_vec(),
            kernel,
        };
        let mut graph = Graph {
            name: "Operators",
            nodes: vec![
                node("linear", &[], None),
                node("<gelu>", &[0], Some(0)),
                node("add", &[0, 1], Some(0)),
            ],
            kernels: vec!["gelu_add"],
        };
        let text = graph.render().into_string();
        assert_eq!(text.matches("<rect class=\"s0\"").count(), 2, "{text}");
        assert_eq!(text.matches(">gelu_add<").count(), 2, "{text}");
        assert_eq!(text.matches("<path class=\"edge\"").count(), 3, "{text}");
        assert!(
            text.contains("3 operators, 2 of them in 1 kernels") && !text.contains("<gelu>"),
            "{text}"
        );
        graph.nodes = (0..200).map(|_| node("relu", &[], None)).collect();
        assert!(
            graph
                .render()
                .into_string()
                .contains("and 40 more operators")
        );
    }
}
