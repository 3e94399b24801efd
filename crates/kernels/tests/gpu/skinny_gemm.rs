//! Skinny GEMM and its epilogues.

use rand::SeedableRng;
use rand::rngs::StdRng;
use warpsmith_kernels::training::cpu;
use warpsmith_kernels::{Buffer, DeferredNormStream, Gpu, bf16};

use crate::{ROUNDED, gpu, linear, max_error, numbers, to_bf16, to_f32};

/// A stream that started with these rows, and the same on the CPU.
struct Started {
    stream: DeferredNormStream,
    residual: Vec<f32>,
    rows: usize,
}

impl Started {
    fn new(gpu: &Gpu, random: &mut StdRng, norm: &[f32], rows: usize) -> Self {
        let width = norm.len();
        let table = numbers(random, 2 * rows * width, 2.0);
        let tokens: Vec<u32> = (0..rows as u32).map(|row| 2 * row + 1).collect();
        let mut stream = DeferredNormStream::new(gpu, width, 1e-5).unwrap();
        gpu.embedding_fwd_deferred_norm(
            &mut stream,
            &gpu.upload(&to_bf16(&table)).unwrap(),
            &gpu.upload(&tokens).unwrap(),
            &gpu.upload(norm).unwrap(),
            rows,
        )
        .unwrap();
        let residual = table
            .chunks_exact(2 * width)
            .flat_map(|pair| pair[width..].to_vec())
            .collect();
        Self {
            stream,
            residual,
            rows,
        }
    }

    /// The product of the normed stream with a matrix, with three epilogues.
    fn check(&self, gpu: &Gpu, norm: &[f32], random: &mut StdRng, outputs: usize) {
        let (rows, width) = (self.rows, norm.len());
        let weight = numbers(random, outputs * width, 1.0);
        let on_device = gpu.upload(&to_bf16(&weight)).unwrap();
        let normed = cpu::rms_norm(&self.residual, norm, 1e-5);
        let expected = linear(&normed, &weight, width);
        let what = format!("{rows} rows, {width} to {outputs}");

        let mut out: Buffer<bf16> = gpu.zeros(rows * outputs).unwrap();
        gpu.skinny_gemm(&mut out, &self.stream, &on_device, rows)
            .unwrap();
        let found = to_f32(&gpu.read(&out, rows * outputs).unwrap());
        assert!(max_error(&found, &expected) < ROUNDED, "{what}");

        let mut full: Buffer<f32> = gpu.zeros(rows * outputs).unwrap();
        gpu.skinny_gemm(&mut full, &self.stream, &on_device, rows)
            .unwrap();
        let found = gpu.read(&full, rows * outputs).unwrap();
        assert!(max_error(&found, &expected) < ROUNDED, "{what}");

        gpu.skinny_gemm_swiglu(&mut out, &self.stream, &on_device, rows)
            .unwrap();
        let found = to_f32(&gpu.read(&out, rows * outputs / 2).unwrap());
        assert!(
            max_error(&found, &cpu::swiglu(&expected)) < 2.0 * ROUNDED,
            "{what}, SwiGLU"
        );
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn skinny_gemms_of_all_row_counts() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(7));
    if !gpu.supports_skinny_gemm(1, 4) {
        return;
    }
    for rows in [1, 3, 8, 17, 33, 64] {
        for (width, outputs) in [
            (1536, 2048),
            (576, 960),
            (200, 1008),
            (192, 17_920),
            (64, 16),
        ] {
            let norm = numbers(&mut random, width, 1.5);
            let started = Started::new(&gpu, &mut random, &norm, rows);
            let found = gpu.read(started.stream.residual(), rows * width).unwrap();
            assert_eq!(found, started.residual);
            started.check(&gpu, &norm, &mut random, outputs);
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn products_are_added_to_the_residual_and_normed() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(8));
    if !gpu.supports_skinny_gemm(1, 4) {
        return;
    }
    for rows in [1, 3, 8, 17, 33, 64] {
        for (inputs, width) in [
            (1536, 1536),
            (8960, 1536),
            (1536, 576),
            (200, 200),
            (64, 2048),
        ] {
            let norms = [(); 2].map(|()| numbers(&mut random, width, 1.5));
            let mut started = Started::new(&gpu, &mut random, &norms[0], rows);
            let x = numbers(&mut random, rows * inputs, 1.0);
            let weight = numbers(&mut random, width * inputs, 0.1);
            let added = linear(&x, &weight, inputs);
            for (to, more) in started.residual.iter_mut().zip(added) {
                *to += more;
            }
            gpu.skinny_gemm_residual_norm(
                &mut started.stream,
                &gpu.upload(&to_bf16(&x)).unwrap(),
                &gpu.upload(&to_bf16(&weight)).unwrap(),
                &gpu.upload(&norms[1]).unwrap(),
                rows,
            )
            .unwrap();
            let found = gpu.read(started.stream.residual(), rows * width).unwrap();
            let worst = max_error(&found, &started.residual);
            assert!(worst < 1e-4, "{rows} rows, {inputs} to {width}: {worst}");
            started.check(&gpu, &norms[1], &mut random, 256);
        }
    }
}
