//! ggml's K-quants: 256 numbers a block, in eight or sixteen groups with a scale of their own.
//!
//! A number is `(scale · group scale) · quant − (minimum · group minimum)` or, in `Q6_K`, `(scale · group scale) · (quant − 32)`.

use half::f16;

use super::input::KInput;
use super::multiply::Panel;
use super::simd::Simd;
use super::{PANEL_ROWS, bits, bits::Word};

const BLOCK: usize = 256;
/// Words of 64 bytes for the lower four bits of a panel's quants.
const LOW: usize = BLOCK / 8;

/// Two neighbouring groups' factors of each row.
type Pairs = [[i8; 2]; PANEL_ROWS];

/// 256 columns of sixteen rows.
///
/// `PAIRS` is half the number of groups. `MINS` is the same where groups have minimums, else zero. `HIGH` is the number of
/// words for the quants' upper bits.
#[derive(Debug)]
#[repr(C, align(32))]
pub(super) struct KPanel<const PAIRS: usize, const MINS: usize, const HIGH: usize> {
    /// As half floats.
    scales: [u16; PANEL_ROWS],
    minimums: [u16; PANEL_ROWS],
    group_scales: [Pairs; PAIRS],
    group_minimums: [Pairs; MINS],
    low: [Word; LOW],
    high: [Word; HIGH],
}

pub(super) type Q4K = KPanel<4, 4, 0>;
pub(super) type Q5K = KPanel<4, 4, 8>;
pub(super) type Q6K = KPanel<8, 0, 16>;

/// One row's block taken apart. Of formats with eight groups the first eight factors are used.
struct Block {
    scale: u16,
    minimum: u16,
    group_scales: [i8; 16],
    group_minimums: [i8; 16],
    quants: [u8; BLOCK],
}

impl<const PAIRS: usize, const MINS: usize, const HIGH: usize> KPanel<PAIRS, MINS, HIGH> {
    pub(super) fn dequantize(block: &[u8], numbers: &mut [f32]) {
        Self::read(block).write_numbers::<PAIRS, MINS>(numbers);
    }

    fn read(block: &[u8]) -> Block {
        if MINS == 0 {
            read_q6_k(block)
        } else {
            read_q4_k_or_q5_k(block)
        }
    }
}

/// In a file: scale, minimum, six bits for each group's factors, in `Q5_K` the fifth bits, the nibbles.
fn read_q4_k_or_q5_k(block: &[u8]) -> Block {
    let (head, quants) = block.split_at(16);
    let (high, low) = quants.split_at(quants.len() - BLOCK / 2);
    let factors = &head[4..];
    let (mut group_scales, mut group_minimums) = ([0; 16], [0; 16]);
    for group in 0..4 {
        let (scale, minimum, rest) = (factors[group], factors[group + 4], factors[group + 8]);
        group_scales[group] = (scale & 63) as i8;
        group_minimums[group] = (minimum & 63) as i8;
        group_scales[group + 4] = (rest & 15 | scale >> 6 << 4) as i8;
        group_minimums[group + 4] = (rest >> 4 | minimum >> 6 << 4) as i8;
    }
    let mut parts = Block {
        scale: u16::from_le_bytes([head[0], head[1]]),
        minimum: u16::from_le_bytes([head[2], head[3]]),
        group_scales,
        group_minimums,
        quants: [0; BLOCK],
    };
    let two_groups = parts.quants.as_chunks_mut::<64>().0.iter_mut();
    for (index, (quants, low)) in two_groups.zip(low.as_chunks::<32>().0).enumerate() {
        for (column, both) in low.iter().enumerate() {
            let bits = high.get(column).map_or(0, |bits| bits >> (2 * index));
            quants[column] = both & 15 | (bits & 1) << 4;
            quants[column + 32] = both >> 4 | (bits >> 1 & 1) << 4;
        }
    }
    parts
}

/// In a file: nibbles, upper bits, groups' scales, scale.
fn read_q6_k(block: &[u8]) -> Block {
    let (low, rest) = block.split_at(BLOCK / 2);
    let (high, rest) = rest.split_at(BLOCK / 4);
    let (scales, scale) = rest.split_at(BLOCK / 16);
    let mut group_scales = [0; 16];
    for (into, from) in group_scales.iter_mut().zip(scales) {
        *into = *from as i8;
    }
    let mut parts = Block {
        scale: u16::from_le_bytes([scale[0], scale[1]]),
        minimum: 0,
        group_scales,
        group_minimums: [0; 16],
        quants: [0; BLOCK],
    };
    let halves = parts.quants.as_chunks_mut::<128>().0.iter_mut();
    let bits = low.as_chunks::<64>().0.iter().zip(high.as_chunks::<32>().0);
    for (quants, (low, high)) in halves.zip(bits) {
        for (column, high) in high.iter().enumerate() {
            let (one, two) = (low[column], low[column + 32]);
            quants[column] = one & 15 | (high & 3) << 4;
            quants[column + 32] = two & 15 | (high >> 2 & 3) << 4;
            quants[column + 64] = one >> 4 | (high >> 4 & 3) << 4;
            quants[column + 96] = two >> 4 | (high >> 6) << 4;
        }
    }
    parts
}

impl Block {
    fn write_numbers<const PAIRS: usize, const MINS: usize>(&self, numbers: &mut [f32]) {
        let scale = f16::from_bits(self.scale).to_f32();
        let minimum = f16::from_bits(self.minimum).to_f32();
        let length = BLOCK / (2 * PAIRS);
        let groups = numbers
            .chunks_exact_mut(length)
            .zip(self.quants.chunks_exact(length))
            .zip(self.group_scales.iter().zip(&self.group_minimums));
        for ((numbers, quants), (group_scale, group_minimum)) in groups {
            let scale = scale * f32::from(*group_scale);
            let minimum = minimum * f32::from(*group_minimum);
            for (number, quant) in numbers.iter_mut().zip(quants) {
                *number = if MINS == 0 {
                    scale * (i32::from(*quant) - 32) as f32
                } else {
                    scale * f32::from(*quant) - minimum
                };
            }
        }
    }
}

impl<const PAIRS: usize, const MINS: usize, const HIGH: usize> Panel for KPanel<PAIRS, MINS, HIGH> {
    const COLUMNS: usize = BLOCK;
    const BLOCK_BYTES: usize = if MINS == 0 { 210 } else { 144 + 4 * HIGH };
    type Input = KInput;

    fn pack<'a>(blocks: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut panel = Self {
            scales: [0; PANEL_ROWS],
            minimums: [0; PANEL_ROWS],
            group_scales: [[[0; 2]; PANEL_ROWS]; PAIRS],
            group_minimums: [[[0; 2]; PANEL_ROWS]; MINS],
            low: [[[0; 4]; PANEL_ROWS]; LOW],
            high: [[[0; 4]; PANEL_ROWS]; HIGH],
        };
        for (row, block) in blocks.enumerate() {
            let block = Self::read(block);
            panel.scales[row] = block.scale;
            panel.minimums[row] = block.minimum;
            for (pairs, from) in panel
                .group_scales
                .iter_mut()
                .zip(block.group_scales.as_chunks().0)
            {
                pairs[row] = *from;
            }
            let minimums = block.group_minimums.as_chunks().0;
            for (pairs, from) in panel.group_minimums.iter_mut().zip(minimums) {
                pairs[row] = *from;
            }
            bits::pack(&block.quants, row, &mut panel.low, &mut panel.high);
        }
        panel
    }

    fn write_row(&self, row: usize, numbers: &mut [f32]) {
        let mut block = Block {
            scale: self.scales[row],
            minimum: self.minimums[row],
            group_scales: [0; 16],
            group_minimums: [0; 16],
            quants: [0; BLOCK],
        };
        for (pairs, into) in self
            .group_scales
            .iter()
            .zip(block.group_scales.as_chunks_mut().0)
        {
            *into = pairs[row];
        }
        let minimums = block.group_minimums.as_chunks_mut().0;
        for (pairs, into) in self.group_minimums.iter().zip(minimums) {
            *into = pairs[row];
        }
        bits::unpack_row(&self.low, &self.high, row, &mut block.quants);
        block.write_numbers::<PAIRS, MINS>(numbers);
    }

    #[inline(always)]
    fn accumulate<S: Simd, const N: usize>(
        &self,
        simd: S,
        part: usize,
        inputs: [&KInput; N],
        sums: &mut [S::Floats; N],
    ) {
        let words_of_group = LOW / (2 * PAIRS);
        let mut totals = [simd.zero(); N];
        for (pair, scales) in self.group_scales.iter().enumerate() {
            let scales = simd.load_pairs(scales, part);
            for (group, scale) in [simd.first(scales), simd.second(scales)]
                .into_iter()
                .enumerate()
            {
                let mut dots = [simd.zero(); N];
                for word in 0..words_of_group {
                    let word = (2 * pair + group) * words_of_group + word;
                    let [first, second] = bits::unpack(simd, &self.low, &self.high, word, part);
                    for (dots, input) in dots.iter_mut().zip(inputs) {
                        *dots = simd.dot(*dots, first, input.quants[2 * word]);
                        *dots = simd.dot(*dots, second, input.quants[2 * word + 1]);
                    }
                }
                for (totals, dots) in totals.iter_mut().zip(dots) {
                    *totals = simd.multiply_add(*totals, dots, scale);
                }
            }
        }
        // What the inputs' sums are multiplied with: in `Q6_K` the 32 that each quant is too large by, else the minimums.
        let mut of_sums = [simd.zero(); N];
        if MINS == 0 {
            for (pair, scales) in self.group_scales.iter().enumerate() {
                let scales = simd.load_pairs(scales, part);
                for (of_sums, input) in of_sums.iter_mut().zip(inputs) {
                    *of_sums = simd.dot_pairs(*of_sums, scales, input.sums_of_16[pair]);
                }
            }
            for (totals, of_sums) in totals.iter_mut().zip(of_sums) {
                *totals = simd.subtract_32_times(*totals, of_sums);
            }
        }
        let scales = simd.load_halves(&self.scales, part);
        for ((sums, totals), input) in sums.iter_mut().zip(totals).zip(inputs) {
            let scales = simd.scale(scales, input.scale);
            *sums = simd.fused_multiply_add(*sums, scales, simd.to_floats(totals));
        }
        if MINS > 0 {
            for (pair, minimums) in self.group_minimums.iter().enumerate() {
                let minimums = simd.load_pairs(minimums, part);
                for (of_sums, input) in of_sums.iter_mut().zip(inputs) {
                    *of_sums = simd.dot_pairs(*of_sums, minimums, input.sums_of_32[pair]);
                }
            }
            let minimums = simd.load_halves(&self.minimums, part);
            for ((sums, of_sums), input) in sums.iter_mut().zip(of_sums).zip(inputs) {
                let minimums = simd.scale(minimums, -input.scale);
                *sums = simd.fused_multiply_add(*sums, minimums, simd.to_floats(of_sums));
            }
        }
    }
}

/// In a file: a scale and a minimum of four bits for each sixteen numbers, the quants by twos, scale, minimum.
pub(super) fn dequantize_q2_k(block: &[u8], numbers: &mut [f32]) {
    let (factors, rest) = block.split_at(BLOCK / 16);
    let (quants, rest) = rest.split_at(BLOCK / 4);
    let scale = f16::from_le_bytes([rest[0], rest[1]]).to_f32();
    let minimum = f16::from_le_bytes([rest[2], rest[3]]).to_f32();
    let groups = numbers.chunks_exact_mut(16).zip(factors).enumerate();
    for (group, (numbers, factors)) in groups {
        let scale = scale * f32::from(factors & 15);
        let minimum = minimum * f32::from(factors >> 4);
        let (start, shift) = places_by_twos(group);
        for (number, bits) in numbers.iter_mut().zip(&quants[start..]) {
            *number = scale * f32::from(bits >> shift & 3) - minimum;
        }
    }
}

/// In a file: third bits, lower bits by twos, a scale of six bits for each sixteen numbers, scale.
pub(super) fn dequantize_q3_k(block: &[u8], numbers: &mut [f32]) {
    let (high, rest) = block.split_at(BLOCK / 8);
    let (quants, rest) = rest.split_at(BLOCK / 4);
    let (factors, scale) = rest.split_at(12);
    let scale = f16::from_le_bytes([scale[0], scale[1]]).to_f32();
    for (group, numbers) in numbers.chunks_exact_mut(16).enumerate() {
        let low = factors[group % 8] >> (4 * (group / 8)) & 15;
        let factor = low | (factors[8 + group % 4] >> (2 * (group / 4)) & 3) << 4;
        let scale = scale * (i32::from(factor) - 32) as f32;
        let (start, shift) = places_by_twos(group);
        let high = &high[16 * (group % 2)..];
        for ((number, bits), high) in numbers.iter_mut().zip(&quants[start..]).zip(high) {
            let third = i32::from(high >> (group / 2) & 1);
            let quant = i32::from(bits >> shift & 3) - 4 * (1 - third);
            *number = scale * quant as f32;
        }
    }
}

/// Where `Q2_K` and `Q3_K` have the two bits of a group's sixteen quants: from which byte on, and how far up.
fn places_by_twos(group: usize) -> (usize, usize) {
    let (half, group) = (group / 8, group % 8);
    (32 * half + 16 * (group % 2), 2 * (group / 2))
}

/// `Q8_K` is a format of inputs; files may have it all the same: a scale in `f32`, bytes, and sums that are not needed.
pub(super) fn dequantize_q8_k(block: &[u8], numbers: &mut [f32]) {
    let (scale, quants) = block.split_at(4);
    let scale = scale
        .first_chunk()
        .map_or(0.0, |bytes| f32::from_le_bytes(*bytes));
    for (number, quant) in numbers.iter_mut().zip(quants) {
        *number = scale * f32::from(*quant as i8);
    }
}
