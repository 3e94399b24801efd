//! RMS norm, SwiGLU, gather and scatter, sums over rows, and the embedding.

use super::*;

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn rms_norm_forward_and_backward() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(11));
    for (rows, width) in [(1, 64), (300, 576), (33, 1536), (5000, 576), (3, 4096)] {
        let what = |part: &str| format!("{part} of {rows} x {width}");
        let count = rows * width;
        let residual = numbers(&mut random, count, 2.0);
        let delta = numbers(&mut random, count, 1.0);
        let weight = numbers(&mut random, width, 1.5);
        let grads = numbers(&mut random, count, 1.0);
        let before = numbers(&mut random, count, 1.0);
        let sum: Vec<f64> = residual
            .iter()
            .zip(&delta)
            .map(|(one, two)| f64::from(one + two))
            .collect();
        let by = exact(&weight);
        let expected = cpu::rms_norm(&sum, &by, 1e-5);
        let (d_rows, d_weight) = cpu::rms_norm_bwd(&sum, &by, 1e-5, &exact(&grads));

        let on_device = gpu.upload(&weight).unwrap();
        let mut out = gpu.zeros::<bf16>(count).unwrap();
        let mut added = gpu.zeros::<f32>(count).unwrap();
        let (start, more) = (
            gpu.upload(&residual).unwrap(),
            gpu.upload(&to_bf16(&delta)).unwrap(),
        );
        let weights = on_device.as_view();
        gpu.rms_norm_residual_fwd(
            &mut out,
            Some(&mut added),
            &start,
            Some(&more),
            &weights,
            rows,
            1e-5,
        )
        .unwrap();
        close(
            &what("normed rows"),
            &to_f32(&gpu.read(&out, count).unwrap()),
            &expected,
            ROUNDED,
        );
        close(&what("sums"), &gpu.read(&added, count).unwrap(), &sum, 1e-6);
        // Without an addition, and nothing but the norm written.
        gpu.rms_norm_residual_fwd(&mut out, None, &added, None, &weights, rows, 1e-5)
            .unwrap();
        close(
            &what("norms alone"),
            &to_f32(&gpu.read(&out, count).unwrap()),
            &expected,
            ROUNDED,
        );

        for mode in [WriteMode::Overwrite, WriteMode::Accumulate] {
            let mut normed = gpu.upload(&to_bf16(&grads)).unwrap();
            let mut d_residual = gpu.upload(&before).unwrap();
            let mut d_residual_bf16 = gpu.zeros::<bf16>(count).unwrap();
            let mut partials = gpu.zeros::<f32>(PARTIALS * width).unwrap();
            let mut sums = gpu.upload(&weight).unwrap();
            gpu.rms_norm_residual_bwd(
                &mut normed,
                (&mut d_residual, mode),
                &mut d_residual_bf16,
                &mut partials.as_view_mut(),
                &added,
                &weights,
                rows,
                1e-5,
            )
            .unwrap();
            gpu.sum_partials((&mut sums.as_view_mut(), mode), &partials, width)
                .unwrap();
            let keep = if mode == WriteMode::Accumulate {
                1.0
            } else {
                0.0
            };
            let accumulated = |to: &[f64], from: &[f32]| -> Vec<f64> {
                to.iter()
                    .zip(from)
                    .map(|(to, from)| to + keep * f64::from(*from))
                    .collect()
            };
            let expected_grads = accumulated(&d_rows, &before);
            close(
                &what("normed rows, recomputed"),
                &to_f32(&gpu.read(&normed, count).unwrap()),
                &expected,
                ROUNDED,
            );
            close(
                &what("gradients of rows"),
                &gpu.read(&d_residual, count).unwrap(),
                &expected_grads,
                SUMMED,
            );
            close(
                &what("gradients of rows, bfloat16"),
                &to_f32(&gpu.read(&d_residual_bf16, count).unwrap()),
                &expected_grads,
                ROUNDED,
            );
            close(
                &what("gradient of the weight"),
                &gpu.read(&sums, width).unwrap(),
                &accumulated(&d_weight, &weight),
                SUMMED,
            );
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn swiglu_backward() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(12));
    for (rows, width) in [(1, 8), (37, 1536), (3, 24)] {
        let gate_up = numbers(&mut random, 2 * rows * width, 4.0);
        let grads = numbers(&mut random, rows * width, 1.0);
        let (mut on_device, mut hidden) = (
            gpu.upload(&to_bf16(&gate_up)).unwrap(),
            gpu.upload(&to_bf16(&grads)).unwrap(),
        );
        gpu.swiglu_bwd(&mut on_device, &mut hidden, (rows, width))
            .unwrap();
        let found = to_f32(&gpu.read(&on_device, gate_up.len()).unwrap());
        close(
            "gradients of gates and ups",
            &found,
            &cpu::swiglu_bwd(&exact(&gate_up), &exact(&grads)),
            ROUNDED,
        );
        let found = to_f32(&gpu.read(&hidden, grads.len()).unwrap());
        close(
            "the product",
            &found,
            &cpu::swiglu(&exact(&gate_up)),
            ROUNDED,
        );
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn rows_are_gathered_scattered_and_summed() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(17));
    let (rows, width) = (700, 576);
    let from = numbers(&mut random, rows * width, 1.0);
    let on_device = gpu.upload(&to_bf16(&from)).unwrap();
    let indices = [699u32, 3, u32::MAX, 0, 350];
    let on_device_indices = gpu.upload(&indices).unwrap();
    let mut out = gpu.upload(&vec![bf16::NAN; indices.len() * width]).unwrap();
    gpu.gather_rows(
        &mut out,
        (&on_device, rows),
        &on_device_indices.as_view(),
        width,
    )
    .unwrap();
    let found = to_f32(&gpu.read(&out, indices.len() * width).unwrap());
    for (row, found) in indices.iter().zip(found.chunks_exact(width)) {
        match from.chunks_exact(width).nth(*row as usize) {
            Some(expected) => assert_eq!(found, expected),
            None => assert!(found.iter().all(|one| *one == 0.0)),
        }
    }
    let mut back = gpu.upload(&vec![bf16::NAN; rows * width]).unwrap();
    gpu.zero_fill(&mut back).unwrap();
    gpu.scatter_rows((&mut back, rows), &out, &on_device_indices.as_view(), width)
        .unwrap();
    let found = to_f32(&gpu.read(&back, rows * width).unwrap());
    for (row, (found, from)) in found
        .chunks_exact(width)
        .zip(from.chunks_exact(width))
        .enumerate()
    {
        let is_scattered = indices.contains(&(row as u32));
        assert!(
            if is_scattered {
                found == from
            } else {
                found.iter().all(|one| *one == 0.0)
            },
            "row {row}"
        );
    }

    let mut partials = gpu.zeros::<f32>(PARTIALS * width).unwrap();
    let mut sums = gpu.zeros::<f32>(width).unwrap();
    gpu.column_sum_partials(&mut partials, &on_device, (rows, width))
        .unwrap();
    gpu.sum_partials(
        (&mut sums.as_view_mut(), WriteMode::Overwrite),
        &partials,
        width,
    )
    .unwrap();
    let mut columns = vec![0.0f64; width];
    for row in from.chunks_exact(width) {
        columns
            .iter_mut()
            .zip(row)
            .for_each(|(to, from)| *to += f64::from(*from));
    }
    close(
        "sums of columns",
        &gpu.read(&sums, width).unwrap(),
        &columns,
        SUMMED,
    );

    // A table of twenty: some tokens often, some never.
    let tokens: Vec<u32> = (0..rows)
        .map(|row| {
            if row % 3 == 0 {
                7
            } else {
                random.random_range(0..10) * 2
            }
        })
        .collect();
    let (order, mut occurrences) = TokenOccurrences::of(&tokens);
    occurrences.push(TokenOccurrences::default());
    let before = numbers(&mut random, 20 * width, 1.0);
    let mut table = gpu.upload(&before).unwrap();
    let grads = gpu.upload(&from).unwrap();
    let (on_order, on_occurrences) = (
        gpu.upload(&order).unwrap(),
        gpu.upload(&occurrences).unwrap(),
    );
    gpu.embedding_bwd(
        &mut table.as_view_mut(),
        (&grads, width),
        &on_order,
        (&on_occurrences, occurrences.len()),
    )
    .unwrap();
    let mut expected = exact(&before);
    for (token, row) in tokens.iter().zip(from.chunks_exact(width)) {
        let to = &mut expected[*token as usize * width..][..width];
        to.iter_mut()
            .zip(row)
            .for_each(|(to, from)| *to += f64::from(*from));
    }
    close(
        "gradient of the table",
        &gpu.read(&table, before.len()).unwrap(),
        &expected,
        SUMMED,
    );
}
