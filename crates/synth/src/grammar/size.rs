//! One composition, several sizes.
//!
//! How large a task must be to run for some milliseconds is known only when it has run. So every extent of a composition
//! is held in all sizes at once, and the text and the graph are written for the size that is wanted: the smallest for
//! cheap checks, the others until the time falls into the window.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::splitmix::SplitMix64;

/// How large: 0 is for checks; each next one is some eight times the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskSize(usize);

impl TaskSize {
    pub const COUNT: usize = 6;
    /// For checks: a few thousand elements.
    pub const REDUCED: Self = Self(0);
    /// Where a search for milliseconds begins.
    pub const USUAL_ON_CPU: Self = Self(2);
    pub const USUAL_ON_GPU: Self = Self(4);

    pub fn new(size: usize) -> Option<Self> {
        (size < Self::COUNT).then_some(Self(size))
    }

    pub fn larger(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }

    /// The next smaller one that is not only for checks.
    pub fn smaller(self) -> Option<Self> {
        (self.0 > 1).then(|| Self(self.0 - 1))
    }

    pub fn number(self) -> usize {
        self.0
    }
}

/// Length of a dimension, in every size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent([u64; TaskSize::COUNT]);

impl Extent {
    pub(crate) fn fixed(length: u64) -> Self {
        Self([length; TaskSize::COUNT])
    }

    pub(crate) fn at(self, size: TaskSize) -> u64 {
        self.0[size.0]
    }

    /// The same rule in every size; `None` where it does not hold in one of them.
    pub(crate) fn map(self, rule: impl Fn(u64) -> Option<u64>) -> Option<Self> {
        let mut lengths = self.0;
        for length in &mut lengths {
            *length = rule(*length)?;
        }
        Some(Self(lengths))
    }

    pub(crate) fn times(self, other: Self) -> Self {
        let mut lengths = self.0;
        for (length, factor) in lengths.iter_mut().zip(other.0) {
            *length *= factor;
        }
        Self(lengths)
    }

    pub(crate) fn divisible(self, by: u64) -> bool {
        self.0.iter().all(|length| length % by == 0)
    }

    pub(crate) fn at_least(self, least: u64) -> bool {
        self.0.iter().all(|length| *length >= least)
    }
}

pub(crate) type Shape = Vec<Extent>;

pub(crate) fn elements(shape: &[Extent], size: TaskSize) -> u64 {
    shape.iter().map(|extent| extent.at(size)).product()
}

/// An argument: the same in every size, or following from extents.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Argument {
    Fixed(Value),
    Length(Extent),
    Lengths(Vec<Extent>),
}

impl Argument {
    pub(crate) fn at(&self, size: TaskSize) -> Value {
        match self {
            Self::Fixed(value) => value.clone(),
            Self::Length(extent) => json!(extent.at(size)),
            Self::Lengths(extents) => Value::from(
                extents
                    .iter()
                    .map(|extent| extent.at(size))
                    .collect::<Vec<_>>(),
            ),
        }
    }
}

impl<T: Into<Value>> From<T> for Argument {
    fn from(value: T) -> Self {
        Self::Fixed(value.into())
    }
}

/// What an input's dimensions stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Batch and features.
    Rows,
    /// Batch, positions, features.
    Sequence,
    /// Batch, channels, and one, two or three dimensions of space.
    Signal,
    Image,
    Volume,
}

type Lengths = [u64; TaskSize::COUNT];

impl Layout {
    /// Lengths by size, of which one is chosen; those of features and channels are stretched afterwards.
    fn lengths(self) -> &'static [&'static [Lengths]] {
        match self {
            Self::Rows => &[
                &[
                    [4, 128, 512, 2048, 16384, 32768],
                    [64, 1024, 4096, 8192, 8192, 16384],
                ],
                &[
                    [8, 1024, 8192, 16384, 65536, 262_144],
                    [64, 256, 256, 1024, 2048, 2048],
                ],
                &[
                    [4, 32, 64, 128, 1024, 4096],
                    [64, 4096, 32768, 131_072, 131_072, 131_072],
                ],
            ],
            Self::Sequence => &[
                &[
                    [2, 8, 16, 32, 64, 128],
                    [8, 128, 256, 512, 2048, 4096],
                    [64, 256, 512, 1024, 1024, 1024],
                ],
                &[
                    [2, 4, 8, 16, 32, 64],
                    [12, 512, 1024, 2048, 4096, 8192],
                    [64, 128, 256, 512, 1024, 1024],
                ],
            ],
            Self::Signal => &[&[
                [2, 8, 16, 32, 64, 128],
                [32, 32, 64, 64, 128, 256],
                [32, 1024, 2048, 8192, 16384, 16384],
            ]],
            Self::Image => &[
                &[
                    [2, 4, 8, 16, 64, 128],
                    [32, 32, 64, 64, 128, 128],
                    [16, 32, 64, 128, 128, 192],
                ],
                &[
                    [2, 8, 16, 64, 128, 256],
                    [32, 32, 32, 128, 256, 256],
                    [16, 32, 56, 56, 64, 96],
                ],
            ],
            Self::Volume => &[&[
                [1, 2, 4, 8, 16, 32],
                [16, 16, 16, 32, 32, 64],
                [12, 16, 32, 48, 64, 64],
            ]],
        }
    }

    pub(crate) fn shape(self, rng: &mut SplitMix64) -> Shape {
        let choices = self.lengths();
        let lengths = choices[rng.below(choices.len())];
        let mut shape: Shape = lengths.iter().map(|lengths| Extent(*lengths)).collect();
        // Not every size is a power of two.
        let quarters = rng.choose_of([3, 4, 4, 4, 5, 6]);
        let features = if self == Self::Sequence { 2 } else { 1 };
        if let Some(stretched) = shape[features].map(|length| Some(length * quarters / 4)) {
            shape[features] = stretched;
        }
        if rng.chance(30)
            && let Some(batch) = shape[0].map(|length| Some(length + length / 2))
        {
            shape[0] = batch;
        }
        let space = match self {
            Self::Image => 1,
            Self::Volume => 2,
            _ => 0,
        };
        for _ in 0..space {
            let last = shape[shape.len() - 1];
            shape.push(last);
        }
        shape
    }
}
