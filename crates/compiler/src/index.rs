//! Integer expressions over loop variables: where in a buffer an element lies.
//!
//! Views, reshapes and broadcasts are nothing but such expressions. They are kept simple as they are built, because what
//! remains of them decides whether a load is contiguous.

mod code;
mod dimensions;

use std::collections::BTreeSet;

pub(super) use code::IndexNames;

/// A loop variable; it runs from zero up to its extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Var {
    pub(super) id: u32,
    pub(super) extent: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Atom {
    Var(Var),
    Div(Box<Index>, i64),
    Mod(Box<Index>, i64),
}

/// A sum of multiples of variables and of quotients and remainders, and a constant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Index {
    /// Sorted, none of them with factor zero.
    terms: Vec<(Atom, i64)>,
    constant: i64,
}

impl From<Var> for Index {
    fn from(var: Var) -> Self {
        // A loop of one turn is no loop.
        if var.extent == 1 {
            return Self::constant(0);
        }
        Self {
            terms: vec![(Atom::Var(var), 1)],
            constant: 0,
        }
    }
}

impl Index {
    pub(super) fn constant(constant: i64) -> Self {
        Self {
            terms: Vec::new(),
            constant,
        }
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        sum.constant += other.constant;
        for (atom, factor) in &other.terms {
            sum.add(atom.clone(), *factor);
        }
        sum.recombined()
    }

    pub(super) fn offset(&self, by: i64) -> Self {
        let mut sum = self.clone();
        sum.constant += by;
        sum
    }

    pub(super) fn times(&self, factor: i64) -> Self {
        if factor == 0 {
            return Self::default();
        }
        let terms = self.terms.iter();
        Self {
            terms: terms.map(|(atom, f)| (atom.clone(), f * factor)).collect(),
            constant: self.constant * factor,
        }
    }

    fn add(&mut self, atom: Atom, factor: i64) {
        match self.terms.binary_search_by(|(known, _)| known.cmp(&atom)) {
            Ok(place) => {
                self.terms[place].1 += factor;
                if self.terms[place].1 == 0 {
                    self.terms.remove(place);
                }
            }
            Err(place) => self.terms.insert(place, (atom, factor)),
        }
    }

    /// `k (x / k) + x % k` is `x`, and `k (x / k % n) + x % k` is `x % (k n)`.
    fn recombined(mut self) -> Self {
        loop {
            if let Some((fine, coarse, whole)) = self.split_remainder() {
                self.terms
                    .retain(|(atom, _)| *atom != fine && *atom != coarse);
                self.constant += whole.constant;
                for (atom, factor) in whole.terms {
                    self.add(atom, factor);
                }
                continue;
            }
            let pair = self.terms.iter().find_map(|(atom, factor)| {
                let Atom::Mod(inner, by) = atom else {
                    return None;
                };
                let quotient = inner.divided(*by);
                // The quotient may have been simplified to a single term with a factor of its own.
                let [(whole, times)] = quotient.terms.as_slice() else {
                    return None;
                };
                if quotient.constant != 0 {
                    return None;
                }
                let there = self.terms.iter().find(|(known, _)| known == whole)?.1;
                (there == factor * by * times)
                    .then(|| (atom.clone(), whole.clone(), (**inner).clone(), *factor))
            });
            let Some((rest, whole, inner, factor)) = pair else {
                return self;
            };
            self.terms
                .retain(|(atom, _)| *atom != rest && *atom != whole);
            let inner = inner.times(factor);
            self.constant += inner.constant;
            for (atom, factor) in inner.terms {
                self.add(atom, factor);
            }
        }
    }

    /// Two terms that are one remainder, and that remainder.
    fn split_remainder(&self) -> Option<(Atom, Atom, Self)> {
        self.terms.iter().find_map(|(fine, factor)| {
            let Atom::Mod(inner, by) = fine else {
                return None;
            };
            let quotient = inner.divided(*by);
            self.terms.iter().find_map(|(coarse, times)| match coarse {
                Atom::Mod(known, of) if **known == quotient && *times == factor * by => Some((
                    fine.clone(),
                    coarse.clone(),
                    inner.remainder(by * of).times(*factor),
                )),
                _ => None,
            })
        })
    }

    /// The least and the greatest value.
    pub(super) fn range(&self) -> (i64, i64) {
        let (mut low, mut high) = (self.constant, self.constant);
        for (atom, factor) in &self.terms {
            let (a, b) = match atom {
                Atom::Var(var) => (0, var.extent - 1),
                Atom::Div(inner, by) => {
                    let (low, high) = inner.range();
                    (low.div_euclid(*by), high.div_euclid(*by))
                }
                Atom::Mod(inner, by) => {
                    let (low, high) = inner.range();
                    if low >= 0 {
                        (0, high.min(by - 1))
                    } else {
                        (0, by - 1)
                    }
                }
            };
            low += (a * factor).min(b * factor);
            high += (a * factor).max(b * factor);
        }
        (low, high)
    }

    /// What is left without the terms that `by` divides, and those divided by it.
    fn split(&self, by: i64) -> (Self, Self) {
        let (mut rest, mut whole) = (Self::default(), Self::default());
        for (atom, factor) in &self.terms {
            if factor % by == 0 {
                whole.terms.push((atom.clone(), factor / by));
            } else {
                rest.terms.push((atom.clone(), *factor));
            }
        }
        rest.constant = self.constant.rem_euclid(by);
        whole.constant = self.constant.div_euclid(by);
        (rest, whole)
    }

    /// A divisor of `by` that most terms share while the others together stay below it: `(4 v + l) / 8` is `v / 2`.
    fn common_factor(&self, by: i64) -> Option<(i64, Self, Self)> {
        let mut factors: Vec<i64> = self.terms.iter().map(|(_, f)| gcd(*f, by)).collect();
        factors.sort_unstable();
        factors.dedup();
        factors.into_iter().rev().find_map(|grain| {
            let (rest, whole) = self.split(grain);
            let (low, high) = rest.range();
            (grain > 1 && grain < by && low >= 0 && high < grain).then_some((grain, rest, whole))
        })
    }

    pub(super) fn divided(&self, by: i64) -> Self {
        if by == 1 {
            return self.clone();
        }
        let (rest, whole) = self.split(by);
        let (low, high) = rest.range();
        if low >= 0 && high < by {
            return whole;
        }
        if let Some((grain, _, coarse)) = rest.common_factor(by) {
            return whole.plus(&coarse.divided(by / grain));
        }
        if let ([(Atom::Div(inner, first), 1)], 0) = (rest.terms.as_slice(), rest.constant) {
            return whole.plus(&inner.divided(first * by));
        }
        // `x % (k n) / k` is `x / k % n`.
        if let ([(Atom::Mod(inner, first), 1)], 0) = (rest.terms.as_slice(), rest.constant)
            && first % by == 0
        {
            return whole.plus(&inner.divided(by).remainder(first / by));
        }
        let mut quotient = whole;
        quotient.add(Atom::Div(Box::new(rest), by), 1);
        quotient.recombined()
    }

    pub(super) fn remainder(&self, by: i64) -> Self {
        if by == 1 {
            return Self::default();
        }
        let (rest, _) = self.split(by);
        let (low, high) = rest.range();
        if low >= 0 && high < by {
            return rest;
        }
        if let Some((grain, fine, coarse)) = rest.common_factor(by) {
            return coarse.remainder(by / grain).times(grain).plus(&fine);
        }
        if let ([(Atom::Mod(inner, first), 1)], 0) = (rest.terms.as_slice(), rest.constant)
            && first % by == 0
        {
            return inner.remainder(by);
        }
        let mut remainder = Self::default();
        remainder.add(Atom::Mod(Box::new(rest), by), 1);
        remainder
    }

    pub(super) fn substituted(&self, var: Var, by: &Self) -> Self {
        let mut sum = Self::constant(self.constant);
        for (atom, factor) in &self.terms {
            let part = match atom {
                Atom::Var(known) if *known == var => by.clone(),
                Atom::Var(_) => Self {
                    terms: vec![(atom.clone(), 1)],
                    constant: 0,
                },
                Atom::Div(inner, k) => inner.substituted(var, by).divided(*k),
                Atom::Mod(inner, k) => inner.substituted(var, by).remainder(*k),
            };
            sum = sum.plus(&part.times(*factor));
        }
        sum
    }

    pub(super) fn vars(&self) -> BTreeSet<Var> {
        let mut found = BTreeSet::new();
        self.gather(&mut found);
        found
    }

    fn gather(&self, found: &mut BTreeSet<Var>) {
        for (atom, _) in &self.terms {
            match atom {
                Atom::Var(var) => {
                    found.insert(*var);
                }
                Atom::Div(inner, _) | Atom::Mod(inner, _) => inner.gather(found),
            }
        }
    }

    pub(super) fn depends_on(&self, var: Var) -> bool {
        self.vars().contains(&var)
    }

    /// By how much it grows with each step of a variable; `None` where that is not always the same.
    pub(super) fn stride(&self, var: Var) -> Option<i64> {
        let mut stride = 0;
        for (atom, factor) in &self.terms {
            match atom {
                Atom::Var(known) if *known == var => stride = *factor,
                Atom::Div(inner, _) | Atom::Mod(inner, _) if inner.depends_on(var) => return None,
                Atom::Var(_) | Atom::Div(..) | Atom::Mod(..) => {}
            }
        }
        Some(stride)
    }

    /// By how much it grows with most steps of a variable: inside a border or a line of pixels, say, but not from one line to
    /// the next. `None` where most are not the same.
    pub(super) fn usual_stride(&self, var: Var) -> Option<i64> {
        /// In so many steps one may be another.
        const MOST: i64 = 8;
        let mut stride = 0;
        for (atom, factor) in &self.terms {
            let step = match atom {
                Atom::Var(known) => i64::from(*known == var),
                Atom::Div(inner, by) => match inner.usual_stride(var)? {
                    step if step.abs() * MOST <= *by => 0,
                    step if step % by == 0 => step / by,
                    _ => return None,
                },
                Atom::Mod(inner, by) => match inner.usual_stride(var)? {
                    step if step.abs() * MOST <= *by => step,
                    step if step % by == 0 => 0,
                    _ => return None,
                },
            };
            stride += step * factor;
        }
        Some(stride)
    }

    /// Whether every value is a multiple, wherever the variable `but` stands at zero.
    pub(super) fn aligned(&self, to: i64, but: Var) -> bool {
        let terms = self.terms.iter();
        self.constant % to == 0
            && terms
                .filter(|(atom, _)| *atom != Atom::Var(but))
                .all(|(_, factor)| factor % to == 0)
    }

    /// The multiple of four at or below it divided by four, and what is left; `None` where that is not always the same.
    pub(super) fn split_by_four(&self) -> Option<(Self, i64)> {
        let part = self.constant.rem_euclid(4);
        let fours = self.terms.iter().all(|(_, factor)| factor % 4 == 0);
        fours.then(|| (self.offset(-part).divided(4), part))
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}

/// The place in a contiguous buffer of this shape.
pub(super) fn linear(shape: &[i64], at: &[Index]) -> Index {
    let mut place = Index::default();
    for (extent, index) in shape.iter().zip(at) {
        place = place.times(*extent).plus(index);
    }
    place
}

/// The coordinates of a place in a contiguous buffer of this shape.
pub(super) fn coordinates(shape: &[i64], place: &Index) -> Vec<Index> {
    let mut stride = 1;
    let mut found = Vec::new();
    for (dim, extent) in shape.iter().enumerate().rev() {
        let index = place.divided(stride);
        // What is in range needs no remainder for the first dimension.
        found.push(if dim == 0 {
            index
        } else {
            index.remainder(*extent)
        });
        stride *= extent;
    }
    found.reverse();
    found
}

/// The coordinates under one shape of what lies at some coordinates of another, in the same order of elements. Dimensions
/// that both have stay as they are, even beyond their borders.
pub(super) fn reshaped(to: &[i64], from: &[i64], at: &[Index]) -> Vec<Index> {
    let longer = |shape: &[i64]| -> Vec<usize> {
        let dims = shape.iter().enumerate();
        dims.filter(|(_, extent)| **extent != 1)
            .map(|(dim, _)| dim)
            .collect()
    };
    let (ours, theirs) = (longer(to), longer(from));
    let mut found = vec![Index::default(); from.len()];
    let (mut i, mut j) = (0, 0);
    while i < ours.len() && j < theirs.len() {
        let (first, start) = (i, j);
        let (mut a, mut b) = (to[ours[i]], from[theirs[j]]);
        (i, j) = (i + 1, j + 1);
        while a != b {
            if a < b && i < ours.len() {
                a *= to[ours[i]];
                i += 1;
            } else if b < a && j < theirs.len() {
                b *= from[theirs[j]];
                j += 1;
            } else {
                // Not the same number of elements.
                return coordinates(from, &linear(to, at));
            }
        }
        let extents = |shape: &[i64], dims: &[usize]| -> Vec<i64> {
            dims.iter().map(|dim| shape[*dim]).collect()
        };
        let (here, there) = (&ours[first..i], &theirs[start..j]);
        let own: Vec<Index> = here.iter().map(|dim| at[*dim].clone()).collect();
        let place = linear(&extents(to, here), &own);
        let parts = coordinates(&extents(from, there), &place);
        for (dim, part) in there.iter().zip(parts) {
            found[*dim] = part;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn var(id: u32, extent: i64) -> Var {
        Var { id, extent }
    }

    struct Plainly;

    impl IndexNames for Plainly {
        fn name(&self, var: Var) -> String {
            ["i", "j", "k"][var.id as usize].to_owned()
        }
    }

    #[test]
    fn a_reshape_and_back_is_nothing() {
        let i = Index::from(var(0, 4 * 6 * 8));
        for shape in [vec![4, 6, 8], vec![24, 8], vec![2, 2, 48], vec![192]] {
            let there = coordinates(&shape, &i);
            assert_eq!(linear(&shape, &there), i, "{shape:?}");
        }
    }

    #[test]
    fn most_steps_within_a_border_are_by_one() {
        let place = var(0, 130 * 130);
        let flat = Index::from(place);
        let (line, column) = (flat.divided(130), flat.remainder(130));
        let padded = line.times(128).plus(&column).offset(-129);
        assert_eq!(
            (padded.stride(place), padded.usual_stride(place)),
            (None, Some(1))
        );
        // Every other step is to another line.
        let shuffled = flat.divided(2).times(192).plus(&flat.remainder(2));
        assert_eq!(shuffled.usual_stride(place), None);
    }

    #[test]
    fn shared_dimensions_survive_a_reshape() {
        let (i, j) = (var(0, 10), var(1, 64));
        let above = Index::from(j).offset(-1);
        let at = [i.into(), above.clone()];
        let there = reshaped(&[10, 64], &[2, 5, 1, 64], &at);
        assert_eq!(there[3], above);
        assert_eq!(reshaped(&[2, 5, 1, 64], &[10, 64], &there), at);
        let flat = Index::from(var(0, 640));
        let apart = reshaped(&[640], &[10, 64], std::slice::from_ref(&flat));
        assert_eq!(apart, coordinates(&[10, 64], &flat));
    }

    #[test]
    fn a_remainder_in_two_parts_is_one() {
        let i = Index::from(var(0, 32 * 64 * 224));
        let columns = i.divided(224).remainder(32).times(224);
        let place = columns.plus(&i.remainder(224));
        assert_eq!(place, i.remainder(32 * 224));
        // Channels in groups, and back.
        let channel = i.divided(224).remainder(64);
        let (group, within) = (channel.divided(8), channel.remainder(8));
        assert_eq!(group.times(8).plus(&within), channel);
        // Rows of another length are no neighbours.
        let apart = i
            .divided(224)
            .remainder(32)
            .times(256)
            .plus(&i.remainder(224));
        assert_ne!(apart, i.remainder(32 * 256));
    }

    #[test]
    fn lanes_stay_apart() {
        let (v, l) = (var(0, 256), var(1, 4));
        let i = Index::from(v).times(4).plus(&l.into());
        let column = i.remainder(64);
        assert_eq!(column.code(&Plainly), "i % 16 * 4 + j");
        assert_eq!(column.stride(l), Some(1));
        assert!(column.aligned(4, l));
        assert_eq!(i.divided(64).code(&Plainly), "i / 16");
    }

    #[test]
    fn views_of_rows_and_columns() {
        let (i, j) = (var(0, 10), var(1, 7));
        let transposed = linear(&[7, 10], &[j.into(), i.into()]);
        assert_eq!(transposed.code(&Plainly), "j * 10 + i");
        let flat = linear(&[10, 7], &[i.into(), j.into()]);
        assert_eq!(flat.divided(7), i.into());
        assert_eq!(flat.remainder(7), j.into());
        assert_eq!(flat.offset(-3).code(&Plainly), "i * 7 + j - 3");
    }
}
