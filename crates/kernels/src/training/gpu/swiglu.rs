//! Backward of SwiGLU. Training uses the forward kernel of inference.

use crate::launch::LaunchShape;
use crate::{Buffer, Gpu, GpuError, bf16};

const THREADS: usize = 256;

#[repr(C)]
struct SwigluBwdParams {
    gate_up: u64,
    hidden: u64,
    vectors: u64,
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
    /// `gate_up` holds gates and ups, and then their gradients; `hidden` holds the gradient of `silu(gate) * up`, and then that
    /// product.
    pub fn swiglu_bwd(
        &self,
        gate_up: &mut Buffer<bf16>,
        hidden: &mut Buffer<bf16>,
        (rows, width): (usize, usize),
    ) -> Result<(), GpuError> {
        Self::check_width(width)?;
        assert!(gate_up.len() >= 2 * rows * width && hidden.len() >= rows * width);
        let vectors = rows * width / 8;
        let params = SwigluBwdParams {
            gate_up: self.address(gate_up),
            hidden: self.address(hidden),
            vectors: vectors as u64,
        };
        let launch = LaunchShape::new((vectors.div_ceil(THREADS), 1, 1), THREADS);
        // SAFETY: sizes were checked; the kernel waits before it reads anything.
        unsafe { self.launch(&self.training_kernels()?.swiglu_bwd, &launch, &params) }
    }
}
