//! The fused cross-entropy head: log-probabilities, entropies and gradients of logits.

use cudarc::driver::{CudaView as View, CudaViewMut as ViewMut, DeviceRepr};

use crate::launch::LaunchShape;
use crate::{Buffer, Gpu, GpuError, VEC, bf16};

/// Upstream gradient: how the loss changes with one token's log-probability and entropy.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ScoreGrad {
    pub logprob: f32,
    pub entropy: f32,
}

#[expect(unsafe_code, reason = "plain numbers, laid out as the kernel's struct")]
// SAFETY: see the reason.
unsafe impl DeviceRepr for ScoreGrad {}

/// Logits of some rows, and the statistics computed from them.
pub struct CrossEntropyRows<'a> {
    pub logprobs: ViewMut<'a, f32>,
    pub entropies: ViewMut<'a, f32>,
    pub logits: &'a Buffer<f32>,
    pub targets: View<'a, u32>,
    pub vocabulary: usize,
}

const THREADS: usize = 512;

#[repr(C)]
struct CrossEntropyParams {
    logprobs: u64,
    entropies: u64,
    d_logits: u64,
    logits: u64,
    targets: u64,
    upstream: u64,
    vocabulary: i32,
    share: i32,
    in_smem: i32,
}

/// How a row of logits is split among blocks. Two blocks run on a multiprocessor; each holds its part in shared memory where it fits.
#[derive(Debug, PartialEq, Eq)]
struct VocabularySplit {
    blocks: usize,
    /// Logits of one block.
    share: usize,
    /// How many of these are held in shared memory.
    in_smem: usize,
}

/// Most bytes of logits that a block holds, where a block may have so much shared memory: half of it, less what the kernel itself
/// declares.
pub(super) fn max_logits_smem(max_shared: u32) -> u32 {
    ((max_shared / 2) >> 10).saturating_sub(1) << 10
}

impl VocabularySplit {
    /// Among at most so many blocks, each of which holds at most so many bytes.
    fn new(vocabulary: usize, max_blocks: usize, bytes: u32) -> Self {
        let fits = bytes as usize / size_of::<f32>();
        let share = |blocks: usize| vocabulary.div_ceil(blocks).next_multiple_of(VEC);
        let blocks = [1, 2, 4, 8].into_iter();
        let blocks = blocks
            .take_while(|blocks| *blocks < max_blocks)
            .find(|blocks| share(*blocks) <= fits)
            .unwrap_or(max_blocks);
        let share = share(blocks);
        Self {
            blocks,
            share,
            in_smem: share.min(fits),
        }
    }
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
    /// Log-probabilities of targets, and entropies. With `backward` also gradients of logits; rows whose upstream gradients are
    /// both zero then get zeros everywhere.
    pub fn cross_entropy_fused(
        &self,
        rows: &mut CrossEntropyRows<'_>,
        backward: Option<(&mut Buffer<bf16>, View<'_, ScoreGrad>)>,
    ) -> Result<(), GpuError> {
        let (count, vocabulary) = (rows.targets.len(), rows.vocabulary);
        Self::check_width(vocabulary)?;
        assert!(rows.logits.len() >= count * vocabulary);
        assert!(rows.logprobs.len() >= count && rows.entropies.len() >= count);
        let (d_logits, upstream) = match backward {
            Some((d_logits, upstream)) => {
                assert!(d_logits.len() >= count * vocabulary && upstream.len() >= count);
                (self.address(d_logits), self.address(&upstream))
            }
            None => (0, 0),
        };
        // The same split with gradients and without, so that both give the same log-probability.
        let kernels = self.training_kernels()?;
        let max_blocks = if self.has_pdl { 8 } else { 1 };
        let split = VocabularySplit::new(vocabulary, max_blocks, kernels.logits_smem_bytes);
        let params = CrossEntropyParams {
            logprobs: self.address(&rows.logprobs),
            entropies: self.address(&rows.entropies),
            d_logits,
            logits: self.address(rows.logits),
            targets: self.address(&rows.targets),
            upstream,
            vocabulary: vocabulary as i32,
            share: split.share as i32,
            in_smem: split.in_smem as i32,
        };
        let launch = LaunchShape {
            shared_bytes: (split.in_smem * size_of::<f32>()) as u32,
            cluster: split.blocks,
            ..LaunchShape::new((count * split.blocks, 1, 1), THREADS)
        };
        // SAFETY: sizes were checked; the caller guarantees that targets are below the vocabulary size.
        unsafe { self.launch(&kernels.cross_entropy_fused, &launch, &params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_logits_are_split_and_held_in_shared_memory_where_they_fit() {
        let (hopper, ampere) = (max_logits_smem(227 << 10), max_logits_smem(163 << 10));
        assert_eq!(
            (hopper, ampere, max_logits_smem(99 << 10)),
            (112 << 10, 80 << 10, 48 << 10)
        );
        let all = |vocabulary, is_hopper| {
            let (most_blocks, bytes) = if is_hopper { (8, hopper) } else { (1, ampere) };
            VocabularySplit::new(vocabulary, most_blocks, bytes)
        };
        let sharing = |blocks, share, kept| VocabularySplit {
            blocks,
            share,
            in_smem: kept,
        };
        assert_eq!(all(49_152, true), sharing(2, 24_576, 24_576));
        assert_eq!(all(151_936, true), sharing(8, 18_992, 18_992));
        assert_eq!(all(1_000, true), sharing(1, 1_000, 1_000));
        assert_eq!(all(1_000_000, true), sharing(8, 125_000, 28_672));
        assert_eq!(all(49_152, false), sharing(1, 49_152, 20_480));
        for vocabulary in (8..300_000).step_by(1_016) {
            let of = all(vocabulary, true);
            assert!(of.blocks * of.share >= vocabulary && of.share.is_multiple_of(VEC));
        }
    }
}
