//! The two ends of a step: what was said against logits, and new weights from gradients.

use cudarc::driver::{CudaView as View, CudaViewMut as ViewMut, DeviceRepr};

use crate::launch::Spread;
use crate::{AT_ONCE, Buffer, Gpu, GpuError, bf16};

/// How a loss changes with what a model says of a token.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Wanted {
    pub logprob: f32,
    pub entropy: f32,
}

#[expect(unsafe_code, reason = "plain numbers, laid out as the kernel's struct")]
// SAFETY: see the reason.
unsafe impl DeviceRepr for Wanted {}

/// Logits of some rows, and what is made of them.
pub struct Scored<'a> {
    pub logprobs: ViewMut<'a, f32>,
    pub entropies: ViewMut<'a, f32>,
    pub logits: &'a Buffer<f32>,
    pub targets: View<'a, u32>,
    pub vocabulary: usize,
}

/// Settings of `AdamW` at one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    pub rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    /// Of matrices only.
    pub weight_decay: f64,
    /// Gradients longer than this, all together, are shortened to it.
    pub longest: f64,
    /// Counted from one.
    pub step: u64,
}

/// As the kernel takes them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    rate: f32,
    root: f32,
    kept: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    longest: f32,
}

#[expect(unsafe_code, reason = "plain numbers, laid out as the kernel's struct")]
// SAFETY: see the reason.
unsafe impl DeviceRepr for Settings {}
#[expect(unsafe_code, reason = "plain numbers")]
// SAFETY: see the reason.
unsafe impl cudarc::driver::ValidAsZeroBits for Settings {}

impl From<AdamW> for Settings {
    fn from(of: AdamW) -> Self {
        let step = i32::try_from(of.step).unwrap_or(i32::MAX);
        Self {
            rate: (of.rate / (1.0 - of.beta1.powi(step))) as f32,
            root: (1.0 - of.beta2.powi(step)).sqrt().recip() as f32,
            kept: (1.0 - of.rate * of.weight_decay) as f32,
            beta1: of.beta1 as f32,
            beta2: of.beta2 as f32,
            epsilon: of.epsilon as f32,
            longest: of.longest as f32,
        }
    }
}

/// All parameters of a model, and what an optimiser keeps of each.
pub struct Parameters {
    pub weights: Buffer<f32>,
    /// What matrices are read from.
    pub narrow: Buffer<bf16>,
    pub gradient: Buffer<f32>,
    pub first: Buffer<f32>,
    pub second: Buffer<f32>,
    /// From here on weight decay concerns them.
    pub decays_from: usize,
    /// Of the gradient of the last update, before it was shortened.
    length: Buffer<f32>,
    parts: Buffer<f32>,
    settings: Buffer<Settings>,
}

impl Parameters {
    pub fn new(gpu: &Gpu, weights: &[f32], decays_from: usize) -> Result<Self, GpuError> {
        let count = weights.len();
        assert!(count.is_multiple_of(4) && decays_from.is_multiple_of(4));
        let narrow: Vec<bf16> = weights.iter().copied().map(bf16::from_f32).collect();
        Ok(Self {
            weights: gpu.upload(weights)?,
            narrow: gpu.upload(&narrow)?,
            gradient: gpu.zeros(count)?,
            first: gpu.zeros(count)?,
            second: gpu.zeros(count)?,
            decays_from,
            length: gpu.zeros(1)?,
            parts: gpu.zeros(BLOCKS)?,
            settings: gpu.zeros(1)?,
        })
    }

    /// Length of the last update's gradient before it was shortened. Where it is not finite, that update changed nothing.
    pub fn gradient_length(&self, gpu: &Gpu) -> Result<f32, GpuError> {
        Ok(gpu.read(&self.length, 1)?[0])
    }
}

const THREADS: usize = 512;
/// Also the parts of a gradient's length, so that it does not depend on the device.
const BLOCKS: usize = 528;

#[repr(C)]
struct Score {
    logprobs: u64,
    entropies: u64,
    slopes: u64,
    logits: u64,
    targets: u64,
    wanted: u64,
    vocabulary: i32,
    share: i32,
    kept: i32,
}

/// How a row of logits is shared out: two blocks of a multiprocessor keep what they have of one in its shared memory.
#[derive(Debug, PartialEq, Eq)]
struct Sharing {
    blocks: usize,
    /// Logits of one block.
    share: usize,
    /// Of these in shared memory.
    kept: usize,
}

/// Bytes of logits that a block keeps at most, where it may have so many: half of them, but for what else is there.
pub(super) fn most_kept(of: u32) -> u32 {
    ((of / 2) >> 10).saturating_sub(1) << 10
}

impl Sharing {
    /// By so many blocks at most, of which each keeps so many bytes.
    fn of(vocabulary: usize, most_blocks: usize, bytes: u32) -> Self {
        let fits = bytes as usize / size_of::<f32>();
        let share = |blocks: usize| vocabulary.div_ceil(blocks).next_multiple_of(AT_ONCE);
        let blocks = [1, 2, 4, 8].into_iter();
        let blocks = blocks
            .take_while(|blocks| *blocks < most_blocks)
            .find(|blocks| share(*blocks) <= fits)
            .unwrap_or(most_blocks);
        let share = share(blocks);
        Self {
            blocks,
            share,
            kept: share.min(fits),
        }
    }
}

#[repr(C)]
struct Squares {
    parts: u64,
    gradient: u64,
    count: u64,
}

#[repr(C)]
struct Update {
    weights: u64,
    first: u64,
    second: u64,
    narrow: u64,
    length: u64,
    gradient: u64,
    parts: u64,
    settings: u64,
    count: u64,
    decays_from: u64,
    part_count: i32,
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
    /// Log-probabilities of targets and entropies; with `back` also slopes of logits. Then rows whose slopes are both zero
    /// get zeros everywhere.
    pub fn training_score(
        &self,
        scored: &mut Scored<'_>,
        back: Option<(&mut Buffer<bf16>, View<'_, Wanted>)>,
    ) -> Result<(), GpuError> {
        let (rows, vocabulary) = (scored.targets.len(), scored.vocabulary);
        Self::reads_rows_of(vocabulary)?;
        assert!(scored.logits.len() >= rows * vocabulary);
        assert!(scored.logprobs.len() >= rows && scored.entropies.len() >= rows);
        let (slopes, wanted) = match back {
            Some((slopes, wanted)) => {
                assert!(slopes.len() >= rows * vocabulary && wanted.len() >= rows);
                (self.address(slopes), self.address(&wanted))
            }
            None => (0, 0),
        };
        // The same with slopes and without, so that both see the same log-probability.
        let functions = self.training()?;
        let most_blocks = if self.overlaps { 8 } else { 1 };
        let sharing = Sharing::of(vocabulary, most_blocks, functions.kept_logits);
        let asked = Score {
            logprobs: self.address(&scored.logprobs),
            entropies: self.address(&scored.entropies),
            slopes,
            logits: self.address(scored.logits),
            targets: self.address(&scored.targets),
            wanted,
            vocabulary: vocabulary as i32,
            share: sharing.share as i32,
            kept: sharing.kept as i32,
        };
        let spread = Spread {
            shared: (sharing.kept * size_of::<f32>()) as u32,
            cluster: sharing.blocks,
            ..Spread::plain((rows * sharing.blocks, 1, 1), THREADS)
        };
        // SAFETY: sizes were checked; targets below the vocabulary are the caller's word.
        unsafe { self.launch(&functions.score, &spread, &asked) }
    }

    /// Settings of the updates that follow.
    pub fn set_adamw(&self, of: &mut Parameters, settings: AdamW) -> Result<(), GpuError> {
        self.write(&mut of.settings, &[settings.into()])
    }

    /// One step of all parameters with the settings that were set.
    pub fn training_update(&self, of: &mut Parameters) -> Result<(), GpuError> {
        let functions = self.training()?;
        let count = of.weights.len();
        let squares = Squares {
            parts: self.address(&of.parts),
            gradient: self.address(&of.gradient),
            count: count as u64,
        };
        let update = Update {
            weights: self.address(&of.weights),
            first: self.address(&of.first),
            second: self.address(&of.second),
            narrow: self.address(&of.narrow),
            length: self.address(&of.length),
            gradient: self.address(&of.gradient),
            parts: self.address(&of.parts),
            settings: self.address(&of.settings),
            count: count as u64,
            decays_from: of.decays_from as u64,
            part_count: BLOCKS as i32,
        };
        let spread = Spread::plain((BLOCKS, 1, 1), THREADS);
        // SAFETY: all buffers have as many numbers, but those whose sizes are constants.
        unsafe {
            self.launch(&functions.squares, &spread, &squares)?;
            self.launch(&functions.adamw, &spread, &update)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_logits_are_shared_out_and_kept_where_they_fit() {
        let (hopper, ampere) = (most_kept(227 << 10), most_kept(163 << 10));
        assert_eq!(
            (hopper, ampere, most_kept(99 << 10)),
            (112 << 10, 80 << 10, 48 << 10)
        );
        let all = |vocabulary, is_hopper| {
            let (most_blocks, bytes) = if is_hopper { (8, hopper) } else { (1, ampere) };
            Sharing::of(vocabulary, most_blocks, bytes)
        };
        let sharing = |blocks, share, kept| Sharing {
            blocks,
            share,
            kept,
        };
        assert_eq!(all(49_152, true), sharing(2, 24_576, 24_576));
        assert_eq!(all(151_936, true), sharing(8, 18_992, 18_992));
        assert_eq!(all(1_000, true), sharing(1, 1_000, 1_000));
        assert_eq!(all(1_000_000, true), sharing(8, 125_000, 28_672));
        assert_eq!(all(49_152, false), sharing(1, 49_152, 20_480));
        for vocabulary in (8..300_000).step_by(1_016) {
            let of = all(vocabulary, true);
            assert!(of.blocks * of.share >= vocabulary && of.share.is_multiple_of(AT_ONCE));
        }
    }
}
