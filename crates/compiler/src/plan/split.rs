//! Reductions that are made before they are needed, the long ones in parts.

use std::rc::Rc;

use warpsmith_schema::Target;

use super::{
    Chain, PAIR_LENGTH, Plan, REDUCTION_WORK, ReduceOp, Reduction, ReductionBody, Strategy,
    StridedSlice,
};
use crate::index::{Index, coordinates, linear};
use crate::scalar::{Arena, Binary, BoundsCheck, ReductionId, Scalar, ScalarType, Unary};
use crate::tensor::Tensor;

/// Rows up to this length stay in the registers of one block. Strided rows do so up to `MAX_PERSISTENT_COLUMN`. Longer
/// rows are split, contiguous ones into splits of at most `MAX_SPLIT_LENGTH` elements.
const MAX_PERSISTENT_ROW: i64 = 1 << 15;
const MAX_PERSISTENT_COLUMN: i64 = 1 << 10;
const MAX_SPLIT_LENGTH: i64 = 1 << 13;
/// In regular code, elements of a row that is split, elements of a part, and parts that suffice.
const LONG_ROW: i64 = 1 << 17;
const LEAST_PART: i64 = 128;
const ENOUGH_PARTS: i64 = 256;
/// Blocks that keep a whole GPU busy, and threads that do so where each has a column of its own.
const BUSY_BLOCKS: i64 = 1024;
const BUSY_COLUMNS: i64 = 1 << 17;

/// Two reductions of the same elements. The second needs the first, and yet both can be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PairedReduction {
    /// The sum, and the sum of squared deviations from the mean.
    Spread,
    /// The maximum, and the sum of exponentials of the differences from it.
    Exponentials,
}

#[derive(Clone)]
pub(super) struct ReductionPair {
    first: ReductionId,
    second: ReductionId,
    how: PairedReduction,
}

impl PairedReduction {
    fn first(self) -> (ReduceOp, &'static str) {
        match self {
            Self::Spread => (ReduceOp::Sum, "sum"),
            Self::Exponentials => (ReduceOp::Max, "top"),
        }
    }

    fn second(self) -> &'static str {
        match self {
            Self::Spread => "squares",
            Self::Exponentials => "sum",
        }
    }

    /// The term of one element in the second reduction, given the first over `count` elements.
    fn element_term(self, arena: &mut Arena, x: Scalar, first: Scalar, count: i64) -> Scalar {
        match self {
            Self::Spread => {
                let mean = mean(arena, first, count);
                let apart = arena.sub(x, mean);
                let square = arena.mul(apart, apart);
                arena.name(square, "square")
            }
            Self::Exponentials => {
                let below = arena.sub(x, first);
                let e = arena.unary(Unary::ExpNegative, below);
                arena.name(e, "e")
            }
        }
    }

    /// The term of one split in the second reduction, given the split's own pair and the first reduction of all.
    fn split_term(
        self,
        arena: &mut Arena,
        part: (Scalar, Scalar, i64),
        all: (Scalar, i64),
    ) -> Scalar {
        let (first, second, each) = part;
        match self {
            // Squares around the part's mean, and the part's mean around that of all: nothing cancels.
            Self::Spread => {
                let (own, whole) = (mean(arena, first, each), mean(arena, all.0, all.1));
                let apart = arena.sub(own, whole);
                let square = arena.mul(apart, apart);
                let each = arena.constant(each as f64);
                let between = arena.mul(square, each);
                arena.add(second, between)
            }
            Self::Exponentials => {
                let below = arena.sub(first, all.0);
                let e = arena.unary(Unary::ExpNegative, below);
                arena.mul(second, e)
            }
        }
    }
}

fn mean(arena: &mut Arena, sum: Scalar, count: i64) -> Scalar {
    let count = arena.constant(count as f64);
    let mean = arena.binary(Binary::ExactDiv, sum, count);
    arena.name(mean, "mean")
}

impl Plan {
    pub(super) fn pair(
        &mut self,
        outer: &[i64],
        extents: &[i64],
        how: PairedReduction,
        body: ReductionBody,
    ) -> (ReductionId, ReductionId) {
        let (fold, name) = how.first();
        let first = self.reduction(
            outer,
            extents,
            (fold, ScalarType::Float),
            name,
            body.clone(),
        );
        let count: i64 = extents.iter().product();
        let about: ReductionBody = Rc::new(move |arena, at, inner| {
            let x = body(arena, at, inner);
            let known = arena.reduced(first, at.to_vec(), ScalarType::Float);
            how.element_term(arena, x, known, count)
        });
        let sum = (ReduceOp::Sum, ScalarType::Float);
        let second = self.reduction(outer, extents, sum, how.second(), about);
        self.pairs.push(ReductionPair { first, second, how });
        (first, second)
    }

    /// The tensor with all its reductions in buffers, so that the rest is elementwise.
    pub(crate) fn elementwise(&mut self, x: &Tensor) -> Tensor {
        if x.work < REDUCTION_WORK {
            return x.clone();
        }
        if self.target == Target::Cpu {
            return self.realize(x).1;
        }
        let domain = self.variables(&x.shape);
        let value = (x.at)(&mut self.arena, &domain);
        for (reduction, _) in self.pending_reductions(value) {
            self.materialize_reduction(reduction);
        }
        Tensor {
            work: (x.work % REDUCTION_WORK).max(1),
            ..x.clone()
        }
    }

    /// Whether a kernel with one row for each result would leave much of the GPU idle, or read its rows too often.
    pub(super) fn is_split(&mut self, number: ReductionId) -> bool {
        self.pair_splits(number).is_some() || self.is_long(number)
    }

    /// Whether the reduction has few results and long rows.
    fn is_long(&mut self, number: ReductionId) -> bool {
        let reduction = self.reductions[number.0].clone();
        let (rows, length) = (reduction.rows(), reduction.length());
        if reduction.op == ReduceOp::ArgMax || self.strategy == Strategy::Plain {
            return false;
        }
        match self.target {
            Target::Cpu => {
                let usual = rows < 8 && length >= 1 << 16;
                let may_be_either = rows < 64 && length >= 1 << 12;
                self.chosen_split(number, usual, may_be_either)
            }
            // Both of a pair stay in one kernel.
            Target::Cuda if self.is_regular() => {
                rows < self.few_rows() && length >= LONG_ROW && self.pair_of(number).is_none()
            }
            Target::Cuda => {
                // A column has up to 32 threads without being split.
                let few_columns =
                    self.strategy == Strategy::Tuned && rows * 32 < BUSY_COLUMNS && length >= 256;
                let usual = rows < self.few_rows() && length >= 1 << 14
                    || few_columns && self.pair_of(number).is_none() && self.is_strided(&reduction);
                let may_be_either =
                    self.pair_of(number).is_none() && rows < 4096 && length >= 1 << 10;
                self.chosen_split(number, usual, may_be_either)
            }
        }
    }

    /// Whether a reduction is made in parts, where either is possible.
    fn chosen_split(&mut self, number: ReductionId, usual: bool, may_be_either: bool) -> bool {
        if !may_be_either || self.strategy != Strategy::Tuned {
            return usual;
        }
        self.about_reduction(number);
        self.knobs.whether("in parts", usual)
    }

    fn about_reduction(&mut self, number: ReductionId) {
        let reduction = &self.reductions[number.0];
        let elements = reduction.rows().saturating_mul(reduction.length());
        let subject = format!("{} {}", reduction.name, number.0);
        self.knobs.about(&subject, elements);
    }

    /// Fewer rows than these leave much of a GPU idle. `Tuned` splits them at the price of a second kernel; other strategies
    /// do so only where almost all of the GPU would be idle.
    fn few_rows(&self) -> i64 {
        match self.strategy {
            Strategy::Tuned => 512,
            Strategy::Plain | Strategy::Fused => 32,
        }
    }

    /// Whether neighbouring results, not neighbouring elements of one result, are contiguous in memory.
    fn is_strided(&mut self, reduction: &Reduction) -> bool {
        let (along, across) = self.contiguous_loads(reduction);
        across > along
    }

    /// How many elements are loaded contiguously along a result's elements, and how many along the results.
    pub(crate) fn contiguous_loads(&mut self, reduction: &Reduction) -> (i64, i64) {
        let place = self.arena.var(reduction.length());
        let inner = coordinates(&reduction.extents, &place.into());
        let mut next = None;
        let mut outer = Vec::new();
        for extent in &reduction.outer {
            let var = self.arena.var(*extent);
            outer.push(Index::from(var));
            if *extent > 1 {
                next = Some(var);
            }
        }
        let value = (reduction.body)(&mut self.arena, &outer, &inner);
        let count = |var| self.arena.contiguous(&[value], var, PAIR_LENGTH);
        (count(place), next.map_or(0, count))
    }

    /// The number of splits for both reductions of a pair. Each split is read once and stays in registers.
    fn pair_splits(&mut self, number: ReductionId) -> Option<i64> {
        self.pair_of(number)?;
        let reduction = self.reductions[number.0].clone();
        let (rows, length) = (reduction.rows(), reduction.length());
        let few = rows < self.few_rows() && length >= 1 << 14;
        if self.target == Target::Cpu || self.strategy != Strategy::Tuned {
            return None;
        }
        let across = self.is_strided(&reduction);
        let (most, least, enough) = if across {
            (64, 32, BUSY_COLUMNS)
        } else {
            (MAX_SPLIT_LENGTH, 2048, BUSY_BLOCKS)
        };
        let long = length
            > if across {
                MAX_PERSISTENT_COLUMN
            } else {
                MAX_PERSISTENT_ROW
            };
        // Shorter rows are one kernel's whatever is measured: they stay in its registers.
        if !few && !long {
            return None;
        }
        let usual = (2..=length / 16).find(|parts| {
            let each = length / parts;
            length % parts == 0 && each <= most && (rows * parts >= enough || each <= least)
        });
        // No parts: one.
        let usual = usual.unwrap_or(1);
        let others = [usual * 2, usual / 2, usual * 4, usual / 4, 1];
        let fits =
            |parts: &i64| *parts == 1 || *parts > 1 && length % parts == 0 && length / parts >= 16;
        let others: Vec<i64> = others.into_iter().filter(fits).collect();
        self.about_reduction(number);
        let parts = self.knobs.choose("parts of a row", usual, &others);
        (parts > 1).then_some(parts)
    }

    /// How many of the extents that are reduced number the parts of a long row: those are what a reader of the task knows, where
    /// other parts would have to be worked out.
    fn leading(&self, reduction: &Reduction) -> Option<usize> {
        if !self.is_regular() {
            return None;
        }
        let parts = |dims: usize| reduction.extents[..dims].iter().product::<i64>();
        let (rows, length) = (reduction.rows(), reduction.length());
        let fits = |dims: &usize| parts(*dims) > 1 && length / parts(*dims) >= LEAST_PART;
        let mut some = (1..reduction.extents.len()).filter(fits);
        let enough = some
            .clone()
            .find(|dims| rows * parts(*dims) >= ENOUGH_PARTS);
        enough.or_else(|| some.next_back())
    }

    fn pair_of(&self, number: ReductionId) -> Option<ReductionPair> {
        let mut pairs = self.pairs.iter();
        pairs
            .find(|pair| pair.first == number || pair.second == number)
            .cloned()
    }

    /// In regular code, makes a long reduction one over its parts, which are made at once.
    pub(super) fn shorten(&mut self, number: ReductionId) -> bool {
        if !self.is_regular() || !self.is_long(number) {
            return false;
        }
        let reduction = self.reductions[number.0].clone();
        let chain = std::mem::take(&mut self.chain);
        self.split(&reduction);
        self.chain = chain;
        // That over the parts is the latest.
        if let Some(over_parts) = self.reductions.last().cloned() {
            self.reductions[number.0] = over_parts;
        }
        true
    }

    pub(super) fn materialize_reduction(&mut self, number: ReductionId) {
        if self.materialized.contains_key(&number) {
            return;
        }
        let parts = self.pair_splits(number);
        let long = self.is_long(number);
        if let Some(pair) = self.pair_of(number)
            && self.target == Target::Cuda
            && self.strategy != Strategy::Plain
            && (parts.is_some() || !long)
        {
            self.materialize_pair(&pair, parts);
            return;
        }
        let reduction = self.reductions[number.0].clone();
        let chain = std::mem::replace(&mut self.chain, Chain::part(reduction.name.to_owned()));
        let whole = if long {
            self.about_reduction(number);
            self.split(&reduction)
        } else {
            self.result_of(number)
        };
        let buffer = self.materialize(&whole);
        self.chain = chain;
        let made = StridedSlice {
            buffer,
            first: 0,
            step: 1,
        };
        self.materialized.insert(number, made);
    }

    /// Computes both reductions, interleaved, into one buffer.
    fn materialize_pair(&mut self, pair: &ReductionPair, parts: Option<i64>) {
        let outer = self.reductions[pair.first.0].outer.clone();
        let (_, name) = pair.how.first();
        let name = format!("{name}_{}", pair.how.second());
        let chain = std::mem::replace(&mut self.chain, Chain::part(format!("{name}_parts")));
        let (first, second) = match parts {
            None => (pair.first, pair.second),
            Some(parts) => self.split_pair(pair, parts),
        };
        self.chain = Chain::part(name);
        let both = interleaved(&outer, first, second);
        let buffer = self.materialize(&both);
        self.chain = chain;
        for (place, one) in [pair.first, pair.second].into_iter().enumerate() {
            let made = StridedSlice {
                buffer,
                first: place as i64,
                step: PAIR_LENGTH,
            };
            self.materialized.insert(one, made);
        }
    }

    /// Computes the pairs of all splits, and returns the reductions over these.
    fn split_pair(&mut self, pair: &ReductionPair, parts: i64) -> (ReductionId, ReductionId) {
        let Reduction {
            outer,
            extents,
            body,
            ..
        } = self.reductions[pair.first.0].clone();
        let (how, length) = (pair.how, extents.iter().product::<i64>());
        let each = length / parts;
        // Parts come where neighbours stay neighbours.
        let across = self.is_strided(&self.reductions[pair.first.0].clone());
        let before = if across { 0 } else { outer.len() };
        let mut partial = outer.clone();
        partial.insert(before, parts);
        let of_part: ReductionBody = Rc::new(move |arena, at, inner| {
            let mut outer = at.to_vec();
            let part = outer.remove(before);
            let place = part.times(each).plus(&inner[0]);
            body(arena, &outer, &coordinates(&extents, &place))
        });
        let (first, second) = self.pair(&partial, &[each], how, of_part);
        let both = interleaved(&partial, first, second);
        let (shape, buffer) = (both.shape.clone(), self.materialize(&both));
        let part = move |arena: &mut Arena, at: &[Index], inner: &[Index], which: i64| {
            let mut place = [at, &[Index::constant(which)]].concat();
            place.insert(before, inner[0].clone());
            arena.load(buffer, linear(&shape, &place))
        };
        let (fold, name) = how.first();
        let part_by = part.clone();
        let firsts: ReductionBody = Rc::new(move |arena, at, inner| part_by(arena, at, inner, 0));
        let first = self.reduction(&outer, &[parts], (fold, ScalarType::Float), name, firsts);
        let seconds: ReductionBody = Rc::new(move |arena, at, inner| {
            let own = (part(arena, at, inner, 0), part(arena, at, inner, 1), each);
            let all = arena.reduced(first, at.to_vec(), ScalarType::Float);
            how.split_term(arena, own, (all, length))
        });
        let sum = (ReduceOp::Sum, ScalarType::Float);
        let second = self.reduction(&outer, &[parts], sum, how.second(), seconds);
        (first, second)
    }

    /// A long reduction as a reduction over splits, which are computed first.
    fn split(&mut self, reduction: &Reduction) -> Tensor {
        let length = reduction.length();
        let across = self.target == Target::Cuda && self.is_strided(reduction);
        let wanted = match self.target {
            Target::Cpu => 64,
            Target::Cuda if across => {
                (2 * BUSY_COLUMNS / reduction.rows()).clamp(1, (length / 32).max(1))
            }
            Target::Cuda => (4096 / reduction.rows()).clamp(1, 1024),
        };
        let dims = self.leading(reduction);
        let parts = (1..=wanted).rev().find(|parts| length % parts == 0);
        let parts = match (dims, parts) {
            (Some(dims), _) => reduction.extents[..dims].iter().product(),
            (None, Some(parts)) if parts * 8 > wanted => parts,
            _ => wanted,
        };
        let parts = if dims.is_some() || self.strategy != Strategy::Tuned {
            parts
        } else {
            let others = [parts / 2, parts * 2, parts / 4, parts * 4];
            let fits = |parts: &i64| *parts > 1 && length / parts >= 16;
            let others: Vec<i64> = others.into_iter().filter(fits).collect();
            self.knobs.choose("parts of a row", parts, &others)
        };
        let each = (length + parts - 1) / parts;
        let ragged = parts * each != length;
        let before = if across { 0 } else { reduction.outer.len() };
        let mut outer = reduction.outer.clone();
        outer.insert(before, parts);
        let (body, extents, fold) = (
            reduction.body.clone(),
            reduction.extents.clone(),
            reduction.op,
        );
        let kind = reduction.kind;
        let within = dims.map_or_else(|| vec![each], |dims| extents[dims..].to_vec());
        let shape_of_part = within.clone();
        let of_part: ReductionBody = Rc::new(move |arena, at, inner| {
            let mut outer = at.to_vec();
            let part = outer.remove(before);
            let place = part.times(each).plus(&linear(&shape_of_part, inner));
            let value = body(arena, &outer, &coordinates(&extents, &place));
            if !ragged {
                return value;
            }
            let Some(within) = BoundsCheck::new(place, 0, length) else {
                return value;
            };
            let value = arena.guarded(value, std::slice::from_ref(&within));
            let inside = arena.in_bounds(vec![within]);
            let nothing = fold.identity_of(arena, kind);
            arena.select(inside, value, nothing)
        });
        let partial = self.reduction(&outer, &within, (fold, kind), "partial", of_part);
        let partial = self.result_of(partial);
        let chain = std::mem::replace(
            &mut self.chain,
            Chain::part(format!("{}_parts", reduction.name)),
        );
        let buffer = self.materialize(&partial);
        self.chain = chain;
        let parts_of = Tensor::of_buffer(buffer, &outer, kind.into());
        let whole = self.reduce_dims(&parts_of, &[before], fold, reduction.name);
        whole.reshaped(&reduction.outer)
    }
}

/// The results of two reductions, interleaved.
fn interleaved(outer: &[i64], first: ReductionId, second: ReductionId) -> Tensor {
    let shape = [outer, &[PAIR_LENGTH]].concat();
    let last = outer.len();
    Tensor::computed(
        &shape,
        ScalarType::Float,
        REDUCTION_WORK,
        move |arena, at| {
            let (first, second) = (
                arena.reduced(first, at[..last].to_vec(), ScalarType::Float),
                arena.reduced(second, at[..last].to_vec(), ScalarType::Float),
            );
            match BoundsCheck::new(at[last].clone(), 0, 1) {
                Some(within) => {
                    let inside = arena.in_bounds(vec![within]);
                    arena.select(inside, first, second)
                }
                None => first,
            }
        },
    )
}
