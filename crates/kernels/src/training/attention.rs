//! Attention of packed sequences over themselves.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaModule, DeviceRepr};

use super::layout::Shape;
use crate::gpu::{allow_shared, module};
use crate::launch::Spread;
use crate::{Buffer, Gpu, GpuError, bf16};

/// Neighbouring rows of one sequence; the sequence has rows `begin` up to `end`. One without rows is nothing to do.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stretch {
    pub row: u32,
    pub count: u32,
    pub begin: u32,
    pub end: u32,
}

#[expect(unsafe_code, reason = "plain numbers, laid out as the kernel's struct")]
// SAFETY: see the reason.
unsafe impl DeviceRepr for Stretch {}

impl Stretch {
    /// Cuts sequences that lie one after the other into stretches of at most so many rows.
    pub fn cut(lengths: &[usize], most: usize) -> Vec<Self> {
        let mut all = Vec::new();
        let mut begin = 0;
        for length in lengths {
            for row in (0..*length).step_by(most) {
                all.push(Self {
                    row: (begin + row) as u32,
                    count: (length - row).min(most) as u32,
                    begin: begin as u32,
                    end: (begin + length) as u32,
                });
            }
            begin += length;
        }
        all
    }

    /// Rows that its queries see.
    fn before(&self) -> u32 {
        self.row + self.count - self.begin
    }

    /// Rows that see its keys.
    fn after(&self) -> u32 {
        self.end - self.row
    }
}

/// Which kernels attend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    /// Each warp for itself: any device since 8.0.
    Warps,
    /// Four warps together, whose factors stay in shared memory: Hopper alone.
    WarpGroups,
}

impl Attention {
    /// The fastest that a device of this compute capability has.
    pub(crate) fn of(capability: (i32, i32)) -> Self {
        if capability == (9, 0) {
            Self::WarpGroups
        } else {
            Self::Warps
        }
    }

    /// Rows that a block has.
    pub fn rows(self, head_dim: usize) -> usize {
        match self {
            // As many as its sums fit into registers.
            Self::Warps => 8192 / head_dim,
            Self::WarpGroups => 128,
        }
    }

    fn threads(self) -> usize {
        match self {
            Self::Warps => 128,
            Self::WarpGroups => 256,
        }
    }
}

/// Kernels of one kind, by head size.
pub(super) struct Kernels {
    forward: [CudaFunction; 2],
    back_to_queries: [CudaFunction; 2],
    back_to_keys: [CudaFunction; 2],
}

impl Kernels {
    pub(super) fn load(module: &Arc<CudaModule>, kind: Attention) -> Result<Self, GpuError> {
        let prefix = match kind {
            Attention::Warps => "packed",
            Attention::WarpGroups => "hopper",
        };
        let by_head = |name: &str, bytes: Bytes| {
            let of = |head_dim: usize| -> Result<CudaFunction, GpuError> {
                let name = format!("{prefix}_{name}_{head_dim}");
                let function = module.load_function(&name)?;
                allow_shared(&function, bytes(kind, head_dim))?;
                Ok(function)
            };
            Ok::<_, GpuError>([of(64)?, of(128)?])
        };
        Ok(Self {
            forward: by_head("forward", forward_bytes)?,
            back_to_queries: by_head("back_to_queries", query_bytes)?,
            back_to_keys: by_head("back_to_keys", key_bytes)?,
        })
    }
}

/// Rows of packed sequences, shared out among the blocks of one kind of kernels.
pub struct Stretches {
    kind: Attention,
    head_dim: usize,
    /// Longest work first: what is left at the end is short.
    by_queries: Buffer<Stretch>,
    by_keys: Buffer<Stretch>,
    count: usize,
}

/// Counts are rounded up to a multiple of this, so that passes are often alike.
const ROUND: usize = 32;

impl Stretches {
    /// With room for so many rows.
    pub fn new(gpu: &Gpu, kind: Attention, rows: usize, head_dim: usize) -> Result<Self, GpuError> {
        // Now, and not when somebody records a pass.
        gpu.kernels(kind)?;
        let none = vec![Stretch::default(); rows.next_multiple_of(ROUND)];
        Ok(Self {
            kind,
            head_dim,
            by_queries: gpu.upload(&none)?,
            by_keys: gpu.upload(&none)?,
            count: 0,
        })
    }

    /// Of sequences that lie one after the other.
    pub fn load(&mut self, gpu: &Gpu, lengths: &[usize]) -> Result<(), GpuError> {
        let mut all = Stretch::cut(lengths, self.kind.rows(self.head_dim));
        all.resize(all.len().next_multiple_of(ROUND), Stretch::default());
        self.count = all.len();
        all.sort_by_key(|one| std::cmp::Reverse(one.before()));
        gpu.write(&mut self.by_queries, &all)?;
        all.sort_by_key(|one| std::cmp::Reverse(one.after()));
        gpu.write(&mut self.by_keys, &all)
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }
}

/// A layer's rows on the way forward.
pub struct Attended<'a> {
    /// `[row][head][number]`.
    pub out: &'a mut Buffer<bf16>,
    /// Logarithm of each row's sum over exp(score): `[head][row]`.
    pub log_totals: &'a mut Buffer<f32>,
    pub qkv: &'a Buffer<bf16>,
    pub stretches: &'a Stretches,
}

/// And on the way back.
pub struct AttendedBack<'a> {
    /// Of queries, keys and values.
    pub slopes: &'a mut Buffer<bf16>,
    pub agreements: &'a mut Buffer<f32>,
    pub out_slopes: &'a Buffer<bf16>,
    pub out: &'a Buffer<bf16>,
    pub log_totals: &'a Buffer<f32>,
    pub qkv: &'a Buffer<bf16>,
    pub stretches: &'a Stretches,
}

/// As the `Shared` structs in the kernels.
type Bytes = fn(Attention, usize) -> u32;

fn forward_bytes(kind: Attention, head_dim: usize) -> u32 {
    (match kind {
        Attention::Warps => 16_384 + 512 * head_dim,
        Attention::WarpGroups => 1024 + (256 + 12 * head_dim) * head_dim,
    }) as u32
}

fn query_bytes(kind: Attention, head_dim: usize) -> u32 {
    (match kind {
        Attention::Warps => 32_768 + 256 * head_dim,
        Attention::WarpGroups => 1024 + 1280 * head_dim,
    }) as u32
}

fn key_bytes(kind: Attention, head_dim: usize) -> u32 {
    (match kind {
        Attention::Warps => 33_280 + 256 * head_dim,
        Attention::WarpGroups => 102_400 + 512 * head_dim,
    }) as u32
}

#[repr(C)]
struct Forward {
    out: u64,
    log_totals: u64,
    qkv: u64,
    stretches: u64,
    heads: i32,
    kv_heads: i32,
    rows: i32,
    scale: f32,
}

#[repr(C)]
struct Backward {
    slopes: u64,
    agreements: u64,
    out_slopes: u64,
    out: u64,
    log_totals: u64,
    qkv: u64,
    stretches: u64,
    heads: i32,
    kv_heads: i32,
    rows: i32,
    scale: f32,
}

fn of_size<'a>(functions: &'a [CudaFunction; 2], shape: &Shape) -> &'a CudaFunction {
    &functions[usize::from(shape.head_dim == 128)]
}

impl Stretches {
    /// A block for each of them and each of so many heads.
    fn spread(&self, heads: usize, bytes: Bytes) -> Spread {
        Spread {
            shared: bytes(self.kind, self.head_dim),
            ..Spread::plain((heads, self.count, 1), self.kind.threads())
        }
    }
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
    /// Has training attend by these kernels, where the device has them, and not by the fastest.
    #[must_use]
    pub fn attending_by(mut self, kind: Attention) -> Self {
        self.attention = kind;
        self
    }

    /// All that this device can attend with.
    pub fn attentions(&self) -> Result<Vec<Attention>, GpuError> {
        let mut all = vec![Attention::Warps];
        if self.has_warp_groups()? {
            all.push(Attention::WarpGroups);
        }
        Ok(all)
    }

    fn has_warp_groups(&self) -> Result<bool, GpuError> {
        let capability = self.stream.context().compute_capability()?;
        Ok(Attention::of(capability) == Attention::WarpGroups)
    }

    /// Loaded at the first call.
    fn kernels(&self, kind: Attention) -> Result<&Kernels, GpuError> {
        let functions = self.training()?;
        let hopper = &functions.hopper_attention;
        match (kind, hopper.get()) {
            (Attention::Warps, _) => Ok(&functions.attention),
            (Attention::WarpGroups, Some(there)) => Ok(there),
            (Attention::WarpGroups, None) if self.has_warp_groups()? => {
                let text = include_str!("../../ptx/90/hopper_attention.ptx");
                let module = module(self.stream.context(), text)?;
                let loaded = Kernels::load(&module, kind)?;
                Ok(hopper.get_or_init(|| loaded))
            }
            (Attention::WarpGroups, None) => Err(GpuError::WarpGroups),
        }
    }

    /// Each row over its sequence's rows up to it.
    pub fn packed_attention(
        &self,
        layer: &mut Attended<'_>,
        shape: &Shape,
        rows: usize,
    ) -> Result<(), GpuError> {
        Self::attends(shape.head_dim, shape.heads / shape.kv_heads)?;
        assert!(layer.out.len() >= rows * shape.query_width());
        assert!(layer.qkv.len() >= rows * shape.qkv_width());
        assert!(layer.log_totals.len() >= rows * shape.heads);
        assert_eq!(layer.stretches.head_dim, shape.head_dim);
        let asked = Forward {
            out: self.address(layer.out),
            log_totals: self.address(layer.log_totals),
            qkv: self.address(layer.qkv),
            stretches: self.address(&layer.stretches.by_queries),
            heads: shape.heads as i32,
            kv_heads: shape.kv_heads as i32,
            rows: rows as i32,
            scale: (shape.head_dim as f32).sqrt().recip(),
        };
        let spread = layer.stretches.spread(shape.heads, forward_bytes);
        let function = of_size(&self.kernels(layer.stretches.kind)?.forward, shape);
        // SAFETY: sizes were checked; stretches name rows that exist: the caller's word.
        unsafe { self.launch(function, &spread, &asked) }
    }

    /// Slopes of queries, keys and values.
    pub fn packed_attention_back(
        &self,
        layer: &mut AttendedBack<'_>,
        shape: &Shape,
        rows: usize,
    ) -> Result<(), GpuError> {
        Self::attends(shape.head_dim, shape.heads / shape.kv_heads)?;
        let (queries, all) = (rows * shape.query_width(), rows * shape.qkv_width());
        assert!(layer.slopes.len() >= all && layer.qkv.len() >= all);
        assert!(layer.out_slopes.len() >= queries && layer.out.len() >= queries);
        assert!(layer.log_totals.len() >= rows * shape.heads);
        assert!(layer.agreements.len() >= rows * shape.heads);
        assert_eq!(layer.stretches.head_dim, shape.head_dim);
        let kernels = self.kernels(layer.stretches.kind)?;
        let mut asked = Backward {
            slopes: self.address(layer.slopes),
            agreements: self.address(layer.agreements),
            out_slopes: self.address(layer.out_slopes),
            out: self.address(layer.out),
            log_totals: self.address(layer.log_totals),
            qkv: self.address(layer.qkv),
            stretches: self.address(&layer.stretches.by_queries),
            heads: shape.heads as i32,
            kv_heads: shape.kv_heads as i32,
            rows: rows as i32,
            scale: (shape.head_dim as f32).sqrt().recip(),
        };
        let of_queries = layer.stretches.spread(shape.heads, query_bytes);
        let of_keys = layer.stretches.spread(shape.kv_heads, key_bytes);
        // SAFETY: sizes were checked; stretches name rows that exist: the caller's word.
        unsafe {
            let function = of_size(&kernels.back_to_queries, shape);
            self.launch(function, &of_queries, &asked)?;
            asked.stretches = self.address(&layer.stretches.by_keys);
            let function = of_size(&kernels.back_to_keys, shape);
            self.launch(function, &of_keys, &asked)
        }
    }
}
