//! Every kernel against the CPU. These tests need a GPU and are run by `scripts/gpu/kernels`.

#![expect(clippy::unwrap_used, reason = "a failure here is the answer")]

mod attention;
mod lora;
mod model;
mod sampling;
mod skinny_gemm;
mod training;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::training::cpu;
use warpsmith_kernels::{Gpu, bf16};

fn gpu() -> Gpu {
    Gpu::open(0).unwrap()
}

fn numbers(random: &mut StdRng, count: usize, size: f32) -> Vec<f32> {
    (0..count)
        .map(|_| bf16::from_f32(random.random_range(-size..size)).to_f32())
        .collect()
}

fn to_bf16(from: &[f32]) -> Vec<bf16> {
    from.iter().copied().map(bf16::from_f32).collect()
}

fn to_f32(from: &[bf16]) -> Vec<f32> {
    from.iter().map(|one| one.to_f32()).collect()
}

/// `x · weightᵀ`, `inputs` columns a row.
fn linear(x: &[f32], weight: &[f32], inputs: usize) -> Vec<f32> {
    let rows = x.chunks_exact(inputs);
    rows.flat_map(|row| {
        let outputs = weight.chunks_exact(inputs);
        outputs.map(move |column| row.iter().zip(column).map(|(one, two)| one * two).sum())
    })
    .collect()
}

/// Largest difference over the largest number expected.
fn max_error(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let size = expected.iter().fold(0.0f32, |max, one| max.max(one.abs()));
    let worst = found
        .iter()
        .zip(expected)
        .fold(0.0f32, |worst, (one, two)| {
            if one.is_finite() {
                worst.max((one - two).abs())
            } else {
                f32::INFINITY
            }
        });
    worst / size.max(1e-6)
}

/// bfloat16 has eight bits of precision.
const ROUNDED: f32 = 0.006;

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn rows_are_normed_after_the_addition() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(1));
    for (rows, width) in [(1, 64), (5, 576), (3, 1536), (2, 8192)] {
        let start = numbers(&mut random, rows * width, 2.0);
        let delta = numbers(&mut random, rows * width, 1.0);
        let weight = numbers(&mut random, width, 1.5);
        let sum: Vec<f32> = start
            .iter()
            .zip(&delta)
            .map(|(one, two)| one + two)
            .collect();
        let mut residual = gpu.upload(&start).unwrap();
        let mut out = gpu.zeros::<bf16>(rows * width).unwrap();
        let (added, by) = (
            gpu.upload(&to_bf16(&delta)).unwrap(),
            gpu.upload(&weight).unwrap(),
        );
        let expected = cpu::rms_norm(&sum, &weight, 1e-5);
        // A single row first: it must leave the residual alone.
        let row_ids = gpu.upload(&[rows as u32 - 1]).unwrap();
        gpu.rms_norm_residual_inplace(
            &mut out,
            &mut residual,
            Some(&added),
            &by,
            Some(&row_ids),
            1,
            1e-5,
        )
        .unwrap();
        let last = to_f32(&gpu.read(&out, width).unwrap());
        assert!(max_error(&last, &expected[(rows - 1) * width..]) < ROUNDED);
        assert_eq!(gpu.read(&residual, rows * width).unwrap(), start);
        gpu.rms_norm_residual_inplace(&mut out, &mut residual, Some(&added), &by, None, rows, 1e-5)
            .unwrap();
        assert!(max_error(&to_f32(&gpu.read(&out, rows * width).unwrap()), &expected) < ROUNDED);
        assert!(max_error(&gpu.read(&residual, rows * width).unwrap(), &sum) < 1e-6);
        gpu.rms_norm_residual_inplace(&mut out, &mut residual, None, &by, None, rows, 1e-5)
            .unwrap();
        assert!(max_error(&to_f32(&gpu.read(&out, rows * width).unwrap()), &expected) < ROUNDED);
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn embedding_swiglu_and_linear() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(2));
    let (rows, width, outputs) = (7, 576, 1536);
    let table = numbers(&mut random, 100 * width, 1.0);
    let tokens = [3u32, 99, 0, 3, 50, 7, 8];
    let mut residual = gpu.zeros::<f32>(rows * width).unwrap();
    let (on_device, which) = (
        gpu.upload(&to_bf16(&table)).unwrap(),
        gpu.upload(&tokens).unwrap(),
    );
    gpu.embedding_fwd(&mut residual, &on_device, &which, (rows, width))
        .unwrap();
    let found = gpu.read(&residual, rows * width).unwrap();
    for (row, token) in tokens.iter().enumerate() {
        let from = *token as usize * width;
        assert_eq!(found[row * width..][..width], table[from..][..width]);
    }

    let gate_up = numbers(&mut random, rows * 2 * outputs, 3.0);
    let mut out = gpu.zeros::<bf16>(rows * outputs).unwrap();
    gpu.swiglu_fwd(
        &mut out,
        &gpu.upload(&to_bf16(&gate_up)).unwrap(),
        (rows, outputs),
    )
    .unwrap();
    let found = to_f32(&gpu.read(&out, rows * outputs).unwrap());
    assert!(max_error(&found, &cpu::swiglu(&gate_up)) < ROUNDED);

    let (x, weight) = (
        numbers(&mut random, rows * width, 1.0),
        numbers(&mut random, outputs * width, 1.0),
    );
    let (left, right) = (
        gpu.upload(&to_bf16(&x)).unwrap(),
        gpu.upload(&to_bf16(&weight)).unwrap(),
    );
    let expected = linear(&x, &weight, width);
    gpu.linear(&mut out, &left, &right, (rows, width)).unwrap();
    assert!(max_error(&to_f32(&gpu.read(&out, rows * outputs).unwrap()), &expected) < ROUNDED);
    let mut full = gpu.zeros::<f32>(rows * outputs).unwrap();
    gpu.linear(&mut full, &left, &right, (rows, width)).unwrap();
    assert!(max_error(&gpu.read(&full, rows * outputs).unwrap(), &expected) < 1e-4);
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn a_captured_graph_does_the_same_again() {
    let gpu = gpu();
    let weight = gpu.upload(&[1.0f32; 64]).unwrap();
    let delta = gpu.upload(&[bf16::from_f32(1.0); 64]).unwrap();
    let (mut residual, mut out) = (
        gpu.zeros::<f32>(64).unwrap(),
        gpu.zeros::<bf16>(64).unwrap(),
    );
    let graph = gpu
        .capture(|| {
            gpu.rms_norm_residual_inplace(
                &mut out,
                &mut residual,
                Some(&delta),
                &weight,
                None,
                1,
                1e-5,
            )
        })
        .unwrap();
    assert_eq!(
        gpu.read(&residual, 64).unwrap(),
        [0.0; 64],
        "capturing runs nothing"
    );
    for _ in 0..3 {
        graph.launch().unwrap();
    }
    assert_eq!(gpu.read(&residual, 64).unwrap(), [3.0; 64]);
}
