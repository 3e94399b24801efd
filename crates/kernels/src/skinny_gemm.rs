//! Skinny GEMM for decoding, by our own kernels: for few rows cuBLAS leaves much of the memory bandwidth unused.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaModule, PushKernelArg};

use crate::gpu::{allow_shared, launch_config};
use crate::launch::LaunchShape;
use crate::{Buffer, GemmOutput, Gpu, GpuError, bf16};

/// Most rows of a skinny GEMM.
pub const SKINNY_GEMM_MAX_ROWS: usize = 64;

/// The kernels are instantiated for up to so many rows each.
const ROW_VARIANTS: [usize; 4] = [8, 16, 32, SKINNY_GEMM_MAX_ROWS];
/// Outputs of a block, inputs of a pipeline stage, and stages.
const BLOCK_OUTPUTS: usize = 128;
const K_TILE: usize = 64;
const STAGES: usize = 4;
const THREADS: usize = 256;
/// Most blocks that may split a product's inputs.
const MAX_SPLIT_K: usize = 8;
/// Most blocks of a product. Fewer than an H200 has multiprocessors: reducing the sums of more blocks took longer than reading the
/// weights with fewer.
const MAX_BLOCKS: usize = 112;

/// The residual stream of few rows with a deferred RMS norm: products read it with the norm's weights applied, and divide by the
/// root mean square afterwards. The sums of squares for that come in parts.
pub struct DeferredNormStream {
    residual: Buffer<f32>,
    weighted: Buffer<bf16>,
    row_squares: Buffer<f32>,
    square_parts: usize,
    width: usize,
    epsilon: f32,
}

impl DeferredNormStream {
    pub fn new(gpu: &Gpu, width: usize, epsilon: f32) -> Result<Self, GpuError> {
        let max_parts = width.div_ceil(BLOCK_OUTPUTS) * MAX_SPLIT_K;
        Ok(Self {
            residual: gpu.zeros(SKINNY_GEMM_MAX_ROWS * width)?,
            weighted: gpu.zeros(SKINNY_GEMM_MAX_ROWS * width)?,
            row_squares: gpu.zeros(SKINNY_GEMM_MAX_ROWS * max_parts)?,
            square_parts: 1,
            width,
            epsilon,
        })
    }

    pub fn residual(&self) -> &Buffer<f32> {
        &self.residual
    }
}

/// By epilogue, then by rows.
pub(crate) struct SkinnyGemmKernels {
    bf16: Vec<CudaFunction>,
    f32: Vec<CudaFunction>,
    swiglu: Vec<CudaFunction>,
    residual_norm: Vec<CudaFunction>,
}

impl SkinnyGemmKernels {
    pub(crate) fn load(module: &Arc<CudaModule>) -> Result<Self, GpuError> {
        let all = |epilogue: &str| -> Result<Vec<CudaFunction>, GpuError> {
            let each = ROW_VARIANTS.iter().map(|rows| {
                let function = module.load_function(&format!("skinny_gemm_{epilogue}_{rows}"))?;
                allow_shared(&function, shared_bytes(*rows))?;
                Ok(function)
            });
            each.collect()
        };
        Ok(Self {
            bf16: all("bf16")?,
            f32: all("f32")?,
            swiglu: all("swiglu")?,
            residual_norm: all("residual_norm")?,
        })
    }
}

fn shared_bytes(rows: usize) -> u32 {
    (STAGES * (BLOCK_OUTPUTS + rows) * K_TILE * size_of::<bf16>()) as u32
}

/// How many blocks split a product's inputs, so that most multiprocessors have work.
fn sharing(outputs: usize, inputs: usize) -> usize {
    let (tiles, stages) = (outputs.div_ceil(BLOCK_OUTPUTS), inputs.div_ceil(K_TILE));
    let mut split = 1;
    while split < MAX_SPLIT_K && 2 * split * tiles <= MAX_BLOCKS && 2 * split <= stages {
        split *= 2;
    }
    split
}

/// As in the kernel.
#[repr(C)]
#[derive(Default)]
struct SkinnyGemmParams {
    out: u64,
    x: u64,
    weight: u64,
    row_squares: u64,
    residual: u64,
    next_norm: u64,
    next_row_squares: u64,
    rows: i32,
    inputs: i32,
    outputs: i32,
    square_parts: i32,
    epsilon: f32,
}

impl Gpu {
    /// Whether the device has these kernels, and they support this size.
    pub fn supports_skinny_gemm(&self, rows: usize, outputs: usize) -> bool {
        rows <= SKINNY_GEMM_MAX_ROWS
            && outputs.is_multiple_of(4)
            && self.kernels.skinny_gemm.is_some()
    }

    /// Starts a stream: `residual[row] = table[tokens[row]]`, to be read through this norm.
    pub fn embedding_fwd_deferred_norm(
        &self,
        stream: &mut DeferredNormStream,
        table: &Buffer<bf16>,
        tokens: &Buffer<u32>,
        norm: &Buffer<f32>,
        rows: usize,
    ) -> Result<(), GpuError> {
        let width = stream.width;
        assert!(rows <= SKINNY_GEMM_MAX_ROWS && tokens.len() >= rows && norm.len() == width);
        stream.square_parts = 1;
        let columns = width as i32;
        let mut launch = self
            .stream
            .launch_builder(&self.kernels.embedding_fwd_deferred_norm);
        launch
            .arg(&mut stream.residual)
            .arg(&mut stream.weighted)
            .arg(&mut stream.row_squares);
        launch.arg(table).arg(tokens).arg(norm).arg(&columns);
        let threads = width.next_multiple_of(32).min(256);
        #[expect(unsafe_code, reason = "launches a kernel; sizes were checked")]
        // SAFETY: see the reason; the caller's tokens are below the table's rows. The kernel is launched without programmatic
        // dependent launch, so that nothing of a step starts before the step before has ended.
        unsafe { launch.launch(launch_config((rows, 1, 1), threads)) }?;
        Ok(())
    }

    /// `out = norm(stream) · weightᵀ`.
    pub fn skinny_gemm<T: GemmOutput>(
        &self,
        out: &mut Buffer<T>,
        stream: &DeferredNormStream,
        weight: &Buffer<bf16>,
        rows: usize,
    ) -> Result<(), GpuError> {
        let outputs = weight.len() / stream.width;
        assert!(out.len() >= rows * outputs);
        let kernels = self.skinny_gemm_kernels()?;
        let functions = if T::IS_F32 {
            &kernels.f32
        } else {
            &kernels.bf16
        };
        let params = self.stream_params(stream, self.address(out), weight, rows);
        self.launch_skinny_gemm(functions, &params)
    }

    /// `out = silu(gate) * up` of `norm(stream) · weightᵀ`, whose columns alternate: eight gates, the eight ups that belong to
    /// them, and so on.
    pub fn skinny_gemm_swiglu(
        &self,
        out: &mut Buffer<bf16>,
        stream: &DeferredNormStream,
        weight: &Buffer<bf16>,
        rows: usize,
    ) -> Result<(), GpuError> {
        let outputs = weight.len() / stream.width;
        assert!(outputs.is_multiple_of(16) && out.len() >= rows * outputs / 2);
        let params = self.stream_params(stream, self.address(out), weight, rows);
        self.launch_skinny_gemm(&self.skinny_gemm_kernels()?.swiglu, &params)
    }

    /// `residual += x · weightᵀ`, to be read through this norm.
    pub fn skinny_gemm_residual_norm(
        &self,
        stream: &mut DeferredNormStream,
        x: &Buffer<bf16>,
        weight: &Buffer<bf16>,
        norm: &Buffer<f32>,
        rows: usize,
    ) -> Result<(), GpuError> {
        let inputs = weight.len() / stream.width;
        assert!(x.len() >= rows * inputs && norm.len() == stream.width);
        stream.square_parts = stream.width.div_ceil(BLOCK_OUTPUTS) * sharing(stream.width, inputs);
        let params = SkinnyGemmParams {
            out: self.address(&stream.weighted),
            x: self.address(x),
            weight: self.address(weight),
            residual: self.address(&stream.residual),
            next_norm: self.address(norm),
            next_row_squares: self.address(&stream.row_squares),
            rows: rows as i32,
            inputs: inputs as i32,
            outputs: stream.width as i32,
            ..SkinnyGemmParams::default()
        };
        self.launch_skinny_gemm(&self.skinny_gemm_kernels()?.residual_norm, &params)
    }

    fn skinny_gemm_kernels(&self) -> Result<&SkinnyGemmKernels, GpuError> {
        self.kernels
            .skinny_gemm
            .as_ref()
            .ok_or(GpuError::NoSkinnyGemm)
    }

    fn stream_params(
        &self,
        stream: &DeferredNormStream,
        out: u64,
        weight: &Buffer<bf16>,
        rows: usize,
    ) -> SkinnyGemmParams {
        SkinnyGemmParams {
            out,
            x: self.address(&stream.weighted),
            weight: self.address(weight),
            row_squares: self.address(&stream.row_squares),
            rows: rows as i32,
            inputs: stream.width as i32,
            outputs: (weight.len() / stream.width) as i32,
            square_parts: stream.square_parts as i32,
            epsilon: stream.epsilon,
            ..SkinnyGemmParams::default()
        }
    }

    fn launch_skinny_gemm(
        &self,
        functions: &[CudaFunction],
        params: &SkinnyGemmParams,
    ) -> Result<(), GpuError> {
        let (rows, inputs, outputs) = (
            params.rows as usize,
            params.inputs as usize,
            params.outputs as usize,
        );
        assert!(
            (1..=SKINNY_GEMM_MAX_ROWS).contains(&rows)
                && inputs.is_multiple_of(8)
                && outputs.is_multiple_of(4)
        );
        let cluster = sharing(outputs, inputs);
        let variant = ROW_VARIANTS.partition_point(|max| *max < rows);
        let shape = LaunchShape {
            grid: (outputs.div_ceil(BLOCK_OUTPUTS) * cluster, 1, 1),
            threads: THREADS,
            shared_bytes: shared_bytes(ROW_VARIANTS[variant]),
            cluster,
        };
        #[expect(unsafe_code, reason = "launches a kernel; sizes were checked")]
        // SAFETY: see the reason. Before it waits, the kernel reads only weights.
        unsafe {
            self.launch(&functions[variant], &shape, params)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_split_where_outputs_are_few() {
        assert_eq!(sharing(1536, 8960), 8);
        assert_eq!(sharing(2048, 1536), 4);
        assert_eq!(sharing(17_920, 1536), 1);
        assert_eq!(sharing(128, 200), 4, "no more splits than stages");
    }
}
