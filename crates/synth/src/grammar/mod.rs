//! The grammar: seeds stacked in sequence, typed by shape and dtype.
//!
//! A composition is chosen once and written in any [`Size`]; the same seed and index give the same text, byte for byte.
//! Whether it is worth keeping (finite, not constant, long enough) is not decided here but by running it.

mod builder;
mod families;
mod size;
mod text;

use warpsmith_schema::{Dtype, OpGraph};

use crate::seeds::{OperatorFamily, SeedCatalogue};
use crate::splitmix::SplitMix64;
use builder::{GraphBuilder, InputDistribution, ValueId};
use families::OperatorAttempt;
use size::{Layout, elements};

pub use size::TaskSize;

/// How many operators are stacked at most.
pub const MAX_OPS: usize = 5;
/// How often a next operator is looked for before the composition is given up.
const MAX_ATTEMPTS: usize = 200;

/// A module that was composed, in every size.
#[derive(Debug, Clone)]
pub struct Composition {
    builder: GraphBuilder,
    result: ValueId,
}

impl Composition {
    /// The `index`-th composition of a seed, of so many operators. `None` is rare: the grammar ran into a corner.
    pub fn new(seeds: &SeedCatalogue, seed: u64, index: u64, ops: usize) -> Option<Self> {
        let mut rng = SplitMix64::of_index(seed, index);
        let mut builder = GraphBuilder::default();
        let mut value = draw_first_input(&mut builder, &mut rng)?;
        while builder.ops.len() < ops {
            value = append_operator(seeds, &mut builder, &mut rng, value, ops)?;
        }
        Some(Self {
            builder,
            result: value,
        })
    }

    /// Paths of the seeds, in order.
    pub fn seeds(&self) -> &[String] {
        &self.builder.seeds
    }

    /// PyTorch's functional names of the operators, in order.
    pub fn ops(&self) -> &[String] {
        &self.builder.ops
    }

    /// The module's text.
    pub fn code(&self, size: TaskSize) -> String {
        text::module(&self.builder, self.result, size)
    }

    pub fn graph(&self, size: TaskSize) -> OpGraph {
        text::graph(&self.builder, self.result, size)
    }

    /// What all its values take together, as if none were freed.
    pub fn bytes(&self, size: TaskSize) -> u64 {
        let bytes = |value: &builder::GraphValueType| match value.dtype {
            Dtype::Float64 | Dtype::Int64 => 8,
            Dtype::Bool | Dtype::Int8 | Dtype::Uint8 => 1,
            Dtype::Float16 | Dtype::Bfloat16 | Dtype::Int16 => 2,
            Dtype::Float32 | Dtype::Int32 => 4,
        };
        self.builder
            .values
            .iter()
            .map(|value| elements(&value.shape, size) * bytes(value))
            .sum()
    }
}

fn draw_first_input(builder: &mut GraphBuilder, rng: &mut SplitMix64) -> Option<ValueId> {
    let layouts = [
        (Layout::Rows, 32),
        (Layout::Sequence, 22),
        (Layout::Signal, 8),
        (Layout::Image, 30),
        (Layout::Volume, 8),
    ];
    let chosen = rng.weighted(&layouts.map(|(_, weight)| weight))?;
    let shape = layouts[chosen].0.shape(rng);
    let draw = if rng.chance(80) {
        InputDistribution::Normal
    } else {
        InputDistribution::Unit
    };
    Some(builder.input("x", shape, draw))
}

/// One more operator, tried until one fits.
fn append_operator(
    seeds: &SeedCatalogue,
    builder: &mut GraphBuilder,
    rng: &mut SplitMix64,
    value: ValueId,
    ops: usize,
) -> Option<ValueId> {
    let left = ops - builder.ops.len();
    let weights = families::WEIGHTS;
    for _ in 0..MAX_ATTEMPTS {
        let family: OperatorFamily = weights[rng.weighted(&weights.map(|(_, weight)| weight))?].0;
        let operators = seeds.of(family);
        let Some(spellings) = rng.choose(&operators) else {
            continue;
        };
        let Some(seed) = rng.choose(spellings) else {
            continue;
        };
        // Special functions are many, and seldom met.
        if seed.path.starts_with("torch.special.") && !rng.chance(10) {
            continue;
        }
        let Some(variant) = rng.choose(&seed.variants) else {
            continue;
        };
        // A try that fails half-way leaves nothing behind.
        let mut tried = builder.clone();
        let step = OperatorAttempt {
            seeds,
            builder: &mut tried,
            rng,
            seed,
            variant,
            value,
            left,
        };
        if let Some(next) = step.apply_family() {
            let before = builder.ops.last();
            let repeated =
                before.is_some_and(|before| tried.ops.get(builder.ops.len()) == Some(before));
            let fits = tried.values[next]
                .shape
                .iter()
                .all(|extent| extent.at_least(1));
            if repeated || !fits || tried.ops.len() > ops {
                continue;
            }
            *builder = tried;
            return Some(next);
        }
    }
    None
}
