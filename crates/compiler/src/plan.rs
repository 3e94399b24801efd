//! From tensors that are not there yet to kernels that make them.
//!
//! Elementwise work, views and broadcasts are never kernels of their own: they are computed where they are needed. A
//! reduction is computed in the kernel that needs it where that kernel has a row for each of its results; else it is
//! made first.

mod parts;
mod rows;

pub(super) use parts::Pairing;

use std::collections::HashMap;
use std::rc::Rc;

use warpsmith_schema::Target;

use crate::index::{Index, Var, coordinates, linear};
use crate::library::Library;
use crate::scalar::{Arena, Buffer, Kind, Node, Reduced, Scalar, Within};
use crate::tensor::{Body, Tensor};

/// How a solution is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strategy {
    /// A kernel for every operator, one thread an element.
    Plain,
    /// As few kernels as possible.
    Fused,
    /// These with wide loads, values kept in registers and work shared out among threads.
    Tuned,
}

impl Strategy {
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Fused => "fused",
            Self::Tuned => "tuned",
        }
    }
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

impl Fold {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Product => "product",
            Self::Max => "maximum",
            Self::Min => "minimum",
            // Of the least, where the values were turned round before.
            Self::ArgMax => "place",
        }
    }
}

/// What it costs to compute an element that needs a reduction: more than anything that needs none.
pub(super) const REDUCTION: u32 = 100;

/// The two results of a pair of reductions lie side by side.
pub(super) const PAIR: i64 = 2;

/// The most places of a window that are written out one by one.
const WINDOW: i64 = 16;

/// A tensor is little beside what is so many times its size.
const FEW: i64 = 16;

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

/// Where a reduction's results lie: in every `step`th element of a buffer, from `first` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Made {
    buffer: Buffer,
    first: i64,
    step: i64,
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
    Max,
    Min,
    /// The logarithm of the sum of exponentials.
    LogSum,
}

/// Running sums, products or extremes along a dimension.
#[derive(Clone)]
pub(super) struct Scan {
    /// Before the dimension, along it, after it.
    pub(super) shape: [i64; 3],
    pub(super) how: Scanning,
    pub(super) value: Body,
    pub(super) out: Buffer,
    pub(super) then: Option<Then>,
}

/// What is made of every element of a scan before it is stored.
#[derive(Clone)]
pub(super) struct Then {
    pub(super) shape: Vec<i64>,
    pub(super) value: Body,
    /// Where the scan's own results would lie: what the value says that it reads.
    pub(super) scanned: Buffer,
}

/// The same for an element whose place has a name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stored {
    pub(super) place: Var,
    /// The scan's own result there.
    pub(super) scanned: Scalar,
    pub(super) value: Scalar,
}

impl Then {
    pub(super) fn stored(&self, plan: &mut Plan) -> Stored {
        let place = plan.arena.var(self.shape.iter().product());
        let scanned = plan.arena.load(self.scanned, place.into());
        let value = (self.value)(&mut plan.arena, &coordinates(&self.shape, &place.into()));
        Stored {
            place,
            scanned,
            value: plan.resolved(value, &[]),
        }
    }
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
    /// Shapes that the task goes through: their extents are words that a reader knows.
    pub(super) told: Vec<Vec<i64>>,
    pub(super) arena: Arena,
    pub(super) rooms: Vec<Room>,
    pub(super) reductions: Vec<Reduction>,
    made: HashMap<Reduced, Made>,
    pairs: Vec<parts::Pair>,
    pub(super) steps: Vec<Step>,
    /// Operators that were lowered since the last step: they are what the next one computes.
    pub(super) chain: Vec<String>,
    /// The last of them, steps or not.
    pub(super) current: String,
}

impl Plan {
    pub(super) fn new(target: Target, strategy: Strategy, told: Vec<Vec<i64>>) -> Self {
        Self {
            target,
            strategy,
            told,
            arena: Arena::default(),
            rooms: Vec::new(),
            reductions: Vec::new(),
            made: HashMap::new(),
            pairs: Vec::new(),
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
        self.arena.buffer(kind, shape.iter().product())
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

    fn reduction(
        &mut self,
        outer: &[i64],
        extents: &[i64],
        fold: Fold,
        name: &'static str,
        body: Inner,
    ) -> Reduced {
        let kind = match fold {
            Fold::ArgMax => Kind::Int,
            _ => Kind::Float,
        };
        self.reductions.push(Reduction {
            outer: outer.to_vec(),
            extents: extents.to_vec(),
            fold,
            kind,
            body,
            name,
        });
        Reduced(self.reductions.len() - 1)
    }

    /// What a reduction leaves, as a tensor.
    fn left_by(&self, number: Reduced) -> Tensor {
        let Reduction { outer, kind, .. } = &self.reductions[number.0];
        let kind = *kind;
        Tensor::computed(outer, kind, REDUCTION, move |arena, at| {
            arena.reduced(number, at.to_vec(), kind)
        })
    }

    pub(super) fn reduce(
        &mut self,
        outer: &[i64],
        extents: &[i64],
        fold: Fold,
        name: &'static str,
        body: impl Fn(&mut Arena, &[Index], &[Index]) -> Scalar + 'static,
    ) -> Tensor {
        let number = self.reduction(outer, extents, fold, name, Rc::new(body));
        self.left_by(number)
    }

    /// Over some dimensions of a tensor; they stay, with one element.
    pub(super) fn reduce_dims(
        &mut self,
        of: &Tensor,
        dims: &[usize],
        fold: Fold,
        name: &'static str,
    ) -> Tensor {
        let along = Along::new(of, dims);
        let number = self.reduction(&along.outer, &along.extents, fold, name, along.body.clone());
        along.kept(&self.left_by(number))
    }

    /// The same for a pair of reductions, of which the second needs the first.
    pub(super) fn pair_dims(
        &mut self,
        of: &Tensor,
        dims: &[usize],
        how: Pairing,
    ) -> (Tensor, Tensor) {
        let along = Along::new(of, dims);
        let (first, second) = self.pair(&along.outer, &along.extents, how, along.body.clone());
        (
            along.kept(&self.left_by(first)),
            along.kept(&self.left_by(second)),
        )
    }

    /// Over the few places that a window meets: written out where a GPU computes it, with what goes into it.
    pub(super) fn over_window(
        &mut self,
        outer: &[i64],
        taps: &[i64],
        (fold, name): (Fold, &'static str),
        work: u32,
        body: impl Fn(&mut Arena, &[Index], &[Index]) -> Scalar + 'static,
    ) -> Tensor {
        let count: i64 = taps.iter().product();
        if !self.writes_out(count) {
            return self.reduce(outer, taps, fold, name, body);
        }
        let taps = taps.to_vec();
        let work = ((work + 1) * count as u32).min(REDUCTION - 1);
        Tensor::computed(outer, Kind::Float, work, move |arena, at| {
            let values: Vec<Scalar> = (0..count)
                .map(|tap| body(arena, at, &coordinates(&taps, &Index::constant(tap))))
                .collect();
            let all = values.into_iter().reduce(|a, b| fold.of_two(arena, a, b));
            let all = all.unwrap_or_else(|| arena.constant(fold.neutral()));
            arena.name(all, name)
        })
    }

    /// Whether a window of so many places is no loop.
    pub(super) fn writes_out(&self, taps: i64) -> bool {
        self.target == Target::Cuda && self.strategy != Strategy::Plain && taps <= WINDOW
    }

    /// Makes it, if it is not there already.
    pub(super) fn realize(&mut self, tensor: &Tensor) -> (Buffer, Tensor) {
        if let Some(buffer) = tensor.buffer {
            return (buffer, tensor.clone());
        }
        let out = self.make(tensor);
        (out, Tensor::of_buffer(out, &tensor.shape, tensor.kind))
    }

    /// Whether it is so much less than what it was reduced from that to store it costs nothing.
    pub(super) fn is_few(&mut self, tensor: &Tensor) -> bool {
        if self.strategy == Strategy::Plain || tensor.work < REDUCTION {
            return false;
        }
        let domain = self.variables(&tensor.shape);
        let value = (tensor.at)(&mut self.arena, &domain);
        let read = |(reduction, _): &(Reduced, _)| {
            let Reduction { outer, extents, .. } = &self.reductions[reduction.0];
            outer.iter().chain(extents).product::<i64>()
        };
        let read = self.unmade(value).iter().map(read).max().unwrap_or(0);
        read >= FEW * tensor.count()
    }

    /// Has it computed into a new buffer, even if that is a copy.
    pub(super) fn make(&mut self, tensor: &Tensor) -> Buffer {
        let rows = self.rows(tensor);
        let out = self.room(Origin::Made, &tensor.shape, tensor.kind);
        self.push(Kernel::Rows(Rows { out, ..rows }));
        out
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
            let Made {
                buffer,
                first,
                step,
            } = *made.get(&reduction)?;
            let shape = &shapes[&reduction];
            let place = linear(shape, &at);
            let loaded = arena.load(buffer, place.times(step).offset(first));
            // A window may lie over it whose border was looked at before there was anything to load.
            let guard: Vec<Within> = shape
                .iter()
                .zip(&at)
                .filter_map(|(extent, index)| Within::new(index.clone(), 0, *extent))
                .collect();
            Some(arena.guarded(loaded, &guard))
        })
    }
}

/// Some dimensions of a tensor and the others.
struct Along {
    outer: Vec<i64>,
    extents: Vec<i64>,
    /// The tensor's shape with one element along those dimensions.
    shape: Vec<i64>,
    kept: Vec<usize>,
    body: Inner,
}

impl Along {
    fn new(of: &Tensor, dims: &[usize]) -> Self {
        let is_reduced = |dim: &usize| dims.contains(dim);
        let kept: Vec<usize> = (0..of.rank()).filter(|dim| !is_reduced(dim)).collect();
        let extents_of =
            |dims: &[usize]| -> Vec<i64> { dims.iter().map(|dim| of.shape[*dim]).collect() };
        let shape = (0..of.rank())
            .map(|dim| if is_reduced(&dim) { 1 } else { of.shape[dim] })
            .collect();
        let (at, rank, dims_by, kept_by) = (of.at.clone(), of.rank(), dims.to_vec(), kept.clone());
        Self {
            outer: extents_of(&kept),
            extents: extents_of(dims),
            shape,
            kept,
            body: Rc::new(move |arena, outer, inner| {
                let mut place = vec![Index::default(); rank];
                for (dim, index) in kept_by.iter().zip(outer) {
                    place[*dim] = index.clone();
                }
                for (dim, index) in dims_by.iter().zip(inner) {
                    place[*dim] = index.clone();
                }
                at(arena, &place)
            }),
        }
    }

    /// What is left, under the tensor's own dimensions.
    fn kept(&self, left: &Tensor) -> Tensor {
        let kept = self.kept.clone();
        left.view(&self.shape, move |at| {
            kept.iter().map(|dim| at[*dim].clone()).collect()
        })
    }
}

impl Fold {
    /// What two elements come to.
    fn of_two(self, arena: &mut Arena, a: Scalar, b: Scalar) -> Scalar {
        match self {
            Self::Sum => arena.add(a, b),
            Self::Product => arena.mul(a, b),
            Self::Max | Self::ArgMax => {
                // What is no number stays none.
                let under = arena.less(a, b);
                arena.select(under, b, a)
            }
            Self::Min => {
                let under = arena.less(b, a);
                arena.select(under, b, a)
            }
        }
    }

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
