//! How quants of four, five or six bits lie in a panel.
//!
//! A word holds four bytes of each of sixteen rows. Word `w` of the *low* ones has, in byte `j`, the lower four bits of column
//! `8w + j` and above them those of column `8w + 4 + j`. What is left of a quant, one bit or two, is in the *high* words: each
//! byte has those of as many columns as it has room for, four columns apart.

use super::PANEL_ROWS;
use super::simd::Simd;

/// Four bytes of each row.
pub(super) type Word = [[u8; 4]; PANEL_ROWS];

/// Bits of a quant beyond four.
const fn high_bits<const LOW: usize, const HIGH: usize>() -> usize {
    4 * HIGH / LOW
}

/// Fours of columns that a high word has something of.
const fn fours_of_high<const LOW: usize, const HIGH: usize>() -> usize {
    match (2 * LOW).checked_div(HIGH) {
        Some(fours) => fours,
        None => 1,
    }
}

/// Puts one row's quants in their places, which are zero so far.
pub(super) fn pack<const LOW: usize, const HIGH: usize>(
    quants: &[u8],
    row: usize,
    low: &mut [Word; LOW],
    high: &mut [Word; HIGH],
) {
    for (four, quants) in quants.as_chunks::<4>().0.iter().enumerate() {
        let nibbles = &mut low[four / 2][row];
        for (nibbles, quant) in nibbles.iter_mut().zip(quants) {
            *nibbles |= (quant & 15) << (4 * (four % 2));
        }
        if HIGH > 0 {
            let fours = fours_of_high::<LOW, HIGH>();
            let shift = high_bits::<LOW, HIGH>() * (four % fours);
            for (bits, quant) in high[four / fours][row].iter_mut().zip(quants) {
                *bits |= (quant >> 4) << shift;
            }
        }
    }
}

/// One row's quants again.
pub(super) fn unpack_row<const LOW: usize, const HIGH: usize>(
    low: &[Word; LOW],
    high: &[Word; HIGH],
    row: usize,
    quants: &mut [u8],
) {
    let mask = (1 << high_bits::<LOW, HIGH>()) - 1;
    for (four, quants) in quants.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *quants = low[four / 2][row].map(|nibbles| nibbles >> (4 * (four % 2)) & 15);
        if HIGH > 0 {
            let fours = fours_of_high::<LOW, HIGH>();
            let shift = high_bits::<LOW, HIGH>() * (four % fours);
            for (quant, bits) in quants.iter_mut().zip(&high[four / fours][row]) {
                *quant |= (bits >> shift & mask) << 4;
            }
        }
    }
}

/// The eight columns of a low word, as two fours of each row.
#[inline(always)]
pub(super) fn unpack<S: Simd, const LOW: usize, const HIGH: usize>(
    simd: S,
    low: &[Word; LOW],
    high: &[Word; HIGH],
    word: usize,
    part: usize,
) -> [S::Quants; 2] {
    let nibbles = simd.load_quants(&low[word], part);
    let (first, second) = (simd.low_nibbles(nibbles), simd.high_nibbles(nibbles));
    if HIGH == 0 {
        return [first, second];
    }
    let bits = high_bits::<LOW, HIGH>();
    let fours = fours_of_high::<LOW, HIGH>();
    let high = simd.load_quants(&high[2 * word / fours], part);
    let mask = ((1 << bits) - 1) << 4;
    let left = |four: usize| 4 - (bits * (four % fours)) as i32;
    [
        simd.add_bits(first, high, left(2 * word), mask),
        simd.add_bits(second, high, left(2 * word + 1), mask),
    ]
}
