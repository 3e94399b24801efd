//! Attention of packed sequences over themselves.

use cudarc::driver::{CudaFunction, DeviceRepr};

use super::layout::Shape;
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
    /// Rows that a block has, as many as its sums fit into registers.
    pub fn most_rows(head_dim: usize) -> usize {
        8192 / head_dim
    }

    /// Cuts sequences that lie one after the other.
    pub fn cut(lengths: &[usize], head_dim: usize) -> Vec<Self> {
        let most = Self::most_rows(head_dim);
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
    pub fn before(&self) -> u32 {
        self.row + self.count - self.begin
    }

    /// Rows that see its keys.
    pub fn after(&self) -> u32 {
        self.end - self.row
    }
}

/// A layer's rows on the way forward.
pub struct Attended<'a> {
    /// `[row][head][number]`.
    pub out: &'a mut Buffer<bf16>,
    /// Logarithm of each row's sum over exp(score): `[head][row]`.
    pub log_totals: &'a mut Buffer<f32>,
    pub qkv: &'a Buffer<bf16>,
    /// Longest work first.
    pub stretches: &'a Buffer<Stretch>,
    pub count: usize,
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
    pub stretches: &'a Buffer<Stretch>,
    /// The same stretches in another order: those first whose keys are seen by most.
    pub by_keys: &'a Buffer<Stretch>,
    pub count: usize,
}

const THREADS: usize = 128;

/// As the `Shared` structs in the kernels.
pub(super) fn forward_bytes(head_dim: usize) -> u32 {
    (16_384 + 512 * head_dim) as u32
}

pub(super) fn query_bytes(head_dim: usize) -> u32 {
    (32_768 + 256 * head_dim) as u32
}

pub(super) fn key_bytes(head_dim: usize) -> u32 {
    (33_280 + 256 * head_dim) as u32
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

fn spread(heads: usize, count: usize, bytes: u32) -> Spread {
    Spread {
        shared: bytes,
        ..Spread::plain((heads, count, 1), THREADS)
    }
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
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
        assert!(layer.stretches.len() >= layer.count);
        let asked = Forward {
            out: self.address(layer.out),
            log_totals: self.address(layer.log_totals),
            qkv: self.address(layer.qkv),
            stretches: self.address(layer.stretches),
            heads: shape.heads as i32,
            kv_heads: shape.kv_heads as i32,
            rows: rows as i32,
            scale: (shape.head_dim as f32).sqrt().recip(),
        };
        let spread = spread(shape.heads, layer.count, forward_bytes(shape.head_dim));
        let function = of_size(&self.training()?.attention, shape);
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
        assert!(layer.stretches.len() >= layer.count && layer.by_keys.len() >= layer.count);
        let functions = self.training()?;
        let mut asked = Backward {
            slopes: self.address(layer.slopes),
            agreements: self.address(layer.agreements),
            out_slopes: self.address(layer.out_slopes),
            out: self.address(layer.out),
            log_totals: self.address(layer.log_totals),
            qkv: self.address(layer.qkv),
            stretches: self.address(layer.stretches),
            heads: shape.heads as i32,
            kv_heads: shape.kv_heads as i32,
            rows: rows as i32,
            scale: (shape.head_dim as f32).sqrt().recip(),
        };
        let of_queries = spread(shape.heads, layer.count, query_bytes(shape.head_dim));
        let of_keys = spread(shape.kv_heads, layer.count, key_bytes(shape.head_dim));
        // SAFETY: sizes were checked; stretches name rows that exist: the caller's word.
        unsafe {
            let function = of_size(&functions.attention_back_to_queries, shape);
            self.launch(function, &of_queries, &asked)?;
            asked.stretches = self.address(layer.by_keys);
            let function = of_size(&functions.attention_back_to_keys, shape);
            self.launch(function, &of_keys, &asked)
        }
    }
}
