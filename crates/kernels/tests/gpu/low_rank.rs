//! Low-rank matrices that learn beside a frozen model. `W + scale · B·A` is a matrix like any other, so the twin of whole models
//! says how a loss changes with it, and from that follows how it changes with A and B.

use std::cell::RefCell;
use std::rc::Rc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::GpuError;
use warpsmith_kernels::training::{
    AdamW, Bench, Factors, Frozen, Keep, Layout, Learner, Learns, LowRank, Part, Room, Wanted,
};
use warpsmith_kernels::twin::model::{Lesson, learn};

use crate::learner::{batch, length, random_weights, sequences, shapes};
use crate::{gpu, numbers};

/// A and B of a part, row by row.
struct Pair {
    a: Vec<Vec<f64>>,
    b: Vec<Vec<f64>>,
}

/// Where the low-rank matrices of a part lie.
struct Places<'a> {
    layout: &'a Layout,
    factors: &'a Factors,
    rank: usize,
}

impl Places<'_> {
    fn pair(&self, layer: usize, part: Part, numbers: &[f32]) -> Pair {
        let row = |start: usize, count: usize| {
            let row = numbers[start..start + count].iter();
            row.copied().map(f64::from).collect::<Vec<_>>()
        };
        let shape = self.layout.shape();
        let inputs = part.parameter(layer).inputs(shape);
        let a = |number| self.factors.a_row(layer, part, number).unwrap().start;
        let b = |number| self.factors.b_row(layer, part, number).unwrap();
        Pair {
            a: (0..self.rank)
                .map(|number| row(a(number), inputs))
                .collect(),
            b: (0..part.rows(shape))
                .map(|number| row(b(number), self.rank))
                .collect(),
        }
    }

    /// Where a part's row is among the model's numbers.
    fn row(&self, layer: usize, part: Part, number: usize) -> std::ops::Range<usize> {
        let (shape, parameter) = (self.layout.shape(), part.parameter(layer));
        let inputs = parameter.inputs(shape);
        let start = self.layout.place(parameter).start + part.row(shape, number) * inputs;
        start..start + inputs
    }

    /// The model with the matrices merged into it.
    fn merged(&self, weights: &[f32], numbers: &[f32], low_rank: &LowRank) -> Vec<f64> {
        let mut merged: Vec<f64> = weights.iter().copied().map(f64::from).collect();
        for layer in 0..self.layout.shape().layers {
            for part in &low_rank.beside {
                let Pair { a, b } = self.pair(layer, *part, numbers);
                for (number, b) in b.iter().enumerate() {
                    let row = &mut merged[self.row(layer, *part, number)];
                    for (by, a) in b.iter().zip(&a) {
                        for (to, a) in row.iter_mut().zip(a) {
                            *to += f64::from(low_rank.scale) * by * a;
                        }
                    }
                }
            }
        }
        merged
    }

    /// Slopes of A and B from those of the merged model.
    fn slopes(
        &self,
        (layer, part): (usize, Part),
        (numbers, scale): (&[f32], f32),
        merged: &[f64],
    ) -> Pair {
        let Pair { a, b } = self.pair(layer, part, numbers);
        let inputs = a[0].len();
        let mut of = Pair {
            a: vec![vec![0.0; inputs]; self.rank],
            b: vec![vec![0.0; self.rank]; b.len()],
        };
        for (number, own) in b.iter().enumerate() {
            let slopes = &merged[self.row(layer, part, number)];
            for r in 0..self.rank {
                for (i, slope) in slopes.iter().enumerate() {
                    of.b[number][r] += f64::from(scale) * slope * a[r][i];
                    of.a[r][i] += f64::from(scale) * own[r] * slope;
                }
            }
        }
        of
    }
}

fn adamw(step: u64) -> AdamW {
    AdamW {
        rate: 3e-3,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.01,
        longest: 1.0,
        step,
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn gradients_of_low_rank_matrices() {
    let mut random = StdRng::seed_from_u64(31);
    let besides = [
        Part::ALL.to_vec(),
        vec![Part::Query, Part::Value, Part::Up],
        vec![Part::AttentionOutput, Part::Gate, Part::Down],
    ];
    for ((name, shape), beside) in shapes().into_iter().zip(besides) {
        let layout = Layout::new(shape.clone());
        let weights = random_weights(&mut random, &layout);
        // Not a round number.
        let low_rank = LowRank {
            rank: 5,
            scale: 0.7,
            beside,
        };
        let factors = Factors::new(shape.clone(), &low_rank);
        let places = Places {
            layout: &layout,
            factors: &factors,
            rank: low_rank.rank,
        };
        let mut beginning = vec![0.0f32; factors.count()];
        let mut real = vec![false; factors.count()];
        for layer in 0..shape.layers {
            for part in &low_rank.beside {
                let a = (0..low_rank.rank).map(|row| factors.a_row(layer, *part, row).unwrap());
                let b = (0..part.rows(&shape)).map(|row| {
                    let start = factors.b_row(layer, *part, row).unwrap();
                    start..start + low_rank.rank
                });
                for place in a.chain(b) {
                    let own = numbers(&mut random, place.len(), 0.1);
                    beginning[place.clone()].copy_from_slice(&own);
                    real[place].fill(true);
                }
            }
        }

        let lengths = [40, 1, 70, 30];
        let sequences = sequences(&mut random, &lengths, shape.vocabulary);
        let batch = batch(&sequences);
        let wanted: Vec<Wanted> = (0..batch.said())
            .map(|_| Wanted {
                logprob: random.random_range(-0.02..0.005),
                entropy: random.random_range(-0.002..0.002),
            })
            .collect();
        let mut picked = Vec::new();
        let mut begin = 0;
        for (tokens, said) in &sequences {
            let said = said.iter();
            picked.extend(said.map(|place| (begin + place - 1, tokens[*place] as usize)));
            begin += tokens.len();
        }
        let each = wanted.iter();
        let slopes: Vec<_> = each
            .map(|one| (f64::from(one.logprob), f64::from(one.entropy)))
            .collect();
        let tokens: Vec<u32> = sequences.iter().flat_map(|one| one.0.clone()).collect();
        let twin = learn(
            &layout,
            &places.merged(&weights, &beginning, &low_rank),
            &Lesson {
                tokens: &tokens,
                lengths: &lengths,
                picked: &picked,
                wanted: &slopes,
            },
        );

        let mut first: Option<Vec<f32>> = None;
        for keep in [Keep::All, Keep::Starts] {
            let mut bench = Bench::new(gpu(), shape.clone()).unwrap();
            let frozen = Frozen::new::<GpuError>(bench.gpu(), layout.clone(), |parameter| {
                Ok(weights[layout.place(parameter)].to_vec())
            })
            .unwrap();
            bench
                .make_room(Room {
                    keep,
                    chunk: 128,
                    between: factors.between(),
                    ..Room::new(&shape, 192, 128)
                })
                .unwrap();
            let bench = Rc::new(RefCell::new(bench));
            let learns = Learns::Beside {
                frozen: Rc::new(frozen),
                low_rank: &low_rank,
                numbers: &beginning,
            };
            let mut learner = Learner::on(&bench, &learns).unwrap();
            // A frozen model with matrices beside it thinks what the merged one does.
            let heard = learner.listen(&batch).unwrap();
            let scores = heard.scores().unwrap();
            let pairs = scores.logprobs.iter().zip(&twin.logprobs);
            let furthest = pairs.map(|(one, two)| (f64::from(*one) - two).abs());
            let furthest = furthest.fold(0.0, f64::max);
            assert!(furthest < 0.1, "{name} {keep:?}: {furthest}");
            heard.learn(&wanted).unwrap();
            let gradient = learner.pupil().gradient().unwrap();
            let mut off = Vec::new();
            for layer in 0..shape.layers {
                for part in &low_rank.beside {
                    let at = (layer, *part);
                    let expected = places.slopes(at, (&beginning, low_rank.scale), &twin.gradient);
                    let found = places.pair(layer, *part, &gradient);
                    for (which, found, expected) in
                        [("A", found.a, expected.a), ("B", found.b, expected.b)]
                    {
                        let (found, expected) = (found.concat(), expected.concat());
                        let pairs = found.iter().zip(&expected);
                        let apart: Vec<f64> = pairs.map(|(one, two)| one - two).collect();
                        let share = length(&apart) / length(&expected).max(1e-12);
                        if share.is_nan() || share > 0.05 {
                            off.push(format!("{which} of {part:?} in layer {layer}: {share:.3}"));
                        }
                    }
                }
            }
            assert!(
                off.is_empty(),
                "{name} {keep:?}, off by a share of their length:\n{}",
                off.join("\n")
            );
            // Whether layers are made again, and whether kernels are launched one by one or as a recording, is all the same.
            let only_real = |all: Vec<f32>| {
                let pairs = all.into_iter().zip(&real);
                pairs
                    .filter_map(|(one, real)| real.then_some(one))
                    .collect::<Vec<f32>>()
            };
            let gradient = only_real(gradient);
            let first = first.get_or_insert_with(|| gradient.clone());
            assert!(*first == gradient, "{name} {keep:?}");
            let state = learner.pupil().state().unwrap();
            for round in 0..3 {
                learner.pupil_mut().restore(&state).unwrap();
                learner.learn(&batch, &wanted).unwrap();
                let again = only_real(learner.pupil().gradient().unwrap());
                assert!(*first == again, "{name} {keep:?}, round {round}");
            }
            // What is no number of any matrix stays zero.
            learner.update(adamw(1)).unwrap();
            learner.learn(&batch, &wanted).unwrap();
            learner.update(adamw(2)).unwrap();
            assert!(learner.pupil().gradient_length().unwrap().is_finite());
            let state = learner.pupil().state().unwrap();
            for (place, real) in real.iter().enumerate() {
                let numbers = [&state.weights, &state.first, &state.second].map(|of| of[place]);
                assert!(
                    *real || numbers.iter().all(|one| one.to_bits() == 0),
                    "{name} {keep:?}: number {place} is {numbers:?}"
                );
            }
            assert!(
                state.weights != beginning,
                "{name} {keep:?}: nothing was learnt"
            );
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn rows_are_scaled_in_some_columns() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(32));
    let (rows, width) = (37, 24);
    let start = numbers(&mut random, rows * width, 1.0);
    let by: Vec<f32> = (0..rows).map(|row| (row % 3) as f32).collect();
    let mut matrix = gpu.upload(&start).unwrap();
    let on_device = gpu.upload(&by).unwrap();
    gpu.scale_rows(&mut matrix, (width, 8..16), &on_device)
        .unwrap();
    let seen = gpu.read(&matrix, rows * width).unwrap();
    for (place, (seen, start)) in seen.iter().zip(&start).enumerate() {
        let by = if (8..16).contains(&(place % width)) {
            by[place / width]
        } else {
            1.0
        };
        assert!((seen - by * start).abs() < 1e-6, "{place}");
    }
}
