//! Every kernel against its twin. They need a GPU and are run by `scripts/gpu/kernels`.

#![expect(clippy::unwrap_used, reason = "a failure here is the answer")]

mod attention;
mod few_rows;
mod learner;
mod low_rank;
mod sampling;
mod training;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::{Gpu, bf16, twin};

fn gpu() -> Gpu {
    Gpu::open(0).unwrap()
}

fn numbers(random: &mut StdRng, count: usize, size: f32) -> Vec<f32> {
    (0..count)
        .map(|_| bf16::from_f32(random.random_range(-size..size)).to_f32())
        .collect()
}

fn narrow(from: &[f32]) -> Vec<bf16> {
    from.iter().copied().map(bf16::from_f32).collect()
}

fn wide(from: &[bf16]) -> Vec<f32> {
    from.iter().map(|one| one.to_f32()).collect()
}

/// Largest difference over the largest number wanted.
fn off(seen: &[f32], wanted: &[f32]) -> f32 {
    assert_eq!(seen.len(), wanted.len());
    let size = wanted.iter().fold(0.0f32, |most, one| most.max(one.abs()));
    let worst = seen.iter().zip(wanted).fold(0.0f32, |worst, (one, two)| {
        if one.is_finite() {
            worst.max((one - two).abs())
        } else {
            f32::INFINITY
        }
    });
    worst / size.max(1e-6)
}

/// Bfloat16 keeps eight bits.
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
            gpu.upload(&narrow(&delta)).unwrap(),
            gpu.upload(&weight).unwrap(),
        );
        let wanted = twin::norm(&sum, &weight, 1e-5);
        // A picked row first: it must leave the residual alone.
        let picked = gpu.upload(&[rows as u32 - 1]).unwrap();
        gpu.add_norm(
            &mut out,
            &mut residual,
            Some(&added),
            &by,
            Some(&picked),
            1,
            1e-5,
        )
        .unwrap();
        let last = wide(&gpu.read(&out, width).unwrap());
        assert!(off(&last, &wanted[(rows - 1) * width..]) < ROUNDED);
        assert_eq!(gpu.read(&residual, rows * width).unwrap(), start);
        gpu.add_norm(&mut out, &mut residual, Some(&added), &by, None, rows, 1e-5)
            .unwrap();
        assert!(off(&wide(&gpu.read(&out, rows * width).unwrap()), &wanted) < ROUNDED);
        assert!(off(&gpu.read(&residual, rows * width).unwrap(), &sum) < 1e-6);
        gpu.add_norm(&mut out, &mut residual, None, &by, None, rows, 1e-5)
            .unwrap();
        assert!(off(&wide(&gpu.read(&out, rows * width).unwrap()), &wanted) < ROUNDED);
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn embedding_gate_and_product() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(2));
    let (rows, width, outputs) = (7, 576, 1536);
    let table = numbers(&mut random, 100 * width, 1.0);
    let tokens = [3u32, 99, 0, 3, 50, 7, 8];
    let mut residual = gpu.zeros::<f32>(rows * width).unwrap();
    let (on_device, which) = (
        gpu.upload(&narrow(&table)).unwrap(),
        gpu.upload(&tokens).unwrap(),
    );
    gpu.embed(&mut residual, &on_device, &which, (rows, width))
        .unwrap();
    let seen = gpu.read(&residual, rows * width).unwrap();
    for (row, token) in tokens.iter().enumerate() {
        let from = *token as usize * width;
        assert_eq!(seen[row * width..][..width], table[from..][..width]);
    }

    let both = numbers(&mut random, rows * 2 * outputs, 3.0);
    let mut out = gpu.zeros::<bf16>(rows * outputs).unwrap();
    gpu.swiglu(
        &mut out,
        &gpu.upload(&narrow(&both)).unwrap(),
        (rows, outputs),
    )
    .unwrap();
    let seen = wide(&gpu.read(&out, rows * outputs).unwrap());
    assert!(off(&seen, &twin::swiglu(&both)) < ROUNDED);

    let (x, weight) = (
        numbers(&mut random, rows * width, 1.0),
        numbers(&mut random, outputs * width, 1.0),
    );
    let (left, right) = (
        gpu.upload(&narrow(&x)).unwrap(),
        gpu.upload(&narrow(&weight)).unwrap(),
    );
    let wanted = twin::linear(&x, &weight, width);
    gpu.linear(&mut out, &left, &right, (rows, width)).unwrap();
    assert!(off(&wide(&gpu.read(&out, rows * outputs).unwrap()), &wanted) < ROUNDED);
    let mut full = gpu.zeros::<f32>(rows * outputs).unwrap();
    gpu.linear(&mut full, &left, &right, (rows, width)).unwrap();
    assert!(off(&gpu.read(&full, rows * outputs).unwrap(), &wanted) < 1e-4);
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
            gpu.add_norm(
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
