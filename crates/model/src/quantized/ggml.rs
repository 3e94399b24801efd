//! ggml's tensor types, as files have them.

use half::{bf16, f16};
use rayon::prelude::*;

use super::{k_quants, legacy};
use crate::HostTensor;

/// `ggml_type`, those that can be read here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgmlType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Q8K,
}

impl GgmlType {
    pub const ALL: [Self; 15] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q8_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Q8K,
    ];

    /// Its number in a file.
    pub fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q8_1 => 9,
            Self::Q2K => 10,
            Self::Q3K => 11,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Q8K => 15,
            Self::Bf16 => 30,
        }
    }

    pub(crate) fn parse(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.id() == id)
    }

    /// Numbers of a block.
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::Q8_1 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Q8K => 256,
        }
    }

    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q8_1 => 36,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Q8K => 292,
        }
    }

    pub(super) fn row_bytes(self, columns: usize) -> usize {
        columns / self.block_len() * self.block_bytes()
    }
}

/// A tensor as a GGUF file has it: rows of blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgmlTensor {
    ggml_type: GgmlType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl GgmlTensor {
    /// Panics where the bytes are not whole rows of that shape.
    pub fn new(ggml_type: GgmlType, shape: Vec<usize>, bytes: Vec<u8>) -> Self {
        let tensor = Self {
            ggml_type,
            shape,
            bytes,
        };
        assert!(tensor.columns().is_multiple_of(ggml_type.block_len()));
        assert_eq!(tensor.rows() * tensor.row_bytes(), tensor.bytes.len());
        tensor
    }

    pub fn f32(tensor: &HostTensor) -> Self {
        let bytes = tensor.data().iter().flat_map(|one| one.to_le_bytes());
        Self::new(GgmlType::F32, tensor.shape().to_vec(), bytes.collect())
    }

    pub fn f16(tensor: &HostTensor) -> Self {
        let numbers = tensor.data().iter();
        let bytes = numbers.flat_map(|one| f16::from_f32(*one).to_le_bytes());
        Self::new(GgmlType::F16, tensor.shape().to_vec(), bytes.collect())
    }

    /// Panics where blocks do not fill the rows.
    pub fn q8_0(tensor: &HostTensor) -> Self {
        let bytes = legacy::quantize_q8_0(tensor.data());
        Self::new(GgmlType::Q8_0, tensor.shape().to_vec(), bytes)
    }

    pub fn ggml_type(&self) -> GgmlType {
        self.ggml_type
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.ggml_type.row_bytes(self.columns())
    }

    /// The same with its rows in another order: each is a whole number of blocks, so nothing is rounded again.
    pub(crate) fn with_rows(&self, order: impl Iterator<Item = usize>) -> Self {
        let row_bytes = self.row_bytes();
        let mut bytes = Vec::with_capacity(self.bytes.len());
        for row in order {
            bytes.extend_from_slice(&self.bytes[row * row_bytes..][..row_bytes]);
        }
        Self::new(self.ggml_type, self.shape.clone(), bytes)
    }

    pub fn dequantize(&self) -> HostTensor {
        let mut tensor = HostTensor::zeros(self.shape.clone());
        let blocks = 4096;
        tensor
            .data_mut()
            .par_chunks_mut(blocks * self.ggml_type.block_len())
            .zip(self.bytes.par_chunks(blocks * self.ggml_type.block_bytes()))
            .for_each(|(numbers, bytes)| dequantize(self.ggml_type, bytes, numbers));
        tensor
    }
}

/// Whole blocks as numbers, in ggml's own order of operations.
pub(super) fn dequantize(ggml_type: GgmlType, bytes: &[u8], numbers: &mut [f32]) {
    fn convert<const N: usize>(bytes: &[u8], numbers: &mut [f32], one: impl Fn([u8; N]) -> f32) {
        for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
            *number = one(*bytes);
        }
    }
    let dequantize_block: fn(&[u8], &mut [f32]) = match ggml_type {
        GgmlType::F32 => return convert(bytes, numbers, f32::from_le_bytes),
        GgmlType::F16 => return convert(bytes, numbers, |one| f16::from_le_bytes(one).to_f32()),
        GgmlType::Bf16 => return convert(bytes, numbers, |one| bf16::from_le_bytes(one).to_f32()),
        GgmlType::Q4_0 => legacy::Q4_0::dequantize,
        GgmlType::Q4_1 => legacy::Q4_1::dequantize,
        GgmlType::Q5_0 => legacy::Q5_0::dequantize,
        GgmlType::Q5_1 => legacy::Q5_1::dequantize,
        GgmlType::Q8_0 => legacy::Q8_0::dequantize,
        GgmlType::Q8_1 => legacy::dequantize_q8_1,
        GgmlType::Q2K => k_quants::dequantize_q2_k,
        GgmlType::Q3K => k_quants::dequantize_q3_k,
        GgmlType::Q4K => k_quants::Q4K::dequantize,
        GgmlType::Q5K => k_quants::Q5K::dequantize,
        GgmlType::Q6K => k_quants::Q6K::dequantize,
        GgmlType::Q8K => k_quants::dequantize_q8_k,
    };
    let blocks = bytes.chunks_exact(ggml_type.block_bytes());
    for (block, numbers) in blocks.zip(numbers.chunks_exact_mut(ggml_type.block_len())) {
        dequantize_block(block, numbers);
    }
}
