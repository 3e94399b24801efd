//! From lazy tensors to the kernels that compute them.
//!
//! Elementwise work, views and broadcasts never become kernels of their own: they are fused into the kernels that need them.
//! A reduction is fused into the kernel that needs it if that kernel has one row for each of the reduction's results.
//! Otherwise an earlier kernel computes it into a buffer.

mod chain;
mod rows;
mod split;

pub(super) use chain::Chain;
pub use chain::FusedOperator;
pub(crate) use chain::VIEWS;
pub(super) use split::PairedReduction;

use std::collections::HashMap;
use std::rc::Rc;

use warpsmith_schema::Target;

use crate::attention::AttentionKernel;
use crate::index::{Index, Var, coordinates, linear};
use crate::knob::Knobs;
use crate::library::Library;
use crate::scalar::{
    Arena, BoundsCheck, Buffer, ElementType, Node, ReductionId, Scalar, ScalarType,
};
use crate::tensor::{Body, Tensor};

/// How a solution is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strategy {
    /// A kernel for every operator, one thread an element.
    Plain,
    /// As few kernels as possible.
    Fused,
    /// The fused kernels with vector loads, values cached in registers and several threads for each row.
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
pub(super) enum BufferOrigin {
    Input(usize),
    State(String),
    /// A number among the arguments of `forward`, which kernels take by value.
    Scalar(usize),
    /// Written in the kernel's file: its elements as literals.
    Constant(Vec<String>),
    Computed,
}

#[derive(Debug, Clone)]
pub(super) struct BufferInfo {
    pub(super) origin: BufferOrigin,
    pub(super) shape: Vec<i64>,
    pub(super) element: ElementType,
}

impl BufferInfo {
    /// Whether libraries and vector loads can read it: single precision, in the memory of the device.
    pub(super) fn is_float_memory(&self) -> bool {
        let is_tensor = !matches!(
            self.origin,
            BufferOrigin::Scalar(_) | BufferOrigin::Constant(_)
        );
        self.element == ElementType::Float && is_tensor
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReduceOp {
    Sum,
    Product,
    Max,
    Min,
    /// The index of the first maximum.
    ArgMax,
}

impl ReduceOp {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Product => "product",
            Self::Max => "maximum",
            Self::Min => "minimum",
            // An argmin is the argmax of the negated values.
            Self::ArgMax => "place",
        }
    }
}

/// The work of an element that needs a reduction: more than that of any element without one.
pub(super) const REDUCTION_WORK: u32 = 100;

/// The two results of a pair of reductions are interleaved in one buffer.
pub(super) const PAIR_LENGTH: i64 = 2;

/// The largest window whose loop is unrolled; in simpler code it stays a loop.
const MAX_UNROLLED_WINDOW: i64 = 16;
/// The largest whose loop may be unrolled.
const MAX_TUNED_WINDOW: i64 = 49;

/// A reduced tensor is cheap to store if the reduction reads this many times its elements.
const CHEAP_STORE_RATIO: i64 = 16;

/// The value of one element of a reduction, from the coordinates of the result and of the element.
type ReductionBody = Rc<dyn Fn(&mut Arena, &[Index], &[Index]) -> Scalar>;

#[derive(Clone)]
pub(super) struct Reduction {
    /// The shape of its results.
    pub(super) outer: Vec<i64>,
    /// The extents it reduces over.
    pub(super) extents: Vec<i64>,
    pub(super) op: ReduceOp,
    /// Of its results.
    pub(super) kind: ScalarType,
    pub(super) body: ReductionBody,
    pub(super) name: &'static str,
    /// Whether it is over windows that lie in the last dimensions of what they look at.
    pub(super) windows: bool,
}

impl Reduction {
    pub(super) fn rows(&self) -> i64 {
        self.outer.iter().product()
    }

    pub(super) fn length(&self) -> i64 {
        self.extents.iter().product()
    }

    /// Whether whole numbers are put together.
    pub(super) fn is_whole(&self) -> bool {
        self.kind == ScalarType::Int && self.op != ReduceOp::ArgMax
    }
}

/// The elements of a buffer that hold a reduction's results: every `step`th from `first` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct StridedSlice {
    buffer: Buffer,
    first: i64,
    step: i64,
}

/// Coordinates from the coordinates of rows.
type IndexMap = Rc<dyn Fn(&[Index]) -> Vec<Index>>;

/// Coordinates of a tensor from those of a row and of an element in it.
type RowIndexMap = Rc<dyn Fn(&[Index], &[Index]) -> Vec<Index>>;

/// A reduction that is fused into a kernel over rows.
#[derive(Clone)]
pub(super) struct RowReduction {
    pub(super) reduction: ReductionId,
    /// From coordinates of the kernel's rows to those of the reduction's results.
    pub(super) outer: IndexMap,
}

/// A kernel over independent rows: it reduces each row, then stores the row's results.
#[derive(Clone)]
pub(super) struct RowKernel {
    pub(super) outer: Vec<i64>,
    pub(super) reductions: Vec<RowReduction>,
    /// The shape of the elements that are stored for one row.
    pub(super) row_shape: Vec<i64>,
    /// From coordinates of a row and of an element in it to those of the tensor.
    pub(super) index_map: RowIndexMap,
    pub(super) shape: Vec<i64>,
    pub(super) value: Body,
    pub(super) out: Buffer,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ScanOp {
    Sum,
    Product,
    Max,
    Min,
    /// The logarithm of the sum of exponentials.
    LogSum,
}

/// Running sums, products or extremes along a dimension.
#[derive(Clone)]
pub(super) struct ScanKernel {
    /// Elements before the dimension, along it, and after it.
    pub(super) shape: [i64; 3],
    pub(super) op: ScanOp,
    pub(super) kind: ScalarType,
    pub(super) value: Body,
    pub(super) out: Buffer,
    pub(super) epilogue: Option<ScanEpilogue>,
}

/// Elementwise work on the results of a scan before they are stored.
#[derive(Clone)]
pub(super) struct ScanEpilogue {
    pub(super) shape: Vec<i64>,
    pub(super) value: Body,
    /// Stands for the scan's own results in `value`, which reads them from here.
    pub(super) scanned: Buffer,
}

/// The epilogue's value for one element, whose index is a variable.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScanStore {
    pub(super) place: Var,
    /// The scan's own result there.
    pub(super) scanned: Scalar,
    pub(super) value: Scalar,
}

impl ScanEpilogue {
    pub(super) fn at_variable(&self, plan: &mut Plan) -> ScanStore {
        let place = plan.arena.var(self.shape.iter().product());
        let scanned = plan.arena.load(self.scanned, place.into());
        let value = (self.value)(&mut plan.arena, &coordinates(&self.shape, &place.into()));
        ScanStore {
            place,
            scanned,
            value: plan.resolve(value, &[]),
        }
    }
}

#[derive(Clone)]
pub(super) enum Kernel {
    Rows(RowKernel),
    Scan(ScanKernel),
    Attention(AttentionKernel),
    Library(Library),
}

#[derive(Clone)]
pub(super) struct KernelStep {
    pub(super) name: String,
    /// What it computes in one go.
    pub(super) operators: Vec<FusedOperator>,
    pub(super) kernel: Kernel,
}

/// An order of elements along a dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct OrderOf {
    pub(super) buffer: Buffer,
    pub(super) dim: usize,
    /// How many come first; all of them where it is none.
    pub(super) first: Option<i64>,
    pub(super) descending: bool,
}

pub(super) struct Plan {
    pub(super) target: Target,
    pub(super) strategy: Strategy,
    pub(super) knobs: Knobs,
    /// Shapes of the graph's values: their extents are numbers that a reader recognises.
    pub(super) known_shapes: Vec<Vec<i64>>,
    pub(super) arena: Arena,
    pub(super) buffers: Vec<BufferInfo>,
    pub(super) reductions: Vec<Reduction>,
    materialized: HashMap<ReductionId, StridedSlice>,
    pairs: Vec<split::ReductionPair>,
    /// What was found out about the order of a buffer's elements: both results of an operator need it.
    pub(super) orders: HashMap<OrderOf, Vec<Tensor>>,
    pub(super) steps: Vec<KernelStep>,
    /// Operators that were lowered since the last step. They name the next one.
    pub(super) chain: Chain,
    /// The operator that was lowered last.
    pub(super) current: String,
    /// Its line in `model.py`.
    pub(super) line: Option<u32>,
}

impl Plan {
    pub(super) fn new(
        target: Target,
        strategy: Strategy,
        knobs: Knobs,
        known_shapes: Vec<Vec<i64>>,
    ) -> Self {
        Self {
            target,
            strategy,
            knobs,
            known_shapes,
            arena: Arena::default(),
            buffers: Vec::new(),
            reductions: Vec::new(),
            materialized: HashMap::new(),
            pairs: Vec::new(),
            orders: HashMap::new(),
            steps: Vec::new(),
            chain: Chain::default(),
            current: String::new(),
            line: None,
        }
    }

    pub(super) fn allocate(
        &mut self,
        origin: BufferOrigin,
        shape: &[i64],
        element: ElementType,
    ) -> Buffer {
        self.buffers.push(BufferInfo {
            origin,
            shape: shape.to_vec(),
            element,
        });
        let count = shape.iter().product();
        self.arena.buffer(element.scalar(), count)
    }

    pub(super) fn library(&mut self, kernel: Library) {
        self.push(Kernel::Library(kernel));
    }

    pub(super) fn push(&mut self, kernel: Kernel) {
        let chain = std::mem::take(&mut self.chain);
        let name = chain.name().unwrap_or_else(|| self.current.clone());
        self.steps.push(KernelStep {
            name,
            operators: chain.operators,
            kernel,
        });
    }

    fn reduction(
        &mut self,
        outer: &[i64],
        extents: &[i64],
        (fold, kind): (ReduceOp, ScalarType),
        name: &'static str,
        body: ReductionBody,
    ) -> ReductionId {
        self.reductions.push(Reduction {
            outer: outer.to_vec(),
            extents: extents.to_vec(),
            op: fold,
            kind,
            body,
            name,
            windows: false,
        });
        ReductionId(self.reductions.len() - 1)
    }

    /// The results of a reduction as a tensor.
    fn result_of(&self, number: ReductionId) -> Tensor {
        let Reduction { outer, kind, .. } = &self.reductions[number.0];
        let kind = *kind;
        Tensor::computed(outer, kind, REDUCTION_WORK, move |arena, at| {
            arena.reduced(number, at.to_vec(), kind)
        })
    }

    pub(super) fn reduce(
        &mut self,
        outer: &[i64],
        extents: &[i64],
        fold: ReduceOp,
        name: &'static str,
        body: impl Fn(&mut Arena, &[Index], &[Index]) -> Scalar + 'static,
    ) -> Tensor {
        let fold = (fold, ScalarType::Float);
        let number = self.reduction(outer, extents, fold, name, Rc::new(body));
        self.result_of(number)
    }

    /// Reduces some dimensions of a tensor to one element each.
    pub(super) fn reduce_dims(
        &mut self,
        of: &Tensor,
        dims: &[usize],
        fold: ReduceOp,
        name: &'static str,
    ) -> Tensor {
        let along = ReducedDims::new(of, dims);
        let kind = match fold {
            ReduceOp::ArgMax => ScalarType::Int,
            _ => of.kind,
        };
        let body = along.body.clone();
        let number = self.reduction(&along.outer, &along.extents, (fold, kind), name, body);
        along.kept(&self.result_of(number))
    }

    /// Like `reduce_dims`, for a pair of reductions of which the second needs the first.
    pub(super) fn pair_dims(
        &mut self,
        of: &Tensor,
        dims: &[usize],
        how: PairedReduction,
    ) -> (Tensor, Tensor) {
        let along = ReducedDims::new(of, dims);
        let (first, second) = self.pair(&along.outer, &along.extents, how, along.body.clone());
        (
            along.kept(&self.result_of(first)),
            along.kept(&self.result_of(second)),
        )
    }

    /// Reduces over the elements of a window. On a GPU small windows are unrolled, so their operands can be fused.
    pub(super) fn reduce_window(
        &mut self,
        outer: &[i64],
        taps: &[i64],
        (fold, name): (ReduceOp, &'static str),
        work: u32,
        body: impl Fn(&mut Arena, &[Index], &[Index]) -> Scalar + 'static,
    ) -> Tensor {
        let count: i64 = taps.iter().product();
        let usual = self.unrolls_window(count);
        let may_be_either = self.target == Target::Cuda
            && self.strategy == Strategy::Tuned
            && count <= MAX_TUNED_WINDOW;
        let unrolls = if may_be_either {
            let elements: i64 = outer.iter().product();
            self.knobs.about(&self.current, elements);
            self.knobs.whether("unrolled window", usual)
        } else {
            usual
        };
        if !unrolls {
            let fold = (fold, ScalarType::Float);
            let number = self.reduction(outer, taps, fold, name, Rc::new(body));
            self.reductions[number.0].windows = outer.len() == taps.len() + 2;
            return self.result_of(number);
        }
        let taps = taps.to_vec();
        let work = ((work + 1) * count as u32).min(REDUCTION_WORK - 1);
        Tensor::computed(outer, ScalarType::Float, work, move |arena, at| {
            let values: Vec<Scalar> = (0..count)
                .map(|tap| body(arena, at, &coordinates(&taps, &Index::constant(tap))))
                .collect();
            let all = values.into_iter().reduce(|a, b| fold.combine(arena, a, b));
            let all = all.unwrap_or_else(|| arena.constant(fold.identity()));
            arena.name(all, name)
        })
    }

    /// Whether a window of so many elements is unrolled.
    pub(super) fn unrolls_window(&self, taps: i64) -> bool {
        let most = match self.strategy {
            Strategy::Plain | Strategy::Fused => 0,
            Strategy::Tuned => MAX_UNROLLED_WINDOW,
        };
        self.target == Target::Cuda && taps <= most
    }

    /// Whether code is to be regular rather than fast: a model learns to write it. Libraries do all that is theirs, and each
    /// kernel is one of few forms.
    pub(super) fn is_regular(&self) -> bool {
        self.target == Target::Cuda && self.strategy == Strategy::Fused
    }

    /// What is to be reduced: in regular code a kernel reduces once.
    pub(super) fn without_reductions(&mut self, tensor: &Tensor) -> Tensor {
        if tensor.work < REDUCTION_WORK {
            return tensor.clone();
        }
        self.settled(tensor)
    }

    /// What is read more than once: in regular code it lies in memory, so that no loop repeats how it is computed.
    pub(super) fn settled(&mut self, tensor: &Tensor) -> Tensor {
        if !self.is_regular() || tensor.work == 0 {
            return tensor.clone();
        }
        // The operator that needs it is not part of how it is made.
        let current = self.chain.pop();
        let made = self.realize(tensor).1;
        self.chain.put_back(current);
        made
    }

    /// The tensor's buffer; computes it into one if it has none.
    pub(super) fn realize(&mut self, tensor: &Tensor) -> (Buffer, Tensor) {
        if let Some(buffer) = tensor.buffer {
            return (buffer, tensor.clone());
        }
        let out = self.materialize(tensor);
        (out, Tensor::of_buffer(out, &tensor.shape, tensor.element))
    }

    /// Whether the tensor is so much smaller than what it was reduced from that the cost of storing it is negligible.
    pub(super) fn is_cheap_to_store(&mut self, tensor: &Tensor) -> bool {
        if self.strategy == Strategy::Plain || tensor.work < REDUCTION_WORK {
            return false;
        }
        let domain = self.variables(&tensor.shape);
        let value = (tensor.at)(&mut self.arena, &domain);
        let read = |(reduction, _): &(ReductionId, _)| {
            let Reduction { outer, extents, .. } = &self.reductions[reduction.0];
            outer.iter().chain(extents).product::<i64>()
        };
        let read = self
            .pending_reductions(value)
            .iter()
            .map(read)
            .max()
            .unwrap_or(0);
        read >= CHEAP_STORE_RATIO * tensor.count()
    }

    /// Computes the tensor into a new buffer, even if that is a copy.
    pub(super) fn materialize(&mut self, tensor: &Tensor) -> Buffer {
        let rows = self.row_kernel(tensor);
        let out = self.allocate(BufferOrigin::Computed, &tensor.shape, tensor.element);
        self.push(Kernel::Rows(RowKernel { out, ..rows }));
        out
    }

    fn variables(&mut self, shape: &[i64]) -> Vec<Index> {
        let fresh = |extent: &i64| Index::from(self.arena.var(*extent));
        shape.iter().map(fresh).collect()
    }

    /// Reductions that a value needs and that no buffer holds, with the coordinates at which it needs them.
    fn pending_reductions(&self, value: Scalar) -> Vec<(ReductionId, Vec<Index>)> {
        let mut found = Vec::new();
        for one in self.arena.ordered(&[value]) {
            if let Node::Reduced(reduction, at) = self.arena.node(one)
                && !self.materialized.contains_key(reduction)
            {
                found.push((*reduction, at.clone()));
            }
        }
        found
    }

    /// The value as an emitter needs it: reductions in buffers become loads, those of this kernel become its variables.
    pub(super) fn resolve(&mut self, value: Scalar, passes: &[RowReduction]) -> Scalar {
        let made = self.materialized.clone();
        let shapes: HashMap<ReductionId, Vec<i64>> = made
            .keys()
            .map(|one| (*one, self.reductions[one.0].outer.clone()))
            .collect();
        let kinds: HashMap<ReductionId, ScalarType> = passes
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
            let StridedSlice {
                buffer,
                first,
                step,
            } = *made.get(&reduction)?;
            let shape = &shapes[&reduction];
            let place = linear(shape, &at);
            let loaded = arena.load(buffer, place.times(step).offset(first));
            // A window may lie over it whose border was looked at before there was anything to load.
            let guard: Vec<BoundsCheck> = shape
                .iter()
                .zip(&at)
                .filter_map(|(extent, index)| BoundsCheck::new(index.clone(), 0, *extent))
                .collect();
            Some(arena.guarded(loaded, &guard))
        })
    }
}

/// A tensor split into the dimensions that are reduced and those that are not.
struct ReducedDims {
    outer: Vec<i64>,
    extents: Vec<i64>,
    /// The tensor's shape with one element along those dimensions.
    shape: Vec<i64>,
    kept: Vec<usize>,
    body: ReductionBody,
}

impl ReducedDims {
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

    /// The results with the reduced dimensions put back as dimensions of one element.
    fn kept(&self, left: &Tensor) -> Tensor {
        let kept = self.kept.clone();
        left.view(&self.shape, move |at| {
            kept.iter().map(|dim| at[*dim].clone()).collect()
        })
    }
}

impl ReduceOp {
    /// Combines two elements.
    fn combine(self, arena: &mut Arena, a: Scalar, b: Scalar) -> Scalar {
        match self {
            Self::Sum => arena.add(a, b),
            Self::Product => arena.mul(a, b),
            Self::Max | Self::ArgMax => {
                // A NaN stays a NaN.
                let under = arena.less(a, b);
                arena.select(under, b, a)
            }
            Self::Min => {
                let under = arena.less(b, a);
                arena.select(under, b, a)
            }
        }
    }

    /// The identity element of a type.
    pub(super) fn identity_of(self, arena: &mut Arena, kind: ScalarType) -> Scalar {
        match (kind, self) {
            (ScalarType::Int, Self::Product) => arena.int(1),
            (ScalarType::Int, Self::Max) => arena.int(i64::MIN),
            (ScalarType::Int, Self::Min) => arena.int(i64::MAX),
            (ScalarType::Int, _) => arena.int(0),
            _ => arena.constant(self.identity()),
        }
    }

    /// The identity element of floats.
    pub(super) fn identity(self) -> f64 {
        match self {
            Self::Sum => 0.0,
            Self::Product => 1.0,
            Self::Max | Self::ArgMax => f64::NEG_INFINITY,
            Self::Min => f64::INFINITY,
        }
    }
}
