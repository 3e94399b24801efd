//! Heads that are turned, and what they attend to.

use super::*;

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
    let gpu = gpu();
    for kind in gpu.attentions().unwrap() {
        attends(&gpu, kind);
    }
}

fn attends(gpu: &Gpu, kind: Attention) {
    let mut random = StdRng::seed_from_u64(14);
    for (heads, kv_heads, head_dim) in [(9, 3, 64), (4, 2, 128), (2, 2, 64), (8, 1, 128)] {
        for lengths in [&[1][..], &[64], &[128, 1, 31], &[300, 77], &[65, 129, 40]] {
            let what = |part: &str| {
                format!(
                    "{part} by {kind:?}, heads {heads} {kv_heads} {head_dim}, sequences {lengths:?}"
                )
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

            let mut stretches = Stretches::new(gpu, kind, rows, head_dim).unwrap();
            stretches.load(gpu, lengths).unwrap();
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
