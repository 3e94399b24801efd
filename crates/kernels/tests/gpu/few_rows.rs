//! Products of few rows, and what is done with them.

use rand::SeedableRng;
use rand::rngs::StdRng;
use warpsmith_kernels::{Buffer, Gpu, Stream, bf16, twin};

use crate::{ROUNDED, gpu, narrow, numbers, off, wide};

/// A stream that began with these rows, and the same on the processor.
struct Begun {
    stream: Stream,
    residual: Vec<f32>,
    rows: usize,
}

impl Begun {
    fn new(gpu: &Gpu, random: &mut StdRng, norm: &[f32], rows: usize) -> Self {
        let width = norm.len();
        let table = numbers(random, 2 * rows * width, 2.0);
        let tokens: Vec<u32> = (0..rows as u32).map(|row| 2 * row + 1).collect();
        let mut stream = Stream::new(gpu, width, 1e-5).unwrap();
        gpu.embed_stream(
            &mut stream,
            &gpu.upload(&narrow(&table)).unwrap(),
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

    /// The product of the normed stream with a matrix, in its three forms.
    fn check(&self, gpu: &Gpu, norm: &[f32], random: &mut StdRng, outputs: usize) {
        let (rows, width) = (self.rows, norm.len());
        let weight = numbers(random, outputs * width, 1.0);
        let on_device = gpu.upload(&narrow(&weight)).unwrap();
        let normed = twin::norm(&self.residual, norm, 1e-5);
        let wanted = twin::linear(&normed, &weight, width);
        let what = format!("{rows} rows, {width} to {outputs}");

        let mut out: Buffer<bf16> = gpu.zeros(rows * outputs).unwrap();
        gpu.product(&mut out, &self.stream, &on_device, rows)
            .unwrap();
        let seen = wide(&gpu.read(&out, rows * outputs).unwrap());
        assert!(off(&seen, &wanted) < ROUNDED, "{what}");

        let mut full: Buffer<f32> = gpu.zeros(rows * outputs).unwrap();
        gpu.product(&mut full, &self.stream, &on_device, rows)
            .unwrap();
        let seen = gpu.read(&full, rows * outputs).unwrap();
        assert!(off(&seen, &wanted) < ROUNDED, "{what}");

        gpu.gated_product(&mut out, &self.stream, &on_device, rows)
            .unwrap();
        let seen = wide(&gpu.read(&out, rows * outputs / 2).unwrap());
        assert!(
            off(&seen, &twin::swiglu(&wanted)) < 2.0 * ROUNDED,
            "{what}, gated"
        );
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn products_of_few_rows() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(7));
    if !gpu.takes_few(1, 4) {
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
            let begun = Begun::new(&gpu, &mut random, &norm, rows);
            let seen = gpu.read(begun.stream.residual(), rows * width).unwrap();
            assert_eq!(seen, begun.residual);
            begun.check(&gpu, &norm, &mut random, outputs);
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn products_are_added_and_normed_again() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(8));
    if !gpu.takes_few(1, 4) {
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
            let mut begun = Begun::new(&gpu, &mut random, &norms[0], rows);
            let x = numbers(&mut random, rows * inputs, 1.0);
            let weight = numbers(&mut random, width * inputs, 0.1);
            let added = twin::linear(&x, &weight, inputs);
            for (to, more) in begun.residual.iter_mut().zip(added) {
                *to += more;
            }
            gpu.add_product(
                &mut begun.stream,
                &gpu.upload(&narrow(&x)).unwrap(),
                &gpu.upload(&narrow(&weight)).unwrap(),
                &gpu.upload(&norms[1]).unwrap(),
                rows,
            )
            .unwrap();
            let seen = gpu.read(begun.stream.residual(), rows * width).unwrap();
            let worst = off(&seen, &begun.residual);
            assert!(worst < 1e-4, "{rows} rows, {inputs} to {width}: {worst}");
            begun.check(&gpu, &norms[1], &mut random, 256);
        }
    }
}
