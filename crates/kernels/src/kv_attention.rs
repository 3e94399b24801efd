//! Attention of inference, over a KV cache.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaModule, DeviceRepr, LaunchConfig, PushKernelArg};

use crate::gpu::{allow_shared, launch_config};
use crate::launch::LaunchShape;
use crate::{Buffer, Gpu, GpuError, QkvRope, bf16};

/// Most query heads that may share a KV head.
pub const MAX_QUERY_GROUP: usize = 8;
/// Most new positions of a prompt that one thread block has.
pub const PREFILL_TILE: usize = 64;

/// One layer's keys and values of all sequences, and the cache slot and position of each row of the batch.
pub struct KvCacheLayer<'a> {
    /// `[slot][head][position][dim]`.
    pub keys: &'a mut Buffer<bf16>,
    pub values: &'a mut Buffer<bf16>,
    /// Each row's slot.
    pub slots: &'a Buffer<u32>,
    /// Each row's position in its sequence.
    pub positions: &'a Buffer<u32>,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Positions of a slot.
    pub capacity: usize,
}

/// Consecutive new positions of one sequence, at most [`PREFILL_TILE`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefillTile {
    pub row: u32,
    pub count: u32,
    pub slot: u32,
    pub position: u32,
}

#[expect(unsafe_code, reason = "plain numbers, laid out as the kernel's struct")]
// SAFETY: see the reason.
unsafe impl DeviceRepr for PrefillTile {}

/// Scratch memory for decoding: partial results of sequences that several thread blocks split.
pub struct DecodeScratch {
    partial_sums: Buffer<f32>,
    partial_max_sum: Buffer<f32>,
    /// For each row and KV head, how many splits have finished.
    finished_splits: Buffer<u32>,
    splits: usize,
}

impl DecodeScratch {
    /// For so many rows of so many heads; `splits` blocks split a sequence.
    pub fn new(
        gpu: &Gpu,
        rows: usize,
        (heads, head_dim): (usize, usize),
        splits: usize,
    ) -> Result<Self, GpuError> {
        let partials = if splits > 1 { splits * rows * heads } else { 0 };
        Ok(Self {
            partial_sums: gpu.zeros((partials * head_dim).max(1))?,
            partial_max_sum: gpu.zeros((2 * partials).max(2))?,
            finished_splits: gpu.zeros(rows * heads)?,
            splits: splits.max(1),
        })
    }

    /// How many blocks should split a sequence, so that all multiprocessors have work.
    pub fn splits_for(rows: usize, kv_heads: usize, multiprocessors: usize) -> usize {
        (multiprocessors / (rows * kv_heads).max(1)).clamp(1, 8)
    }
}

pub(crate) struct KvAttentionKernels {
    /// By head dimension, as is the other.
    decode: [CudaFunction; 2],
    prefill: [CudaFunction; 2],
}

const HEAD_DIMS: [usize; 2] = [64, 128];
const DECODE_THREADS: usize = 320;

/// As in the kernel.
#[repr(C)]
struct DecodeParams {
    out: u64,
    partial_sums: u64,
    partial_max_sum: u64,
    finished_splits: u64,
    qkv: u64,
    bias: u64,
    query_norm: u64,
    key_norm: u64,
    frequencies: u64,
    keys: u64,
    values: u64,
    slots: u64,
    positions: u64,
    heads: i32,
    kv_heads: i32,
    capacity: i32,
    scale: f32,
    epsilon: f32,
}

/// Size of `PrefillSmem` in the kernel.
fn prefill_bytes(head_dim: usize) -> u32 {
    (512 * head_dim + 29_696) as u32
}

impl KvAttentionKernels {
    pub(crate) fn load(
        decode: &Arc<CudaModule>,
        prefill: &Arc<CudaModule>,
    ) -> Result<Self, GpuError> {
        let decode =
            |head_dim: usize| decode.load_function(&format!("flash_attn_decode_{head_dim}"));
        let prefill = |head_dim: usize| -> Result<CudaFunction, GpuError> {
            let function = prefill.load_function(&format!("flash_attn_prefill_{head_dim}"))?;
            allow_shared(&function, prefill_bytes(head_dim))?;
            Ok(function)
        };
        Ok(Self {
            decode: [decode(HEAD_DIMS[0])?, decode(HEAD_DIMS[1])?],
            prefill: [prefill(HEAD_DIMS[0])?, prefill(HEAD_DIMS[1])?],
        })
    }

    fn head_dim_index(head_dim: usize, group: usize) -> Result<usize, GpuError> {
        HEAD_DIMS
            .iter()
            .position(|known| *known == head_dim)
            .filter(|_| (1..=MAX_QUERY_GROUP).contains(&group))
            .ok_or(GpuError::UnsupportedAttention { head_dim, group })
    }
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
    /// Whether the kernels support heads of this dimension in groups of this size.
    pub fn supports_attention(head_dim: usize, group: usize) -> Result<(), GpuError> {
        KvAttentionKernels::head_dim_index(head_dim, group).map(drop)
    }

    /// Decoding, one new position a row: applies bias, head norms and RoPE, appends key and value to the cache, and attends
    /// to everything up to that position. `qkv` is what the QKV product left.
    pub fn flash_attn_decode(
        &self,
        out: &mut Buffer<bf16>,
        qkv: &Buffer<bf16>,
        cached: &mut KvCacheLayer<'_>,
        rope: &QkvRope<'_>,
        scratch: &mut DecodeScratch,
        rows: usize,
    ) -> Result<(), GpuError> {
        let (head_dim, kv_heads, heads) = (cached.head_dim, cached.kv_heads, rope.heads);
        let variant = KvAttentionKernels::head_dim_index(head_dim, heads / kv_heads)?;
        let width = (heads + 2 * kv_heads) * head_dim;
        assert!(qkv.len() >= rows * width && out.len() >= rows * heads * head_dim);
        assert!(rope.frequencies.len() == head_dim / 2);
        let splits = scratch.splits;
        assert!(splits == 1 || scratch.partial_sums.len() >= splits * rows * heads * head_dim);
        let norms = rope.head_norms;
        let params = DecodeParams {
            out: self.address(out),
            partial_sums: self.address(&scratch.partial_sums),
            partial_max_sum: self.address(&scratch.partial_max_sum),
            finished_splits: self.address(&scratch.finished_splits),
            qkv: self.address(qkv),
            bias: self.address_or_null(rope.bias),
            query_norm: self.address_or_null(norms.map(|norms| norms.0)),
            key_norm: self.address_or_null(norms.map(|norms| norms.1)),
            frequencies: self.address(rope.frequencies),
            keys: self.address(cached.keys),
            values: self.address(cached.values),
            slots: self.address(cached.slots),
            positions: self.address(cached.positions),
            heads: heads as i32,
            kv_heads: kv_heads as i32,
            capacity: cached.capacity as i32,
            scale: (head_dim as f32).sqrt().recip(),
            epsilon: rope.epsilon,
        };
        let shape = LaunchShape::new((kv_heads, rows, splits), DECODE_THREADS);
        // SAFETY: sizes were checked; the caller guarantees that slots and positions exist. Before it waits, the kernel reads
        // only those two and what earlier steps appended.
        unsafe { self.launch(&self.kernels.kv_attention.decode[variant], &shape, &params) }
    }

    /// Prefill: many new positions of a sequence, cut into tiles.
    pub fn flash_attn_prefill(
        &self,
        out: &mut Buffer<bf16>,
        qkv: &Buffer<bf16>,
        cached: &KvCacheLayer<'_>,
        heads: usize,
        tiles: &Buffer<PrefillTile>,
        count: usize,
    ) -> Result<(), GpuError> {
        let (head_dim, kv_heads) = (cached.head_dim, cached.kv_heads);
        let variant = KvAttentionKernels::head_dim_index(head_dim, heads / kv_heads)?;
        assert!(tiles.len() >= count);
        let qkv_width = ((heads + 2 * kv_heads) * head_dim) as i32;
        let (all, kv, capacity) = (heads as i32, kv_heads as i32, cached.capacity as i32);
        let scale = (head_dim as f32).sqrt().recip();
        let mut launch = self
            .stream
            .launch_builder(&self.kernels.kv_attention.prefill[variant]);
        launch
            .arg(out)
            .arg(qkv)
            .arg(&qkv_width)
            .arg(&*cached.keys)
            .arg(&*cached.values);
        launch
            .arg(tiles)
            .arg(&all)
            .arg(&kv)
            .arg(&capacity)
            .arg(&scale);
        let config = LaunchConfig {
            shared_mem_bytes: prefill_bytes(head_dim),
            ..launch_config((count, heads, 1), 128)
        };
        // SAFETY: the caller guarantees that tiles name rows and slots that exist.
        unsafe { launch.launch(config) }?;
        Ok(())
    }
}
