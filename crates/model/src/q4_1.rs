//! Matrices in GGUF's `Q4_1`: candle has no vector code for this format, in which `SmolLM2` comes.
//!
//! A block is 32 numbers `scale · quant + least` with quants of four bits. Inputs are rounded to eight
//! bits by blocks of 32, as for every quantised format, and the products summed as integers.

use rayon::prelude::*;

use crate::matrix::Rows;

const BLOCK: usize = 32;
const HALF: usize = BLOCK / 2;
/// Two scales as half floats, then the quants.
const BLOCK_BYTES: usize = 4 + HALF;

#[derive(Debug, Clone)]
pub struct Q4_1 {
    columns: usize,
    blocks: Vec<Block>,
}

/// The scales as floats: half floats would be converted again at each use.
#[derive(Debug, Clone, Copy)]
struct Block {
    scale: f32,
    least: f32,
    /// The first sixteen numbers in the lower four bits, the others in the upper.
    quants: [u8; HALF],
}

#[derive(Debug, Clone, Copy)]
struct InputBlock {
    scale: f32,
    /// Of the numbers as rounded.
    sum: f32,
    quants: [i8; BLOCK],
}

impl Q4_1 {
    /// From the bytes of a GGUF tensor; `None` where they are not whole rows of blocks.
    pub(crate) fn new(bytes: &[u8], rows: usize, columns: usize) -> Option<Self> {
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        if !rest.is_empty()
            || !columns.is_multiple_of(BLOCK)
            || blocks.len() != rows * columns / BLOCK
        {
            return None;
        }
        let half = |low, high| half::f16::from_le_bytes([low, high]).to_f32();
        let blocks = blocks
            .iter()
            .map(|&[s0, s1, l0, l1, ref quants @ ..]| Block {
                scale: half(s0, s1),
                least: half(l0, l1),
                quants: *quants,
            })
            .collect();
        Some(Self { columns, blocks })
    }

    pub fn rows(&self) -> usize {
        self.blocks.len() * BLOCK / self.columns
    }

    pub fn columns(&self) -> usize {
        self.columns
    }

    /// One row as numbers, appended.
    pub(crate) fn extend_row(&self, row: usize, numbers: &mut Vec<f32>) {
        let count = self.columns / BLOCK;
        for block in &self.blocks[row * count..][..count] {
            let number = |quant: u8| block.scale * f32::from(quant) + block.least;
            numbers.extend(block.quants.iter().map(|both| number(both & 15)));
            numbers.extend(block.quants.iter().map(|both| number(both >> 4)));
        }
    }

    pub(crate) fn forward(&self, input: &Rows) -> Rows {
        let inputs: Vec<InputBlock> = input
            .data
            .par_chunks(BLOCK)
            .with_min_len(64)
            .map(InputBlock::new)
            .collect();
        let (count, rows) = (input.len(), self.rows());
        let row_blocks = self.columns / BLOCK;
        // By rows of the matrix, so that each is read once for all inputs.
        let mut products = vec![0.0; rows * count];
        let rows_at_once = 16;
        products
            .par_chunks_mut(count * rows_at_once)
            .zip(self.blocks.par_chunks(row_blocks * rows_at_once))
            .for_each(|(products, blocks)| multiply(blocks, &inputs, row_blocks, products));
        let data = if count == 1 {
            products
        } else {
            let mut turned = vec![0.0; rows * count];
            turned
                .par_chunks_mut(rows)
                .enumerate()
                .for_each(|(input, output)| {
                    for (row, output) in output.iter_mut().enumerate() {
                        *output = products[row * count + input];
                    }
                });
            turned
        };
        Rows { data, width: rows }
    }
}

impl InputBlock {
    fn new(numbers: &[f32]) -> Self {
        let largest = numbers.iter().fold(0.0f32, |most, one| most.max(one.abs()));
        let scale = largest / 127.0;
        let inverse = if scale > 0.0 { scale.recip() } else { 0.0 };
        let mut quants = [0i8; BLOCK];
        let mut sum = 0i32;
        for (quant, number) in quants.iter_mut().zip(numbers) {
            *quant = (number * inverse).round() as i8;
            sum += i32::from(*quant);
        }
        Self {
            scale,
            sum: scale * sum as f32,
            quants,
        }
    }
}

/// Products of some rows with every input, row by row.
fn multiply(blocks: &[Block], inputs: &[InputBlock], row_blocks: usize, products: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
        #[expect(unsafe_code, reason = "the compiler cannot see the check above")]
        // SAFETY: the processor has the instructions this function is compiled for.
        unsafe {
            avx2::multiply(blocks, inputs, row_blocks, products);
        };
        return;
    }
    multiply_anywhere(blocks, inputs, row_blocks, products);
}

fn multiply_anywhere(
    blocks: &[Block],
    inputs: &[InputBlock],
    row_blocks: usize,
    products: &mut [f32],
) {
    let inputs = inputs.chunks_exact(row_blocks);
    let count = inputs.len();
    for (row, products) in blocks
        .chunks_exact(row_blocks)
        .zip(products.chunks_exact_mut(count))
    {
        for (input, product) in inputs.clone().zip(products) {
            *product = row.iter().zip(input).map(|(b, i)| b.dot(i)).sum();
        }
    }
}

impl Block {
    fn dot(&self, input: &InputBlock) -> f32 {
        let mut sum = 0;
        for (place, both) in self.quants.iter().enumerate() {
            sum += i32::from(both & 15) * i32::from(input.quants[place]);
            sum += i32::from(both >> 4) * i32::from(input.quants[place + HALF]);
        }
        self.scale * input.scale * sum as f32 + self.least * input.sum
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! Thirty-two products at a time. The twin above is the oracle.

    use std::arch::x86_64::{
        __m256, __m256i, _mm_add_ps, _mm_and_si128, _mm_cvtss_f32, _mm_loadu_si128, _mm_movehl_ps,
        _mm_set1_epi8, _mm_shuffle_ps, _mm_srli_epi16, _mm256_castps256_ps128, _mm256_cvtepi32_ps,
        _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16,
        _mm256_maddubs_epi16, _mm256_set_m128i, _mm256_set1_epi16, _mm256_set1_ps,
        _mm256_setzero_ps,
    };

    use super::{Block, InputBlock};

    /// Inputs for which a row's quants are taken apart once.
    const INPUTS: usize = 4;

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn multiply(
        blocks: &[Block],
        inputs: &[InputBlock],
        row_blocks: usize,
        products: &mut [f32],
    ) {
        let count = inputs.len() / row_blocks;
        for (row, products) in blocks
            .chunks_exact(row_blocks)
            .zip(products.chunks_exact_mut(count))
        {
            let several = products.chunks_exact_mut(INPUTS);
            let mut start = 0;
            for products in several {
                let input = |index: usize| &inputs[(start + index) * row_blocks..][..row_blocks];
                let sums = row_products(row, [input(0), input(1), input(2), input(3)]);
                products.copy_from_slice(&sums);
                start += INPUTS;
            }
            for (index, product) in products.iter_mut().enumerate().skip(start) {
                [*product] = row_products(row, [&inputs[index * row_blocks..][..row_blocks]]);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn row_products<const N: usize>(row: &[Block], inputs: [&[InputBlock]; N]) -> [f32; N] {
        let ones = _mm256_set1_epi16(1);
        let mut sums = [_mm256_setzero_ps(); N];
        let mut least = [0.0f32; N];
        for (place, block) in row.iter().enumerate() {
            let quants = take_apart(block);
            for (which, input) in inputs.iter().enumerate() {
                let input = &input[place];
                // At most 2 · 15 · 127, which sixteen bits hold.
                let pairs = _mm256_maddubs_epi16(quants, load(input));
                let products = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
                let scale = _mm256_set1_ps(block.scale * input.scale);
                sums[which] = _mm256_fmadd_ps(scale, products, sums[which]);
                least[which] += block.least * input.sum;
            }
        }
        let mut products = least;
        for (product, sum) in products.iter_mut().zip(sums) {
            *product += add_up(sum);
        }
        products
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn take_apart(block: &Block) -> __m256i {
        #[expect(unsafe_code, reason = "loads go by pointers")]
        // SAFETY: sixteen bytes are there, and none need be aligned.
        let both = unsafe { _mm_loadu_si128(block.quants.as_ptr().cast()) };
        let mask = _mm_set1_epi8(15);
        let low = _mm_and_si128(both, mask);
        let high = _mm_and_si128(_mm_srli_epi16::<4>(both), mask);
        _mm256_set_m128i(high, low)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(input: &InputBlock) -> __m256i {
        #[expect(unsafe_code, reason = "loads go by pointers")]
        // SAFETY: thirty-two bytes are there, and none need be aligned.
        unsafe {
            _mm256_loadu_si256(input.quants.as_ptr().cast())
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn add_up(numbers: __m256) -> f32 {
        let four = _mm_add_ps(
            _mm256_castps256_ps128(numbers),
            _mm256_extractf128_ps::<1>(numbers),
        );
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ps(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    #[test]
    fn fast_products_equal_plain_ones() {
        let mut random = rand::rngs::StdRng::seed_from_u64(3);
        let (rows, columns) = (33, 96);
        let bytes: Vec<u8> = (0..rows * columns / BLOCK)
            .flat_map(|_| {
                let scale = half::f16::from_f32(random.random_range(-0.1..0.1));
                let least = half::f16::from_f32(random.random_range(-1.0..1.0));
                let mut block = scale.to_le_bytes().to_vec();
                block.extend(least.to_le_bytes());
                block.extend((0..HALF).map(|_| random.random::<u8>()));
                block
            })
            .collect();
        let matrix = Q4_1::new(&bytes, rows, columns).unwrap();
        assert_eq!((matrix.rows(), matrix.columns()), (rows, columns));
        assert!(Q4_1::new(&bytes, rows + 1, columns).is_none());
        for count in [1, 3, 4, 9] {
            // The largest inputs too, all of one sign: nothing may overflow.
            let data: Vec<f32> = (0..count * columns)
                .map(|_| match count {
                    3 => 1.0,
                    _ => random.random_range(-1.0..1.0),
                })
                .collect();
            let inputs: Vec<InputBlock> = data.chunks(BLOCK).map(InputBlock::new).collect();
            let mut expected = vec![0.0; rows * count];
            multiply_anywhere(&matrix.blocks, &inputs, columns / BLOCK, &mut expected);
            let found = matrix.forward(&Rows {
                data,
                width: columns,
            });
            for row in 0..rows {
                for input in 0..count {
                    let (found, expected) = (found.row(input)[row], expected[row * count + input]);
                    // The terms are below 2.5, and the order of adding them differs.
                    let limit = 1e-6 * 2.5 * columns as f32;
                    assert!((found - expected).abs() <= limit, "{found} {expected}");
                }
            }
        }
    }
}
