//! What is looked up: whatever is computed of an element is computed where it is wanted, instead of being stored first.

use std::collections::HashMap;

use super::{Arena, BoundsCheck, Node, Scalar};
use crate::index::{Index, Var};
use crate::tensor::Tensor;

/// A tensor whose elements are asked for, along some dimensions, by numbers that are only known when the kernel runs.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    vars: Vec<Var>,
    dims: Vec<usize>,
    /// The element at these variables.
    value: Scalar,
}

impl Source {
    /// `None` where those numbers decide more than how far along a buffer to look.
    pub(crate) fn new(arena: &mut Arena, tensor: &Tensor, dims: &[usize]) -> Option<Self> {
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
    pub(crate) fn at(&self, arena: &mut Arena, at: &[Index], places: &[Scalar]) -> Scalar {
        let mut moved: HashMap<Scalar, Scalar> = HashMap::new();
        for one in arena.ordered(&[self.value]) {
            let (node, kind) = arena.nodes[one.0 as usize].clone();
            let mut node = node.with_operands(|old| moved.get(&old).copied().unwrap_or(old));
            match &mut node {
                Node::Load {
                    index,
                    looked_up,
                    guard,
                    ..
                } => {
                    let strides = self.dims.iter().map(|dim| index.stride(self.vars[*dim]));
                    let asked = places.iter().zip(strides);
                    let asked = asked.filter_map(|(place, stride)| Some((*place, stride?)));
                    looked_up.extend(asked.filter(|(_, stride)| *stride != 0));
                    *index = self.index(index, at);
                    self.guard(guard, at);
                }
                Node::Place(index) => *index = self.index(index, at),
                Node::Inside(guard) => self.guard(guard, at),
                Node::Reduced(_, of) => {
                    for index in of {
                        *index = self.index(index, at);
                    }
                }
                _ => {}
            }
            let scalar = arena.intern(node, kind);
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

    fn guard(&self, guard: &mut [BoundsCheck], at: &[Index]) {
        for within in guard {
            within.index = self.index(&within.index, at);
        }
    }
}
