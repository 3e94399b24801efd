//! Inputs of quantised matrices, rounded to eight bits by block.

use rayon::prelude::*;

use crate::HostTensor;

/// Thirty-two numbers of an input.
#[derive(Debug, Clone, Copy)]
pub(super) struct LegacyInput {
    pub(super) scale: f32,
    /// Of the quants.
    pub(super) sum: i32,
    /// Signed, by fours.
    pub(super) quants: [[u8; 4]; 8],
}

/// Two hundred and fifty-six numbers of an input.
#[derive(Debug, Clone, Copy)]
pub(super) struct KInput {
    pub(super) scale: f32,
    /// Of sixteen quants each, by pairs.
    pub(super) sums_of_16: [[i16; 2]; 8],
    /// Of thirty-two quants each, by pairs.
    pub(super) sums_of_32: [[i16; 2]; 4],
    /// Signed, by fours.
    pub(super) quants: [[u8; 4]; 64],
}

/// A block of an input, as a family of formats wants it.
pub(super) trait InputBlock: Send + Sync + Sized {
    const COLUMNS: usize;

    fn round(numbers: &[f32]) -> Self;

    fn of<'a>(inputs: &'a Inputs<'_>) -> &'a [Self];
}

/// The same inputs in the forms that some matrices want them in.
pub(super) struct Inputs<'a> {
    pub(super) numbers: &'a HostTensor,
    legacy: Vec<LegacyInput>,
    k: Vec<KInput>,
}

/// The forms that a matrix wants its inputs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InputForm {
    Legacy,
    K,
    Numbers,
}

impl<'a> Inputs<'a> {
    pub(super) fn new(numbers: &'a HostTensor, forms: &[InputForm]) -> Self {
        let wanted = |form| forms.contains(&form);
        Self {
            numbers,
            legacy: if wanted(InputForm::Legacy) {
                round(numbers.data())
            } else {
                Vec::new()
            },
            k: if wanted(InputForm::K) {
                round(numbers.data())
            } else {
                Vec::new()
            },
        }
    }
}

/// One form of all inputs, input after input.
pub(super) struct RoundedInputs<'a, I> {
    blocks: &'a [I],
    blocks_of_one: usize,
}

impl<I> Clone for RoundedInputs<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for RoundedInputs<'_, I> {}

impl<'a, I: InputBlock> RoundedInputs<'a, I> {
    pub(super) fn new(inputs: &'a Inputs<'_>) -> Self {
        Self {
            blocks: I::of(inputs),
            blocks_of_one: inputs.numbers.columns() / I::COLUMNS,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.blocks.len() / self.blocks_of_one
    }

    pub(super) fn row(&self, input: usize) -> &'a [I] {
        &self.blocks[input * self.blocks_of_one..][..self.blocks_of_one]
    }
}

/// Fewer numbers than this are not worth another thread.
const PARALLEL_NUMBERS: usize = 16_384;

fn round<I: InputBlock>(numbers: &[f32]) -> Vec<I> {
    numbers
        .par_chunks_exact(I::COLUMNS)
        .with_min_len(PARALLEL_NUMBERS / I::COLUMNS)
        .map(I::round)
        .collect()
}

/// Rounds to whole multiples of the scale, which is given back.
#[inline(always)]
fn round_block<const FOURS: usize>(numbers: &[f32], quants: &mut [[u8; 4]; FOURS]) -> f32 {
    let largest = numbers.iter().fold(0.0f32, |most, one| most.max(one.abs()));
    let scale = largest / 127.0;
    let inverse = if scale > 0.0 { scale.recip() } else { 0.0 };
    for (quants, numbers) in quants.iter_mut().zip(numbers.as_chunks::<4>().0) {
        *quants = numbers.map(|number| (number * inverse).round_ties_even() as i8 as u8);
    }
    scale
}

#[inline(always)]
fn sum(quants: &[[u8; 4]]) -> i32 {
    let quants = quants.as_flattened().iter();
    quants.map(|quant| i32::from(*quant as i8)).sum()
}

/// Compiles a function for AVX2 too, and calls what the processor has.
macro_rules! fastest {
    ($(#[$doc:meta])* fn $name:ident($numbers:ident: &[f32]) -> $output:ty $body:block) => {
        $(#[$doc])*
        fn $name($numbers: &[f32]) -> $output {
            #[inline(always)]
            fn anywhere($numbers: &[f32]) -> $output $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2(numbers: &[f32]) -> $output {
                    anywhere(numbers)
                }
                if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
                    #[expect(unsafe_code, reason = "the compiler cannot see the check above")]
                    // SAFETY: the processor has the instructions this function is compiled for.
                    return unsafe { avx2($numbers) };
                }
            }
            anywhere($numbers)
        }
    };
}

impl InputBlock for LegacyInput {
    const COLUMNS: usize = 32;

    fastest! {
        fn round(numbers: &[f32]) -> LegacyInput {
            let mut quants = [[0; 4]; 8];
            let scale = round_block(numbers, &mut quants);
            LegacyInput {
                scale,
                sum: sum(&quants),
                quants,
            }
        }
    }

    fn of<'a>(inputs: &'a Inputs<'_>) -> &'a [Self] {
        &inputs.legacy
    }
}

impl InputBlock for KInput {
    const COLUMNS: usize = 256;

    fastest! {
        fn round(numbers: &[f32]) -> KInput {
            let mut quants = [[0; 4]; 64];
            let scale = round_block(numbers, &mut quants);
            let (mut sums_of_16, mut sums_of_32) = ([[0; 2]; 8], [[0; 2]; 4]);
            // At most 32 · 127, which sixteen bits hold.
            let of_16 = sums_of_16.as_flattened_mut().iter_mut();
            for (into, quants) in of_16.zip(quants.as_chunks::<4>().0) {
                *into = sum(quants) as i16;
            }
            let of_32 = sums_of_32.as_flattened_mut().iter_mut();
            for (into, [first, second]) in of_32.zip(&sums_of_16) {
                *into = first + second;
            }
            KInput {
                scale,
                sums_of_16,
                sums_of_32,
                quants,
            }
        }
    }

    fn of<'a>(inputs: &'a Inputs<'_>) -> &'a [Self] {
        &inputs.k
    }
}
