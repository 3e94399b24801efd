//! Sequences that are learnt from together: packed one after the other, none sees another.

use super::attention::Stretches;
use super::rows::Uses;
use super::step::Wanted;
use crate::{AT_ONCE, Buffer, Gpu, GpuError, bf16};

/// Packed sequences on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub(crate) tokens: Vec<u32>,
    pub(crate) lengths: Vec<usize>,
    /// Rows of tokens that others follow from, and those others.
    pub(crate) picked: Vec<(u32, u32)>,
}

impl Batch {
    /// Each sequence with the places of those of its tokens that were said. What was said follows from something: the first
    /// token cannot be among them.
    pub fn new<'a>(sequences: impl IntoIterator<Item = (&'a [u32], &'a [usize])>) -> Self {
        let mut batch = Self {
            tokens: Vec::new(),
            lengths: Vec::new(),
            picked: Vec::new(),
        };
        for (tokens, said) in sequences {
            let begin = batch.tokens.len();
            for place in said {
                assert!(*place > 0, "the first token follows from nothing");
                batch
                    .picked
                    .push(((begin + place - 1) as u32, tokens[*place]));
            }
            batch.tokens.extend_from_slice(tokens);
            batch.lengths.push(tokens.len());
        }
        batch
    }

    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Tokens that were said.
    pub fn said(&self) -> usize {
        self.picked.len()
    }
}

/// How much of everything a pass works on. Rounded up, so that passes are often alike and one recording serves them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) rows: usize,
    pub(super) picked: usize,
    pub(super) stretches: usize,
    pub(super) uses: usize,
}

/// A batch on a device, in buffers that the next one uses again.
pub(super) struct DeviceBatch {
    pub(super) tokens: Buffer<u32>,
    pub(super) positions: Buffer<u32>,
    pub(super) order: Buffer<u32>,
    pub(super) uses: Buffer<Uses>,
    pub(super) stretches: Stretches,
    pub(super) picked: Buffer<u32>,
    pub(super) targets: Buffer<u32>,
    pub(super) wanted: Buffer<Wanted>,
    pub(super) logprobs: Buffer<f32>,
    pub(super) entropies: Buffer<f32>,
    /// The first of [`AT_ONCE`] numbers is a row's value, and its slope.
    pub(super) values: Buffer<f32>,
    pub(super) value_slopes: Buffer<bf16>,
    pub(super) extent: Extent,
    /// Tokens that were said, without what was rounded up.
    pub(super) said: usize,
}

const ROUND_ROWS: usize = 64;
const ROUND_PICKED: usize = 64;
const ROUND_USES: usize = 1024;

impl DeviceBatch {
    pub(super) fn new(gpu: &Gpu, rows: usize, head_dim: usize) -> Result<Self, GpuError> {
        let rows = rows.next_multiple_of(ROUND_ROWS);
        let picked = rows.next_multiple_of(ROUND_PICKED);
        let uses = rows.next_multiple_of(ROUND_USES);
        Ok(Self {
            tokens: gpu.zeros(rows)?,
            positions: gpu.zeros(rows)?,
            order: gpu.zeros(rows)?,
            uses: gpu.upload(&vec![Uses::default(); uses])?,
            stretches: Stretches::new(gpu, gpu.attention, rows, head_dim)?,
            picked: gpu.zeros(picked)?,
            targets: gpu.zeros(picked)?,
            wanted: gpu.upload(&vec![Wanted::default(); picked])?,
            logprobs: gpu.zeros(picked)?,
            entropies: gpu.zeros(picked)?,
            values: gpu.zeros(AT_ONCE * picked)?,
            value_slopes: gpu.zeros(AT_ONCE * picked)?,
            extent: Extent {
                rows: 0,
                picked: 0,
                stretches: 0,
                uses: 0,
            },
            said: 0,
        })
    }

    /// The most rows that a batch may have.
    pub(super) fn room(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn load(&mut self, gpu: &Gpu, batch: &Batch) -> Result<(), GpuError> {
        let mut tokens = batch.tokens.clone();
        let mut lengths = batch.lengths.clone();
        // What is missing is one more sequence, of which nothing is asked.
        let missing = tokens.len().next_multiple_of(ROUND_ROWS) - tokens.len();
        tokens.resize(tokens.len() + missing, 0);
        lengths.extend((missing > 0).then_some(missing));
        let rows = tokens.len();
        if rows > self.room() {
            return Err(GpuError::NoRoom {
                what: "rows",
                count: rows,
                room: self.room(),
            });
        }
        let positions: Vec<u32> = lengths
            .iter()
            .flat_map(|length| 0..*length as u32)
            .collect();
        let (order, mut uses) = Uses::of(&tokens);
        uses.resize(uses.len().next_multiple_of(ROUND_USES), Uses::default());
        self.stretches.load(gpu, &lengths)?;
        let (mut picked, mut targets): (Vec<u32>, Vec<u32>) = batch.picked.iter().copied().unzip();
        let round = picked.len().next_multiple_of(ROUND_PICKED);
        picked.resize(round, u32::MAX);
        targets.resize(round, 0);
        self.extent = Extent {
            rows,
            picked: round,
            stretches: self.stretches.count(),
            uses: uses.len(),
        };
        self.said = batch.said();
        gpu.write(&mut self.tokens, &tokens)?;
        gpu.write(&mut self.positions, &positions)?;
        gpu.write(&mut self.order, &order)?;
        gpu.write(&mut self.uses, &uses)?;
        gpu.write(&mut self.picked, &picked)?;
        gpu.write(&mut self.targets, &targets)
    }

    pub(super) fn want(&mut self, gpu: &Gpu, wanted: &[Wanted]) -> Result<(), GpuError> {
        assert_eq!(wanted.len(), self.said, "one for each token that was said");
        let mut all = wanted.to_vec();
        all.resize(self.extent.picked, Wanted::default());
        gpu.write(&mut self.wanted, &all)
    }

    /// How a loss changes with the value before each token that was said.
    pub(super) fn want_values(&mut self, gpu: &Gpu, slopes: &[f32]) -> Result<(), GpuError> {
        assert_eq!(slopes.len(), self.said, "one for each token that was said");
        let mut all = vec![bf16::ZERO; AT_ONCE * self.extent.picked];
        for (to, slope) in all.iter_mut().step_by(AT_ONCE).zip(slopes) {
            *to = bf16::from_f32(*slope);
        }
        gpu.write(&mut self.value_slopes, &all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_follows_from_the_row_before() {
        let batch = Batch::new([(&[5, 6, 7][..], &[2][..]), (&[8, 9][..], &[1][..])]);
        assert_eq!(batch.tokens, [5, 6, 7, 8, 9]);
        assert_eq!(batch.lengths, [3, 2]);
        assert_eq!(batch.picked, [(1, 7), (3, 9)]);
    }
}
