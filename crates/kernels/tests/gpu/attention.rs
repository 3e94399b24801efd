//! Attention over a KV cache, and what prepares it.

use rand::SeedableRng;
use rand::rngs::StdRng;
use warpsmith_kernels::training::cpu;
use warpsmith_kernels::{
    Buffer, DecodeScratch, Gpu, KvCacheLayer, PREFILL_TILE, PrefillTile, QkvRope, bf16,
};

use crate::{ROUNDED, gpu, max_error, numbers, to_bf16, to_f32};

/// The KV cache of some sequences.
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

    /// The row's heads, each over what its slot holds up to that position.
    fn attend(&self, row: &[f32], slot: usize, position: usize) -> Vec<f32> {
        let group = self.heads / self.kv_heads;
        (0..self.heads)
            .flat_map(|head| {
                let start = (slot * self.kv_heads + head / group) * self.capacity * self.head_dim;
                let range = start..start + (position + 1) * self.head_dim;
                let query = &row[head * self.head_dim..][..self.head_dim];
                attend(query, &self.keys[range.clone()], &self.values[range])
            })
            .collect()
    }

    /// Appends a row's keys and values to its slot.
    fn append(&mut self, row: &[f32], place: (u32, u32)) {
        let dim = self.head_dim;
        for head in 0..self.kv_heads {
            let slot = place.0 as usize * self.kv_heads + head;
            let at = (slot * self.capacity + place.1 as usize) * dim;
            let key = (self.heads + head) * dim;
            let value = key + self.kv_heads * dim;
            self.keys[at..at + dim].copy_from_slice(&row[key..key + dim]);
            self.values[at..at + dim].copy_from_slice(&row[value..value + dim]);
        }
    }

    fn width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

/// One query over keys and values, position after position.
fn attend(query: &[f32], keys: &[f32], values: &[f32]) -> Vec<f32> {
    let width = query.len();
    let scale = (width as f32).sqrt().recip();
    let score = |key: &[f32]| query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>() * scale;
    let mut probs: Vec<f32> = keys.chunks_exact(width).map(score).collect();
    let max = probs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for prob in &mut probs {
        *prob = (*prob - max).exp();
    }
    let total: f32 = probs.iter().sum();
    let mut out = vec![0.0; width];
    for (prob, value) in probs.iter().zip(values.chunks_exact(width)) {
        for (to, from) in out.iter_mut().zip(value) {
            *to += prob / total * from;
        }
    }
    out
}

const SHAPES: [(usize, usize, usize); 6] = [
    (9, 3, 64),
    (12, 2, 128),
    (4, 4, 64),
    (16, 8, 128),
    (14, 2, 64),
    (16, 2, 128),
];

/// What is applied to a row of queries, keys and values before attention.
struct RowRope {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    bias: Vec<f32>,
    norms: Option<[Vec<f32>; 2]>,
    frequencies: Vec<f32>,
}

impl RowRope {
    fn new(
        random: &mut StdRng,
        (heads, kv_heads, head_dim): (usize, usize, usize),
        with_norms: bool,
    ) -> Self {
        let pairs = 0..head_dim / 2;
        Self {
            heads,
            kv_heads,
            head_dim,
            bias: numbers(random, (heads + 2 * kv_heads) * head_dim, 1.0),
            norms: with_norms.then(|| [(); 2].map(|()| numbers(random, head_dim, 1.0))),
            frequencies: pairs
                .map(|pair| 10_000f32.powf(-2.0 * pair as f32 / head_dim as f32))
                .collect(),
        }
    }

    fn apply(&self, row: &mut [f32], position: u32) {
        for (head, numbers) in row.chunks_exact_mut(self.head_dim).enumerate() {
            let from = &self.bias[head * self.head_dim..][..self.head_dim];
            numbers
                .iter_mut()
                .zip(from)
                .for_each(|(one, by)| *one += by);
            if head >= self.heads + self.kv_heads {
                continue;
            }
            if let Some(norms) = &self.norms {
                let by = &norms[usize::from(head >= self.heads)];
                numbers.copy_from_slice(&cpu::rms_norm(numbers, by, 1e-6));
            }
            let angles = cpu::rope_angles(position as usize, &self.frequencies);
            cpu::rope(numbers, &angles);
        }
    }

    fn upload(&self, gpu: &Gpu) -> DeviceRope {
        DeviceRope {
            bias: gpu.upload(&self.bias).unwrap(),
            norms: self
                .norms
                .as_ref()
                .map(|norms| norms.each_ref().map(|norm| gpu.upload(norm).unwrap())),
            frequencies: gpu.upload(&self.frequencies).unwrap(),
            heads: self.heads,
        }
    }
}

struct DeviceRope {
    bias: Buffer<f32>,
    norms: Option<[Buffer<f32>; 2]>,
    frequencies: Buffer<f32>,
    heads: usize,
}

impl DeviceRope {
    fn rope(&self) -> QkvRope<'_> {
        QkvRope {
            bias: Some(&self.bias),
            head_norms: self.norms.as_ref().map(|[query, key]| (query, key)),
            frequencies: &self.frequencies,
            heads: self.heads,
            epsilon: 1e-6,
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn one_position_attends_to_all_before() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(3));
    for (heads, kv_heads, head_dim) in SHAPES {
        for with_norms in [false, true] {
            let mut case = Case::new(&mut random, heads, kv_heads, head_dim);
            let rope = RowRope::new(&mut random, (heads, kv_heads, head_dim), with_norms);
            let places = [(0u32, 0u32), (3, 399), (1, 17), (2, 128)];
            let rows = places.len();
            let qkv = numbers(&mut random, rows * case.width(), 2.0);
            let on_device = gpu.upload(&to_bf16(&qkv)).unwrap();
            let (mut keys, mut values) = upload_cache(&gpu, &case);
            let mut rotated = qkv.clone();
            for (row, place) in rotated.chunks_exact_mut(case.width()).zip(places) {
                rope.apply(row, place.1);
                case.append(row, place);
            }
            let expected: Vec<f32> = places
                .iter()
                .zip(rotated.chunks_exact(case.width()))
                .flat_map(|(place, row)| case.attend(row, place.0 as usize, place.1 as usize))
                .collect();
            let slots = gpu.upload(&places.map(|place| place.0)).unwrap();
            let positions = gpu.upload(&places.map(|place| place.1)).unwrap();
            let rope = rope.upload(&gpu);
            let mut out = gpu.zeros::<bf16>(rows * heads * head_dim).unwrap();
            for splits in [1, 3, 16] {
                let mut scratch =
                    DecodeScratch::new(&gpu, rows, (heads, head_dim), splits).unwrap();
                // Twice: the counters of finished splits must be reset.
                for _ in 0..2 {
                    let mut cached = KvCacheLayer {
                        keys: &mut keys,
                        values: &mut values,
                        slots: &slots,
                        positions: &positions,
                        kv_heads,
                        head_dim,
                        capacity: case.capacity,
                    };
                    let rope = rope.rope();
                    gpu.flash_attn_decode(
                        &mut out,
                        &on_device,
                        &mut cached,
                        &rope,
                        &mut scratch,
                        rows,
                    )
                    .unwrap();
                    let found = to_f32(&gpu.read(&out, rows * heads * head_dim).unwrap());
                    let worst = max_error(&found, &expected);
                    assert!(
                        worst < 2.0 * ROUNDED,
                        "{heads} {kv_heads} {head_dim} {splits}: {worst}"
                    );
                }
            }
            let count = case.keys.len();
            assert!(max_error(&to_f32(&gpu.read(&keys, count).unwrap()), &case.keys) < ROUNDED);
            assert!(max_error(&to_f32(&gpu.read(&values, count).unwrap()), &case.values) < ROUNDED);
        }
    }
}

fn upload_cache(gpu: &Gpu, case: &Case) -> (Buffer<bf16>, Buffer<bf16>) {
    assert_eq!(
        case.keys.len(),
        case.slots * case.kv_heads * case.capacity * case.head_dim
    );
    (
        gpu.upload(&to_bf16(&case.keys)).unwrap(),
        gpu.upload(&to_bf16(&case.values)).unwrap(),
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
            for start in (0..count).step_by(PREFILL_TILE) {
                tiles.push(PrefillTile {
                    row: row + start,
                    count: (count - start).min(PREFILL_TILE as u32),
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
        let expected: Vec<f32> = places
            .zip(qkv.chunks_exact(case.width()))
            .flat_map(|(place, row)| case.attend(row, place.0 as usize, place.1 as usize))
            .collect();
        let on_device = gpu.upload(&to_bf16(&qkv)).unwrap();
        let (mut keys, mut values) = upload_cache(&gpu, &case);
        let unused = gpu.zeros::<u32>(rows).unwrap();
        let cached = KvCacheLayer {
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
        gpu.flash_attn_prefill(&mut out, &on_device, &cached, heads, &on_tiles, tiles.len())
            .unwrap();
        let found = to_f32(&gpu.read(&out, rows * heads * head_dim).unwrap());
        let worst = max_error(&found, &expected);
        assert!(
            worst < 2.0 * ROUNDED,
            "{heads} {kv_heads} {head_dim}: {worst}"
        );
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn heads_are_rotated_and_appended_to_the_cache() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(5));
    for (heads, kv_heads, head_dim) in SHAPES {
        for with_norms in [false, true] {
            let (slots, capacity) = (3, 50);
            let places = [(2u32, 49u32), (0, 0), (1, 7)];
            let (rows, width) = (places.len(), (heads + 2 * kv_heads) * head_dim);
            let qkv = numbers(&mut random, rows * width, 2.0);
            let rope = RowRope::new(&mut random, (heads, kv_heads, head_dim), with_norms);
            let mut expected = qkv.clone();
            for (row, place) in expected.chunks_exact_mut(width).zip(places) {
                rope.apply(row, place.1);
            }
            let mut on_device = gpu.upload(&to_bf16(&qkv)).unwrap();
            let count = slots * kv_heads * capacity * head_dim;
            let (mut keys, mut values) = (
                gpu.zeros::<bf16>(count).unwrap(),
                gpu.zeros::<bf16>(count).unwrap(),
            );
            let on_slots = gpu.upload(&places.map(|place| place.0)).unwrap();
            let positions = gpu.upload(&places.map(|place| place.1)).unwrap();
            let mut cached = KvCacheLayer {
                keys: &mut keys,
                values: &mut values,
                slots: &on_slots,
                positions: &positions,
                kv_heads,
                head_dim,
                capacity,
            };
            let rope = rope.upload(&gpu);
            gpu.rope_append_kv(&mut on_device, &mut cached, &rope.rope(), rows)
                .unwrap();
            let queries = to_f32(&gpu.read(&on_device, rows * width).unwrap());
            let (keys, values) = (
                to_f32(&gpu.read(&keys, count).unwrap()),
                to_f32(&gpu.read(&values, count).unwrap()),
            );
            for (row, place) in places.iter().enumerate() {
                let expected = &expected[row * width..][..width];
                assert!(
                    max_error(
                        &queries[row * width..][..heads * head_dim],
                        &expected[..heads * head_dim]
                    ) < ROUNDED
                );
                for head in 0..kv_heads {
                    let at = ((place.0 as usize * kv_heads + head) * capacity + place.1 as usize)
                        * head_dim;
                    let key = &expected[(heads + head) * head_dim..][..head_dim];
                    let value = &expected[(heads + kv_heads + head) * head_dim..][..head_dim];
                    assert!(max_error(&keys[at..][..head_dim], key) < ROUNDED);
                    assert!(max_error(&values[at..][..head_dim], value) < ROUNDED);
                }
            }
            let filled = |cache: &[f32]| {
                cache
                    .chunks_exact(head_dim)
                    .filter(|one| one.iter().any(|n| *n != 0.0))
                    .count()
            };
            assert_eq!(filled(&keys), rows * kv_heads);
            assert_eq!(filled(&values), rows * kv_heads);
        }
    }
}
