//! Choosing tokens on the device, so that logits never leave it.

use cudarc::driver::{DeviceRepr, PushKernelArg};

use crate::gpu::plain;
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

impl Gpu {
    /// A token and its log-probability for each row of logits; `steps` and `positions` are moved on by one.
    #[expect(
        clippy::too_many_arguments,
        reason = "they are what the kernel works on"
    )]
    pub fn sample(
        &self,
        tokens: &mut Buffer<u32>,
        log_probabilities: &mut Buffer<f32>,
        logits: &Buffer<f32>,
        choices: &Buffer<Choice>,
        steps: &mut Buffer<u64>,
        positions: &mut Buffer<u32>,
        (rows, vocabulary): (usize, usize),
    ) -> Result<(), GpuError> {
        assert!(logits.len() >= rows * vocabulary && choices.len() >= rows && tokens.len() >= rows);
        assert!(log_probabilities.len() >= rows && steps.len() >= rows && positions.len() >= rows);
        let wide = vocabulary as i32;
        let mut launch = self.stream.launch_builder(&self.functions.sample);
        launch
            .arg(tokens)
            .arg(log_probabilities)
            .arg(logits)
            .arg(&wide);
        launch.arg(choices).arg(steps).arg(positions);
        #[expect(unsafe_code, reason = "launches a kernel; sizes were checked")]
        // SAFETY: see the reason.
        unsafe { launch.launch(plain((rows, 1, 1), 1024)) }?;
        Ok(())
    }
}
