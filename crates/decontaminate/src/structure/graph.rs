//! The graph of operators that a module applies, as far as its source tells.
//!
//! Labels are hashed into fingerprints: renaming one changes the format of all fingerprint files.

use super::operators::{
    canonical, has_weights, is_arithmetic, is_filling, is_movement, is_transparent,
};

pub(super) type NodeId = usize;

/// Further operands of one operator are left out: a list of a thousand tensors says no more than its beginning.
const OPERAND_LIMIT: usize = 64;

#[derive(Debug)]
pub(super) struct Node {
    pub(super) label: String,
    pub(super) operands: Vec<NodeId>,
    /// The number of dimensions, where the source tells.
    pub(super) rank: Option<u8>,
}

#[derive(Debug)]
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
}

impl Graph {
    /// Any value that is no tensor.
    pub(super) const CONSTANT: NodeId = 0;

    pub(super) fn new() -> Self {
        let mut graph = Self { nodes: Vec::new() };
        graph.leaf("constant", None);
        graph
    }

    pub(super) fn leaf(&mut self, label: &str, rank: Option<u8>) -> NodeId {
        self.push(label, Vec::new(), rank)
    }

    fn push(&mut self, label: &str, operands: Vec<NodeId>, rank: Option<u8>) -> NodeId {
        self.nodes.push(Node {
            label: label.to_owned(),
            operands,
            rank,
        });
        self.nodes.len() - 1
    }

    fn label(&self, id: NodeId) -> &str {
        &self.nodes[id].label
    }

    fn operands_if(&self, id: NodeId, label: &str) -> Option<&[NodeId]> {
        (self.label(id) == label).then_some(self.nodes[id].operands.as_slice())
    }

    pub(super) fn is_operator(&self, id: NodeId) -> bool {
        let node = &self.nodes[id];
        !node.operands.is_empty() && !is_movement(&node.label)
    }

    /// Applies an operator, by any of its names, to tensors and constants.
    pub(super) fn apply(&mut self, name: &str, operands: &[NodeId]) -> NodeId {
        let operator = canonical(name);
        let first = operands.first().copied();
        if let Some(first) = first
            && is_transparent(&operator)
        {
            return first;
        }
        let mut operands: Vec<NodeId> = operands
            .iter()
            .copied()
            .filter(|&id| id != Self::CONSTANT || is_arithmetic(&operator))
            .take(OPERAND_LIMIT)
            .collect();
        if is_filling(&operator) {
            return self.leaf("filled", None);
        }
        if has_weights(&operator) && operands.len() > 1 {
            let [first, rest @ ..] = operands.as_slice() else {
                return Self::CONSTANT;
            };
            let rest = rest.iter().copied().filter(|&id| !self.is_weight(id));
            operands = std::iter::once(*first).chain(rest).collect();
        }
        self.simplified(&operator, operands)
    }

    fn is_weight(&self, id: NodeId) -> bool {
        match self.label(id) {
            "weight" => true,
            "permute" => self.nodes[id]
                .operands
                .first()
                .is_some_and(|&inner| self.label(inner) == "weight"),
            _ => false,
        }
    }

    /// Rewrites idioms to the operator that they spell out: `x * sigmoid(x)` is `silu`.
    fn simplified(&mut self, operator: &str, operands: Vec<NodeId>) -> NodeId {
        const C: NodeId = Graph::CONSTANT;
        match (operator, operands.as_slice()) {
            ("addmm" | "baddbmm" | "addmv", &[added, left, right]) => {
                let product = self.apply("matmul", &[left, right]);
                self.apply("add", &[added, product])
            }
            // The value of a constant does not count, so dividing by one is multiplying by one.
            ("div", &[x, C]) | ("neg", &[x]) if x != C => self.simplified("mul", vec![x, C]),
            ("sub", &[x, C]) if x != C => self.simplified("add", vec![x, C]),
            ("square", &[x]) => self.simplified("pow", vec![x, C]),
            ("mul", &[x, y]) if x == y => self.simplified("pow", vec![x, C]),
            ("div", &[C, x]) => match self.operands_if(x, "sqrt") {
                Some(&[inner]) => self.push("rsqrt", vec![inner], None),
                _ => self.simplified("reciprocal", vec![x]),
            },
            ("mul", &[x, y]) => {
                let gate = |gate: NodeId, of: NodeId| match (
                    self.label(gate),
                    self.operands_if(gate, "tanh"),
                ) {
                    ("sigmoid", _) if self.operands_if(gate, "sigmoid") == Some(&[of]) => {
                        Some("silu")
                    }
                    (_, Some(&[inner])) if self.operands_if(inner, "softplus") == Some(&[of]) => {
                        Some("mish")
                    }
                    _ => None,
                };
                match (gate(y, x), gate(x, y)) {
                    (Some(name), _) => self.push(name, vec![x], None),
                    (None, Some(name)) => self.push(name, vec![y], None),
                    (None, None) => self.push_operator("mul", operands),
                }
            }
            ("div", &[x, y]) => match self.operands_if(y, "add") {
                Some(&[one, other] | &[other, one])
                    if one == C && self.operands_if(other, "abs") == Some(&[x]) =>
                {
                    self.push("softsign", vec![x], None)
                }
                _ => self.push_operator("div", operands),
            },
            ("log", &[x]) => match (self.label(x), self.nodes[x].operands.as_slice()) {
                ("softmax", &[inner]) => self.push("logsoftmax", vec![inner], None),
                ("sigmoid", &[inner]) => self.push("logsigmoid", vec![inner], None),
                ("sum", &[inner]) if self.label(inner) == "exp" => {
                    let inner = self.nodes[inner].operands.clone();
                    self.push("logsumexp", inner, None)
                }
                _ => self.push_operator("log", operands),
            },
            ("matmul", &[x, weight]) if self.is_weight(weight) && !self.is_weight(x) => {
                self.push("linear", vec![x], None)
            }
            _ => self.push_operator(operator, operands),
        }
    }

    fn push_operator(&mut self, operator: &str, operands: Vec<NodeId>) -> NodeId {
        let rank = operands
            .iter()
            .filter_map(|&operand| self.nodes[operand].rank)
            .max();
        self.push(operator, operands, rank)
    }
}

/// The label of a tensor that a function makes from constants alone.
pub(super) fn creation(name: &str) -> String {
    let operator = canonical(name);
    if is_filling(&operator) {
        "filled".to_owned()
    } else {
        operator
    }
}
