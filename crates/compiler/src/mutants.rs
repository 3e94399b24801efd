//! Wrong variants of a graph, for a judge that measures how many of them its draws refuse.
//!
//! Each mutant has one mistake that people and models make in kernels. It is again a graph, so that whoever can interpret
//! the original can interpret it. Where the rules know that no input can show a mistake, the mutant says why.

mod accumulation;
mod arguments;
mod axes;
mod dropped;
mod edit;
mod equivalence;
mod precision;
mod range;
mod state;

use std::collections::BTreeMap;

use serde_json::Value;
use warpsmith_schema::{Dtype, MUTANTS_VERSION, Mutant, MutantKind, Mutants, OpGraph, ValueSource};

use self::edit::Editor;
use self::range::Range;
use crate::simplify::{Application, application};

/// Of one kind at most so many, from all over the graph: a network of a hundred layers shows no more than one of six.
const PER_KIND: usize = 6;

/// Elements that are cut off: one, or of many a small part. Less could not be told from another order of summation.
const CUT_SHARE: u64 = 4096;

/// The mutants of graphs.
#[derive(Debug, Clone, Copy, Default)]
pub struct GraphMutants;

impl Mutants for GraphMutants {
    fn of(&self, graph: &OpGraph) -> Vec<Mutant> {
        // Whoever changes what is made here counts this up, and the number below with it.
        const { assert!(MUTANTS_VERSION == 1) };
        let mut found = Collector::new(graph);
        for place in 0..graph.values.len() {
            if found.alive[place] {
                dropped::collect(&mut found, place);
                arguments::collect(&mut found, place);
                axes::collect(&mut found, place);
                accumulation::collect(&mut found, place);
                precision::collect(&mut found, place);
                state::collect(&mut found, place);
            }
        }
        found.chosen()
    }
}

/// What is known of the graph, and the mutants so far.
struct Collector<'g> {
    graph: &'g OpGraph,
    /// Whether a value has a part in the result.
    alive: Vec<bool>,
    ranges: Vec<Range>,
    found: Vec<Mutant>,
}

impl<'g> Collector<'g> {
    fn new(graph: &'g OpGraph) -> Self {
        let mut alive = vec![false; graph.values.len()];
        for &place in &graph.returns {
            alive[place] = true;
        }
        for place in (0..graph.values.len()).rev() {
            if alive[place]
                && let Some(application) = application(graph, place)
            {
                for &input in application.inputs.iter().flatten() {
                    alive[input] = true;
                }
            }
        }
        Self {
            graph,
            alive,
            ranges: range::ranges(graph),
            found: Vec::new(),
        }
    }

    fn application(&self, place: usize) -> Option<Application<'g>> {
        application(self.graph, place)
    }

    fn shape(&self, place: usize) -> &'g [u64] {
        &self.graph.values[place].shape
    }

    fn dtype(&self, place: usize) -> Dtype {
        self.graph.values[place].dtype
    }

    fn is_float(&self, place: usize) -> bool {
        is_float(self.dtype(place))
    }

    fn same_form(&self, one: usize, other: usize) -> bool {
        self.shape(one) == self.shape(other) && self.dtype(one) == self.dtype(other)
    }

    /// A mutant in which `place` is what `make` computes instead; nothing if it cannot be made.
    fn add(
        &mut self,
        kind: MutantKind,
        place: usize,
        what: &str,
        make: impl FnOnce(&mut Editor<'_>) -> Option<usize>,
    ) {
        let Some(graph) = edit::replaced(self.graph, place, make) else {
            return;
        };
        let what = match &self.graph.values[place].from {
            ValueSource::Applied { op, .. } => format!("`{op}`: {what}"),
            ValueSource::State { name } => format!("`{name}`: {what}"),
            _ => what.to_owned(),
        };
        self.found.push(Mutant {
            kind,
            place,
            what,
            graph,
            stale: Vec::new(),
            equivalent: None,
        });
    }

    /// As `add`; `reason` says why the mutant computes the same, if it does.
    fn add_unless(
        &mut self,
        reason: Option<&str>,
        (kind, place, what): (MutantKind, usize, &str),
        make: impl FnOnce(&mut Editor<'_>) -> Option<usize>,
    ) {
        let before = self.found.len();
        self.add(kind, place, what, make);
        if let Some(made) = self.found.get_mut(before) {
            made.equivalent = reason.map(str::to_owned);
        }
    }

    /// The same operator with other arguments.
    fn add_with(
        &mut self,
        reason: Option<&str>,
        about: (MutantKind, usize, &str),
        changes: &[(&str, Value)],
    ) {
        self.add_unless(reason, about, |editor| {
            let mut value = editor.original_value();
            let ValueSource::Applied { arguments, .. } = &mut value.from else {
                return None;
            };
            for (name, changed) in changes {
                arguments.insert((*name).to_owned(), changed.clone());
            }
            Some(editor.push_value(value))
        });
    }

    /// At most a few of each kind, spread over the graph.
    fn chosen(self) -> Vec<Mutant> {
        let mut by_kind: BTreeMap<MutantKind, Vec<Mutant>> = BTreeMap::new();
        for mutant in self.found {
            by_kind.entry(mutant.kind).or_default().push(mutant);
        }
        by_kind.into_values().flat_map(spread).collect()
    }
}

fn spread(mutants: Vec<Mutant>) -> Vec<Mutant> {
    let count = mutants.len();
    let kept = count.min(PER_KIND);
    let wanted: Vec<usize> = (0..kept).map(|number| number * count / kept).collect();
    let numbered = mutants.into_iter().enumerate();
    numbered
        .filter(|(number, _)| wanted.contains(number))
        .map(|(_, mutant)| mutant)
        .collect()
}

fn is_float(dtype: Dtype) -> bool {
    matches!(
        dtype,
        Dtype::Float64 | Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16
    )
}

/// A dimension as it counts from the front.
fn from_front(dim: i64, rank: usize) -> Option<usize> {
    let rank = rank as i64;
    usize::try_from(if dim < 0 { dim + rank } else { dim })
        .ok()
        .filter(|dim| (*dim as i64) < rank.max(1))
}

/// Dimensions of an argument that is a number, a list of them, or null for all.
fn dims_of(application: &Application<'_>, name: &str, rank: usize) -> Option<Vec<usize>> {
    let numbers = match application.arguments.get(name) {
        None | Some(Value::Null) => return Some((0..rank).collect()),
        Some(Value::Array(list)) if list.is_empty() => return Some((0..rank).collect()),
        Some(Value::Array(list)) => list.iter().map(Value::as_i64).collect::<Option<Vec<_>>>()?,
        Some(one) => vec![one.as_i64()?],
    };
    numbers.iter().map(|dim| from_front(*dim, rank)).collect()
}

/// How many elements are cut off of so many, or `None` where one alone is there.
fn cut_of(extent: u64) -> Option<u64> {
    (extent > 1).then(|| (extent / CUT_SHARE).max(1))
}

#[cfg(test)]
mod tests;
