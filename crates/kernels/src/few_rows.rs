//! Products of few rows, by our own kernels: cuBLAS leaves much of the memory's bandwidth unused there.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaModule, PushKernelArg};

use crate::gpu::{allow_shared, plain};
use crate::launch::Spread;
use crate::{Buffer, Gpu, GpuError, bf16};

/// Rows that are few.
pub const FEW: usize = 64;

/// The kernels are made for up to so many rows each.
const ROWS: [usize; 4] = [8, 16, 32, FEW];
/// Outputs a block has, inputs a stage has, and stages.
const OUTPUTS: usize = 128;
const DEPTH: usize = 64;
const STAGES: usize = 4;
const THREADS: usize = 256;
/// Blocks that may share a product's inputs.
const MOST_SHARING: usize = 8;
/// Blocks among which a product is shared out. Fewer than an H200 has multiprocessors: bringing the sums of more together took
/// longer than reading the weights with fewer.
const MOST_BLOCKS: usize = 112;

/// The residual stream of few rows, as products read it. They take it normed: its numbers come with the weights of the norm
/// applied, and what divides a row is made of its squares, which come in parts.
pub struct Stream {
    residual: Buffer<f32>,
    weighted: Buffer<bf16>,
    squares: Buffer<f32>,
    parts: usize,
    width: usize,
    epsilon: f32,
}

impl Stream {
    pub fn new(gpu: &Gpu, width: usize, epsilon: f32) -> Result<Self, GpuError> {
        let most_parts = width.div_ceil(OUTPUTS) * MOST_SHARING;
        Ok(Self {
            residual: gpu.zeros(FEW * width)?,
            weighted: gpu.zeros(FEW * width)?,
            squares: gpu.zeros(FEW * most_parts)?,
            parts: 1,
            width,
            epsilon,
        })
    }

    pub fn residual(&self) -> &Buffer<f32> {
        &self.residual
    }
}

/// By what is done with the sums, then by rows.
pub(crate) struct FewRows {
    narrow: Vec<CudaFunction>,
    wide: Vec<CudaFunction>,
    gate: Vec<CudaFunction>,
    add: Vec<CudaFunction>,
}

impl FewRows {
    pub(crate) fn load(module: &Arc<CudaModule>) -> Result<Self, GpuError> {
        let all = |then: &str| -> Result<Vec<CudaFunction>, GpuError> {
            let each = ROWS.iter().map(|rows| {
                let function = module.load_function(&format!("few_rows_{then}_{rows}"))?;
                allow_shared(&function, shared_bytes(*rows))?;
                Ok(function)
            });
            each.collect()
        };
        Ok(Self {
            narrow: all("narrow")?,
            wide: all("wide")?,
            gate: all("gate")?,
            add: all("add")?,
        })
    }
}

fn shared_bytes(rows: usize) -> u32 {
    (STAGES * (OUTPUTS + rows) * DEPTH * size_of::<bf16>()) as u32
}

/// Blocks that share a product's inputs, so that most multiprocessors have work.
fn sharing(outputs: usize, inputs: usize) -> usize {
    let (tiles, stages) = (outputs.div_ceil(OUTPUTS), inputs.div_ceil(DEPTH));
    let mut sharing = 1;
    while sharing < MOST_SHARING && 2 * sharing * tiles <= MOST_BLOCKS && 2 * sharing <= stages {
        sharing *= 2;
    }
    sharing
}

/// As in the kernel.
#[repr(C)]
#[derive(Default)]
struct Product {
    out: u64,
    x: u64,
    weight: u64,
    squares: u64,
    residual: u64,
    next_norm: u64,
    next_squares: u64,
    rows: i32,
    inputs: i32,
    outputs: i32,
    parts: i32,
    epsilon: f32,
}

/// What a product of few rows may be written as.
pub trait Written {
    #[doc(hidden)]
    const WIDE: bool;
}

impl Written for bf16 {
    const WIDE: bool = false;
}

impl Written for f32 {
    const WIDE: bool = true;
}

impl Gpu {
    /// Whether products of that many rows, with so many outputs, can be had this way.
    pub fn takes_few(&self, rows: usize, outputs: usize) -> bool {
        rows <= FEW && outputs.is_multiple_of(4) && self.functions.few_rows.is_some()
    }

    /// Begins a stream: `residual[row] = table[tokens[row]]`, for a product after this norm.
    pub fn embed_stream(
        &self,
        stream: &mut Stream,
        table: &Buffer<bf16>,
        tokens: &Buffer<u32>,
        norm: &Buffer<f32>,
        rows: usize,
    ) -> Result<(), GpuError> {
        let width = stream.width;
        assert!(rows <= FEW && tokens.len() >= rows && norm.len() == width);
        stream.parts = 1;
        let wide = width as i32;
        let mut launch = self.stream.launch_builder(&self.functions.embed_stream);
        launch
            .arg(&mut stream.residual)
            .arg(&mut stream.weighted)
            .arg(&mut stream.squares);
        launch.arg(table).arg(tokens).arg(norm).arg(&wide);
        let threads = width.next_multiple_of(32).min(256);
        #[expect(unsafe_code, reason = "launches a kernel; sizes were checked")]
        // SAFETY: see the reason; the caller's tokens are below the table's rows. It starts after everything before it, so
        // that nothing of a step starts before the step before has ended.
        unsafe { launch.launch(plain((rows, 1, 1), threads)) }?;
        Ok(())
    }

    /// `out = norm(stream) · weightᵀ`.
    pub fn product<T: Written>(
        &self,
        out: &mut Buffer<T>,
        stream: &Stream,
        weight: &Buffer<bf16>,
        rows: usize,
    ) -> Result<(), GpuError> {
        let outputs = weight.len() / stream.width;
        assert!(out.len() >= rows * outputs);
        let few = self.few_rows()?;
        let functions = if T::WIDE { &few.wide } else { &few.narrow };
        let asked = self.of_stream(stream, self.address(out), weight, rows);
        self.launch_product(functions, &asked)
    }

    /// `out = silu(gate) * up` of `norm(stream) · weightᵀ`: eight gates, their eight factors, and so on.
    pub fn gated_product(
        &self,
        out: &mut Buffer<bf16>,
        stream: &Stream,
        weight: &Buffer<bf16>,
        rows: usize,
    ) -> Result<(), GpuError> {
        let outputs = weight.len() / stream.width;
        assert!(outputs.is_multiple_of(16) && out.len() >= rows * outputs / 2);
        let asked = self.of_stream(stream, self.address(out), weight, rows);
        self.launch_product(&self.few_rows()?.gate, &asked)
    }

    /// `residual += x · weightᵀ`, for a product after this norm.
    pub fn add_product(
        &self,
        stream: &mut Stream,
        x: &Buffer<bf16>,
        weight: &Buffer<bf16>,
        norm: &Buffer<f32>,
        rows: usize,
    ) -> Result<(), GpuError> {
        let inputs = weight.len() / stream.width;
        assert!(x.len() >= rows * inputs && norm.len() == stream.width);
        stream.parts = stream.width.div_ceil(OUTPUTS) * sharing(stream.width, inputs);
        let asked = Product {
            out: self.address(&stream.weighted),
            x: self.address(x),
            weight: self.address(weight),
            residual: self.address(&stream.residual),
            next_norm: self.address(norm),
            next_squares: self.address(&stream.squares),
            rows: rows as i32,
            inputs: inputs as i32,
            outputs: stream.width as i32,
            ..Product::default()
        };
        self.launch_product(&self.few_rows()?.add, &asked)
    }

    fn few_rows(&self) -> Result<&FewRows, GpuError> {
        self.functions.few_rows.as_ref().ok_or(GpuError::FewRows)
    }

    fn of_stream(&self, stream: &Stream, out: u64, weight: &Buffer<bf16>, rows: usize) -> Product {
        Product {
            out,
            x: self.address(&stream.weighted),
            weight: self.address(weight),
            squares: self.address(&stream.squares),
            rows: rows as i32,
            inputs: stream.width as i32,
            outputs: (weight.len() / stream.width) as i32,
            parts: stream.parts as i32,
            epsilon: stream.epsilon,
            ..Product::default()
        }
    }

    fn launch_product(&self, functions: &[CudaFunction], asked: &Product) -> Result<(), GpuError> {
        let (rows, inputs, outputs) = (
            asked.rows as usize,
            asked.inputs as usize,
            asked.outputs as usize,
        );
        assert!((1..=FEW).contains(&rows) && inputs.is_multiple_of(8) && outputs.is_multiple_of(4));
        let cluster = sharing(outputs, inputs);
        let place = ROWS.partition_point(|most| *most < rows);
        let spread = Spread {
            grid: (outputs.div_ceil(OUTPUTS) * cluster, 1, 1),
            threads: THREADS,
            shared: shared_bytes(ROWS[place]),
            cluster,
        };
        #[expect(unsafe_code, reason = "launches a kernel; sizes were checked")]
        // SAFETY: see the reason. The kernel reads weights only before it waits.
        unsafe {
            self.launch(&functions[place], &spread, asked)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_share_inputs_where_outputs_are_few() {
        assert_eq!(sharing(1536, 8960), 8);
        assert_eq!(sharing(2048, 1536), 4);
        assert_eq!(sharing(17_920, 1536), 1);
        assert_eq!(sharing(128, 200), 4, "no more than there are stages");
    }
}
