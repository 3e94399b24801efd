//! Kernels of training, which are loaded when they are first needed: running a model needs none of them.

use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::CUdevice_attribute;
use cudarc::driver::{CudaContext, CudaFunction};

use super::attention::{Attention, Kernels};
use super::rows::longest_row;
use super::step::most_kept;
use crate::gpu::{allow_shared, module};
use crate::{Gpu, GpuError};

pub(crate) struct Functions {
    pub(super) add_norm: CudaFunction,
    pub(super) norm_back: CudaFunction,
    /// Numbers of the longest row that it has room for.
    pub(super) longest_row: usize,
    pub(super) swiglu_back: CudaFunction,
    pub(super) turn: CudaFunction,
    pub(super) turn_back: CudaFunction,
    pub(super) column_parts: CudaFunction,
    pub(super) add_parts: CudaFunction,
    pub(super) clear: CudaFunction,
    pub(super) pick: CudaFunction,
    pub(super) put_back: CudaFunction,
    pub(super) embed_back: CudaFunction,
    pub(super) score: CudaFunction,
    /// Bytes of logits that a block of it keeps at most.
    pub(super) kept_logits: u32,
    pub(super) squares: CudaFunction,
    pub(super) adamw: CudaFunction,
    pub(super) attention: Kernels,
    pub(super) hopper_attention: OnceLock<Kernels>,
}

impl Functions {
    fn load(context: &Arc<CudaContext>, is_hopper: bool) -> Result<Self, GpuError> {
        macro_rules! module {
            ($name:literal) => {
                module(
                    context,
                    if is_hopper {
                        include_str!(concat!("../../ptx/90/", $name, ".ptx"))
                    } else {
                        include_str!(concat!("../../ptx/80/", $name, ".ptx"))
                    },
                )?
            };
        }
        let rows = module!("training_rows");
        let step = module!("training_step");
        let packed = module!("packed_attention");
        let norm_back = rows.load_function("training_norm_back")?;
        let score = step.load_function("training_score")?;
        let most = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let most = context.attribute(most)?.cast_unsigned();
        let kept_logits = most_kept(most);
        allow_shared(&norm_back, most)?;
        allow_shared(&score, kept_logits)?;
        Ok(Self {
            add_norm: rows.load_function("training_add_norm")?,
            norm_back,
            longest_row: longest_row(most),
            swiglu_back: rows.load_function("training_swiglu_back")?,
            turn: rows.load_function("training_turn")?,
            turn_back: rows.load_function("training_turn_back")?,
            column_parts: rows.load_function("training_column_parts")?,
            add_parts: rows.load_function("training_add_parts")?,
            clear: rows.load_function("training_clear")?,
            pick: rows.load_function("training_pick")?,
            put_back: rows.load_function("training_put_back")?,
            embed_back: rows.load_function("training_embed_back")?,
            score,
            kept_logits,
            squares: step.load_function("training_squares")?,
            adamw: step.load_function("training_adamw")?,
            attention: Kernels::load(&packed, Attention::Warps)?,
            hopper_attention: OnceLock::new(),
        })
    }
}

impl Gpu {
    /// Kernels of training. Loaded at the first call, which no graph may capture.
    pub(crate) fn training(&self) -> Result<&Functions, GpuError> {
        if let Some(there) = self.training.get() {
            return Ok(there);
        }
        let loaded = Functions::load(self.stream.context(), self.overlaps)?;
        Ok(self.training.get_or_init(|| loaded))
    }
}
