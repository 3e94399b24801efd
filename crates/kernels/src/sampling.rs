//! Sampling tokens on the device, so that logits never leave it.

use cudarc::driver::DeviceRepr;

use crate::launch::LaunchShape;
use crate::{Buffer, Gpu, GpuError};

/// How one row's token is sampled.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowSampling {
    /// 0: the most probable token.
    pub temperature: f32,
    pub top_p: f32,
    pub seed: u64,
}

impl RowSampling {
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_p: 1.0,
        seed: 0,
    };
}

#[expect(unsafe_code, reason = "plain numbers, laid out as the kernel's struct")]
// SAFETY: see the reason.
unsafe impl DeviceRepr for RowSampling {}

/// A sampled token and its log-probability under the model itself, before temperature and top-p.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RowSample {
    pub token: u32,
    pub log_probability: f32,
}

#[expect(unsafe_code, reason = "plain numbers, laid out as the kernel's struct")]
// SAFETY: see the reason.
unsafe impl DeviceRepr for RowSample {}

/// Tokens that one block of the first kernel reads.
const PARTIAL_TOKENS: usize = 4096;
/// Most scratch of a row.
const MAX_PARTIALS: usize = 256;

/// Scratch memory: statistics of the scratch of rows.
pub struct SamplingScratch {
    /// Four words a part.
    partials: Buffer<[f32; 4]>,
}

impl SamplingScratch {
    pub fn new(gpu: &Gpu, rows: usize, vocabulary: usize) -> Result<Self, GpuError> {
        Ok(Self {
            partials: gpu.zeros(rows * vocabulary.div_ceil(PARTIAL_TOKENS))?,
        })
    }
}

/// As in the kernels.
#[repr(C)]
struct SampleParams {
    tokens: u64,
    sampled: u64,
    logits: u64,
    partials: u64,
    sampling: u64,
    draws: u64,
    positions: u64,
    vocabulary: i32,
    partials_per_row: i32,
}

impl Gpu {
    /// Samples a token for each row of logits: into `tokens`, where the next step reads it, and with its log-probability into
    /// `sampled`. Advances `draws` and `positions` by one.
    #[expect(clippy::too_many_arguments, reason = "the operands of one kernel")]
    pub fn sample_tokens(
        &self,
        tokens: &mut Buffer<u32>,
        sampled: &mut Buffer<RowSample>,
        logits: &Buffer<f32>,
        sampling: &Buffer<RowSampling>,
        draws: &mut Buffer<u64>,
        positions: &mut Buffer<u32>,
        scratch: &mut SamplingScratch,
        (rows, vocabulary): (usize, usize),
    ) -> Result<(), GpuError> {
        assert!(
            logits.len() >= rows * vocabulary && sampling.len() >= rows && tokens.len() >= rows
        );
        assert!(sampled.len() >= rows && draws.len() >= rows && positions.len() >= rows);
        let count = vocabulary.div_ceil(PARTIAL_TOKENS);
        assert!(count <= MAX_PARTIALS && scratch.partials.len() >= rows * count);
        let params = SampleParams {
            tokens: self.address(tokens),
            sampled: self.address(sampled),
            logits: self.address(logits),
            partials: self.address(&scratch.partials),
            sampling: self.address(sampling),
            draws: self.address(draws),
            positions: self.address(positions),
            vocabulary: vocabulary as i32,
            partials_per_row: count as i32,
        };
        let functions = &self.kernels;
        #[expect(unsafe_code, reason = "launches kernels; sizes were checked")]
        // SAFETY: see the reason. Both wait before they read anything.
        unsafe {
            let shape = LaunchShape::new((count, rows, 1), 256);
            self.launch(&functions.sample_partials, &shape, &params)?;
            self.launch(
                &functions.sample_tokens,
                &LaunchShape::new((rows, 1, 1), 1024),
                &params,
            )
        }
    }
}
