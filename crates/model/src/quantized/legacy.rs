//! ggml's formats of 32 numbers a block: `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1` and `Q8_0`.
//!
//! A number is `scale · (quant − offset)` or, where the format has a minimum, `scale · quant + minimum`.

use half::f16;

use super::input::LegacyInput;
use super::multiply::Panel;
use super::simd::Simd;
use super::{PANEL_ROWS, bits, bits::Word};

const BLOCK: usize = 32;

/// Thirty-two columns of sixteen rows.
///
/// `LOW` is the number of words of 64 bytes for the quants: four for nibbles, eight for bytes. `HIGH` is one where quants have
/// a fifth bit, `MIN` where there is a minimum.
#[derive(Debug)]
#[repr(C, align(32))]
pub(super) struct LegacyPanel<const LOW: usize, const HIGH: usize, const MIN: usize> {
    /// As half floats.
    scales: [u16; PANEL_ROWS],
    minimums: [[u16; PANEL_ROWS]; MIN],
    low: [Word; LOW],
    high: [Word; HIGH],
}

pub(super) type Q4_0 = LegacyPanel<4, 0, 0>;
pub(super) type Q4_1 = LegacyPanel<4, 0, 1>;
pub(super) type Q5_0 = LegacyPanel<4, 1, 0>;
pub(super) type Q5_1 = LegacyPanel<4, 1, 1>;
pub(super) type Q8_0 = LegacyPanel<8, 0, 0>;

/// One row's block taken apart.
struct Block {
    scale: u16,
    minimum: u16,
    quants: [u8; BLOCK],
}

impl<const LOW: usize, const HIGH: usize, const MIN: usize> LegacyPanel<LOW, HIGH, MIN> {
    const BYTES: bool = LOW == 8;
    /// What quants are too large by.
    const OFFSET: i32 = match (Self::BYTES, HIGH, MIN) {
        (true, _, _) | (_, _, 1) => 0,
        (false, 1, _) => 16,
        (false, _, _) => 8,
    };

    pub(super) fn dequantize(block: &[u8], numbers: &mut [f32]) {
        Self::read(block).write_numbers::<LOW, HIGH, MIN>(numbers);
    }

    /// In a file: the scale, the minimum, the fifth bits, the nibbles or bytes.
    fn read(block: &[u8]) -> Block {
        let (head, quants) = block.split_at(2 + 2 * MIN + 4 * HIGH);
        let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let mut parts = Block {
            scale: half(0),
            minimum: if MIN == 1 { half(2) } else { 0 },
            quants: [0; BLOCK],
        };
        if Self::BYTES {
            parts.quants.copy_from_slice(quants);
            return parts;
        }
        let (first, second) = parts.quants.split_at_mut(BLOCK / 2);
        for ((first, second), both) in first.iter_mut().zip(second).zip(quants) {
            (*first, *second) = (both & 15, both >> 4);
        }
        if HIGH == 1 {
            let bits = head
                .last_chunk()
                .map_or(0, |bits| u32::from_le_bytes(*bits));
            for (index, quant) in parts.quants.iter_mut().enumerate() {
                *quant |= ((bits >> index & 1) as u8) << 4;
            }
        }
        parts
    }
}

impl Block {
    fn write_numbers<const LOW: usize, const HIGH: usize, const MIN: usize>(
        &self,
        numbers: &mut [f32],
    ) {
        let scale = f16::from_bits(self.scale).to_f32();
        let minimum = f16::from_bits(self.minimum).to_f32();
        let offset = LegacyPanel::<LOW, HIGH, MIN>::OFFSET;
        for (number, &quant) in numbers.iter_mut().zip(&self.quants) {
            *number = if LegacyPanel::<LOW, HIGH, MIN>::BYTES {
                f32::from(quant as i8) * scale
            } else if MIN == 1 {
                f32::from(quant) * scale + minimum
            } else {
                (i32::from(quant) - offset) as f32 * scale
            };
        }
    }
}

impl<const LOW: usize, const HIGH: usize, const MIN: usize> Panel for LegacyPanel<LOW, HIGH, MIN> {
    const COLUMNS: usize = BLOCK;
    const BLOCK_BYTES: usize = 2 + 2 * MIN + 4 * HIGH + 4 * LOW;
    type Input = LegacyInput;

    fn pack<'a>(blocks: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut panel = Self {
            scales: [0; PANEL_ROWS],
            minimums: [[0; PANEL_ROWS]; MIN],
            low: [[[0; 4]; PANEL_ROWS]; LOW],
            high: [[[0; 4]; PANEL_ROWS]; HIGH],
        };
        for (row, block) in blocks.enumerate() {
            let block = Self::read(block);
            panel.scales[row] = block.scale;
            for minimums in &mut panel.minimums {
                minimums[row] = block.minimum;
            }
            if Self::BYTES {
                for (word, quants) in panel.low.iter_mut().zip(block.quants.as_chunks().0) {
                    word[row] = *quants;
                }
            } else {
                bits::pack(&block.quants, row, &mut panel.low, &mut panel.high);
            }
        }
        panel
    }

    fn write_row(&self, row: usize, numbers: &mut [f32]) {
        let mut block = Block {
            scale: self.scales[row],
            minimum: self.minimums.first().map_or(0, |minimums| minimums[row]),
            quants: [0; BLOCK],
        };
        if Self::BYTES {
            for (word, quants) in self.low.iter().zip(block.quants.as_chunks_mut().0) {
                *quants = word[row];
            }
        } else {
            bits::unpack_row(&self.low, &self.high, row, &mut block.quants);
        }
        block.write_numbers::<LOW, HIGH, MIN>(numbers);
    }

    #[inline(always)]
    fn accumulate<S: Simd, const N: usize>(
        &self,
        simd: S,
        part: usize,
        inputs: [&LegacyInput; N],
        sums: &mut [S::Floats; N],
    ) {
        let mut dots = [simd.zero(); N];
        if Self::BYTES {
            for (word, quants) in self.low.iter().enumerate() {
                let quants = simd.load_quants(quants, part);
                for (dots, input) in dots.iter_mut().zip(inputs) {
                    *dots = simd.dot_signed(*dots, quants, input.quants[word]);
                }
            }
        } else {
            for word in 0..LOW {
                let [first, second] = bits::unpack(simd, &self.low, &self.high, word, part);
                for (dots, input) in dots.iter_mut().zip(inputs) {
                    *dots = simd.dot(*dots, first, input.quants[2 * word]);
                    *dots = simd.dot(*dots, second, input.quants[2 * word + 1]);
                }
            }
        }
        let offset = if Self::BYTES {
            S::SIGNED_OFFSET
        } else {
            Self::OFFSET
        };
        let scales = simd.load_halves(&self.scales, part);
        for ((sums, dots), input) in sums.iter_mut().zip(dots).zip(inputs) {
            let dots = simd.to_floats(simd.subtract(dots, offset * input.sum));
            let scales = simd.scale(scales, input.scale);
            *sums = simd.fused_multiply_add(*sums, scales, dots);
        }
        for minimums in &self.minimums {
            let minimums = simd.load_halves(minimums, part);
            for (sums, input) in sums.iter_mut().zip(inputs) {
                let sum = simd.splat(input.scale * input.sum as f32);
                *sums = simd.fused_multiply_add(*sums, minimums, sum);
            }
        }
    }
}

/// `Q8_1` is a format of inputs; files may have it all the same: a scale, a sum that is not needed, and bytes.
pub(super) fn dequantize_q8_1(block: &[u8], numbers: &mut [f32]) {
    let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
    for (number, &quant) in numbers.iter_mut().zip(&block[4..]) {
        *number = f32::from(quant as i8) * scale;
    }
}

/// Blocks of `Q8_0`, as ggml rounds them.
pub(super) fn quantize_q8_0(numbers: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(numbers.len() / BLOCK * Q8_0::BLOCK_BYTES);
    for numbers in numbers.chunks_exact(BLOCK) {
        let largest = numbers.iter().fold(0.0f32, |most, one| most.max(one.abs()));
        let scale = largest / 127.0;
        let inverse = if scale > 0.0 { scale.recip() } else { 0.0 };
        bytes.extend(f16::from_f32(scale).to_le_bytes());
        let quants = numbers
            .iter()
            .map(|number| (number * inverse).round() as i8);
        bytes.extend(quants.map(|quant| quant as u8));
    }
    bytes
}
