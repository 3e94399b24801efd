//! Work on single rows.

use cudarc::driver::{DevicePtr, PushKernelArg};

use crate::gpu::plain;
use crate::{Buffer, Cached, Gpu, GpuError, bf16};

/// A null pointer, for what may be left out.
const NONE: u64 = 0;

/// Numbers that kernels read together.
pub const AT_ONCE: usize = 8;

/// What turns a row of queries, keys and values.
pub struct Rotation<'a> {
    pub bias: Option<&'a Buffer<f32>>,
    /// Norms of each query and key head.
    pub head_norms: Option<(&'a Buffer<f32>, &'a Buffer<f32>)>,
    /// One a pair of numbers: radians a position.
    pub frequencies: &'a Buffer<f32>,
    pub heads: usize,
    pub epsilon: f32,
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
    /// Whether kernels can work on rows of this many numbers.
    pub fn reads_rows_of(width: usize) -> Result<(), GpuError> {
        if width > 0 && width.is_multiple_of(AT_ONCE) {
            Ok(())
        } else {
            Err(GpuError::Width { width })
        }
    }

    /// `residual[row] = table[tokens[row]]`.
    pub fn embed(
        &self,
        residual: &mut Buffer<f32>,
        table: &impl DevicePtr<bf16>,
        tokens: &Buffer<u32>,
        (rows, width): (usize, usize),
    ) -> Result<(), GpuError> {
        assert!(residual.len() >= rows * width && tokens.len() >= rows);
        let wide = width as i32;
        let table = self.address(table);
        let mut launch = self.stream.launch_builder(&self.functions.embed);
        launch.arg(residual).arg(&table).arg(tokens).arg(&wide);
        // SAFETY: a thread touches numbers of its own row, which exist; the caller's tokens are below the table's rows.
        unsafe { launch.launch(plain((rows, 1, 1), 256.min(width))) }?;
        Ok(())
    }

    /// `residual += delta; out = residual / rms(residual) * weight`. With `picked`, `rows` of them are made from those rows
    /// and the residual stays as it is.
    #[expect(
        clippy::too_many_arguments,
        reason = "they are what the kernel works on"
    )]
    pub fn add_norm(
        &self,
        out: &mut Buffer<bf16>,
        residual: &mut Buffer<f32>,
        delta: Option<&Buffer<bf16>>,
        weight: &Buffer<f32>,
        picked: Option<&Buffer<u32>>,
        rows: usize,
        epsilon: f32,
    ) -> Result<(), GpuError> {
        let width = weight.len();
        Self::reads_rows_of(width)?;
        assert!(out.len() >= rows * width);
        assert!(
            picked.is_some_and(|picked| picked.len() >= rows) || residual.len() >= rows * width
        );
        let wide = width as i32;
        let mut launch = self.stream.launch_builder(&self.functions.add_norm);
        launch.arg(out).arg(residual);
        match delta {
            Some(delta) => launch.arg(delta),
            None => launch.arg(&NONE),
        };
        launch.arg(weight);
        match picked {
            Some(picked) => launch.arg(picked),
            None => launch.arg(&NONE),
        };
        launch.arg(&wide).arg(&epsilon);
        // A warp at least, since sums are made by warps.
        let threads = (width / 4).next_multiple_of(32).min(256);
        // SAFETY: rows were checked against buffers, picked ones are the caller's word.
        unsafe { launch.launch(plain((rows, 1, 1), threads)) }?;
        Ok(())
    }

    /// `out = silu(gate) * up`; a row of `both` is eight gates, their eight factors, and so on.
    pub fn swiglu(
        &self,
        out: &mut Buffer<bf16>,
        both: &Buffer<bf16>,
        (rows, width): (usize, usize),
    ) -> Result<(), GpuError> {
        assert!(
            width.is_multiple_of(8) && out.len() >= rows * width && both.len() >= 2 * rows * width
        );
        let wide = width as i32;
        let mut launch = self.stream.launch_builder(&self.functions.swiglu);
        launch.arg(out).arg(both).arg(&wide);
        let threads = (width / 8).next_multiple_of(32).min(256);
        // SAFETY: sizes were checked.
        unsafe { launch.launch(plain((rows, (width / 8).div_ceil(threads), 1), threads)) }?;
        Ok(())
    }

    /// Turns queries in place; keys are turned and, like values, put where their sequence keeps them.
    pub fn rotate_append(
        &self,
        qkv: &mut Buffer<bf16>,
        cached: &mut Cached<'_>,
        rotation: &Rotation<'_>,
        rows: usize,
    ) -> Result<(), GpuError> {
        let all_heads = rotation.heads + 2 * cached.kv_heads;
        assert!(qkv.len() >= rows * all_heads * cached.head_dim);
        assert!(rotation.frequencies.len() == cached.head_dim / 2);
        let (heads, kv_heads, capacity) = (
            rotation.heads as i32,
            cached.kv_heads as i32,
            cached.capacity as i32,
        );
        let mut launch = self.stream.launch_builder(&self.functions.rotate_append);
        launch.arg(qkv);
        match rotation.bias {
            Some(bias) => launch.arg(bias),
            None => launch.arg(&NONE),
        };
        match &rotation.head_norms {
            Some((query, key)) => launch.arg(*query).arg(*key),
            None => launch.arg(&NONE).arg(&NONE),
        };
        launch.arg(&mut *cached.keys).arg(&mut *cached.values);
        launch.arg(cached.slots).arg(cached.positions);
        launch.arg(rotation.frequencies);
        launch
            .arg(&heads)
            .arg(&kv_heads)
            .arg(&capacity)
            .arg(&rotation.epsilon);
        // SAFETY: sizes were checked; slots and positions within them are the caller's word.
        unsafe { launch.launch(plain((rows, all_heads, 1), cached.head_dim / 2)) }?;
        Ok(())
    }
}
