//! Norms, gates, and rows that are picked.

use super::*;

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn norms_forward_and_back() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(11));
    for (rows, width) in [(1, 64), (300, 576), (33, 1536), (5000, 576), (3, 4096)] {
        let what = |part: &str| format!("{part} of {rows} x {width}");
        let count = rows * width;
        let residual = numbers(&mut random, count, 2.0);
        let delta = numbers(&mut random, count, 1.0);
        let weight = numbers(&mut random, width, 1.5);
        let slopes = numbers(&mut random, count, 1.0);
        let before = numbers(&mut random, count, 1.0);
        let sum: Vec<f64> = residual
            .iter()
            .zip(&delta)
            .map(|(one, two)| f64::from(one + two))
            .collect();
        let by = exact(&weight);
        let wanted = twin::norm(&sum, &by, 1e-5);
        let (row_slopes, weight_slopes) = twin::norm_back(&sum, &by, 1e-5, &exact(&slopes));

        let on_device = gpu.upload(&weight).unwrap();
        let mut out = gpu.zeros::<bf16>(count).unwrap();
        let mut added = gpu.zeros::<f32>(count).unwrap();
        let (start, more) = (
            gpu.upload(&residual).unwrap(),
            gpu.upload(&narrow(&delta)).unwrap(),
        );
        let weights = on_device.as_view();
        gpu.training_add_norm(
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
            &wide(&gpu.read(&out, count).unwrap()),
            &wanted,
            ROUNDED,
        );
        close(&what("sums"), &gpu.read(&added, count).unwrap(), &sum, 1e-6);
        // Without an addition, and nothing but the norm written.
        gpu.training_add_norm(&mut out, None, &added, None, &weights, rows, 1e-5)
            .unwrap();
        close(
            &what("norms alone"),
            &wide(&gpu.read(&out, count).unwrap()),
            &wanted,
            ROUNDED,
        );

        for adding in [Adding::Anew, Adding::OnTop] {
            let mut normed = gpu.upload(&narrow(&slopes)).unwrap();
            let mut all = gpu.upload(&before).unwrap();
            let mut narrowed = gpu.zeros::<bf16>(count).unwrap();
            let mut parts = gpu.zeros::<f32>(PARTS * width).unwrap();
            let mut sums = gpu.upload(&weight).unwrap();
            gpu.training_norm_back(
                &mut normed,
                (&mut all, adding),
                &mut narrowed,
                &mut parts.as_view_mut(),
                &added,
                &weights,
                rows,
                1e-5,
            )
            .unwrap();
            gpu.training_add_parts((&mut sums.as_view_mut(), adding), &parts, width)
                .unwrap();
            let keep = if adding == Adding::OnTop { 1.0 } else { 0.0 };
            let on_top = |to: &[f64], from: &[f32]| -> Vec<f64> {
                to.iter()
                    .zip(from)
                    .map(|(to, from)| to + keep * f64::from(*from))
                    .collect()
            };
            let wanted_slopes = on_top(&row_slopes, &before);
            close(
                &what("normed rows on the way back"),
                &wide(&gpu.read(&normed, count).unwrap()),
                &wanted,
                ROUNDED,
            );
            close(
                &what("slopes of rows"),
                &gpu.read(&all, count).unwrap(),
                &wanted_slopes,
                SUMMED,
            );
            close(
                &what("slopes of rows, narrow"),
                &wide(&gpu.read(&narrowed, count).unwrap()),
                &wanted_slopes,
                ROUNDED,
            );
            close(
                &what("slopes of the weight"),
                &gpu.read(&sums, width).unwrap(),
                &on_top(&weight_slopes, &weight),
                SUMMED,
            );
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn gates_back() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(12));
    for (rows, width) in [(1, 8), (37, 1536), (3, 24)] {
        let both = numbers(&mut random, 2 * rows * width, 4.0);
        let slopes = numbers(&mut random, rows * width, 1.0);
        let (mut both_on_device, mut gated) = (
            gpu.upload(&narrow(&both)).unwrap(),
            gpu.upload(&narrow(&slopes)).unwrap(),
        );
        gpu.training_swiglu_back(&mut both_on_device, &mut gated, (rows, width))
            .unwrap();
        let seen = wide(&gpu.read(&both_on_device, both.len()).unwrap());
        close(
            "slopes of gates",
            &seen,
            &twin::swiglu_back(&exact(&both), &exact(&slopes)),
            ROUNDED,
        );
        let seen = wide(&gpu.read(&gated, slopes.len()).unwrap());
        close("the product", &seen, &twin::swiglu(&exact(&both)), ROUNDED);
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn rows_are_picked_put_back_and_added_up() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(17));
    let (rows, width) = (700, 576);
    let from = numbers(&mut random, rows * width, 1.0);
    let on_device = gpu.upload(&narrow(&from)).unwrap();
    let picked = [699u32, 3, u32::MAX, 0, 350];
    let on_picked = gpu.upload(&picked).unwrap();
    let mut out = gpu.upload(&vec![bf16::NAN; picked.len() * width]).unwrap();
    gpu.training_pick(&mut out, (&on_device, rows), &on_picked.as_view(), width)
        .unwrap();
    let seen = wide(&gpu.read(&out, picked.len() * width).unwrap());
    for (row, seen) in picked.iter().zip(seen.chunks_exact(width)) {
        match from.chunks_exact(width).nth(*row as usize) {
            Some(wanted) => assert_eq!(seen, wanted),
            None => assert!(seen.iter().all(|one| *one == 0.0)),
        }
    }
    let mut back = gpu.upload(&vec![bf16::NAN; rows * width]).unwrap();
    gpu.training_clear(&mut back).unwrap();
    gpu.training_put_back((&mut back, rows), &out, &on_picked.as_view(), width)
        .unwrap();
    let seen = wide(&gpu.read(&back, rows * width).unwrap());
    for (row, (seen, from)) in seen
        .chunks_exact(width)
        .zip(from.chunks_exact(width))
        .enumerate()
    {
        let is_picked = picked.contains(&(row as u32));
        assert!(
            if is_picked {
                seen == from
            } else {
                seen.iter().all(|one| *one == 0.0)
            },
            "row {row}"
        );
    }

    let mut parts = gpu.zeros::<f32>(PARTS * width).unwrap();
    let mut sums = gpu.zeros::<f32>(width).unwrap();
    gpu.training_column_parts(&mut parts, &on_device, (rows, width))
        .unwrap();
    gpu.training_add_parts((&mut sums.as_view_mut(), Adding::Anew), &parts, width)
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
    let (order, mut uses) = Uses::of(&tokens);
    uses.push(Uses::default());
    let before = numbers(&mut random, 20 * width, 1.0);
    let mut table = gpu.upload(&before).unwrap();
    let slopes = gpu.upload(&from).unwrap();
    let (on_order, on_uses) = (gpu.upload(&order).unwrap(), gpu.upload(&uses).unwrap());
    gpu.training_embed_back(
        &mut table.as_view_mut(),
        (&slopes, width),
        &on_order,
        (&on_uses, uses.len()),
    )
    .unwrap();
    let mut wanted = exact(&before);
    for (token, row) in tokens.iter().zip(from.chunks_exact(width)) {
        let to = &mut wanted[*token as usize * width..][..width];
        to.iter_mut()
            .zip(row)
            .for_each(|(to, from)| *to += f64::from(*from));
    }
    close(
        "slopes of the table",
        &gpu.read(&table, before.len()).unwrap(),
        &wanted,
        SUMMED,
    );
}
