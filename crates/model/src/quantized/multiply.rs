//! Products of a panel's rows with every input.

use super::PANEL_ROWS;
use super::input::{InputBlock, RoundedInputs};
use super::simd::{Plain, Simd};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512Vnni};
use crate::shared_output::SharedOutput;

/// One block of columns of sixteen rows.
pub(super) trait Panel: Send + Sync + Sized {
    const COLUMNS: usize;
    /// Of one row's block in a file.
    const BLOCK_BYTES: usize;
    /// The block of an input that it is multiplied with.
    type Input: InputBlock;

    /// From the blocks of up to sixteen rows, as a file has them.
    fn pack<'a>(blocks: impl Iterator<Item = &'a [u8]>) -> Self;

    /// One row's numbers.
    fn write_row(&self, row: usize, numbers: &mut [f32]);

    /// Adds the products with blocks of several inputs.
    fn accumulate<S: Simd, const N: usize>(
        &self,
        simd: S,
        part: usize,
        inputs: [&Self::Input; N],
        sums: &mut [S::Floats; N],
    );
}

/// One panel and what it is multiplied with.
pub(super) struct PanelProduct<'a, P: Panel> {
    pub(super) blocks: &'a [P],
    pub(super) inputs: RoundedInputs<'a, P::Input>,
    pub(super) first_row: usize,
    pub(super) output: &'a SharedOutput<'a>,
}

impl<P: Panel> PanelProduct<'_, P> {
    /// With the fastest instructions that the processor has.
    pub(super) fn run(&self) {
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = Avx512Vnni::detect() {
            return simd.multiply(self);
        } else if let Some(simd) = Avx2::<true>::detect() {
            return simd.multiply(self);
        } else if let Some(simd) = Avx2::<false>::detect() {
            return simd.multiply(self);
        }
        self.run_with::<_, 1>(Plain);
    }

    /// `N` inputs at a time: a panel's quants are taken apart once for all of them.
    #[inline(always)]
    pub(super) fn run_with<S: Simd, const N: usize>(&self, simd: S) {
        let count = self.inputs.count();
        // The last panel may have rows that the matrix has not.
        let rows = (self.output.columns() - self.first_row).min(PANEL_ROWS);
        for part in 0..rows.div_ceil(S::ROWS) {
            let mut start = 0;
            while start + 1 < count {
                self.several::<S, N>(simd, part, start);
                start += N;
            }
            if start < count {
                self.several::<S, 1>(simd, part, start);
            }
        }
    }

    #[inline(always)]
    fn several<S: Simd, const N: usize>(&self, simd: S, part: usize, start: usize) {
        let count = self.inputs.count();
        // Where fewer are left, the last is multiplied again.
        let inputs: [&[P::Input]; N] =
            std::array::from_fn(|index| self.inputs.row((start + index).min(count - 1)));
        let mut sums = [simd.zero_floats(); N];
        for (index, block) in self.blocks.iter().enumerate() {
            let inputs = std::array::from_fn(|input| &inputs[input][index]);
            block.accumulate(simd, part, inputs, &mut sums);
        }
        let row = self.first_row + part * S::ROWS;
        let rows = (self.output.columns() - row).min(S::ROWS);
        for (index, sums) in sums.into_iter().enumerate().take(count - start) {
            let mut numbers = [0.0; PANEL_ROWS];
            simd.store(sums, &mut numbers);
            self.output.write(start + index, row, &numbers[..rows]);
        }
    }
}
