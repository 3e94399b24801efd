//! What a module computes, as far as its text says: operators and what each is applied to.

use super::operators::{
    canonical, has_weights, is_arithmetic, is_filling, is_movement, is_transparent,
};

pub(super) type Place = usize;

/// No operator is applied to more than this; a list of a thousand tensors is as telling as one of these.
const OPERAND_LIMIT: usize = 64;

#[derive(Debug)]
pub(super) struct Node {
    pub(super) label: String,
    pub(super) operands: Vec<Place>,
    /// How many dimensions, where that can be seen.
    pub(super) rank: Option<u8>,
}

#[derive(Debug)]
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
}

impl Graph {
    /// Any number, and whatever else is no tensor.
    pub(super) const CONSTANT: Place = 0;

    pub(super) fn new() -> Self {
        let mut graph = Self { nodes: Vec::new() };
        graph.leaf("constant", None);
        graph
    }

    pub(super) fn leaf(&mut self, label: &str, rank: Option<u8>) -> Place {
        self.push(label, Vec::new(), rank)
    }

    fn push(&mut self, label: &str, operands: Vec<Place>, rank: Option<u8>) -> Place {
        self.nodes.push(Node {
            label: label.to_owned(),
            operands,
            rank,
        });
        self.nodes.len() - 1
    }

    fn label(&self, place: Place) -> &str {
        &self.nodes[place].label
    }

    fn is(&self, place: Place, label: &str) -> Option<&[Place]> {
        (self.label(place) == label).then_some(self.nodes[place].operands.as_slice())
    }

    pub(super) fn is_operator(&self, place: Place) -> bool {
        let node = &self.nodes[place];
        !node.operands.is_empty() && !is_movement(&node.label)
    }

    /// An operator, by any of its names, applied to tensors and constants.
    pub(super) fn apply(&mut self, name: &str, operands: &[Place]) -> Place {
        let operator = canonical(name);
        let first = operands.first().copied();
        if let Some(first) = first
            && is_transparent(&operator)
        {
            return first;
        }
        let mut operands: Vec<Place> = operands
            .iter()
            .copied()
            .filter(|&place| place != Self::CONSTANT || is_arithmetic(&operator))
            .take(OPERAND_LIMIT)
            .collect();
        if is_filling(&operator) {
            return self.leaf("filled", None);
        }
        if has_weights(&operator) && operands.len() > 1 {
            let [first, rest @ ..] = operands.as_slice() else {
                return Self::CONSTANT;
            };
            let rest = rest.iter().copied().filter(|&place| !self.is_weight(place));
            operands = std::iter::once(*first).chain(rest).collect();
        }
        self.simplified(&operator, operands)
    }

    fn is_weight(&self, place: Place) -> bool {
        match self.label(place) {
            "weight" => true,
            "permute" => self.nodes[place]
                .operands
                .first()
                .is_some_and(|&inner| self.label(inner) == "weight"),
            _ => false,
        }
    }

    /// The same thing written out by hand is the same thing.
    fn simplified(&mut self, operator: &str, operands: Vec<Place>) -> Place {
        const C: Place = Graph::CONSTANT;
        match (operator, operands.as_slice()) {
            ("addmm" | "baddbmm" | "addmv", &[added, left, right]) => {
                let product = self.apply("matmul", &[left, right]);
                self.apply("add", &[added, product])
            }
            // Constants may be anything: half of it is twice of it, and so on.
            ("div", &[x, C]) | ("neg", &[x]) if x != C => self.simplified("mul", vec![x, C]),
            ("sub", &[x, C]) if x != C => self.simplified("add", vec![x, C]),
            ("square", &[x]) => self.simplified("pow", vec![x, C]),
            ("mul", &[x, y]) if x == y => self.simplified("pow", vec![x, C]),
            ("div", &[C, x]) => match self.is(x, "sqrt") {
                Some(&[inner]) => self.push("rsqrt", vec![inner], None),
                _ => self.simplified("reciprocal", vec![x]),
            },
            ("mul", &[x, y]) => {
                let gate = |gate: Place, of: Place| match (self.label(gate), self.is(gate, "tanh"))
                {
                    ("sigmoid", _) if self.is(gate, "sigmoid") == Some(&[of]) => Some("silu"),
                    (_, Some(&[inner])) if self.is(inner, "softplus") == Some(&[of]) => {
                        Some("mish")
                    }
                    _ => None,
                };
                match (gate(y, x), gate(x, y)) {
                    (Some(name), _) => self.push(name, vec![x], None),
                    (None, Some(name)) => self.push(name, vec![y], None),
                    (None, None) => self.plain("mul", operands),
                }
            }
            ("div", &[x, y]) => match self.is(y, "add") {
                Some(&[one, other] | &[other, one])
                    if one == C && self.is(other, "abs") == Some(&[x]) =>
                {
                    self.push("softsign", vec![x], None)
                }
                _ => self.plain("div", operands),
            },
            ("log", &[x]) => match (self.label(x), self.nodes[x].operands.as_slice()) {
                ("softmax", &[inner]) => self.push("logsoftmax", vec![inner], None),
                ("sigmoid", &[inner]) => self.push("logsigmoid", vec![inner], None),
                ("sum", &[inner]) if self.label(inner) == "exp" => {
                    let inner = self.nodes[inner].operands.clone();
                    self.push("logsumexp", inner, None)
                }
                _ => self.plain("log", operands),
            },
            ("matmul", &[x, weight]) if self.is_weight(weight) && !self.is_weight(x) => {
                self.push("linear", vec![x], None)
            }
            _ => self.plain(operator, operands),
        }
    }

    fn plain(&mut self, operator: &str, operands: Vec<Place>) -> Place {
        let rank = operands
            .iter()
            .filter_map(|&operand| self.nodes[operand].rank)
            .max();
        self.push(operator, operands, rank)
    }
}

/// What a tensor that was made from constants alone is called. Which constants does not matter.
pub(super) fn creation(name: &str) -> String {
    let operator = canonical(name);
    if is_filling(&operator) {
        "filled".to_owned()
    } else {
        operator
    }
}
