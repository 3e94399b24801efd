//! Choosing tokens on the device, so that logits never leave it.

use cudarc::driver::DeviceRepr;

use crate::launch::Spread;
use crate::{Buffer, Gpu, GpuError};

/// How one row's token is chosen.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// 0: the most probable token.
    pub temperature: f32,
    pub top_p: f32,
    pub seed: u64,
}

impl Choice {
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_p: 1.0,
        seed: 0,
    };
}

#[expect(unsafe_code, reason = "plain numbers, laid out as the kernel's struct")]
// SAFETY: see the reason.
unsafe impl DeviceRepr for Choice {}

/// A token, and its log-probability under the model itself.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Chosen {
    pub token: u32,
    pub log_probability: f32,
}

#[expect(unsafe_code, reason = "plain numbers, laid out as the kernel's struct")]
// SAFETY: see the reason.
unsafe impl DeviceRepr for Chosen {}

/// Tokens that one block looks at first.
const PART: usize = 4096;
/// Parts a row may have.
const MOST_PARTS: usize = 256;

/// What the parts of rows come to.
pub struct Parts {
    /// Four words each.
    parts: Buffer<[f32; 4]>,
}

impl Parts {
    pub fn new(gpu: &Gpu, rows: usize, vocabulary: usize) -> Result<Self, GpuError> {
        Ok(Self {
            parts: gpu.zeros(rows * vocabulary.div_ceil(PART))?,
        })
    }
}

/// As in the kernels.
#[repr(C)]
struct Sampling {
    tokens: u64,
    chosen: u64,
    logits: u64,
    parts: u64,
    choices: u64,
    steps: u64,
    positions: u64,
    vocabulary: i32,
    parts_a_row: i32,
}

impl Gpu {
    /// A token for each row of logits, both where the next step reads it and with its log-probability; `steps` and `positions`
    /// are moved on by one.
    #[expect(
        clippy::too_many_arguments,
        reason = "they are what the kernel works on"
    )]
    pub fn sample(
        &self,
        tokens: &mut Buffer<u32>,
        chosen: &mut Buffer<Chosen>,
        logits: &Buffer<f32>,
        choices: &Buffer<Choice>,
        steps: &mut Buffer<u64>,
        positions: &mut Buffer<u32>,
        parts: &mut Parts,
        (rows, vocabulary): (usize, usize),
    ) -> Result<(), GpuError> {
        assert!(logits.len() >= rows * vocabulary && choices.len() >= rows && tokens.len() >= rows);
        assert!(chosen.len() >= rows && steps.len() >= rows && positions.len() >= rows);
        let count = vocabulary.div_ceil(PART);
        assert!(count <= MOST_PARTS && parts.parts.len() >= rows * count);
        let asked = Sampling {
            tokens: self.address(tokens),
            chosen: self.address(chosen),
            logits: self.address(logits),
            parts: self.address(&parts.parts),
            choices: self.address(choices),
            steps: self.address(steps),
            positions: self.address(positions),
            vocabulary: vocabulary as i32,
            parts_a_row: count as i32,
        };
        let functions = &self.functions;
        #[expect(unsafe_code, reason = "launches kernels; sizes were checked")]
        // SAFETY: see the reason. Both wait before they read anything.
        unsafe {
            let spread = Spread::plain((count, rows, 1), 256);
            self.launch(&functions.sample_parts, &spread, &asked)?;
            self.launch(
                &functions.sample,
                &Spread::plain((rows, 1, 1), 1024),
                &asked,
            )
        }
    }
}
