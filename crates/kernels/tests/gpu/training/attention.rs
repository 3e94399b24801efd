//! RoPE and attention.

use super::*;

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn rope_forward_and_backward() {
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
            let grads = numbers(&mut random, rows * width, 1.0);
            let bias = numbers(&mut random, width, 1.0);
            let norms = numbers(&mut random, 2 * size, 1.5);
            let epsilon = shape.norm_epsilon;
            // On the CPU, head by head.
            let (mut rotated, mut d_qkv) = (exact(&qkv), exact(&grads));
            let mut d_norms = vec![0.0; 2 * size];
            for (row, position) in positions.iter().enumerate() {
                for head in 0..heads + 2 * kv_heads {
                    let range = row * width + head * size..row * width + (head + 1) * size;
                    let mut values = rotated[range.clone()].to_vec();
                    if biased {
                        let from = &bias[head * size..][..size];
                        let pairs = values.iter_mut().zip(from);
                        pairs.for_each(|(to, from)| *to += f64::from(*from));
                    }
                    if head < heads + kv_heads {
                        let angles = cpu::rope_angles(*position as usize, &shape.rope_frequencies);
                        let start = if head < heads { 0 } else { size };
                        let by = exact(&norms[start..start + size]);
                        let d_head = &mut d_qkv[range.clone()];
                        cpu::rope_bwd(d_head, &angles);
                        if normed {
                            let (d_values, d_norm) =
                                cpu::rms_norm_bwd(&values, &by, epsilon, d_head);
                            d_head.copy_from_slice(&d_values);
                            for (to, from) in d_norms[start..].iter_mut().zip(d_norm) {
                                *to += from;
                            }
                            values = cpu::rms_norm(&values, &by, epsilon);
                        }
                        cpu::rope(&mut values, &angles);
                    }
                    rotated[range].copy_from_slice(&values);
                }
            }
            let (bias, norms) = (gpu.upload(&bias).unwrap(), gpu.upload(&norms).unwrap());
            let cos_sin = cos_sin_table(&shape.rope_frequencies, 150);
            let cos_sin = gpu.upload(&cos_sin).unwrap();
            let positions = gpu.upload(&positions).unwrap();
            let tables = RopeTables {
                bias: biased.then(|| bias.as_view()),
                head_norms: normed.then(|| norms.as_view()),
                cos_sin: &cos_sin,
                positions: &positions,
            };
            let mut before = gpu.upload(&to_bf16(&qkv)).unwrap();
            let mut out = gpu.zeros::<bf16>(rows * width).unwrap();
            gpu.rope_qk_fwd(&mut before, Some(&mut out), &tables, &shape, rows)
                .unwrap();
            close(
                &what("into another buffer"),
                &to_f32(&gpu.read(&out, rows * width).unwrap()),
                &rotated,
                ROUNDED,
            );
            let mut partials = gpu.zeros::<f32>(PARTIALS * 2 * size).unwrap();
            let mut on_device = gpu.upload(&to_bf16(&grads)).unwrap();
            let with_norms = normed.then_some((&before, &mut partials));
            gpu.rope_qk_bwd(&mut on_device, with_norms, &tables, &shape, rows)
                .unwrap();
            close(
                &what("gradients"),
                &to_f32(&gpu.read(&on_device, rows * width).unwrap()),
                &d_qkv,
                ROUNDED,
            );
            if normed {
                let mut sums = gpu.zeros::<f32>(2 * size).unwrap();
                gpu.sum_partials(
                    (&mut sums.as_view_mut(), WriteMode::Overwrite),
                    &partials,
                    2 * size,
                )
                .unwrap();
                close(
                    &what("gradients of norms"),
                    &gpu.read(&sums, 2 * size).unwrap(),
                    &d_norms,
                    SUMMED,
                );
            }
            gpu.rope_qk_fwd(&mut before, None, &tables, &shape, rows)
                .unwrap();
            close(
                &what("in place"),
                &to_f32(&gpu.read(&before, rows * width).unwrap()),
                &rotated,
                ROUNDED,
            );
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn packed_sequences_attend_to_themselves() {
    let gpu = gpu();
    for kind in gpu.flash_attn_kinds().unwrap() {
        attends(&gpu, kind);
    }
}

fn attends(gpu: &Gpu, kind: FlashAttnKind) {
    let mut random = StdRng::seed_from_u64(14);
    for (heads, kv_heads, head_dim) in [(9, 3, 64), (4, 2, 128), (2, 2, 64), (8, 1, 128)] {
        for lengths in [&[1][..], &[64], &[128, 1, 31], &[300, 77], &[65, 129, 40]] {
            let what = |part: &str| {
                format!(
                    "{part} by {kind:?}, heads {heads} {kv_heads} {head_dim}, sequences {lengths:?}"
                )
            };
            let shape = shape(heads, kv_heads, head_dim);
            let of = AttentionShape {
                heads,
                kv_heads,
                head_dim,
            };
            let rows: usize = lengths.iter().sum();
            let (width, queries) = (shape.qkv_width(), shape.query_width());
            let qkv = numbers(&mut random, rows * width, 1.5);
            let grads = numbers(&mut random, rows * queries, 1.0);
            let (expected, expected_lse) = cpu::attention(&exact(&qkv), of, lengths);
            let forward = cpu::AttentionOutput {
                out: &expected,
                lse: &expected_lse,
            };
            let expected_grads =
                cpu::attention_bwd(&exact(&qkv), of, lengths, &forward, &exact(&grads));

            let mut blocks = SequenceBlocks::new(gpu, kind, rows, head_dim).unwrap();
            blocks.load(gpu, lengths).unwrap();
            let on_device = gpu.upload(&to_bf16(&qkv)).unwrap();
            let d_out = gpu.upload(&to_bf16(&grads)).unwrap();
            // NaN marks what is not written.
            let unwritten = vec![bf16::NAN; rows * width];
            let mut out = gpu.upload(&unwritten[..rows * queries]).unwrap();
            let mut d_qkv = gpu.upload(&unwritten).unwrap();
            let mut lse = gpu.zeros::<f32>(rows * heads).unwrap();
            let mut delta = gpu.zeros::<f32>(rows * heads).unwrap();
            let mut first: Option<Vec<bf16>> = None;
            for _ in 0..2 {
                let mut layer = FlashAttnFwd {
                    out: &mut out,
                    lse: &mut lse,
                    qkv: &on_device,
                    blocks: &blocks,
                };
                gpu.flash_attn_varlen_fwd(&mut layer, &shape, rows).unwrap();
                let mut layer = FlashAttnBwd {
                    d_qkv: &mut d_qkv,
                    delta: &mut delta,
                    d_out: &d_out,
                    out: &out,
                    lse: &lse,
                    qkv: &on_device,
                    blocks: &blocks,
                };
                gpu.flash_attn_varlen_bwd(&mut layer, &shape, rows).unwrap();
                let found = gpu.read(&d_qkv, rows * width).unwrap();
                assert!(
                    first
                        .get_or_insert_with(|| found.clone())
                        .iter()
                        .zip(&found)
                        .all(|(one, two)| one.to_bits() == two.to_bits()),
                    "{}",
                    what("the same again")
                );
            }
            close(
                &what("lse"),
                &gpu.read(&lse, rows * heads).unwrap(),
                &expected_lse,
                1e-4,
            );
            close(
                &what("outputs"),
                &to_f32(&gpu.read(&out, rows * queries).unwrap()),
                &expected,
                2.0 * ROUNDED,
            );
            let found = to_f32(&gpu.read(&d_qkv, rows * width).unwrap());
            let keys = queries + kv_heads * head_dim;
            for (part, columns) in [
                ("queries", 0..queries),
                ("keys", queries..keys),
                ("values", keys..width),
            ] {
                let found: Vec<f32> = found
                    .chunks_exact(width)
                    .flat_map(|row| row[columns.clone()].to_vec())
                    .collect();
                let expected: Vec<f64> = expected_grads
                    .chunks_exact(width)
                    .flat_map(|row| row[columns.clone()].to_vec())
                    .collect();
                // A single row attends to itself alone: only the gradient of its values is not zero, up to rounding.
                if expected.iter().all(|one| one.abs() < 1e-9) {
                    assert!(found.iter().all(|one| one.abs() < 0.05), "{}", what(part));
                } else {
                    close(&what(part), &found, &expected, 2.0 * ROUNDED);
                }
            }
        }
    }
}
