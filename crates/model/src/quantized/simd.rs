//! The operations that products of panels are made of, and their plain version, which is the oracle of the others.

use half::f16;

use super::PANEL_ROWS;
use super::bits::Word;

/// A set of instructions. A value of such a type exists only where the processor has them.
///
/// A vector holds something of each of [`ROWS`](Simd::ROWS) rows; a panel is one vector or several *parts*.
pub(super) trait Simd: Copy {
    const ROWS: usize;
    /// [`dot_signed`](Simd::dot_signed) takes each quant for so much more than it is.
    const SIGNED_OFFSET: i32;
    /// Four quants of each row.
    type Quants: Copy;
    /// An `i32` of each row, or two `i16`.
    type Ints: Copy;
    /// An `f32` of each row.
    type Floats: Copy;

    fn zero(self) -> Self::Ints;
    fn load_quants(self, quants: &Word, part: usize) -> Self::Quants;
    /// The lower four bits of each quant.
    fn low_nibbles(self, quants: Self::Quants) -> Self::Quants;
    /// The upper four bits of each quant.
    fn high_nibbles(self, quants: Self::Quants) -> Self::Quants;
    /// `low | (high << left & mask)`; to the right where `left` is negative.
    fn add_bits(self, low: Self::Quants, high: Self::Quants, left: i32, mask: u8) -> Self::Quants;
    /// Adds the products of each row's quants, of at most seven bits, with four signed bytes of an input.
    fn dot(self, sums: Self::Ints, quants: Self::Quants, input: [u8; 4]) -> Self::Ints;
    /// The same for signed quants, each taken for [`SIGNED_OFFSET`](Simd::SIGNED_OFFSET) more than it is.
    fn dot_signed(self, sums: Self::Ints, quants: Self::Quants, input: [u8; 4]) -> Self::Ints;
    /// Two signed bytes of each row as two `i16`.
    fn load_pairs(self, pairs: &[[i8; 2]; PANEL_ROWS], part: usize) -> Self::Ints;
    /// Adds the products of each row's pair with one of an input.
    fn dot_pairs(self, sums: Self::Ints, pairs: Self::Ints, input: [i16; 2]) -> Self::Ints;
    /// The first of each pair.
    fn first(self, pairs: Self::Ints) -> Self::Ints;
    /// The second of each pair.
    fn second(self, pairs: Self::Ints) -> Self::Ints;
    /// `sums + left · right`.
    fn multiply_add(self, sums: Self::Ints, left: Self::Ints, right: Self::Ints) -> Self::Ints;
    /// Subtracts the same number from each row's.
    fn subtract(self, ints: Self::Ints, number: i32) -> Self::Ints;
    /// `left - 32 · right`.
    fn subtract_32_times(self, left: Self::Ints, right: Self::Ints) -> Self::Ints;

    fn zero_floats(self) -> Self::Floats;
    fn to_floats(self, ints: Self::Ints) -> Self::Floats;
    fn load_halves(self, halves: &[u16; PANEL_ROWS], part: usize) -> Self::Floats;
    /// The same number for each row.
    fn splat(self, number: f32) -> Self::Floats;
    /// Multiplies each row's number by the same one.
    fn scale(self, floats: Self::Floats, by: f32) -> Self::Floats;
    /// `sums + left · right`, rounded once.
    fn fused_multiply_add(
        self,
        sums: Self::Floats,
        left: Self::Floats,
        right: Self::Floats,
    ) -> Self::Floats;
    /// Writes as many numbers as there are rows.
    fn store(self, floats: Self::Floats, to: &mut [f32; PANEL_ROWS]);
}

/// Rust without intrinsics.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plain;

/// Calls for each row.
#[inline(always)]
fn each<T: Copy + Default>(one: impl Fn(usize) -> T) -> [T; PANEL_ROWS] {
    let mut all = [T::default(); PANEL_ROWS];
    for (row, into) in all.iter_mut().enumerate() {
        *into = one(row);
    }
    all
}

impl Simd for Plain {
    const ROWS: usize = PANEL_ROWS;
    const SIGNED_OFFSET: i32 = 0;
    type Quants = Word;
    type Ints = [i32; PANEL_ROWS];
    type Floats = [f32; PANEL_ROWS];

    #[inline(always)]
    fn zero(self) -> Self::Ints {
        [0; PANEL_ROWS]
    }

    #[inline(always)]
    fn load_quants(self, quants: &Word, _: usize) -> Self::Quants {
        *quants
    }

    #[inline(always)]
    fn low_nibbles(self, quants: Self::Quants) -> Self::Quants {
        quants.map(|row| row.map(|quant| quant & 15))
    }

    #[inline(always)]
    fn high_nibbles(self, quants: Self::Quants) -> Self::Quants {
        quants.map(|row| row.map(|quant| quant >> 4))
    }

    #[inline(always)]
    fn add_bits(self, low: Self::Quants, high: Self::Quants, left: i32, mask: u8) -> Self::Quants {
        let shifted = |bits: u8| {
            if left < 0 {
                bits >> -left
            } else {
                bits << left
            }
        };
        let mut quants = low;
        for (quants, high) in quants.iter_mut().zip(&high) {
            for (quant, high) in quants.iter_mut().zip(high) {
                *quant |= shifted(*high) & mask;
            }
        }
        quants
    }

    #[inline(always)]
    fn dot(self, sums: Self::Ints, quants: Self::Quants, input: [u8; 4]) -> Self::Ints {
        each(|row| {
            let products = quants[row].iter().zip(input);
            sums[row]
                + products
                    .map(|(quant, input)| i32::from(*quant) * i32::from(input as i8))
                    .sum::<i32>()
        })
    }

    #[inline(always)]
    fn dot_signed(self, sums: Self::Ints, quants: Self::Quants, input: [u8; 4]) -> Self::Ints {
        each(|row| {
            let products = quants[row].iter().zip(input);
            sums[row]
                + products
                    .map(|(quant, input)| i32::from(*quant as i8) * i32::from(input as i8))
                    .sum::<i32>()
        })
    }

    #[inline(always)]
    fn load_pairs(self, pairs: &[[i8; 2]; PANEL_ROWS], _: usize) -> Self::Ints {
        each(|row| {
            let [first, second] = pairs[row];
            i32::from(first) & 0xffff | i32::from(second) << 16
        })
    }

    #[inline(always)]
    fn dot_pairs(self, sums: Self::Ints, pairs: Self::Ints, input: [i16; 2]) -> Self::Ints {
        each(|row| {
            let [first, second] = input.map(i32::from);
            sums[row] + self.first(pairs)[row] * first + self.second(pairs)[row] * second
        })
    }

    #[inline(always)]
    fn first(self, pairs: Self::Ints) -> Self::Ints {
        pairs.map(|pair| pair << 16 >> 16)
    }

    #[inline(always)]
    fn second(self, pairs: Self::Ints) -> Self::Ints {
        pairs.map(|pair| pair >> 16)
    }

    #[inline(always)]
    fn multiply_add(self, sums: Self::Ints, left: Self::Ints, right: Self::Ints) -> Self::Ints {
        each(|row| sums[row] + left[row] * right[row])
    }

    #[inline(always)]
    fn subtract(self, ints: Self::Ints, number: i32) -> Self::Ints {
        ints.map(|one| one - number)
    }

    #[inline(always)]
    fn subtract_32_times(self, left: Self::Ints, right: Self::Ints) -> Self::Ints {
        each(|row| left[row] - (right[row] << 5))
    }

    #[inline(always)]
    fn zero_floats(self) -> Self::Floats {
        [0.0; PANEL_ROWS]
    }

    #[inline(always)]
    fn to_floats(self, ints: Self::Ints) -> Self::Floats {
        ints.map(|one| one as f32)
    }

    #[inline(always)]
    fn load_halves(self, halves: &[u16; PANEL_ROWS], _: usize) -> Self::Floats {
        halves.map(|half| f16::from_bits(half).to_f32())
    }

    #[inline(always)]
    fn splat(self, number: f32) -> Self::Floats {
        [number; PANEL_ROWS]
    }

    #[inline(always)]
    fn scale(self, floats: Self::Floats, by: f32) -> Self::Floats {
        floats.map(|one| one * by)
    }

    #[inline(always)]
    fn fused_multiply_add(
        self,
        sums: Self::Floats,
        left: Self::Floats,
        right: Self::Floats,
    ) -> Self::Floats {
        each(|row| left[row].mul_add(right[row], sums[row]))
    }

    #[inline(always)]
    fn store(self, floats: Self::Floats, to: &mut [f32; PANEL_ROWS]) {
        *to = floats;
    }
}
