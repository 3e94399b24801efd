//! Attention over kept keys and values.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaModule, DeviceRepr, LaunchConfig, PushKernelArg};

use crate::gpu::{allow_shared, plain};
use crate::launch::Spread;
use crate::{Buffer, Gpu, GpuError, Rotation, bf16};

/// Query heads that may share a key head.
pub const MOST_IN_GROUP: usize = 8;
/// New positions that one block of a prompt has.
pub const TILE: usize = 64;

/// One layer's keys and values of all sequences, and where the rows at hand stand in them.
pub struct Cached<'a> {
    /// `[slot][head][position][number]`.
    pub keys: &'a mut Buffer<bf16>,
    pub values: &'a mut Buffer<bf16>,
    /// Each row's sequence.
    pub slots: &'a Buffer<u32>,
    /// Each row's place in it.
    pub positions: &'a Buffer<u32>,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Positions a slot has.
    pub capacity: usize,
}

/// Neighbouring new positions of one sequence, at most [`TILE`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tile {
    pub row: u32,
    pub count: u32,
    pub slot: u32,
    pub position: u32,
}

#[expect(unsafe_code, reason = "plain numbers, laid out as the kernel's struct")]
// SAFETY: see the reason.
unsafe impl DeviceRepr for Tile {}

/// Room for the parts of sequences that several blocks share.
pub struct Decoding {
    sums: Buffer<f32>,
    scales: Buffer<f32>,
    /// Blocks of each row and key head that are done.
    done: Buffer<u32>,
    splits: usize,
}

impl Decoding {
    /// For so many rows of so many heads; `splits` blocks share a sequence.
    pub fn new(
        gpu: &Gpu,
        rows: usize,
        (heads, head_dim): (usize, usize),
        splits: usize,
    ) -> Result<Self, GpuError> {
        let parts = if splits > 1 { splits * rows * heads } else { 0 };
        Ok(Self {
            sums: gpu.zeros((parts * head_dim).max(1))?,
            scales: gpu.zeros((2 * parts).max(2))?,
            done: gpu.zeros(rows * heads)?,
            splits: splits.max(1),
        })
    }

    /// Blocks that may share a sequence, so that a device with that many multiprocessors has enough of them.
    pub fn splits_for(rows: usize, kv_heads: usize, multiprocessors: usize) -> usize {
        (multiprocessors / (rows * kv_heads).max(1)).clamp(1, 8)
    }
}

pub(crate) struct Attention {
    /// By head size, as are the others.
    decode: [CudaFunction; 2],
    prefill: [CudaFunction; 2],
}

const HEAD_DIMS: [usize; 2] = [64, 128];
const DECODE_THREADS: usize = 320;

/// As in the kernel.
#[repr(C)]
struct Asked {
    out: u64,
    part_sums: u64,
    part_scales: u64,
    done: u64,
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

/// As `Shared` in the kernel.
fn prefill_bytes(head_dim: usize) -> u32 {
    (512 * head_dim + 29_696) as u32
}

impl Attention {
    pub(crate) fn load(
        decode: &Arc<CudaModule>,
        prefill: &Arc<CudaModule>,
    ) -> Result<Self, GpuError> {
        let steps = |head_dim: usize| decode.load_function(&format!("attention_decode_{head_dim}"));
        let prompts = |head_dim: usize| -> Result<CudaFunction, GpuError> {
            let function = prefill.load_function(&format!("attention_prefill_{head_dim}"))?;
            allow_shared(&function, prefill_bytes(head_dim))?;
            Ok(function)
        };
        Ok(Self {
            decode: [steps(HEAD_DIMS[0])?, steps(HEAD_DIMS[1])?],
            prefill: [prompts(HEAD_DIMS[0])?, prompts(HEAD_DIMS[1])?],
        })
    }

    fn place(head_dim: usize, group: usize) -> Result<usize, GpuError> {
        HEAD_DIMS
            .iter()
            .position(|known| *known == head_dim)
            .filter(|_| (1..=MOST_IN_GROUP).contains(&group))
            .ok_or(GpuError::Attention { head_dim, group })
    }
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
    /// Whether attention of this shape can be had.
    pub fn attends(head_dim: usize, group: usize) -> Result<(), GpuError> {
        Attention::place(head_dim, group).map(drop)
    }

    /// One new position a row: turns its queries and key, keeps key and value, attends to everything up to it. `qkv` is
    /// what the product left.
    pub fn attention_decode(
        &self,
        out: &mut Buffer<bf16>,
        qkv: &Buffer<bf16>,
        cached: &mut Cached<'_>,
        rotation: &Rotation<'_>,
        room: &mut Decoding,
        rows: usize,
    ) -> Result<(), GpuError> {
        let (head_dim, kv_heads, heads) = (cached.head_dim, cached.kv_heads, rotation.heads);
        let place = Attention::place(head_dim, heads / kv_heads)?;
        let width = (heads + 2 * kv_heads) * head_dim;
        assert!(qkv.len() >= rows * width && out.len() >= rows * heads * head_dim);
        assert!(rotation.frequencies.len() == head_dim / 2);
        let splits = room.splits;
        assert!(splits == 1 || room.sums.len() >= splits * rows * heads * head_dim);
        let norms = rotation.head_norms;
        let asked = Asked {
            out: self.address(out),
            part_sums: self.address(&room.sums),
            part_scales: self.address(&room.scales),
            done: self.address(&room.done),
            qkv: self.address(qkv),
            bias: self.address_if(rotation.bias),
            query_norm: self.address_if(norms.map(|norms| norms.0)),
            key_norm: self.address_if(norms.map(|norms| norms.1)),
            frequencies: self.address(rotation.frequencies),
            keys: self.address(cached.keys),
            values: self.address(cached.values),
            slots: self.address(cached.slots),
            positions: self.address(cached.positions),
            heads: heads as i32,
            kv_heads: kv_heads as i32,
            capacity: cached.capacity as i32,
            scale: (head_dim as f32).sqrt().recip(),
            epsilon: rotation.epsilon,
        };
        let spread = Spread::plain((kv_heads, rows, splits), DECODE_THREADS);
        // SAFETY: sizes were checked; slots and positions within them are the caller's word. Before it waits the kernel reads
        // only those two and what earlier steps kept.
        unsafe { self.launch(&self.functions.attention.decode[place], &spread, &asked) }
    }

    /// Many new positions of a sequence, cut into tiles.
    pub fn attention_prefill(
        &self,
        out: &mut Buffer<bf16>,
        qkv: &Buffer<bf16>,
        cached: &Cached<'_>,
        heads: usize,
        tiles: &Buffer<Tile>,
        count: usize,
    ) -> Result<(), GpuError> {
        let (head_dim, kv_heads) = (cached.head_dim, cached.kv_heads);
        let place = Attention::place(head_dim, heads / kv_heads)?;
        assert!(tiles.len() >= count);
        let wide = ((heads + 2 * kv_heads) * head_dim) as i32;
        let (all, kv, capacity) = (heads as i32, kv_heads as i32, cached.capacity as i32);
        let scale = (head_dim as f32).sqrt().recip();
        let mut launch = self
            .stream
            .launch_builder(&self.functions.attention.prefill[place]);
        launch
            .arg(out)
            .arg(qkv)
            .arg(&wide)
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
            ..plain((count, heads, 1), 128)
        };
        // SAFETY: tiles name rows and slots that exist: the caller's word.
        unsafe { launch.launch(config) }?;
        Ok(())
    }
}
