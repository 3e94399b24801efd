//! Reductions that are made before they are needed, the long ones in parts.

use std::rc::Rc;

use warpsmith_schema::Target;

use super::{Fold, Inner, Made, PAIR, Plan, REDUCTION, Reduction, Strategy};
use crate::index::{Index, coordinates, linear};
use crate::scalar::{Arena, Binary, Kind, Reduced, Scalar, Unary, Within};
use crate::tensor::Tensor;

/// Rows up to this length stay in the registers of one block, and those whose neighbours are other rows up to the other;
/// the parts of longer ones have at most `PART` elements.
const ROW: i64 = 1 << 15;
const COLUMN: i64 = 1 << 10;
const PART: i64 = 1 << 13;
/// Blocks that keep a whole GPU busy; threads that do, where each has a column of its own.
const BLOCKS: i64 = 1024;
const COLUMNS: i64 = 1 << 17;

/// Two sums of the same elements of which the second needs the first, and that can still be taken part by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pairing {
    /// The sum, and the squares around its mean.
    Spread,
    /// The greatest, and the exponentials of what lies below it.
    Exponentials,
}

#[derive(Clone)]
pub(super) struct Pair {
    first: Reduced,
    second: Reduced,
    how: Pairing,
}

impl Pairing {
    fn first(self) -> (Fold, &'static str) {
        match self {
            Self::Spread => (Fold::Sum, "sum"),
            Self::Exponentials => (Fold::Max, "top"),
        }
    }

    fn second(self) -> &'static str {
        match self {
            Self::Spread => "squares",
            Self::Exponentials => "sum",
        }
    }

    /// What an element adds to the second, with the first of so many elements.
    fn of_one(self, arena: &mut Arena, x: Scalar, first: Scalar, count: i64) -> Scalar {
        match self {
            Self::Spread => {
                let mean = mean(arena, first, count);
                let apart = arena.sub(x, mean);
                let square = arena.mul(apart, apart);
                arena.name(square, "square")
            }
            Self::Exponentials => {
                let below = arena.sub(x, first);
                let e = arena.unary(Unary::Exp, below);
                arena.name(e, "e")
            }
        }
    }

    /// What a part of so many elements adds to the second, with its own pair and the first of all.
    fn of_part(self, arena: &mut Arena, part: (Scalar, Scalar, i64), all: (Scalar, i64)) -> Scalar {
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
                let e = arena.unary(Unary::Exp, below);
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
        how: Pairing,
        body: Inner,
    ) -> (Reduced, Reduced) {
        let (fold, name) = how.first();
        let first = self.reduction(outer, extents, fold, name, body.clone());
        let count: i64 = extents.iter().product();
        let about: Inner = Rc::new(move |arena, at, inner| {
            let x = body(arena, at, inner);
            let known = arena.reduced(first, at.to_vec(), Kind::Float);
            how.of_one(arena, x, known, count)
        });
        let second = self.reduction(outer, extents, Fold::Sum, how.second(), about);
        self.pairs.push(Pair { first, second, how });
        (first, second)
    }

    /// The same tensor with every reduction that it needs made: what is left is elementwise.
    pub(crate) fn elementwise(&mut self, x: &Tensor) -> Tensor {
        if x.work < REDUCTION {
            return x.clone();
        }
        if self.target == Target::Cpu {
            return self.realize(x).1;
        }
        let domain = self.variables(&x.shape);
        let value = (x.at)(&mut self.arena, &domain);
        for (reduction, _) in self.unmade(value) {
            self.make_reduction(reduction);
        }
        Tensor {
            work: (x.work % REDUCTION).max(1),
            ..x.clone()
        }
    }

    /// Whether a kernel with a row for each of its results leaves much of the machine idle, or reads its rows too often.
    pub(super) fn is_split(&mut self, number: Reduced) -> bool {
        self.pair_parts(number).is_some() || self.is_long(number)
    }

    /// Few results of long sums.
    fn is_long(&mut self, number: Reduced) -> bool {
        let reduction = self.reductions[number.0].clone();
        let (rows, length) = (reduction.rows(), reduction.length());
        if reduction.fold == Fold::ArgMax || self.strategy == Strategy::Plain {
            return false;
        }
        match self.target {
            Target::Cpu => rows < 8 && length >= 1 << 16,
            Target::Cuda => {
                // A column has up to 32 threads without being split.
                let few_columns =
                    self.strategy == Strategy::Tuned && rows * 32 < COLUMNS && length >= 256;
                rows < self.few() && length >= 1 << 14
                    || few_columns && self.pair_of(number).is_none() && self.lies_across(&reduction)
            }
        }
    }

    /// Fewer rows than these leave much of a GPU idle. Taking them in parts is worth its two kernels to whoever tunes, and to
    /// others where hardly anything would be at work.
    fn few(&self) -> i64 {
        match self.strategy {
            Strategy::Tuned => 512,
            Strategy::Plain | Strategy::Fused => 32,
        }
    }

    /// Whether neighbouring results, not neighbouring elements of one, lie side by side.
    fn lies_across(&mut self, reduction: &Reduction) -> bool {
        let (along, across) = self.neighbours(reduction);
        across > along
    }

    /// How much is loaded so that neighbours are elements of the same result, and how much so that they belong to the next.
    pub(crate) fn neighbours(&mut self, reduction: &Reduction) -> (i64, i64) {
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
        let count = |var| self.arena.contiguous(&[value], var, PAIR);
        (count(place), next.map_or(0, count))
    }

    /// Into how many parts both reductions of a pair are taken: each part is read once and kept.
    fn pair_parts(&mut self, number: Reduced) -> Option<i64> {
        self.pair_of(number)?;
        let reduction = self.reductions[number.0].clone();
        let (rows, length) = (reduction.rows(), reduction.length());
        let few = rows < self.few() && length >= 1 << 14;
        if self.target == Target::Cpu || self.strategy == Strategy::Plain {
            return None;
        }
        let across = self.lies_across(&reduction);
        let (most, least, enough) = if across {
            (64, 32, COLUMNS)
        } else {
            (PART, 2048, BLOCKS)
        };
        let long = self.strategy == Strategy::Tuned && length > if across { COLUMN } else { ROW };
        if !few && !long {
            return None;
        }
        (2..=length / 16).find(|parts| {
            let each = length / parts;
            length % parts == 0 && each <= most && (rows * parts >= enough || each <= least)
        })
    }

    fn pair_of(&self, number: Reduced) -> Option<Pair> {
        let mut pairs = self.pairs.iter();
        pairs
            .find(|pair| pair.first == number || pair.second == number)
            .cloned()
    }

    pub(super) fn make_reduction(&mut self, number: Reduced) {
        if self.made.contains_key(&number) {
            return;
        }
        let parts = self.pair_parts(number);
        let long = self.is_long(number);
        if let Some(pair) = self.pair_of(number)
            && self.target == Target::Cuda
            && self.strategy != Strategy::Plain
            && (parts.is_some() || !long)
        {
            self.make_pair(&pair, parts);
            return;
        }
        let reduction = self.reductions[number.0].clone();
        let chain = std::mem::replace(&mut self.chain, vec![reduction.name.to_owned()]);
        let whole = if long {
            self.split(&reduction)
        } else {
            self.left_by(number)
        };
        let buffer = self.make(&whole);
        self.chain = chain;
        let made = Made {
            buffer,
            first: 0,
            step: 1,
        };
        self.made.insert(number, made);
    }

    /// Both reductions side by side in one buffer.
    fn make_pair(&mut self, pair: &Pair, parts: Option<i64>) {
        let outer = self.reductions[pair.first.0].outer.clone();
        let (_, name) = pair.how.first();
        let name = format!("{name}_{}", pair.how.second());
        let chain = std::mem::replace(&mut self.chain, vec![format!("{name}_parts")]);
        let (first, second) = match parts {
            None => (pair.first, pair.second),
            Some(parts) => self.pair_of_parts(pair, parts),
        };
        self.chain = vec![name];
        let both = side_by_side(&outer, first, second);
        let buffer = self.make(&both);
        self.chain = chain;
        for (place, one) in [pair.first, pair.second].into_iter().enumerate() {
            let made = Made {
                buffer,
                first: place as i64,
                step: PAIR,
            };
            self.made.insert(one, made);
        }
    }

    /// The pairs of all parts are made; what is left are reductions of these.
    fn pair_of_parts(&mut self, pair: &Pair, parts: i64) -> (Reduced, Reduced) {
        let Reduction {
            outer,
            extents,
            body,
            ..
        } = self.reductions[pair.first.0].clone();
        let (how, length) = (pair.how, extents.iter().product::<i64>());
        let each = length / parts;
        // Parts come where neighbours stay neighbours.
        let across = self.lies_across(&self.reductions[pair.first.0].clone());
        let before = if across { 0 } else { outer.len() };
        let mut partial = outer.clone();
        partial.insert(before, parts);
        let of_part: Inner = Rc::new(move |arena, at, inner| {
            let mut outer = at.to_vec();
            let part = outer.remove(before);
            let place = part.times(each).plus(&inner[0]);
            body(arena, &outer, &coordinates(&extents, &place))
        });
        let (first, second) = self.pair(&partial, &[each], how, of_part);
        let both = side_by_side(&partial, first, second);
        let (shape, buffer) = (both.shape.clone(), self.make(&both));
        let part = move |arena: &mut Arena, at: &[Index], inner: &[Index], which: i64| {
            let mut place = [at, &[Index::constant(which)]].concat();
            place.insert(before, inner[0].clone());
            arena.load(buffer, linear(&shape, &place))
        };
        let (fold, name) = how.first();
        let part_by = part.clone();
        let firsts: Inner = Rc::new(move |arena, at, inner| part_by(arena, at, inner, 0));
        let first = self.reduction(&outer, &[parts], fold, name, firsts);
        let seconds: Inner = Rc::new(move |arena, at, inner| {
            let own = (part(arena, at, inner, 0), part(arena, at, inner, 1), each);
            let all = arena.reduced(first, at.to_vec(), Kind::Float);
            how.of_part(arena, own, (all, length))
        });
        let second = self.reduction(&outer, &[parts], Fold::Sum, how.second(), seconds);
        (first, second)
    }

    /// A long reduction as a reduction of parts, which are made first.
    fn split(&mut self, reduction: &Reduction) -> Tensor {
        let length = reduction.length();
        let across = self.target == Target::Cuda && self.lies_across(reduction);
        let wanted = match self.target {
            Target::Cpu => 64,
            Target::Cuda if across => {
                (2 * COLUMNS / reduction.rows()).clamp(1, (length / 32).max(1))
            }
            Target::Cuda => (4096 / reduction.rows()).clamp(1, 1024),
        };
        let parts = (1..=wanted).rev().find(|parts| length % parts == 0);
        let parts = match parts {
            Some(parts) if parts * 8 > wanted => parts,
            _ => wanted,
        };
        let each = (length + parts - 1) / parts;
        let ragged = parts * each != length;
        let before = if across { 0 } else { reduction.outer.len() };
        let mut outer = reduction.outer.clone();
        outer.insert(before, parts);
        let (body, extents, fold) = (
            reduction.body.clone(),
            reduction.extents.clone(),
            reduction.fold,
        );
        let partial = self.reduce(&outer, &[each], fold, "partial", move |arena, at, inner| {
            let mut outer = at.to_vec();
            let part = outer.remove(before);
            let place = part.times(each).plus(&inner[0]);
            let value = body(arena, &outer, &coordinates(&extents, &place));
            if !ragged {
                return value;
            }
            let Some(within) = Within::new(place, 0, length) else {
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
        let whole = self.reduce_dims(&parts_of, &[before], fold, reduction.name);
        whole.reshaped(&reduction.outer)
    }
}

/// Two values for each place: one reduction and the other.
fn side_by_side(outer: &[i64], first: Reduced, second: Reduced) -> Tensor {
    let shape = [outer, &[PAIR]].concat();
    let last = outer.len();
    Tensor::computed(&shape, Kind::Float, REDUCTION, move |arena, at| {
        let (first, second) = (
            arena.reduced(first, at[..last].to_vec(), Kind::Float),
            arena.reduced(second, at[..last].to_vec(), Kind::Float),
        );
        match Within::new(at[last].clone(), 0, 1) {
            Some(within) => {
                let inside = arena.inside(vec![within]);
                arena.select(inside, first, second)
            }
            None => first,
        }
    })
}
