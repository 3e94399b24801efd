//! Every kernel against its twin. They need a GPU and are run by `scripts/gpu/kernels`.

#![expect(clippy::unwrap_used, reason = "a failure here is the answer")]

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::{Buffer, Cached, Choice, Decoding, Gpu, Rotation, TILE, Tile, bf16, twin};

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
    assert!(off(&seen, &twin::swiglu(&both, outputs)) < ROUNDED);

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

/// Keys, values and what is asked of them.
struct Case {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    slots: usize,
    capacity: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Case {
    fn new(random: &mut StdRng, heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        let (slots, capacity) = (4, 400);
        let count = slots * kv_heads * capacity * head_dim;
        Self {
            heads,
            kv_heads,
            head_dim,
            slots,
            capacity,
            keys: numbers(random, count, 1.0),
            values: numbers(random, count, 1.0),
        }
    }

    /// The row's heads, each over what its sequence holds up to that position.
    fn attend(&self, row: &[f32], slot: usize, position: usize) -> Vec<f32> {
        let group = self.heads / self.kv_heads;
        (0..self.heads)
            .flat_map(|head| {
                let start = (slot * self.kv_heads + head / group) * self.capacity * self.head_dim;
                let seen = start..start + (position + 1) * self.head_dim;
                let query = &row[head * self.head_dim..][..self.head_dim];
                twin::attend(query, &self.keys[seen.clone()], &self.values[seen])
            })
            .collect()
    }

    fn width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

const SHAPES: [(usize, usize, usize); 6] = [
    (9, 3, 64),
    (12, 2, 128),
    (4, 4, 64),
    (16, 8, 128),
    (14, 2, 64),
    (16, 2, 128),
];

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn one_position_attends_to_all_before() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(3));
    for (heads, kv_heads, head_dim) in SHAPES {
        let case = Case::new(&mut random, heads, kv_heads, head_dim);
        let places = [(0u32, 0u32), (3, 399), (1, 17), (2, 128), (0, 63)];
        let rows = places.len();
        let qkv = numbers(&mut random, rows * case.width(), 2.0);
        let wanted: Vec<f32> = places
            .iter()
            .zip(qkv.chunks_exact(case.width()))
            .flat_map(|(place, row)| case.attend(row, place.0 as usize, place.1 as usize))
            .collect();
        let on_device = gpu.upload(&narrow(&qkv)).unwrap();
        let (mut keys, mut values) = kept(&gpu, &case);
        let slots = gpu.upload(&places.map(|place| place.0)).unwrap();
        let positions = gpu.upload(&places.map(|place| place.1)).unwrap();
        let cached = Cached {
            keys: &mut keys,
            values: &mut values,
            slots: &slots,
            positions: &positions,
            kv_heads,
            head_dim,
            capacity: case.capacity,
        };
        let mut out = gpu.zeros::<bf16>(rows * heads * head_dim).unwrap();
        for splits in [1, 3, 16] {
            let mut room = Decoding::new(&gpu, rows, heads * head_dim, splits).unwrap();
            gpu.attention_decode(&mut out, &on_device, &cached, heads, &mut room, rows)
                .unwrap();
            let seen = wide(&gpu.read(&out, rows * heads * head_dim).unwrap());
            let worst = off(&seen, &wanted);
            assert!(
                worst < 2.0 * ROUNDED,
                "{heads} {kv_heads} {head_dim} {splits}: {worst}"
            );
        }
    }
}

fn kept(gpu: &Gpu, case: &Case) -> (Buffer<bf16>, Buffer<bf16>) {
    assert_eq!(
        case.keys.len(),
        case.slots * case.kv_heads * case.capacity * case.head_dim
    );
    (
        gpu.upload(&narrow(&case.keys)).unwrap(),
        gpu.upload(&narrow(&case.values)).unwrap(),
    )
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn a_prompt_attends_to_itself_and_what_came_before() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(4));
    for (heads, kv_heads, head_dim) in SHAPES {
        let case = Case::new(&mut random, heads, kv_heads, head_dim);
        // Sequence, first position, positions: a start, a continuation across tiles, a single one.
        let segments = [(0u32, 0u32, 130u32), (2, 57, 100), (3, 399, 1)];
        let mut tiles = Vec::new();
        let mut row = 0;
        for (slot, first, count) in segments {
            for start in (0..count).step_by(TILE) {
                tiles.push(Tile {
                    row: row + start,
                    count: (count - start).min(TILE as u32),
                    slot,
                    position: first + start,
                });
            }
            row += count;
        }
        let rows = row as usize;
        let qkv = numbers(&mut random, rows * case.width(), 2.0);
        let places = segments
            .iter()
            .flat_map(|&(slot, first, count)| (first..first + count).map(move |at| (slot, at)));
        let wanted: Vec<f32> = places
            .zip(qkv.chunks_exact(case.width()))
            .flat_map(|(place, row)| case.attend(row, place.0 as usize, place.1 as usize))
            .collect();
        let on_device = gpu.upload(&narrow(&qkv)).unwrap();
        let (mut keys, mut values) = kept(&gpu, &case);
        let unused = gpu.zeros::<u32>(rows).unwrap();
        let cached = Cached {
            keys: &mut keys,
            values: &mut values,
            slots: &unused,
            positions: &unused,
            kv_heads,
            head_dim,
            capacity: case.capacity,
        };
        let mut out = gpu.zeros::<bf16>(rows * heads * head_dim).unwrap();
        let on_tiles = gpu.upload(&tiles).unwrap();
        gpu.attention_prefill(&mut out, &on_device, &cached, heads, &on_tiles, tiles.len())
            .unwrap();
        let seen = wide(&gpu.read(&out, rows * heads * head_dim).unwrap());
        let worst = off(&seen, &wanted);
        assert!(
            worst < 2.0 * ROUNDED,
            "{heads} {kv_heads} {head_dim}: {worst}"
        );
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn heads_are_turned_and_kept() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(5));
    for (heads, kv_heads, head_dim) in SHAPES {
        for with_norms in [false, true] {
            let (slots, capacity) = (3, 50);
            let places = [(2u32, 49u32), (0, 0), (1, 7)];
            let (rows, width) = (places.len(), (heads + 2 * kv_heads) * head_dim);
            let qkv = numbers(&mut random, rows * width, 2.0);
            let bias = numbers(&mut random, width, 1.0);
            let norms = [
                numbers(&mut random, head_dim, 1.0),
                numbers(&mut random, head_dim, 1.0),
            ];
            let frequencies: Vec<f32> = (0..head_dim / 2)
                .map(|pair| 10_000f32.powf(-2.0 * pair as f32 / head_dim as f32))
                .collect();
            let mut wanted = qkv.clone();
            for (row, place) in wanted.chunks_exact_mut(width).zip(places) {
                for (head, numbers) in row.chunks_exact_mut(head_dim).enumerate() {
                    let from = &bias[head * head_dim..][..head_dim];
                    numbers
                        .iter_mut()
                        .zip(from)
                        .for_each(|(one, by)| *one += by);
                    if head >= heads + kv_heads {
                        continue;
                    }
                    if with_norms {
                        let by = &norms[usize::from(head >= heads)];
                        numbers.copy_from_slice(&twin::norm(numbers, by, 1e-6));
                    }
                    twin::rotate(numbers, place.1, &frequencies);
                }
            }
            let mut on_device = gpu.upload(&narrow(&qkv)).unwrap();
            let count = slots * kv_heads * capacity * head_dim;
            let (mut keys, mut values) = (
                gpu.zeros::<bf16>(count).unwrap(),
                gpu.zeros::<bf16>(count).unwrap(),
            );
            let on_slots = gpu.upload(&places.map(|place| place.0)).unwrap();
            let positions = gpu.upload(&places.map(|place| place.1)).unwrap();
            let mut cached = Cached {
                keys: &mut keys,
                values: &mut values,
                slots: &on_slots,
                positions: &positions,
                kv_heads,
                head_dim,
                capacity,
            };
            let on_norms = norms.clone().map(|norm| gpu.upload(&norm).unwrap());
            let (bias, frequencies) = (
                gpu.upload(&bias).unwrap(),
                gpu.upload(&frequencies).unwrap(),
            );
            let rotation = Rotation {
                bias: Some(&bias),
                head_norms: with_norms.then_some((&on_norms[0], &on_norms[1])),
                frequencies: &frequencies,
                heads,
                epsilon: 1e-6,
            };
            gpu.rotate_append(&mut on_device, &mut cached, &rotation, rows)
                .unwrap();
            let queries = wide(&gpu.read(&on_device, rows * width).unwrap());
            let (keys, values) = (
                wide(&gpu.read(&keys, count).unwrap()),
                wide(&gpu.read(&values, count).unwrap()),
            );
            for (row, place) in places.iter().enumerate() {
                let wanted = &wanted[row * width..][..width];
                assert!(
                    off(
                        &queries[row * width..][..heads * head_dim],
                        &wanted[..heads * head_dim]
                    ) < ROUNDED
                );
                for head in 0..kv_heads {
                    let at = ((place.0 as usize * kv_heads + head) * capacity + place.1 as usize)
                        * head_dim;
                    let key = &wanted[(heads + head) * head_dim..][..head_dim];
                    let value = &wanted[(heads + kv_heads + head) * head_dim..][..head_dim];
                    assert!(off(&keys[at..][..head_dim], key) < ROUNDED);
                    assert!(off(&values[at..][..head_dim], value) < ROUNDED);
                }
            }
            let filled = |kept: &[f32]| {
                kept.chunks_exact(head_dim)
                    .filter(|one| one.iter().any(|n| *n != 0.0))
                    .count()
            };
            assert_eq!(filled(&keys), rows * kv_heads);
            assert_eq!(filled(&values), rows * kv_heads);
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn tokens_come_as_often_as_they_should() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(6));
    let rows = 4096;
    // A large vocabulary with few tokens that matter, and a flat one that does not fit into what is sorted.
    for (vocabulary, size, temperature, top_p) in [
        (1000, 6.0, 0.7, 0.9),
        (1000, 6.0, 1.0, 1.0),
        (50_000, 0.5, 1.0, 0.6),
        (151_936, 20.0, 1.3, 0.95),
    ] {
        let one = numbers(&mut random, vocabulary, size);
        let logits: Vec<f32> = one.iter().copied().cycle().take(vocabulary * 64).collect();
        let on_device = gpu.upload(&logits).unwrap();
        let mut seen = vec![0u32; vocabulary];
        let expected = shares(&one, temperature, top_p);
        for batch in 0..rows / 64 {
            let choices: Vec<Choice> = (0..64)
                .map(|row| Choice {
                    temperature,
                    top_p,
                    seed: (batch * 64 + row) as u64,
                })
                .collect();
            let mut tokens = gpu.zeros::<u32>(64).unwrap();
            let mut probabilities = gpu.zeros::<f32>(64).unwrap();
            let (mut steps, mut positions) = (
                gpu.zeros::<u64>(64).unwrap(),
                gpu.upload(&[5u32; 64]).unwrap(),
            );
            let choices = gpu.upload(&choices).unwrap();
            gpu.sample(
                &mut tokens,
                &mut probabilities,
                &on_device,
                &choices,
                &mut steps,
                &mut positions,
                (64, vocabulary),
            )
            .unwrap();
            let plain = shares(&one, 1.0, 1.0);
            for (token, probability) in gpu
                .read(&tokens, 64)
                .unwrap()
                .iter()
                .zip(gpu.read(&probabilities, 64).unwrap())
            {
                seen[*token as usize] += 1;
                assert!((f64::from(probability) - plain[*token as usize].ln()).abs() < 1e-3);
                assert!(
                    expected[*token as usize] > 0.0,
                    "a token that top-p leaves out"
                );
            }
            assert_eq!(gpu.read(&steps, 64).unwrap(), [1; 64]);
            assert_eq!(gpu.read(&positions, 64).unwrap(), [6; 64]);
        }
        // Half the summed difference between what came and what should have; for as many draws from the right one it is
        // of this size.
        let distance: f64 = seen
            .iter()
            .zip(&expected)
            .map(|(count, share)| (f64::from(*count) / f64::from(rows as u32) - share).abs())
            .sum::<f64>()
            / 2.0;
        let usual: f64 = expected
            .iter()
            .map(|share| (share * (1.0 - share) / f64::from(rows as u32)).sqrt())
            .sum::<f64>()
            / 2.0;
        assert!(
            distance < 1.5 * usual + 0.01,
            "{vocabulary} {temperature} {top_p}: {distance} against {usual}"
        );
    }
    // Greedy: the first of equals.
    let mut logits = numbers(&mut random, 3000, 1.0);
    logits[1700] = 9.0;
    logits[2900] = 9.0;
    let on_device = gpu.upload(&logits).unwrap();
    let (mut tokens, mut probabilities) =
        (gpu.zeros::<u32>(1).unwrap(), gpu.zeros::<f32>(1).unwrap());
    let (mut steps, mut positions) = (gpu.zeros::<u64>(1).unwrap(), gpu.zeros::<u32>(1).unwrap());
    let choices = gpu.upload(&[Choice::GREEDY]).unwrap();
    gpu.sample(
        &mut tokens,
        &mut probabilities,
        &on_device,
        &choices,
        &mut steps,
        &mut positions,
        (1, 3000),
    )
    .unwrap();
    assert_eq!(gpu.read(&tokens, 1).unwrap(), [1700]);
}

/// What each token's share is after temperature and top-p.
fn shares(logits: &[f32], temperature: f32, top_p: f32) -> Vec<f64> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits
        .iter()
        .map(|one| f64::from((one - highest) / temperature).exp())
        .collect();
    let total: f64 = weights.iter().sum();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|left, right| {
        weights[*right]
            .total_cmp(&weights[*left])
            .then(left.cmp(right))
    });
    let (mut kept, mut sum) = (vec![0.0; logits.len()], 0.0);
    for token in order {
        if sum >= f64::from(top_p) * total && sum > 0.0 {
            break;
        }
        kept[token] = weights[token];
        sum += weights[token];
    }
    kept.iter().map(|weight| weight / sum).collect()
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
