//! Blocks of every format that is multiplied, made by plain rounding: good enough to load and to compare with.
#![cfg(feature = "local")]

use warpsmith_model::HostTensor;
use warpsmith_model::quantized::{GgmlTensor, GgmlType};

/// The nearest half float, as bytes and as what it stands for.
fn half(number: f32) -> ([u8; 2], f32) {
    let half = half::f16::from_f32(number);
    (half.to_le_bytes(), half.to_f32())
}

fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |most, one| most.max(one.abs()))
}

fn quants(numbers: &[f32], scale: f32, minimum: f32, most: f32) -> Vec<u8> {
    let inverse = if scale == 0.0 { 0.0 } else { scale.recip() };
    let rounded = numbers
        .iter()
        .map(|one| ((one - minimum) * inverse).round());
    rounded.map(|one| one.clamp(0.0, most) as u8).collect()
}

pub(crate) fn quantize(tensor: &HostTensor, ggml_type: GgmlType) -> GgmlTensor {
    let block: fn(&[f32]) -> Vec<u8> = match ggml_type {
        GgmlType::F32 => return GgmlTensor::f32(tensor),
        GgmlType::F16 => return GgmlTensor::f16(tensor),
        GgmlType::Q8_0 => return GgmlTensor::q8_0(tensor),
        GgmlType::Q4_0 => q4_0,
        GgmlType::Q4_1 => q4_1,
        GgmlType::Q4K => q4_k,
        GgmlType::Q5K => q5_k,
        GgmlType::Q6K => q6_k,
        other => panic!("no test quantises to {other:?}"),
    };
    let blocks = tensor.data().chunks_exact(ggml_type.block_len());
    let bytes = blocks.flat_map(block).collect();
    GgmlTensor::new(ggml_type, tensor.shape().to_vec(), bytes)
}

/// The first half of the quants in the lower bits, the second in the upper.
fn nibbles(quants: &[u8]) -> impl Iterator<Item = u8> {
    let (first, second) = quants.split_at(quants.len() / 2);
    first
        .iter()
        .zip(second)
        .map(|(one, two)| one & 15 | two << 4)
}

fn q4_0(numbers: &[f32]) -> Vec<u8> {
    let (bytes, scale) = half(largest(numbers) / 7.0);
    let mut block = bytes.to_vec();
    block.extend(nibbles(&quants(numbers, scale, -8.0 * scale, 15.0)));
    block
}

fn q4_1(numbers: &[f32]) -> Vec<u8> {
    let least = numbers.iter().copied().fold(f32::INFINITY, f32::min);
    let most = numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (minimum_bytes, minimum) = half(least);
    let (scale_bytes, scale) = half((most - minimum) / 15.0);
    let mut block = [scale_bytes, minimum_bytes].concat();
    block.extend(nibbles(&quants(numbers, scale, minimum, 15.0)));
    block
}

/// Scales and minimums of eight groups in six bits each, and the quants.
fn groups_of_32(numbers: &[f32], levels: f32) -> (Vec<u8>, Vec<u8>) {
    let groups: Vec<&[f32]> = numbers.chunks_exact(32).collect();
    let least = |group: &[f32]| group.iter().copied().fold(0.0, f32::min);
    let most = |group: &[f32]| group.iter().copied().fold(0.0, f32::max);
    let widest = |of: &dyn Fn(&[f32]) -> f32| groups.iter().map(|one| of(one)).fold(0.0, f32::max);
    let (scale_bytes, scale) = half(widest(&|one| (most(one) - least(one)) / levels) / 63.0);
    let (minimum_bytes, minimum) = half(widest(&|one| -least(one)) / 63.0);
    let six_bits = |number: f32, by: f32| {
        if by == 0.0 {
            0
        } else {
            (number / by).round().clamp(0.0, 63.0) as u8
        }
    };
    let (mut factors, mut all) = ([0u8; 12], Vec::new());
    for (index, group) in groups.iter().enumerate() {
        let group_scale = six_bits((most(group) - least(group)) / levels, scale);
        let group_minimum = six_bits(-least(group), minimum);
        if index < 4 {
            factors[index] |= group_scale;
            factors[index + 4] |= group_minimum;
        } else {
            factors[index + 4] |= group_scale & 15 | group_minimum << 4;
            factors[index - 4] |= group_scale >> 4 << 6;
            factors[index] |= group_minimum >> 4 << 6;
        }
        let (scale, minimum) = (
            scale * f32::from(group_scale),
            minimum * f32::from(group_minimum),
        );
        all.extend(quants(group, scale, -minimum, levels));
    }
    let head = [scale_bytes.as_slice(), &minimum_bytes, &factors].concat();
    (head, all)
}

fn q4_k(numbers: &[f32]) -> Vec<u8> {
    let (mut block, quants) = groups_of_32(numbers, 15.0);
    block.extend(quants.chunks_exact(64).flat_map(nibbles));
    block
}

fn q5_k(numbers: &[f32]) -> Vec<u8> {
    let (mut block, quants) = groups_of_32(numbers, 31.0);
    block.extend((0..32).map(|column| {
        let fifth = |group: usize| (quants[32 * group + column] >> 4) << group;
        (0..8).map(fifth).fold(0, |bits, bit| bits | bit)
    }));
    block.extend(quants.chunks_exact(64).flat_map(nibbles));
    block
}

fn q6_k(numbers: &[f32]) -> Vec<u8> {
    let (scale_bytes, scale) = half(largest(numbers) / 31.0 / 127.0);
    let (mut scales, mut all) = (Vec::new(), Vec::new());
    for group in numbers.chunks_exact(16) {
        let group_scale = (largest(group) / 31.0 / scale).round().clamp(0.0, 127.0) as i8;
        scales.push(group_scale.cast_unsigned());
        let scale = scale * f32::from(group_scale);
        all.extend(quants(group, scale, -32.0 * scale, 63.0));
    }
    let halves = || all.chunks_exact(128);
    // Of each 128: the first 64 in the lower bits, the others in the upper; two more bits of each fourth together.
    let mut block: Vec<u8> = halves().flat_map(nibbles).collect();
    block.extend(halves().flat_map(|half| {
        (0..32).map(|column| {
            let upper = |quarter: usize| (half[32 * quarter + column] >> 4) << (2 * quarter);
            (0..4).map(upper).fold(0, |bits, two| bits | two)
        })
    }));
    block.extend(scales);
    block.extend(scale_bytes);
    block
}
