//! Bias, head norms and RoPE between the QKV product and attention, forward and backward.

use cudarc::driver::CudaView as View;

use super::reductions::PARTIALS;
use crate::launch::LaunchShape;
use crate::training::layout::ModelShape;
use crate::{Buffer, Gpu, GpuError, bf16};

/// What is applied to queries, keys and values before attention.
pub struct RopeTables<'a> {
    pub bias: Option<View<'a, f32>>,
    /// Of queries, then of keys.
    pub head_norms: Option<View<'a, f32>>,
    /// Cosine and sine: `[position][pair][2]`.
    pub cos_sin: &'a Buffer<f32>,
    pub positions: &'a Buffer<u32>,
}

/// Cosine and sine of every pair of dimensions at every position.
pub fn cos_sin_table(frequencies: &[f32], positions: usize) -> Vec<f32> {
    let each = (0..positions).flat_map(|position| {
        frequencies.iter().flat_map(move |frequency| {
            let (sine, cosine) = (position as f64 * f64::from(*frequency)).sin_cos();
            [cosine as f32, sine as f32]
        })
    });
    each.collect()
}

/// Thread blocks for so many heads.
fn rope_blocks(shape: &ModelShape, heads: usize) -> usize {
    let heads_per_block = THREADS / (shape.head_dim / 8);
    heads.div_ceil(heads_per_block).min(8 * PARTIALS)
}

const THREADS: usize = 256;

#[repr(C)]
struct RopeParams {
    out: u64,
    norm_partials: u64,
    qkv: u64,
    bias: u64,
    norms: u64,
    cos_sin: u64,
    positions: u64,
    rows: i32,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    heads_per_row: i32,
    epsilon: f32,
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
    /// Bias, head norms and RoPE of what the QKV product left: into `out`, or in place where there is none.
    pub fn rope_qk_fwd(
        &self,
        qkv: &mut Buffer<bf16>,
        out: Option<&mut Buffer<bf16>>,
        tables: &RopeTables<'_>,
        shape: &ModelShape,
        rows: usize,
    ) -> Result<(), GpuError> {
        assert!(qkv.len() >= rows * shape.qkv_width());
        // Values are only processed where they change or move.
        let with_values = out.is_some() || tables.bias.is_some();
        let to = out.map_or(self.address(qkv), |out| {
            assert!(out.len() >= rows * shape.qkv_width());
            self.address(out)
        });
        let params = self.rope_params(tables, shape, rows, (to, self.address(qkv), 0), with_values);
        let blocks = rope_blocks(shape, rows * params.heads_per_row as usize);
        let launch = LaunchShape::new((blocks, 1, 1), THREADS);
        // SAFETY: sizes were checked; the caller guarantees that positions are within the tables.
        unsafe { self.launch(&self.training_kernels()?.rope_qk_fwd, &launch, &params) }
    }

    /// From gradients of rotated queries and keys to gradients of what the QKV product left, in place. With head norms, `norms`
    /// has what the product left, and takes the gradient of the norms as [`PARTIALS`] partial sums.
    pub fn rope_qk_bwd(
        &self,
        d_qkv: &mut Buffer<bf16>,
        norms: Option<(&Buffer<bf16>, &mut Buffer<f32>)>,
        tables: &RopeTables<'_>,
        shape: &ModelShape,
        rows: usize,
    ) -> Result<(), GpuError> {
        assert!(d_qkv.len() >= rows * shape.qkv_width());
        assert_eq!(norms.is_some(), tables.head_norms.is_some());
        let (qkv, norm_partials) = match norms {
            Some((qkv, norm_partials)) => {
                assert!(qkv.len() >= rows * shape.qkv_width());
                assert!(norm_partials.len() >= PARTIALS * 2 * shape.head_dim);
                (self.address(qkv), self.address(norm_partials))
            }
            None => (0, 0),
        };
        let params = self.rope_params(
            tables,
            shape,
            rows,
            (self.address(d_qkv), qkv, norm_partials),
            false,
        );
        // One block for each partial sum, where there are any.
        let blocks = if tables.head_norms.is_some() {
            PARTIALS
        } else {
            rope_blocks(shape, rows * params.heads_per_row as usize)
        };
        let launch = LaunchShape::new((blocks, 1, 1), THREADS);
        // SAFETY: sizes were checked; the caller guarantees that positions are within the tables.
        unsafe { self.launch(&self.training_kernels()?.rope_qk_bwd, &launch, &params) }
    }

    fn rope_params(
        &self,
        tables: &RopeTables<'_>,
        shape: &ModelShape,
        rows: usize,
        (out, qkv, norm_partials): (u64, u64, u64),
        with_values: bool,
    ) -> RopeParams {
        assert!(shape.head_dim == 64 || shape.head_dim == 128);
        assert!(
            tables
                .bias
                .as_ref()
                .is_none_or(|bias| bias.len() == shape.qkv_width())
        );
        assert!(
            tables
                .head_norms
                .as_ref()
                .is_none_or(|norms| norms.len() == 2 * shape.head_dim)
        );
        assert!(tables.positions.len() >= rows);
        let values = if with_values { shape.kv_heads } else { 0 };
        RopeParams {
            out,
            norm_partials,
            qkv,
            bias: self.address_or_null(tables.bias.as_ref()),
            norms: self.address_or_null(tables.head_norms.as_ref()),
            cos_sin: self.address(tables.cos_sin),
            positions: self.address(tables.positions),
            rows: rows as i32,
            heads: shape.heads as i32,
            kv_heads: shape.kv_heads as i32,
            head_dim: shape.head_dim as i32,
            heads_per_row: (shape.heads + shape.kv_heads + values) as i32,
            epsilon: shape.norm_epsilon,
        }
    }
}
