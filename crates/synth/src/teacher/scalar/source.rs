//! What is looked up: whatever is computed of an element is computed where it is wanted, instead of being stored first.

use std::collections::HashMap;

use super::{Arena, Node, Scalar, Within};
use crate::teacher::index::{Index, Var};
use crate::teacher::tensor::Tensor;

/// A tensor whose elements are asked for, along some dimensions, by numbers that are only known when the kernel runs.
#[derive(Debug, Clone)]
pub(in crate::teacher) struct Source {
    vars: Vec<Var>,
    dims: Vec<usize>,
    /// The element at these variables.
    value: Scalar,
}

impl Source {
    /// `None` where those numbers decide more than how far along a buffer to look.
    pub(in crate::teacher) fn new(
        arena: &mut Arena,
        tensor: &Tensor,
        dims: &[usize],
    ) -> Option<Self> {
        let vars = tensor.shape.iter().map(|extent| arena.var(*extent));
        let vars: Vec<Var> = vars.collect();
        let at: Vec<Index> = vars.iter().map(|var| (*var).into()).collect();
        let value = (tensor.at)(arena, &at);
        let asked: Vec<Var> = dims.iter().map(|dim| vars[*dim]).collect();
        let free = |index: &Index| !asked.iter().any(|var| index.depends_on(*var));
        let fits = |one: Scalar| match arena.node(one) {
            Node::Load { index, guard, .. } => {
                asked.iter().all(|var| index.stride(*var).is_some())
                    && guard.iter().all(|within| free(&within.index))
            }
            _ => arena.indices(one).into_iter().all(free),
        };
        let fits = arena.ordered(&[value]).into_iter().all(fits);
        fits.then(|| Self {
            vars,
            dims: dims.to_vec(),
            value,
        })
    }

    /// The element at `places`, one for each of those dimensions; the other coordinates are those of `at`.
    pub(in crate::teacher) fn at(
        &self,
        arena: &mut Arena,
        at: &[Index],
        places: &[Scalar],
    ) -> Scalar {
        let mut moved: HashMap<Scalar, Scalar> = HashMap::new();
        for one in arena.ordered(&[self.value]) {
            let (node, kind) = arena.nodes[one.0 as usize].clone();
            let new = |old: Scalar| moved.get(&old).copied().unwrap_or(old);
            let node = match node {
                Node::Load {
                    buffer,
                    index,
                    looked_up,
                    guard,
                } => {
                    let before = looked_up.into_iter().map(|(old, by)| (new(old), by));
                    let strides = self.dims.iter().map(|dim| index.stride(self.vars[*dim]));
                    let asked = places.iter().zip(strides);
                    let asked = asked.filter_map(|(place, stride)| Some((*place, stride?)));
                    let looked_up = before.chain(asked.filter(|(_, stride)| *stride != 0));
                    Node::Load {
                        buffer,
                        index: self.index(&index, at),
                        looked_up: looked_up.collect(),
                        guard: self.guard(&guard, at),
                    }
                }
                Node::Place(index) => Node::Place(self.index(&index, at)),
                Node::Inside(guard) => Node::Inside(self.guard(&guard, at)),
                Node::Reduced(reduction, of) => {
                    let of = of.iter().map(|index| self.index(index, at)).collect();
                    Node::Reduced(reduction, of)
                }
                Node::Unary(op, x) => Node::Unary(op, new(x)),
                Node::Binary(op, a, b) => Node::Binary(op, new(a), new(b)),
                Node::Select(c, a, b) => Node::Select(new(c), new(a), new(b)),
                same @ (Node::Const(_) | Node::Int(_) | Node::Finished(_)) => same,
            };
            let scalar = arena.keep(node, kind);
            if let Some(name) = arena.named(one) {
                arena.name(scalar, name);
            }
            moved.insert(one, scalar);
        }
        moved[&self.value]
    }

    /// What an index comes to at these coordinates, before the places are looked up.
    fn index(&self, index: &Index, at: &[Index]) -> Index {
        let start = Index::default();
        let each = self.vars.iter().zip(at).enumerate();
        each.fold(index.clone(), |index, (dim, (var, to))| {
            let to = if self.dims.contains(&dim) { &start } else { to };
            index.substituted(*var, to)
        })
    }

    fn guard(&self, guard: &[Within], at: &[Index]) -> Vec<Within> {
        let each = guard.iter();
        each.map(|within| Within {
            index: self.index(&within.index, at),
            ..within.clone()
        })
        .collect()
    }
}
