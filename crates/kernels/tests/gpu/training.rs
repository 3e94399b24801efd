//! Kernels of training, forward and back, against their twins in float64.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::training::{
    AdamW, Adding, Attended, AttendedBack, PARTS, Parameters, Scored, Shape, Stretch, Turning,
    Uses, Wanted, turns,
};
use warpsmith_kernels::{Buffer, bf16, twin::training as twin};

use crate::{ROUNDED, gpu, narrow, numbers, off, wide};

fn exact(from: &[f32]) -> Vec<f64> {
    from.iter().copied().map(f64::from).collect()
}

fn single(from: &[f64]) -> Vec<f32> {
    from.iter().map(|one| *one as f32).collect()
}

/// Says what was off and by how much, if it is too much.
fn close(what: &str, seen: &[f32], wanted: &[f64], limit: f32) {
    let worst = off(seen, &single(wanted));
    assert!(worst < limit, "{what}: off by {worst}, {limit} is allowed");
}

/// What single precision leaves after a few thousand additions.
const SUMMED: f32 = 2e-5;

fn shape(heads: usize, kv_heads: usize, head_dim: usize) -> Shape {
    let pairs = 0..head_dim / 2;
    Shape {
        layers: 1,
        hidden: 64,
        feed_forward: 64,
        heads,
        kv_heads,
        head_dim,
        vocabulary: 64,
        norm_epsilon: 1e-6,
        frequencies: pairs
            .map(|pair| 10_000f32.powf(-2.0 * pair as f32 / head_dim as f32))
            .collect(),
        tied: true,
        biased: false,
        head_norms: false,
    }
}

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
fn heads_are_turned_and_turned_back() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(13));
    for (heads, kv_heads, head_dim) in [(9, 3, 64), (4, 1, 128), (2, 2, 64)] {
        for (biased, normed) in [(false, false), (true, false), (false, true), (true, true)] {
            let what = |part: &str| {
                format!("{part}, {heads} {kv_heads} {head_dim}, biased {biased}, normed {normed}")
            };
            let shape = shape(heads, kv_heads, head_dim);
            let (rows, width, size) = (301, shape.qkv_width(), head_dim);
            let positions: Vec<u32> = (0..rows).map(|row| (row * 7 % 150) as u32).collect();
            let qkv = numbers(&mut random, rows * width, 2.0);
            let slopes = numbers(&mut random, rows * width, 1.0);
            let bias = numbers(&mut random, width, 1.0);
            let norms = numbers(&mut random, 2 * size, 1.5);
            let epsilon = f64::from(shape.norm_epsilon);
            // The twin's way forward and back, head by head.
            let (mut turned, mut back) = (exact(&qkv), exact(&slopes));
            let mut norm_slopes = vec![0.0; 2 * size];
            for (row, position) in positions.iter().enumerate() {
                for head in 0..heads + 2 * kv_heads {
                    let place = row * width + head * size..row * width + (head + 1) * size;
                    let mut numbers = turned[place.clone()].to_vec();
                    if biased {
                        let from = &bias[head * size..][..size];
                        numbers
                            .iter_mut()
                            .zip(from)
                            .for_each(|(to, from)| *to += f64::from(*from));
                    }
                    if head < heads + kv_heads {
                        let position = f64::from(*position);
                        let start = if head < heads { 0 } else { size };
                        let by = exact(&norms[start..start + size]);
                        let slopes = &mut back[place.clone()];
                        twin::rotate(slopes, -position, &shape.frequencies);
                        if normed {
                            let (of_rows, of_norm) =
                                twin::norm_back(&numbers, &by, epsilon, slopes);
                            slopes.copy_from_slice(&of_rows);
                            for (to, from) in norm_slopes[start..].iter_mut().zip(of_norm) {
                                *to += from;
                            }
                            numbers = twin::norm(&numbers, &by, epsilon);
                        }
                        twin::rotate(&mut numbers, position, &shape.frequencies);
                    }
                    turned[place].copy_from_slice(&numbers);
                }
            }
            let (bias, norms) = (gpu.upload(&bias).unwrap(), gpu.upload(&norms).unwrap());
            let turns = gpu.upload(&turns(&shape.frequencies, 150)).unwrap();
            let positions = gpu.upload(&positions).unwrap();
            let turning = Turning {
                bias: biased.then(|| bias.as_view()),
                norms: normed.then(|| norms.as_view()),
                turns: &turns,
                positions: &positions,
            };
            let mut raw = gpu.upload(&narrow(&qkv)).unwrap();
            let mut out = gpu.zeros::<bf16>(rows * width).unwrap();
            gpu.training_turn(&mut raw, Some(&mut out), &turning, &shape, rows)
                .unwrap();
            close(
                &what("turned beside"),
                &wide(&gpu.read(&out, rows * width).unwrap()),
                &turned,
                ROUNDED,
            );
            let mut parts = gpu.zeros::<f32>(PARTS * 2 * size).unwrap();
            let mut on_device = gpu.upload(&narrow(&slopes)).unwrap();
            let with_norms = normed.then_some((&raw, &mut parts));
            gpu.training_turn_back(&mut on_device, with_norms, &turning, &shape, rows)
                .unwrap();
            close(
                &what("turned back"),
                &wide(&gpu.read(&on_device, rows * width).unwrap()),
                &back,
                ROUNDED,
            );
            if normed {
                let mut sums = gpu.zeros::<f32>(2 * size).unwrap();
                gpu.training_add_parts((&mut sums.as_view_mut(), Adding::Anew), &parts, 2 * size)
                    .unwrap();
                close(
                    &what("slopes of norms"),
                    &gpu.read(&sums, 2 * size).unwrap(),
                    &norm_slopes,
                    SUMMED,
                );
            }
            gpu.training_turn(&mut raw, None, &turning, &shape, rows)
                .unwrap();
            close(
                &what("turned in place"),
                &wide(&gpu.read(&raw, rows * width).unwrap()),
                &turned,
                ROUNDED,
            );
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn packed_sequences_attend_to_themselves() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(14));
    for (heads, kv_heads, head_dim) in [(9, 3, 64), (4, 2, 128), (2, 2, 64), (8, 1, 128)] {
        for lengths in [&[1][..], &[64], &[128, 1, 31], &[300, 77], &[65, 129, 40]] {
            let what = |part: &str| {
                format!("{part}, heads {heads} {kv_heads} {head_dim}, sequences {lengths:?}")
            };
            let shape = shape(heads, kv_heads, head_dim);
            let of = twin::Heads {
                queries: heads,
                keys: kv_heads,
                size: head_dim,
            };
            let rows: usize = lengths.iter().sum();
            let (width, queries) = (shape.qkv_width(), shape.query_width());
            let qkv = numbers(&mut random, rows * width, 1.5);
            let slopes = numbers(&mut random, rows * queries, 1.0);
            let (wanted, wanted_totals) = twin::attention(&exact(&qkv), of, lengths);
            let wanted_slopes = twin::attention_back(&exact(&qkv), of, lengths, &exact(&slopes));

            let mut cut = Stretch::cut(lengths, head_dim);
            // One that has nothing to do.
            cut.push(Stretch::default());
            let stretches = gpu.upload(&cut).unwrap();
            cut.reverse();
            let by_keys = gpu.upload(&cut).unwrap();
            let on_device = gpu.upload(&narrow(&qkv)).unwrap();
            let out_slopes = gpu.upload(&narrow(&slopes)).unwrap();
            // What is not written must not be mistaken for a number.
            let nothing = vec![bf16::NAN; rows * width];
            let mut out = gpu.upload(&nothing[..rows * queries]).unwrap();
            let mut back = gpu.upload(&nothing).unwrap();
            let mut log_totals = gpu.zeros::<f32>(rows * heads).unwrap();
            let mut agreements = gpu.zeros::<f32>(rows * heads).unwrap();
            let mut first: Option<Vec<bf16>> = None;
            for _ in 0..2 {
                let mut layer = Attended {
                    out: &mut out,
                    log_totals: &mut log_totals,
                    qkv: &on_device,
                    stretches: &stretches,
                    count: cut.len(),
                };
                gpu.packed_attention(&mut layer, &shape, rows).unwrap();
                let mut layer = AttendedBack {
                    slopes: &mut back,
                    agreements: &mut agreements,
                    out_slopes: &out_slopes,
                    out: &out,
                    log_totals: &log_totals,
                    qkv: &on_device,
                    stretches: &stretches,
                    by_keys: &by_keys,
                    count: cut.len(),
                };
                gpu.packed_attention_back(&mut layer, &shape, rows).unwrap();
                let seen = gpu.read(&back, rows * width).unwrap();
                assert!(
                    first
                        .get_or_insert_with(|| seen.clone())
                        .iter()
                        .zip(&seen)
                        .all(|(one, two)| one.to_bits() == two.to_bits()),
                    "{}",
                    what("the same again")
                );
            }
            close(
                &what("log totals"),
                &gpu.read(&log_totals, rows * heads).unwrap(),
                &wanted_totals,
                1e-4,
            );
            close(
                &what("outputs"),
                &wide(&gpu.read(&out, rows * queries).unwrap()),
                &wanted,
                2.0 * ROUNDED,
            );
            let seen = wide(&gpu.read(&back, rows * width).unwrap());
            let keys = queries + kv_heads * head_dim;
            for (part, columns) in [
                ("queries", 0..queries),
                ("keys", queries..keys),
                ("values", keys..width),
            ] {
                let seen: Vec<f32> = seen
                    .chunks_exact(width)
                    .flat_map(|row| row[columns.clone()].to_vec())
                    .collect();
                let wanted: Vec<f64> = wanted_slopes
                    .chunks_exact(width)
                    .flat_map(|row| row[columns.clone()].to_vec())
                    .collect();
                // A single row looks at itself whatever it is: all but its values' slopes are zero, up to rounding.
                if wanted.iter().all(|one| one.abs() < 1e-9) {
                    assert!(seen.iter().all(|one| one.abs() < 0.05), "{}", what(part));
                } else {
                    close(&what(part), &seen, &wanted, 2.0 * ROUNDED);
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn products_back() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(15));
    for (rows, inputs, outputs) in [(40, 64, 96), (1000, 576, 960)] {
        let x = numbers(&mut random, rows * inputs, 1.0);
        let weight = numbers(&mut random, outputs * inputs, 1.0);
        let slopes = numbers(&mut random, rows * outputs, 1.0);
        let before = numbers(&mut random, outputs * inputs, 1.0);
        let [left, matrix, back] =
            [&x, &weight, &slopes].map(|from| gpu.upload(&narrow(from)).unwrap());
        let mut out = gpu.zeros::<bf16>(rows * inputs).unwrap();
        gpu.linear_back_to_inputs(&mut out, &back, &matrix, (rows, inputs))
            .unwrap();
        let wanted = twin::back_to_inputs(&exact(&slopes), &exact(&weight), inputs);
        close(
            "slopes of inputs",
            &wide(&gpu.read(&out, rows * inputs).unwrap()),
            &wanted,
            ROUNDED,
        );
        let wanted = twin::back_to_weights(&exact(&slopes), &exact(&x), inputs);
        let mut sums = gpu.upload(&before).unwrap();
        gpu.linear_back_to_weights((&mut sums, Adding::OnTop), &back, &left, (rows, inputs))
            .unwrap();
        let on_top: Vec<f64> = wanted
            .iter()
            .zip(&before)
            .map(|(one, two)| one + f64::from(*two))
            .collect();
        close(
            "slopes of the matrix, on top",
            &gpu.read(&sums, before.len()).unwrap(),
            &on_top,
            1e-4,
        );
        gpu.linear_back_to_weights((&mut sums, Adding::Anew), &back, &left, (rows, inputs))
            .unwrap();
        close(
            "slopes of the matrix",
            &gpu.read(&sums, before.len()).unwrap(),
            &wanted,
            1e-4,
        );
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn tokens_are_scored() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(16));
    for vocabulary in [8, 1000, 49_152] {
        let rows = 6;
        let mut logits = numbers(&mut random, rows * vocabulary, 6.0);
        // One that is nearly certain.
        logits[vocabulary + 3] = 60.0;
        let targets: Vec<u32> = (0..rows)
            .map(|row| {
                if row == 1 {
                    3
                } else {
                    random.random_range(0..vocabulary as u32)
                }
            })
            .collect();
        let wanted = [
            (-1.0, 0.0),
            (-0.5, 0.2),
            (0.0, 1.0),
            (0.0, 0.0),
            (0.3, -0.1),
            (-2e-4, 0.0),
        ]
        .map(|(logprob, entropy)| Wanted { logprob, entropy });
        let (on_device, on_targets, on_wanted) = (
            gpu.upload(&logits).unwrap(),
            gpu.upload(&targets).unwrap(),
            gpu.upload(&wanted).unwrap(),
        );
        let mut slopes = gpu.upload(&vec![bf16::NAN; rows * vocabulary]).unwrap();
        for is_back in [false, true] {
            let (mut logprobs, mut entropies) = (
                gpu.zeros::<f32>(rows).unwrap(),
                gpu.zeros::<f32>(rows).unwrap(),
            );
            let mut scored = Scored {
                logprobs: logprobs.as_view_mut(),
                entropies: entropies.as_view_mut(),
                logits: &on_device,
                targets: on_targets.as_view(),
                vocabulary,
            };
            let back = is_back.then(|| (&mut slopes, on_wanted.as_view()));
            gpu.training_score(&mut scored, back).unwrap();
            let (logprobs, entropies) = (
                gpu.read(&logprobs, rows).unwrap(),
                gpu.read(&entropies, rows).unwrap(),
            );
            for row in 0..rows {
                if is_back && wanted[row] == Wanted::default() {
                    continue;
                }
                let (logprob, entropy) = twin::score(
                    &exact(&logits[row * vocabulary..][..vocabulary]),
                    targets[row] as usize,
                );
                assert!(
                    (f64::from(logprobs[row]) - logprob).abs() < 1e-4,
                    "{vocabulary} {row}: {} {logprob}",
                    logprobs[row]
                );
                assert!(
                    (f64::from(entropies[row]) - entropy).abs() < 1e-4,
                    "{vocabulary} {row}: {} {entropy}",
                    entropies[row]
                );
            }
        }
        let seen = wide(&gpu.read(&slopes, rows * vocabulary).unwrap());
        for (row, wanted) in wanted.iter().enumerate() {
            let place = row * vocabulary..(row + 1) * vocabulary;
            let by = (f64::from(wanted.logprob), f64::from(wanted.entropy));
            let back = twin::score_back(&exact(&logits[place.clone()]), targets[row] as usize, by);
            if *wanted == Wanted::default() || row == 1 {
                assert!(seen[place].iter().all(|one| one.abs() < 1e-6));
            } else {
                close(
                    &format!("slopes of logits, {vocabulary} {row}"),
                    &seen[place],
                    &back,
                    ROUNDED,
                );
            }
        }
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

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn updates_are_those_of_adamw() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(18));
    let (count, decays_from) = (1_000_004, 4000);
    let weights = numbers(&mut random, count, 1.0);
    let mut parameters = Parameters::new(&gpu, &weights, decays_from).unwrap();
    let mut wanted = exact(&weights);
    let (mut first, mut second) = (vec![0.0f64; count], vec![0.0f64; count]);
    // As single precision has them: what is left of one differs from that of 0.999 by 1.3e-5 of itself.
    let (beta1, beta2) = (f64::from(0.9f32), f64::from(0.999f32));
    for step in 1..=3 {
        let settings = AdamW {
            rate: 1e-2,
            beta1,
            beta2,
            epsilon: 1e-8,
            weight_decay: 0.1,
            // Shortened at the second step only.
            longest: if step == 2 { 1.0 } else { 1e6 },
            step,
        };
        let gradient = numbers(&mut random, count, 0.5);
        let length = exact(&gradient)
            .iter()
            .map(|one| one * one)
            .sum::<f64>()
            .sqrt();
        let shorten = (settings.longest / (length + 1e-6)).min(1.0);
        for i in 0..count {
            let slope = f64::from(gradient[i]) * shorten;
            first[i] = beta1 * first[i] + (1.0 - beta1) * slope;
            second[i] = beta2 * second[i] + (1.0 - beta2) * slope * slope;
            let (mean, square) = (
                first[i] / (1.0 - beta1.powi(step as i32)),
                second[i] / (1.0 - beta2.powi(step as i32)),
            );
            let decay = if i < decays_from { 0.0 } else { 1e-2 * 0.1 };
            wanted[i] = wanted[i] * (1.0 - decay) - 1e-2 * mean / (square.sqrt() + 1e-8);
        }
        gpu.write(&mut parameters.gradient, &gradient).unwrap();
        gpu.set_adamw(&mut parameters, settings).unwrap();
        gpu.training_update(&mut parameters).unwrap();
        let seen = f64::from(parameters.gradient_length(&gpu).unwrap());
        assert!((seen / length - 1.0).abs() < 1e-4, "{seen} {length}");
        close(
            &format!("weights at step {step}"),
            &gpu.read(&parameters.weights, count).unwrap(),
            &wanted,
            1e-5,
        );
        close(
            "first means",
            &gpu.read(&parameters.first, count).unwrap(),
            &first,
            1e-5,
        );
        close(
            "second means",
            &gpu.read(&parameters.second, count).unwrap(),
            &second,
            1e-5,
        );
        close(
            "narrow weights",
            &wide(&gpu.read(&parameters.narrow, count).unwrap()),
            &wanted,
            ROUNDED,
        );
    }
    // A gradient that is not finite changes nothing.
    let before: Vec<f32> = gpu.read(&parameters.weights, count).unwrap();
    let mut gradient = vec![0.0f32; count];
    gradient[count - 1] = f32::NAN;
    gpu.write(&mut parameters.gradient, &gradient).unwrap();
    gpu.training_update(&mut parameters).unwrap();
    assert!(!parameters.gradient_length(&gpu).unwrap().is_finite());
    let after: Buffer<f32> = parameters.weights;
    assert_eq!(gpu.read(&after, count).unwrap(), before);
}
