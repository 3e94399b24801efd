//! The grammar: seeds stacked in sequence, typed by shape and dtype.
//!
//! A composition is chosen once and written in any [`Size`]; the same seed and index give the same text, byte for byte.
//! Whether it is worth keeping (finite, not constant, long enough) is not decided here but by running it.

mod draft;
mod families;
mod luck;
mod size;
mod text;

use warpsmith_schema::{Dtype, OpGraph};

use crate::seeds::{Family, Seeds};
use draft::{Draft, Draw, Id};
use families::Step;
use size::{Layout, elements};

pub(crate) use luck::Luck;
pub use size::Size;

/// How many operators are stacked at most.
pub const MOST_OPS: usize = 5;
/// How often a next operator is looked for before the composition is given up.
const TRIES: usize = 200;

/// A module that was composed, in every size.
#[derive(Debug, Clone)]
pub struct Composition {
    draft: Draft,
    result: Id,
}

impl Composition {
    /// The `index`-th composition of a seed, of so many operators. `None` is rare: the grammar ran into a corner.
    pub fn new(seeds: &Seeds, seed: u64, index: u64, ops: usize) -> Option<Self> {
        let mut luck = Luck::new(seed, index);
        let mut draft = Draft::default();
        let mut value = begin(&mut draft, &mut luck)?;
        while draft.ops.len() < ops {
            value = grow(seeds, &mut draft, &mut luck, value, ops)?;
        }
        Some(Self {
            draft,
            result: value,
        })
    }

    /// Paths of the seeds, in order.
    pub fn seeds(&self) -> &[String] {
        &self.draft.seeds
    }

    /// PyTorch's functional names of the operators, in order.
    pub fn ops(&self) -> &[String] {
        &self.draft.ops
    }

    /// The module's text.
    pub fn code(&self, size: Size) -> String {
        text::module(&self.draft, self.result, size)
    }

    pub fn graph(&self, size: Size) -> OpGraph {
        text::graph(&self.draft, self.result, size)
    }

    /// What all its values take together, as if none were freed.
    pub fn bytes(&self, size: Size) -> u64 {
        let bytes = |value: &draft::Typed| match value.dtype {
            Dtype::Float64 | Dtype::Int64 => 8,
            Dtype::Bool | Dtype::Int8 | Dtype::Uint8 => 1,
            Dtype::Float16 | Dtype::Bfloat16 | Dtype::Int16 => 2,
            Dtype::Float32 | Dtype::Int32 => 4,
        };
        self.draft
            .values
            .iter()
            .map(|value| elements(&value.shape, size) * bytes(value))
            .sum()
    }
}

fn begin(draft: &mut Draft, luck: &mut Luck) -> Option<Id> {
    let layouts = [
        (Layout::Rows, 32),
        (Layout::Sequence, 22),
        (Layout::Signal, 8),
        (Layout::Image, 30),
        (Layout::Volume, 8),
    ];
    let chosen = luck.weighted(&layouts.map(|(_, weight)| weight))?;
    let shape = layouts[chosen].0.shape(luck);
    let draw = if luck.chance(80) {
        Draw::Normal
    } else {
        Draw::Unit
    };
    Some(draft.input("x", shape, draw))
}

/// One more operator, tried until one fits.
fn grow(seeds: &Seeds, draft: &mut Draft, luck: &mut Luck, value: Id, ops: usize) -> Option<Id> {
    let left = ops - draft.ops.len();
    let weights = families::WEIGHTS;
    for _ in 0..TRIES {
        let family: Family = weights[luck.weighted(&weights.map(|(_, weight)| weight))?].0;
        let operators = seeds.of(family);
        let Some(spellings) = luck.one(&operators) else {
            continue;
        };
        let Some(seed) = luck.one(spellings) else {
            continue;
        };
        // Special functions are many, and seldom met.
        if seed.path.starts_with("torch.special.") && !luck.chance(10) {
            continue;
        }
        let Some(variant) = luck.one(&seed.variants) else {
            continue;
        };
        // A try that fails half-way leaves nothing behind.
        let mut tried = draft.clone();
        let step = Step {
            seeds,
            draft: &mut tried,
            luck,
            seed,
            variant,
            value,
            left,
        };
        if let Some(next) = step.take() {
            let before = draft.ops.last();
            let repeated =
                before.is_some_and(|before| tried.ops.get(draft.ops.len()) == Some(before));
            let fits = tried.values[next]
                .shape
                .iter()
                .all(|extent| extent.at_least(1));
            if repeated || !fits || tried.ops.len() > ops {
                continue;
            }
            *draft = tried;
            return Some(next);
        }
    }
    None
}
