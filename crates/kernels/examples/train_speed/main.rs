//! How fast a model learns on a GPU: `train_speed [low-rank] [SEQUENCES LENGTH [STEPS]]`
//!
//! Random weights of SmolLM2-135M's shape, all of them learning; or, with `low-rank`, of Qwen2.5-Coder-1.5B's, frozen, with
//! matrices of rank 32 beside all of its own. Tokens a second and memory, as rows of a table. `ATTENTION=groups` has groups of
//! warps attend (Hopper). With `parts` instead, how long each kernel of a layer takes by itself.

mod parts;

use std::cell::RefCell;
use std::error::Error;
use std::io::Write;
use std::rc::Rc;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::training::{
    AdamW, Attention, Batch, Bench, Between, Factors, Frozen, Keep, Layout, Learner, Learns,
    LowRank, Parameter, Part, Room, Shape, Wanted,
};
use warpsmith_kernels::{Gpu, GpuError};

/// Each of so many steps, which nobody waits for in between; the median counts.
const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = arguments
        .first()
        .filter(|first| first.parse::<usize>().is_err());
    let word = word.cloned();
    if word.is_some() {
        arguments.remove(0);
    }
    let numbers: Vec<usize> = arguments
        .iter()
        .map(|text| text.parse())
        .collect::<Result<_, _>>()?;
    let given = match numbers[..] {
        [] => None,
        [sequences, length] => Some((sequences, length, 10)),
        [sequences, length, steps] => Some((sequences, length, steps.max(1))),
        _ => return Err("train_speed [low-rank] [SEQUENCES LENGTH [STEPS]]".into()),
    };
    let small = given.map_or_else(|| vec![(8, 1024, 10), (16, 2048, 10)], |one| vec![one]);
    let out = &mut std::io::stdout().lock();
    match word.as_deref() {
        None => {
            let model = Model::whole(smollm2())?;
            small
                .into_iter()
                .try_for_each(|one| model.measure(out, one))
        }
        Some("low-rank") => {
            let model = Model::low_rank(qwen2(), 32)?;
            model.measure(out, given.unwrap_or((8, 2048, 5)))
        }
        Some("parts") => {
            let models = [(smollm2(), small), (qwen2(), vec![(8, 2048, 5)])];
            models.into_iter().try_for_each(|(shape, sizes)| {
                sizes
                    .into_iter()
                    .try_for_each(|one| parts::measure(out, &shape, (one.0, one.1), one.2))
            })
        }
        Some(other) => Err(format!("there is no `{other}`").into()),
    }
}

fn smollm2() -> Shape {
    Shape {
        layers: 30,
        hidden: 576,
        feed_forward: 1536,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        vocabulary: 49_152,
        norm_epsilon: 1e-5,
        frequencies: frequencies(64, 100_000.0),
        tied: true,
        biased: false,
        head_norms: false,
    }
}

fn qwen2() -> Shape {
    Shape {
        layers: 28,
        hidden: 1536,
        feed_forward: 8960,
        heads: 12,
        kv_heads: 2,
        head_dim: 128,
        vocabulary: 151_936,
        norm_epsilon: 1e-6,
        frequencies: frequencies(128, 1_000_000.0),
        tied: true,
        biased: true,
        head_norms: false,
    }
}

fn frequencies(head_dim: u16, theta: f32) -> Vec<f32> {
    (0..head_dim / 2)
        .map(|pair| theta.powf(-2.0 * f32::from(pair) / f32::from(head_dim)))
        .collect()
}

/// A model of random numbers, and what of it learns.
struct Model {
    bench: Rc<RefCell<Bench>>,
    /// Free bytes before there was anything.
    free: usize,
    layout: Layout,
    learning: Learning,
}

enum Learning {
    Whole(Vec<f32>),
    Beside {
        frozen: Rc<Frozen>,
        low_rank: LowRank,
        numbers: Vec<f32>,
        between: Between,
    },
}

impl Model {
    fn begun(shape: Shape) -> Result<(Bench, usize, Layout), GpuError> {
        let mut gpu = Gpu::open(0)?;
        if std::env::var("ATTENTION").as_deref() == Ok("warps") {
            gpu = gpu.attending_by(Attention::Warps);
        }
        let (free, _) = gpu.memory()?;
        let layout = Layout::new(shape.clone());
        Ok((Bench::new(gpu, shape)?, free, layout))
    }

    fn whole(shape: Shape) -> Result<Self, GpuError> {
        let (bench, free, layout) = Self::begun(shape)?;
        let parameters = layout.parameters().into_iter();
        let weights = parameters.flat_map(|one| random_numbers(&layout, one));
        Ok(Self {
            learning: Learning::Whole(weights.collect()),
            bench: Rc::new(RefCell::new(bench)),
            free,
            layout,
        })
    }

    fn low_rank(shape: Shape, rank: usize) -> Result<Self, GpuError> {
        let (bench, free, layout) = Self::begun(shape)?;
        let frozen = Frozen::new(bench.gpu(), layout.clone(), |one| {
            Ok::<_, GpuError>(random_numbers(&layout, one))
        })?;
        let low_rank = LowRank {
            rank,
            scale: 1.0,
            beside: Part::ALL.to_vec(),
        };
        let factors = Factors::new(layout.shape().clone(), &low_rank);
        let mut numbers = vec![0.0f32; factors.count()];
        let mut random = StdRng::seed_from_u64(2);
        for layer in 0..layout.shape().layers {
            for part in Part::ALL {
                let rows = (0..rank).filter_map(|row| factors.a_row(layer, part, row));
                for place in rows {
                    numbers[place].fill_with(|| random.random_range(-0.02..0.02));
                }
            }
        }
        Ok(Self {
            learning: Learning::Beside {
                frozen: Rc::new(frozen),
                low_rank,
                numbers,
                between: factors.between(),
            },
            bench: Rc::new(RefCell::new(bench)),
            free,
            layout,
        })
    }

    fn measure(
        &self,
        out: &mut impl Write,
        (sequences, length, steps): (usize, usize, usize),
    ) -> Result<(), Box<dyn Error>> {
        let (learns, between, what) = match &self.learning {
            Learning::Whole(weights) => {
                let layout = self.layout.clone();
                (Learns::All { layout, weights }, Between::default(), "all")
            }
            Learning::Beside {
                frozen,
                low_rank,
                numbers,
                between,
            } => {
                let frozen = frozen.clone();
                let learns = Learns::Beside {
                    frozen,
                    low_rank,
                    numbers,
                };
                (learns, *between, "low rank")
            }
        };
        for keep in [Keep::All, Keep::Starts] {
            let room = Room {
                keep,
                between,
                ..Room::new(self.layout.shape(), sequences * length, length)
            };
            self.bench.borrow_mut().make_room(room)?;
            let mut learner = Learner::on(&self.bench, &learns)?;
            let row = self.timed(&mut learner, (sequences, length, steps))?;
            let kept = match keep {
                Keep::All => "all kept",
                Keep::Starts => "layers made again",
            };
            writeln!(out, "| ours, {what}, {kept} {row}")?;
            out.flush()?;
        }
        Ok(())
    }

    fn timed(
        &self,
        learner: &mut Learner,
        (sequences, length, steps): (usize, usize, usize),
    ) -> Result<String, Box<dyn Error>> {
        let mut random = StdRng::seed_from_u64(1);
        let vocabulary = self.layout.shape().vocabulary as u32;
        let said: Vec<usize> = (1..length).collect();
        let tokens: Vec<Vec<u32>> = (0..sequences)
            .map(|_| {
                (0..length)
                    .map(|_| random.random_range(0..vocabulary))
                    .collect()
            })
            .collect();
        let batch = Batch::new(
            tokens
                .iter()
                .map(|tokens| (tokens.as_slice(), said.as_slice())),
        );
        let share = -1.0 / batch.said() as f32;
        let wanted = vec![
            Wanted {
                logprob: share,
                entropy: 0.0
            };
            batch.said()
        ];
        let step = |learner: &mut Learner, number: u64| -> Result<(), Box<dyn Error>> {
            learner.learn(&batch, &wanted)?;
            Ok(learner.update(AdamW {
                rate: 1e-3,
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
                weight_decay: 0.01,
                longest: 1.0,
                step: number,
            })?)
        };
        let loss = |learner: &Learner| -> Result<f32, Box<dyn Error>> {
            Ok(learner.scores()?.logprobs.iter().sum::<f32>() * share)
        };
        let wait = || self.bench.borrow().gpu().wait();
        step(learner, 1)?;
        let first = loss(learner)?;
        // The second is recorded, the third the first that is only launched.
        step(learner, 2)?;
        step(learner, 3)?;
        wait()?;
        let mut times = Vec::new();
        let mut number = 3;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for _ in 0..steps {
                number += 1;
                step(learner, number)?;
            }
            wait()?;
            times.push(start.elapsed().as_secs_f64() / steps as f64);
        }
        let last = loss(learner)?;
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let (left, _) = self.bench.borrow().gpu().memory()?;
        Ok(format!(
            "| {sequences} x {length} | {:.0} | {:.2} | {:.2} | {:.1} | {first:.3} to {last:.3} |",
            (sequences * length) as f64 / median,
            median * 1e3,
            times[0] * 1e3,
            (self.free - left) as f64 / (1u64 << 30) as f64,
        ))
    }
}

/// Small around zero; norms are one.
fn random_numbers(layout: &Layout, parameter: Parameter) -> Vec<f32> {
    let place = layout.place(parameter);
    if matches!(
        parameter,
        Parameter::AttentionNorm(_) | Parameter::FeedForwardNorm(_) | Parameter::FinalNorm
    ) {
        return vec![1.0; place.len()];
    }
    // A draw for each would take longer than all that is measured.
    let mut random = StdRng::seed_from_u64(place.start as u64);
    let some: Vec<f32> = (0..99_991)
        .map(|_| random.random_range(-0.035..0.035))
        .collect();
    some.into_iter().cycle().take(place.len()).collect()
}
