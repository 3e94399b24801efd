//! Matrices and inputs for tests.

use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{GgmlTensor, GgmlType};
use crate::HostTensor;

pub(crate) fn random_input(rows: usize, columns: usize, seed: u64) -> HostTensor {
    let mut random = StdRng::seed_from_u64(seed);
    let numbers = (0..rows * columns).map(|_| random.random_range(-1.0..1.0));
    HostTensor::new([rows, columns], numbers.collect())
}

/// Every bit is random but those of the scales.
pub(crate) fn random_tensor(ggml_type: GgmlType, rows: usize, columns: usize) -> GgmlTensor {
    let mut random = StdRng::seed_from_u64(3);
    let halves: &[usize] = match ggml_type {
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q8_1 | GgmlType::Q4K | GgmlType::Q5K => &[0, 2],
        GgmlType::Q2K => &[80, 82],
        GgmlType::Q3K => &[108],
        GgmlType::Q6K => &[208],
        GgmlType::F32 | GgmlType::Bf16 | GgmlType::Q8K => &[],
        _ => &[0],
    };
    let blocks = rows * columns / ggml_type.block_len();
    let mut bytes = Vec::new();
    for _ in 0..blocks {
        let mut block: Vec<u8> = (0..ggml_type.block_bytes())
            .map(|_| random.random())
            .collect();
        for &at in halves {
            let scale = f16::from_f32(random.random_range(-0.1..0.1));
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
        let number: f32 = random.random_range(-0.1..0.1);
        match ggml_type {
            GgmlType::F32 | GgmlType::Q8K => block[..4].copy_from_slice(&number.to_le_bytes()),
            GgmlType::Bf16 => block.copy_from_slice(&bf16::from_f32(number).to_le_bytes()),
            _ => {}
        }
        bytes.extend(block);
    }
    GgmlTensor::new(ggml_type, vec![rows, columns], bytes)
}
