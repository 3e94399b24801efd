//! FlashAttention for training: causal attention of packed sequences over themselves, forward and backward.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaModule, DeviceRepr};

use crate::gpu::allow_shared;
use crate::launch::LaunchShape;
use crate::ptx::PtxArch;
use crate::training::layout::ModelShape;
use crate::{Buffer, Gpu, GpuError, bf16};

/// Consecutive rows of one packed sequence, which spans rows `begin` to `end`: a query block in the forward and dQ kernels, a key
/// block in the dK/dV kernel. A block without rows is padding.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SequenceBlock {
    pub row: u32,
    pub count: u32,
    pub begin: u32,
    pub end: u32,
}

#[expect(unsafe_code, reason = "plain numbers, laid out as the kernel's struct")]
// SAFETY: see the reason.
unsafe impl DeviceRepr for SequenceBlock {}

impl SequenceBlock {
    /// Splits packed sequences into blocks of at most so many rows.
    pub fn split(lengths: &[usize], max_rows: usize) -> Vec<Self> {
        let mut all = Vec::new();
        let mut begin = 0;
        for length in lengths {
            for row in (0..*length).step_by(max_rows) {
                all.push(Self {
                    row: (begin + row) as u32,
                    count: (length - row).min(max_rows) as u32,
                    begin: begin as u32,
                    end: (begin + length) as u32,
                });
            }
            begin += length;
        }
        all
    }

    /// Keys that its queries see.
    fn visible_keys(&self) -> u32 {
        self.row + self.count - self.begin
    }

    /// Queries that see its keys.
    fn later_queries(&self) -> u32 {
        self.end - self.row
    }
}

/// Which tensor-core instructions the attention kernels use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlashAttnKind {
    /// `mma.sync`, warp by warp: any device from compute capability 8.0 on.
    Mma,
    /// `wgmma`, four warps together with operands in shared memory: Hopper alone.
    Wgmma,
}

impl FlashAttnKind {
    /// The fastest that a device of this compute capability has.
    pub(crate) fn fastest_for(capability: (i32, i32)) -> Self {
        if capability == (9, 0) {
            Self::Wgmma
        } else {
            Self::Mma
        }
    }

    /// Rows of a thread block.
    pub fn block_rows(self, head_dim: usize) -> usize {
        match self {
            // As many as let the accumulators fit into registers.
            Self::Mma => 8192 / head_dim,
            Self::Wgmma => 128,
        }
    }

    fn threads(self) -> usize {
        match self {
            Self::Mma => 128,
            Self::Wgmma => 256,
        }
    }
}

/// Kernels of one kind, by head dimension.
pub(super) struct FlashAttnKernels {
    fwd: [CudaFunction; 2],
    bwd_dq: [CudaFunction; 2],
    bwd_dkv: [CudaFunction; 2],
}

impl FlashAttnKernels {
    pub(super) fn load(module: &Arc<CudaModule>, kind: FlashAttnKind) -> Result<Self, GpuError> {
        let prefix = match kind {
            FlashAttnKind::Mma => "flash_attn_varlen",
            FlashAttnKind::Wgmma => "flash_attn_varlen_sm90",
        };
        let by_head = |name: &str, bytes: SharedBytes| {
            let of = |head_dim: usize| -> Result<CudaFunction, GpuError> {
                let name = format!("{prefix}_{name}_{head_dim}");
                let function = module.load_function(&name)?;
                allow_shared(&function, bytes(kind, head_dim))?;
                Ok(function)
            };
            Ok::<_, GpuError>([of(64)?, of(128)?])
        };
        Ok(Self {
            fwd: by_head("fwd", fwd_shared_bytes)?,
            bwd_dq: by_head("bwd_dq", dq_shared_bytes)?,
            bwd_dkv: by_head("bwd_dkv", dkv_shared_bytes)?,
        })
    }
}

/// Packed sequences split into blocks, for kernels of one kind.
pub struct SequenceBlocks {
    kind: FlashAttnKind,
    head_dim: usize,
    /// Longest work first, so that the device is busy until the end.
    by_queries: Buffer<SequenceBlock>,
    by_keys: Buffer<SequenceBlock>,
    count: usize,
}

/// Counts are padded to a multiple of this, so that batches often share a CUDA graph.
const COUNT_MULTIPLE: usize = 32;

impl SequenceBlocks {
    /// With capacity for so many rows.
    pub fn new(
        gpu: &Gpu,
        kind: FlashAttnKind,
        rows: usize,
        head_dim: usize,
    ) -> Result<Self, GpuError> {
        // Loaded now, not while a CUDA graph is captured.
        gpu.flash_attn_kernels(kind)?;
        let padding = vec![SequenceBlock::default(); rows.next_multiple_of(COUNT_MULTIPLE)];
        Ok(Self {
            kind,
            head_dim,
            by_queries: gpu.upload(&padding)?,
            by_keys: gpu.upload(&padding)?,
            count: 0,
        })
    }

    /// Sequences of these lengths, packed one after the other.
    pub fn load(&mut self, gpu: &Gpu, lengths: &[usize]) -> Result<(), GpuError> {
        let mut blocks = SequenceBlock::split(lengths, self.kind.block_rows(self.head_dim));
        blocks.resize(
            blocks.len().next_multiple_of(COUNT_MULTIPLE),
            SequenceBlock::default(),
        );
        self.count = blocks.len();
        blocks.sort_by_key(|block| std::cmp::Reverse(block.visible_keys()));
        gpu.write(&mut self.by_queries, &blocks)?;
        blocks.sort_by_key(|block| std::cmp::Reverse(block.later_queries()));
        gpu.write(&mut self.by_keys, &blocks)
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }
}

/// Buffers of the forward kernel.
pub struct FlashAttnFwd<'a> {
    /// `[row][head][dim]`.
    pub out: &'a mut Buffer<bf16>,
    /// Log of each row's sum over exp(score): `[head][row]`.
    pub lse: &'a mut Buffer<f32>,
    pub qkv: &'a Buffer<bf16>,
    pub blocks: &'a SequenceBlocks,
}

/// Buffers of the backward kernels.
pub struct FlashAttnBwd<'a> {
    pub d_qkv: &'a mut Buffer<bf16>,
    /// Each row's sum over `d_out * out`: `[head][row]`.
    pub delta: &'a mut Buffer<f32>,
    pub d_out: &'a Buffer<bf16>,
    pub out: &'a Buffer<bf16>,
    pub lse: &'a Buffer<f32>,
    pub qkv: &'a Buffer<bf16>,
    pub blocks: &'a SequenceBlocks,
}

/// Sizes of the `Smem` structs in the kernels.
type SharedBytes = fn(FlashAttnKind, usize) -> u32;

fn fwd_shared_bytes(kind: FlashAttnKind, head_dim: usize) -> u32 {
    (match kind {
        FlashAttnKind::Mma => 16_384 + 512 * head_dim,
        FlashAttnKind::Wgmma => 1024 + (256 + 12 * head_dim) * head_dim,
    }) as u32
}

fn dq_shared_bytes(kind: FlashAttnKind, head_dim: usize) -> u32 {
    (match kind {
        FlashAttnKind::Mma => 32_768 + 256 * head_dim,
        FlashAttnKind::Wgmma => 1024 + 1280 * head_dim,
    }) as u32
}

fn dkv_shared_bytes(kind: FlashAttnKind, head_dim: usize) -> u32 {
    (match kind {
        FlashAttnKind::Mma => 33_280 + 256 * head_dim,
        FlashAttnKind::Wgmma => 102_400 + 512 * head_dim,
    }) as u32
}

#[repr(C)]
struct FwdParams {
    out: u64,
    lse: u64,
    qkv: u64,
    blocks: u64,
    heads: i32,
    kv_heads: i32,
    rows: i32,
    scale: f32,
}

#[repr(C)]
struct BwdParams {
    d_qkv: u64,
    delta: u64,
    d_out: u64,
    out: u64,
    lse: u64,
    qkv: u64,
    blocks: u64,
    heads: i32,
    kv_heads: i32,
    rows: i32,
    scale: f32,
}

fn for_head_dim<'a>(functions: &'a [CudaFunction; 2], shape: &ModelShape) -> &'a CudaFunction {
    &functions[usize::from(shape.head_dim == 128)]
}

impl SequenceBlocks {
    /// A thread block for each block of rows and each head.
    fn launch_shape(&self, heads: usize, bytes: SharedBytes) -> LaunchShape {
        LaunchShape {
            shared_bytes: bytes(self.kind, self.head_dim),
            ..LaunchShape::new((heads, self.count, 1), self.kind.threads())
        }
    }
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
    /// Has training attend with these kernels, which the device must support, and not with the fastest.
    #[must_use]
    pub fn with_flash_attn(mut self, kind: FlashAttnKind) -> Self {
        self.flash_attn_kind = kind;
        self
    }

    /// All kinds that this device supports.
    pub fn flash_attn_kinds(&self) -> Result<Vec<FlashAttnKind>, GpuError> {
        let mut all = vec![FlashAttnKind::Mma];
        if self.has_wgmma()? {
            all.push(FlashAttnKind::Wgmma);
        }
        Ok(all)
    }

    fn has_wgmma(&self) -> Result<bool, GpuError> {
        let capability = self.stream.context().compute_capability()?;
        Ok(FlashAttnKind::fastest_for(capability) == FlashAttnKind::Wgmma)
    }

    /// Loads them at the first call.
    fn flash_attn_kernels(&self, kind: FlashAttnKind) -> Result<&FlashAttnKernels, GpuError> {
        let kernels = self.training_kernels()?;
        let sm90 = &kernels.flash_attn_sm90;
        match (kind, sm90.get()) {
            (FlashAttnKind::Mma, _) => Ok(&kernels.flash_attn),
            (FlashAttnKind::Wgmma, Some(loaded)) => Ok(loaded),
            (FlashAttnKind::Wgmma, None) if self.has_wgmma()? => {
                let context = self.stream.context();
                let module = PtxArch::Sm90.load(context, "flash_attn_varlen_sm90")?;
                let loaded = FlashAttnKernels::load(&module, kind)?;
                Ok(sm90.get_or_init(|| loaded))
            }
            (FlashAttnKind::Wgmma, None) => Err(GpuError::NoWgmma),
        }
    }

    /// Each row attends to its sequence's rows up to itself.
    pub fn flash_attn_varlen_fwd(
        &self,
        layer: &mut FlashAttnFwd<'_>,
        shape: &ModelShape,
        rows: usize,
    ) -> Result<(), GpuError> {
        Self::supports_attention(shape.head_dim, shape.heads / shape.kv_heads)?;
        assert!(layer.out.len() >= rows * shape.query_width());
        assert!(layer.qkv.len() >= rows * shape.qkv_width());
        assert!(layer.lse.len() >= rows * shape.heads);
        assert_eq!(layer.blocks.head_dim, shape.head_dim);
        let params = FwdParams {
            out: self.address(layer.out),
            lse: self.address(layer.lse),
            qkv: self.address(layer.qkv),
            blocks: self.address(&layer.blocks.by_queries),
            heads: shape.heads as i32,
            kv_heads: shape.kv_heads as i32,
            rows: rows as i32,
            scale: (shape.head_dim as f32).sqrt().recip(),
        };
        let launch = layer.blocks.launch_shape(shape.heads, fwd_shared_bytes);
        let function = for_head_dim(&self.flash_attn_kernels(layer.blocks.kind)?.fwd, shape);
        // SAFETY: sizes were checked; the caller guarantees that blocks name rows that exist.
        unsafe { self.launch(function, &launch, &params) }
    }

    /// Gradients of queries, keys and values.
    pub fn flash_attn_varlen_bwd(
        &self,
        layer: &mut FlashAttnBwd<'_>,
        shape: &ModelShape,
        rows: usize,
    ) -> Result<(), GpuError> {
        Self::supports_attention(shape.head_dim, shape.heads / shape.kv_heads)?;
        let (queries, all) = (rows * shape.query_width(), rows * shape.qkv_width());
        assert!(layer.d_qkv.len() >= all && layer.qkv.len() >= all);
        assert!(layer.d_out.len() >= queries && layer.out.len() >= queries);
        assert!(layer.lse.len() >= rows * shape.heads);
        assert!(layer.delta.len() >= rows * shape.heads);
        assert_eq!(layer.blocks.head_dim, shape.head_dim);
        let kernels = self.flash_attn_kernels(layer.blocks.kind)?;
        let mut params = BwdParams {
            d_qkv: self.address(layer.d_qkv),
            delta: self.address(layer.delta),
            d_out: self.address(layer.d_out),
            out: self.address(layer.out),
            lse: self.address(layer.lse),
            qkv: self.address(layer.qkv),
            blocks: self.address(&layer.blocks.by_queries),
            heads: shape.heads as i32,
            kv_heads: shape.kv_heads as i32,
            rows: rows as i32,
            scale: (shape.head_dim as f32).sqrt().recip(),
        };
        let over_queries = layer.blocks.launch_shape(shape.heads, dq_shared_bytes);
        let over_keys = layer.blocks.launch_shape(shape.kv_heads, dkv_shared_bytes);
        // SAFETY: sizes were checked; the caller guarantees that blocks name rows that exist.
        unsafe {
            let function = for_head_dim(&kernels.bwd_dq, shape);
            self.launch(function, &over_queries, &params)?;
            params.blocks = self.address(&layer.blocks.by_keys);
            let function = for_head_dim(&kernels.bwd_dkv, shape);
            self.launch(function, &over_keys, &params)
        }
    }
}
