//! From tensors that are not there yet to kernels that make them.
//!
//! Elementwise work, views and broadcasts are never kernels of their own: they are computed where they are needed. A
//! reduction is computed in the kernel that needs it where that kernel has a row for each of its results; else it is
//! made first.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use warpsmith_schema::Target;

use super::index::{Index, coordinates, linear};
use super::library::Library;
use super::scalar::{Arena, Buffer, Kind, Node, Reduced, Scalar};
use super::tensor::{Body, Tensor};

/// How a solution is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Strategy {
    /// A kernel for every operator, one thread an element.
    Plain,
    /// As few kernels as possible.
    Fused,
    /// These with wide loads, values kept in registers and work shared out among threads.
    Tuned,
}

/// Where a buffer comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    Input(usize),
    State(String),
    Made,
}

#[derive(Debug, Clone)]
pub(super) struct Room {
    pub(super) origin: Origin,
    pub(super) shape: Vec<i64>,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fold {
    Sum,
    Product,
    Max,
    Min,
    /// Where the first of the greatest is.
    ArgMax,
}

/// The value for a result and for one of the elements that go into it.
type Inner = Rc<dyn Fn(&mut Arena, &[Index], &[Index]) -> Scalar>;

#[derive(Clone)]
pub(super) struct Reduction {
    /// What it leaves.
    pub(super) outer: Vec<i64>,
    /// What it runs over.
    pub(super) extents: Vec<i64>,
    pub(super) fold: Fold,
    pub(super) kind: Kind,
    pub(super) body: Inner,
    pub(super) name: &'static str,
}

impl Reduction {
    pub(super) fn rows(&self) -> i64 {
        self.outer.iter().product()
    }

    pub(super) fn length(&self) -> i64 {
        self.extents.iter().product()
    }
}

/// Coordinates from the coordinates of rows.
type Map = Rc<dyn Fn(&[Index]) -> Vec<Index>>;

/// Coordinates of a tensor from those of a row and of a cell in it.
type Place = Rc<dyn Fn(&[Index], &[Index]) -> Vec<Index>>;

/// A reduction within a kernel of rows.
#[derive(Clone)]
pub(super) struct Pass {
    pub(super) reduction: Reduced,
    /// From the kernel's rows to what the reduction leaves.
    pub(super) outer: Map,
}

/// A kernel that handles rows, each on its own: reductions over it, then what is stored.
#[derive(Clone)]
pub(super) struct Rows {
    pub(super) outer: Vec<i64>,
    pub(super) passes: Vec<Pass>,
    /// Elements stored for a row.
    pub(super) cells: Vec<i64>,
    /// From coordinates of a row and of a cell to those of the tensor.
    pub(super) place: Place,
    pub(super) shape: Vec<i64>,
    pub(super) value: Body,
    pub(super) out: Buffer,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scanning {
    Sum,
    Product,
}

/// Running sums or products along a dimension.
#[derive(Clone)]
pub(super) struct Scan {
    /// Before the dimension, along it, after it.
    pub(super) shape: [i64; 3],
    pub(super) how: Scanning,
    pub(super) value: Body,
    pub(super) out: Buffer,
}

#[derive(Clone)]
pub(super) enum Kernel {
    Rows(Rows),
    Scan(Scan),
    Library(Library),
}

#[derive(Clone)]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) kernel: Kernel,
}

pub(super) struct Plan {
    pub(super) target: Target,
    pub(super) strategy: Strategy,
    pub(super) arena: Arena,
    pub(super) rooms: Vec<Room>,
    pub(super) reductions: Vec<Reduction>,
    pub(super) made: HashMap<Reduced, Buffer>,
    pub(super) steps: Vec<Step>,
    /// Operators that were lowered since the last step: they are what the next one computes.
    pub(super) chain: Vec<String>,
    /// The last of them, steps or not.
    pub(super) current: String,
}

impl Plan {
    pub(super) fn new(target: Target, strategy: Strategy) -> Self {
        Self {
            target,
            strategy,
            arena: Arena::default(),
            rooms: Vec::new(),
            reductions: Vec::new(),
            made: HashMap::new(),
            steps: Vec::new(),
            chain: Vec::new(),
            current: String::new(),
        }
    }

    pub(super) fn room(&mut self, origin: Origin, shape: &[i64], kind: Kind) -> Buffer {
        self.rooms.push(Room {
            origin,
            shape: shape.to_vec(),
            kind,
        });
        self.arena.buffer(kind)
    }

    pub(super) fn library(&mut self, kernel: Library) {
        self.push(Kernel::Library(kernel));
    }

    pub(super) fn push(&mut self, kernel: Kernel) {
        let chain = std::mem::take(&mut self.chain);
        let mut name = chain.join("_");
        if name.len() > 40 {
            // What it begins and ends with.
            let ends = [chain.first(), chain.last()];
            name = ends
                .into_iter()
                .flatten()
                .cloned()
                .collect::<Vec<_>>()
                .join("_to_");
        }
        if name.is_empty() {
            name.clone_from(&self.current);
        }
        self.steps.push(Step { name, kernel });
    }

    pub(super) fn reduce(
        &mut self,
        outer: &[i64],
        extents: &[i64],
        fold: Fold,
        name: &'static str,
        body: impl Fn(&mut Arena, &[Index], &[Index]) -> Scalar + 'static,
    ) -> Tensor {
        let kind = match fold {
            Fold::ArgMax => Kind::Int,
            _ => Kind::Float,
        };
        self.reductions.push(Reduction {
            outer: outer.to_vec(),
            extents: extents.to_vec(),
            fold,
            kind,
            body: Rc::new(body),
            name,
        });
        let number = Reduced(self.reductions.len() - 1);
        Tensor::computed(outer, kind, 100, move |arena, at| {
            arena.reduced(number, at.to_vec(), kind)
        })
    }

    /// Over some dimensions of a tensor; they stay, with one element.
    pub(super) fn reduce_dims(
        &mut self,
        of: &Tensor,
        dims: &[usize],
        fold: Fold,
        name: &'static str,
    ) -> Tensor {
        let is_reduced = |dim: &usize| dims.contains(dim);
        let kept: Vec<usize> = (0..of.rank()).filter(|dim| !is_reduced(dim)).collect();
        let outer: Vec<i64> = kept.iter().map(|dim| of.shape[*dim]).collect();
        let extents: Vec<i64> = dims.iter().map(|dim| of.shape[*dim]).collect();
        let keeping: Vec<i64> = (0..of.rank())
            .map(|dim| if is_reduced(&dim) { 1 } else { of.shape[dim] })
            .collect();
        let (at, rank, dims) = (of.at.clone(), of.rank(), dims.to_vec());
        let (kept_by, dims_by) = (kept.clone(), dims.clone());
        let result = self.reduce(&outer, &extents, fold, name, move |arena, outer, inner| {
            let mut place = vec![Index::default(); rank];
            for (dim, index) in kept_by.iter().zip(outer) {
                place[*dim] = index.clone();
            }
            for (dim, index) in dims_by.iter().zip(inner) {
                place[*dim] = index.clone();
            }
            at(arena, &place)
        });
        result.view(&keeping, move |at| {
            kept.iter().map(|dim| at[*dim].clone()).collect()
        })
    }

    /// Makes it, if it is not there already.
    pub(super) fn realize(&mut self, tensor: &Tensor) -> (Buffer, Tensor) {
        if let Some(buffer) = tensor.buffer {
            return (buffer, tensor.clone());
        }
        let out = self.make(tensor);
        (out, Tensor::of_buffer(out, &tensor.shape, tensor.kind))
    }

    /// Has it computed into a new buffer, even if that is a copy.
    pub(super) fn make(&mut self, tensor: &Tensor) -> Buffer {
        let rows = self.rows(tensor);
        let out = self.room(Origin::Made, &tensor.shape, tensor.kind);
        self.push(Kernel::Rows(Rows { out, ..rows }));
        out
    }

    fn rows(&mut self, tensor: &Tensor) -> Rows {
        let cells = Rows {
            outer: Vec::new(),
            passes: Vec::new(),
            cells: tensor.shape.clone(),
            place: Rc::new(|_, cell| cell.to_vec()),
            shape: tensor.shape.clone(),
            value: tensor.at.clone(),
            out: Buffer(usize::MAX),
        };
        let domain = self.variables(&tensor.shape);
        let value = (tensor.at)(&mut self.arena, &domain);
        let Some((first, at)) = self.unmade(value).into_iter().next() else {
            return cells;
        };
        let shaped = self
            .by_prefix(tensor, first)
            .or_else(|| self.by_dims(tensor, first, &at, &domain));
        if let Some(mut rows) = shaped
            && self.worth(first)
            && self.balanced(&rows)
        {
            self.fuse(&mut rows);
            return rows;
        }
        for (reduction, _) in self.unmade(value) {
            self.make_reduction(reduction);
        }
        self.rows(tensor)
    }

    fn variables(&mut self, shape: &[i64]) -> Vec<Index> {
        let fresh = |extent: &i64| Index::from(self.arena.var(*extent));
        shape.iter().map(fresh).collect()
    }

    /// Reductions that a value needs and that lie in no buffer, by place.
    fn unmade(&self, value: Scalar) -> Vec<(Reduced, Vec<Index>)> {
        let mut found = Vec::new();
        for one in self.arena.ordered(&[value]) {
            if let Node::Reduced(reduction, at) = self.arena.node(one)
                && !self.made.contains_key(reduction)
            {
                found.push((*reduction, at.clone()));
            }
        }
        found
    }

    /// Whether a kernel with a row for each of its results has work for the whole machine.
    fn worth(&self, reduction: Reduced) -> bool {
        let reduction = &self.reductions[reduction.0];
        !self.is_split(reduction)
    }

    /// Whether there are enough rows for the cells that each of them stores.
    fn balanced(&self, rows: &Rows) -> bool {
        let (count, cells): (i64, i64) = (rows.outer.iter().product(), rows.cells.iter().product());
        let few = match self.target {
            Target::Cpu => 8,
            Target::Cuda => 512,
        };
        count >= few || cells < 1 << 14
    }

    /// Few results of long sums: each is made of parts.
    fn is_split(&self, reduction: &Reduction) -> bool {
        let (rows, length) = (reduction.rows(), reduction.length());
        let splits = reduction.fold != Fold::ArgMax;
        let (few, long) = match self.target {
            Target::Cpu => (8, 1 << 16),
            Target::Cuda => (512, 1 << 14),
        };
        splits && self.strategy != Strategy::Plain && rows < few && length >= long
    }

    /// Rows are what comes first in the order of elements.
    fn by_prefix(&mut self, tensor: &Tensor, first: Reduced) -> Option<Rows> {
        let rows = self.reductions[first.0].rows();
        let count = tensor.count();
        if rows == 0 || count % rows != 0 {
            return None;
        }
        let cells = count / rows;
        let shape = tensor.shape.clone();
        let place = move |row: &[Index], cell: &[Index]| {
            coordinates(
                &shape,
                &linear(&[rows, cells], &[row[0].clone(), cell[0].clone()]),
            )
        };
        let found = Rows {
            outer: vec![rows],
            passes: Vec::new(),
            cells: vec![cells],
            place: Rc::new(place),
            shape: tensor.shape.clone(),
            value: tensor.at.clone(),
            out: Buffer(usize::MAX),
        };
        self.fits(&found).then_some(found)
    }

    /// Rows are some dimensions, cells the others.
    fn by_dims(
        &mut self,
        tensor: &Tensor,
        first: Reduced,
        at: &[Index],
        domain: &[Index],
    ) -> Option<Rows> {
        let outer = self.reductions[first.0].outer.clone();
        let mut dims = Vec::new();
        for (index, extent) in at.iter().zip(&outer) {
            if *extent == 1 {
                continue;
            }
            dims.push(domain.iter().position(|known| known == index)?);
        }
        dims.sort_unstable();
        let others: Vec<usize> = (0..tensor.rank())
            .filter(|dim| !dims.contains(dim))
            .collect();
        let extents = |of: &[usize]| of.iter().map(|dim| tensor.shape[*dim]).collect::<Vec<_>>();
        let (rows, cells) = (extents(&dims), extents(&others));
        let rank = tensor.rank();
        let found = Rows {
            outer: rows,
            passes: Vec::new(),
            cells,
            place: Rc::new(move |row, cell| {
                let mut place = vec![Index::default(); rank];
                for (dim, index) in dims.iter().zip(row) {
                    place[*dim] = index.clone();
                }
                for (dim, index) in others.iter().zip(cell) {
                    place[*dim] = index.clone();
                }
                place
            }),
            shape: tensor.shape.clone(),
            value: tensor.at.clone(),
            out: Buffer(usize::MAX),
        };
        self.fits(&found).then_some(found)
    }

    /// Whether at least one reduction can be computed in these rows.
    fn fits(&mut self, rows: &Rows) -> bool {
        let (row, cell) = (self.variables(&rows.outer), self.variables(&rows.cells));
        let value = (rows.value)(&mut self.arena, &(rows.place)(&row, &cell));
        let found = self.unmade(value);
        found
            .iter()
            .any(|(reduction, at)| self.outer(*reduction, at, &row).is_some())
    }

    /// From rows to what a reduction leaves, if every row is one of its results.
    fn outer(&self, reduction: Reduced, at: &[Index], row: &[Index]) -> Option<Map> {
        let extents = self.reductions[reduction.0].outer.clone();
        let rows: i64 = row.iter().map(|index| index.range().1 + 1).product();
        if rows != self.reductions[reduction.0].rows() {
            return None;
        }
        if let [only] = row
            && coordinates(&extents, only) == at
        {
            return Some(Rc::new(move |row| coordinates(&extents, &row[0])));
        }
        let mut from = Vec::new();
        for (index, extent) in at.iter().zip(&extents) {
            from.push(match row.iter().position(|known| known == index) {
                Some(place) => Some(place),
                None if *extent == 1 => None,
                None => return None,
            });
        }
        Some(Rc::new(move |row| {
            let pick = |place: &Option<usize>| place.map_or(Index::default(), |at| row[at].clone());
            from.iter().map(pick).collect()
        }))
    }

    /// Takes every reduction into the kernel that fits, each after those it needs; the others are made before.
    fn fuse(&mut self, rows: &mut Rows) {
        let (row, cell) = (self.variables(&rows.outer), self.variables(&rows.cells));
        let value = (rows.value)(&mut self.arena, &(rows.place)(&row, &cell));
        let mut seen = BTreeSet::new();
        self.take(value, &row, rows, &mut seen);
    }

    fn take(
        &mut self,
        value: Scalar,
        row: &[Index],
        rows: &mut Rows,
        seen: &mut BTreeSet<Reduced>,
    ) {
        for (reduction, at) in self.unmade(value) {
            let fused = self.outer(reduction, &at, row);
            let Some(outer) = fused.filter(|_| self.worth(reduction)) else {
                self.make_reduction(reduction);
                continue;
            };
            if !seen.insert(reduction) {
                continue;
            }
            let known = self.reductions[reduction.0].clone();
            let inner = self.variables(&known.extents);
            let body = (known.body)(&mut self.arena, &outer(row), &inner);
            self.take(body, row, rows, seen);
            rows.passes.push(Pass { reduction, outer });
        }
    }

    fn make_reduction(&mut self, number: Reduced) {
        if self.made.contains_key(&number) {
            return;
        }
        let reduction = self.reductions[number.0].clone();
        let chain = std::mem::replace(&mut self.chain, vec![reduction.name.to_owned()]);
        let whole = if self.is_split(&reduction) {
            self.split(&reduction)
        } else {
            Tensor::computed(&reduction.outer, reduction.kind, 0, move |arena, at| {
                arena.reduced(number, at.to_vec(), reduction.kind)
            })
        };
        let buffer = self.make(&whole);
        self.chain = chain;
        self.made.insert(number, buffer);
    }

    /// A long reduction as a reduction of parts, which are made first.
    fn split(&mut self, reduction: &Reduction) -> Tensor {
        let length = reduction.length();
        let wanted = match self.target {
            Target::Cpu => 64,
            Target::Cuda => (4096 / reduction.rows()).clamp(1, 1024),
        };
        let parts = (1..=wanted).rev().find(|parts| length % parts == 0);
        let parts = match parts {
            Some(parts) if parts * 8 > wanted => parts,
            _ => wanted,
        };
        let each = (length + parts - 1) / parts;
        let ragged = parts * each != length;
        let mut outer = reduction.outer.clone();
        outer.push(parts);
        let (body, extents, fold) = (
            reduction.body.clone(),
            reduction.extents.clone(),
            reduction.fold,
        );
        let partial = self.reduce(&outer, &[each], fold, "partial", move |arena, at, inner| {
            let Some((part, outer)) = at.split_last() else {
                return arena.constant(0.0);
            };
            let place = part.times(each).plus(&inner[0]);
            let value = body(arena, outer, &coordinates(&extents, &place));
            if !ragged {
                return value;
            }
            let Some(within) = super::scalar::Within::new(place, 0, length) else {
                return value;
            };
            let value = arena.guarded(value, std::slice::from_ref(&within));
            let inside = arena.inside(vec![within]);
            let nothing = arena.constant(fold.neutral());
            arena.select(inside, value, nothing)
        });
        let chain = std::mem::replace(&mut self.chain, vec![format!("{}_parts", reduction.name)]);
        let buffer = self.make(&partial);
        self.chain = chain;
        let parts_of = Tensor::of_buffer(buffer, &outer, Kind::Float);
        let last = outer.len() - 1;
        let whole = self.reduce_dims(&parts_of, &[last], fold, reduction.name);
        whole.reshaped(&reduction.outer)
    }

    /// What an emitter reads: reductions that lie in buffers are loads, those of the kernel are its variables.
    pub(super) fn resolved(&mut self, value: Scalar, passes: &[Pass]) -> Scalar {
        let made = self.made.clone();
        let shapes: HashMap<Reduced, Vec<i64>> = made
            .keys()
            .map(|one| (*one, self.reductions[one.0].outer.clone()))
            .collect();
        let kinds: HashMap<Reduced, Kind> = passes
            .iter()
            .map(|pass| (pass.reduction, self.reductions[pass.reduction.0].kind))
            .collect();
        self.arena.rebuilt(value, &mut |arena, one| {
            let Node::Reduced(reduction, at) = arena.node(one).clone() else {
                return None;
            };
            if let Some(kind) = kinds.get(&reduction) {
                return Some(arena.finished(reduction, *kind));
            }
            let buffer = made.get(&reduction)?;
            Some(arena.load(*buffer, linear(&shapes[&reduction], &at)))
        })
    }
}

impl Fold {
    /// Changes nothing.
    pub(super) fn neutral(self) -> f64 {
        match self {
            Self::Sum => 0.0,
            Self::Product => 1.0,
            Self::Max | Self::ArgMax => f64::NEG_INFINITY,
            Self::Min => f64::INFINITY,
        }
    }
}
