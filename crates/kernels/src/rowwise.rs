//! Row-wise kernels of inference.

use cudarc::driver::{DevicePtr, PushKernelArg};

use crate::gpu::launch_config;
use crate::{Buffer, Gpu, GpuError, KvCacheLayer, bf16};

/// For arguments that may be absent.
const NULL: u64 = 0;

/// Elements that kernels read as one vector: widths are a multiple of it.
pub const VEC: usize = 8;

/// What is applied to a row of queries, keys and values before attention.
pub struct QkvRope<'a> {
    pub bias: Option<&'a Buffer<f32>>,
    /// RMS norms of each query head and each key head.
    pub head_norms: Option<(&'a Buffer<f32>, &'a Buffer<f32>)>,
    /// Radians a position, one a pair of dimensions.
    pub frequencies: &'a Buffer<f32>,
    pub heads: usize,
    pub epsilon: f32,
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
    /// Whether the kernels support rows of this many columns.
    pub fn check_width(width: usize) -> Result<(), GpuError> {
        if width > 0 && width.is_multiple_of(VEC) {
            Ok(())
        } else {
            Err(GpuError::UnsupportedWidth { width })
        }
    }

    /// `residual[row] = table[tokens[row]]`.
    pub fn embedding_fwd(
        &self,
        residual: &mut Buffer<f32>,
        table: &impl DevicePtr<bf16>,
        tokens: &Buffer<u32>,
        (rows, width): (usize, usize),
    ) -> Result<(), GpuError> {
        assert!(residual.len() >= rows * width && tokens.len() >= rows);
        let columns = width as i32;
        let table = self.address(table);
        let mut launch = self.stream.launch_builder(&self.kernels.embedding_fwd);
        launch.arg(residual).arg(&table).arg(tokens).arg(&columns);
        // SAFETY: sizes were checked; the caller's tokens are below the table's rows.
        unsafe { launch.launch(launch_config((rows, 1, 1), 256.min(width))) }?;
        Ok(())
    }

    /// `residual += delta; out = residual / rms(residual) * weight`. With `row_ids`, only those rows are normed, `rows` of them,
    /// and the residual is not changed.
    #[expect(clippy::too_many_arguments, reason = "the operands of one kernel")]
    pub fn rms_norm_residual_inplace(
        &self,
        out: &mut Buffer<bf16>,
        residual: &mut Buffer<f32>,
        delta: Option<&Buffer<bf16>>,
        weight: &Buffer<f32>,
        row_ids: Option<&Buffer<u32>>,
        rows: usize,
        epsilon: f32,
    ) -> Result<(), GpuError> {
        let width = weight.len();
        Self::check_width(width)?;
        assert!(out.len() >= rows * width);
        assert!(
            row_ids.is_some_and(|row_ids| row_ids.len() >= rows) || residual.len() >= rows * width
        );
        let columns = width as i32;
        let mut launch = self
            .stream
            .launch_builder(&self.kernels.rms_norm_residual_inplace);
        launch.arg(out).arg(residual);
        match delta {
            Some(delta) => launch.arg(delta),
            None => launch.arg(&NULL),
        };
        launch.arg(weight);
        match row_ids {
            Some(row_ids) => launch.arg(row_ids),
            None => launch.arg(&NULL),
        };
        launch.arg(&columns).arg(&epsilon);
        // Whole warps, since sums are reduced by warps.
        let threads = (width / 4).next_multiple_of(32).min(256);
        // SAFETY: rows were checked against buffers; the caller guarantees that row ids exist.
        unsafe { launch.launch(launch_config((rows, 1, 1), threads)) }?;
        Ok(())
    }

    /// `out = silu(gate) * up`; a row of `gate_up` alternates: eight gates, the eight ups that belong to them, and so on.
    pub fn swiglu_fwd(
        &self,
        out: &mut Buffer<bf16>,
        gate_up: &Buffer<bf16>,
        (rows, width): (usize, usize),
    ) -> Result<(), GpuError> {
        assert!(
            width.is_multiple_of(8)
                && out.len() >= rows * width
                && gate_up.len() >= 2 * rows * width
        );
        let columns = width as i32;
        let mut launch = self.stream.launch_builder(&self.kernels.swiglu_fwd);
        launch.arg(out).arg(gate_up).arg(&columns);
        let threads = (width / 8).next_multiple_of(32).min(256);
        // SAFETY: sizes were checked.
        unsafe {
            launch.launch(launch_config(
                (rows, (width / 8).div_ceil(threads), 1),
                threads,
            ))
        }?;
        Ok(())
    }

    /// Applies bias, head norms and RoPE. Queries are written back in place, keys and values are appended to the KV cache.
    pub fn rope_append_kv(
        &self,
        qkv: &mut Buffer<bf16>,
        cached: &mut KvCacheLayer<'_>,
        rope: &QkvRope<'_>,
        rows: usize,
    ) -> Result<(), GpuError> {
        let all_heads = rope.heads + 2 * cached.kv_heads;
        assert!(qkv.len() >= rows * all_heads * cached.head_dim);
        assert!(rope.frequencies.len() == cached.head_dim / 2);
        let (heads, kv_heads, capacity) = (
            rope.heads as i32,
            cached.kv_heads as i32,
            cached.capacity as i32,
        );
        let mut launch = self.stream.launch_builder(&self.kernels.rope_append_kv);
        launch.arg(qkv);
        match rope.bias {
            Some(bias) => launch.arg(bias),
            None => launch.arg(&NULL),
        };
        match &rope.head_norms {
            Some((query, key)) => launch.arg(*query).arg(*key),
            None => launch.arg(&NULL).arg(&NULL),
        };
        launch.arg(&mut *cached.keys).arg(&mut *cached.values);
        launch.arg(cached.slots).arg(cached.positions);
        launch.arg(rope.frequencies);
        launch
            .arg(&heads)
            .arg(&kv_heads)
            .arg(&capacity)
            .arg(&rope.epsilon);
        // SAFETY: sizes were checked; the caller guarantees that slots and positions exist.
        unsafe { launch.launch(launch_config((rows, all_heads, 1), cached.head_dim / 2)) }?;
        Ok(())
    }
}
