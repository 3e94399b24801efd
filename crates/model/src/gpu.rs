//! The same transformer on a GPU: weights in bfloat16, keys and values of all sequences side by side, tokens chosen on the
//! device.
//!
//! A step over one new token of every sequence is captured once for each size of batch and then launched as a whole: a small
//! model's kernels are shorter than it takes to launch them one by one.

mod kv_slots;
mod layers;
mod runner;
mod work;

use std::collections::HashMap;

use warpsmith_kernels::{CudaGraph, Gpu, PREFILL_TILE, PrefillTile, RowSampling};

use self::kv_slots::KvSlots;
pub use self::kv_slots::{DeviceCache, KvCapacity};
use self::layers::{DeviceWeights, Pass, Positions};
use self::work::Work;
use crate::{HostTensor, ModelConfig, ModelError, Sampled, Weights};

/// New positions of one sequence.
#[derive(Debug)]
pub struct DeviceSegment<'a> {
    pub cache: &'a mut DeviceCache,
    pub tokens: &'a [u32],
    /// How to choose the token that follows, and its number among those chosen so far; `None` where the prompt goes on.
    pub choice: Option<(RowSampling, u64)>,
}

pub struct DeviceTransformer {
    gpu: Gpu,
    config: ModelConfig,
    weights: DeviceWeights,
    slots: KvSlots,
    work: Work,
    /// By rows.
    graphs: HashMap<usize, CudaGraph>,
    /// What the device's own copies of tokens, slots, positions, steps and choices say of the next step, row by row.
    ready: Vec<Next>,
}

/// One row of the next step.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Next {
    token: u32,
    slot: u32,
    position: u32,
    step: u64,
    choice: RowSampling,
}

impl DeviceTransformer {
    /// Puts weights on the device, adapters merged into them, and makes room for so many sequences.
    pub fn new(gpu: Gpu, weights: &Weights, room: KvCapacity) -> Result<Self, ModelError> {
        let config = weights.config.clone();
        Gpu::supports_attention(config.head_dim, config.heads / config.kv_heads)?;
        Gpu::check_width(config.hidden)?;
        Gpu::check_width(config.feed_forward)?;
        Ok(Self {
            weights: DeviceWeights::upload(&gpu, weights)?,
            slots: KvSlots::new(&gpu, &config, room)?,
            work: Work::new(&gpu, &config, room)?,
            graphs: HashMap::new(),
            ready: Vec::new(),
            gpu,
            config,
        })
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Room for one more sequence, if there is any.
    pub fn new_cache(&self) -> Option<DeviceCache> {
        self.slots.take()
    }

    /// A copy of a sequence's first positions, if there is room for it.
    pub fn prefix(
        &mut self,
        of: &DeviceCache,
        len: usize,
    ) -> Result<Option<DeviceCache>, ModelError> {
        self.slots.prefix(&self.gpu, of, len)
    }

    /// Runs every segment's tokens and chooses, for those that ask, the token that follows.
    pub fn step(
        &mut self,
        segments: &mut [DeviceSegment<'_>],
    ) -> Result<Vec<Option<Sampled>>, ModelError> {
        self.check(segments)?;
        let chosen = match continuations(segments) {
            Some(next) => {
                let mut chosen = Vec::with_capacity(next.len());
                for part in next.chunks(self.work.room.sequences) {
                    chosen.extend(self.decode(part)?.into_iter().map(Some));
                }
                chosen
            }
            None => self.prompts(segments)?,
        };
        for segment in segments {
            segment.cache.grow(segment.tokens.len());
        }
        Ok(chosen)
    }

    /// The logits after every token, for checks and for learning.
    pub fn logits(
        &mut self,
        cache: &mut DeviceCache,
        tokens: &[u32],
    ) -> Result<HostTensor, ModelError> {
        self.check(&[DeviceSegment {
            cache: &mut *cache,
            tokens,
            choice: None,
        }])?;
        self.ready.clear();
        let mut data = Vec::with_capacity(tokens.len() * self.config.vocabulary);
        for part in tokens.chunks(self.work.room.sequences.min(self.work.room.rows)) {
            let parts = [Part {
                slot: cache.slot(),
                position: cache.len() as u32,
                tokens: part,
            }];
            let picked: Vec<u32> = (0..part.len() as u32).collect();
            self.run_prompts(&parts, &picked)?;
            data.extend(
                self.gpu
                    .read(&self.work.logits, part.len() * self.config.vocabulary)?,
            );
            cache.grow(part.len());
        }
        Ok(HostTensor::new(
            [tokens.len(), self.config.vocabulary],
            data,
        ))
    }

    fn check(&self, segments: &[DeviceSegment<'_>]) -> Result<(), ModelError> {
        if segments.is_empty() || segments.iter().any(|segment| segment.tokens.is_empty()) {
            return Err(ModelError::NoTokens);
        }
        let context = self.config.context.min(self.work.room.positions);
        for segment in segments {
            let needed = segment.cache.len() + segment.tokens.len();
            if needed > context {
                return Err(ModelError::ContextFull { needed, context });
            }
            let vocabulary = self.config.vocabulary;
            let outside = |token: &&u32| **token as usize >= vocabulary;
            if let Some(&token) = segment.tokens.iter().find(outside) {
                return Err(ModelError::Token { token, vocabulary });
            }
        }
        Ok(())
    }

    /// One token of every sequence, by a captured graph.
    fn decode(&mut self, next: &[Next]) -> Result<Vec<Sampled>, ModelError> {
        // Few sizes are captured; rows that are too many write to a slot nobody reads.
        let rows = next.len().next_power_of_two().min(self.work.room.sequences);
        if !self.graphs.contains_key(&rows) {
            let graph = self.capture(rows)?;
            self.graphs.insert(rows, graph);
        }
        // Rows that fill up move on with the others, and would one day leave their slot.
        let told = self.ready == next && rows == next.len();
        self.ready.clear();
        if !told {
            self.work.tell(&self.gpu, next, rows, self.slots.spare())?;
        }
        if let Some(graph) = self.graphs.get(&rows) {
            graph.launch()?;
        }
        let chosen = self.work.chosen(&self.gpu, next.len())?;
        self.ready
            .extend(next.iter().zip(&chosen).map(|(before, chosen)| Next {
                token: chosen.token,
                position: before.position + 1,
                step: before.step + 1,
                ..*before
            }));
        Ok(chosen)
    }

    fn capture(&mut self, rows: usize) -> Result<CudaGraph, ModelError> {
        self.ready.clear();
        let mut pass = self.pass();
        let gpu = pass.gpu;
        // Once for real first: libraries load their kernels on first use, which cannot be captured. Its rows go to the
        // spare slot, or are told again before the graph runs.
        let spare = pass.slots.spare();
        pass.work.tell(gpu, &[], rows, spare)?;
        pass.run(rows, Positions::Single, None)?;
        pass.choose(rows)?;
        Ok(gpu.capture(|| {
            pass.run(rows, Positions::Single, None)?;
            pass.choose(rows)
        })?)
    }

    /// Prompts, and whatever comes with them.
    fn prompts(
        &mut self,
        segments: &[DeviceSegment<'_>],
    ) -> Result<Vec<Option<Sampled>>, ModelError> {
        self.ready.clear();
        let mut chosen = vec![None; segments.len()];
        let mut batch = Batch::default();
        for (index, segment) in segments.iter().enumerate() {
            let mut done = 0;
            while done < segment.tokens.len() {
                let free = self.work.room.rows - batch.rows;
                let asks = segment.choice.is_some();
                if free == 0 || (asks && batch.asking.len() == self.work.room.sequences) {
                    self.flush(&mut batch, segments, &mut chosen)?;
                    continue;
                }
                let count = free.min(segment.tokens.len() - done);
                batch.parts.push(Part {
                    slot: segment.cache.slot(),
                    position: (segment.cache.len() + done) as u32,
                    tokens: &segment.tokens[done..done + count],
                });
                batch.rows += count;
                done += count;
                if asks && done == segment.tokens.len() {
                    batch.picked.push(batch.rows as u32 - 1);
                    batch.asking.push(index);
                }
            }
        }
        self.flush(&mut batch, segments, &mut chosen)?;
        Ok(chosen)
    }

    fn flush(
        &mut self,
        batch: &mut Batch<'_>,
        segments: &[DeviceSegment<'_>],
        chosen: &mut [Option<Sampled>],
    ) -> Result<(), ModelError> {
        let Batch {
            parts,
            picked,
            asking,
            ..
        } = std::mem::take(batch);
        if parts.is_empty() {
            return Ok(());
        }
        self.run_prompts(&parts, &picked)?;
        let choices: Vec<(RowSampling, u64)> = asking
            .iter()
            .filter_map(|&index| segments[index].choice)
            .collect();
        if choices.is_empty() {
            return Ok(());
        }
        self.work.tell_choices(&self.gpu, &choices)?;
        self.pass().choose(choices.len())?;
        for (index, sampled) in asking
            .into_iter()
            .zip(self.work.chosen(&self.gpu, choices.len())?)
        {
            chosen[index] = Some(sampled);
        }
        Ok(())
    }

    /// Leaves the logits of the picked rows on the device.
    fn run_prompts(&mut self, parts: &[Part<'_>], picked: &[u32]) -> Result<(), ModelError> {
        let (rows, tiles) = self.work.tell_parts(&self.gpu, parts, picked)?;
        let logits = Some(picked.len());
        Ok(self.pass().run(rows, Positions::Tiles(tiles), logits)?)
    }

    fn pass(&mut self) -> Pass<'_> {
        Pass {
            gpu: &self.gpu,
            config: &self.config,
            weights: &self.weights,
            slots: &mut self.slots,
            work: &mut self.work,
        }
    }
}

impl std::fmt::Debug for DeviceTransformer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("DeviceTransformer")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Neighbouring tokens of one sequence.
struct Part<'a> {
    slot: u32,
    position: u32,
    tokens: &'a [u32],
}

impl Part<'_> {
    /// What one block of attention takes at a time, with rows counted from `row`.
    fn tiles(&self, row: u32) -> impl Iterator<Item = PrefillTile> {
        let count = self.tokens.len();
        (0..count)
            .step_by(PREFILL_TILE)
            .map(move |start| PrefillTile {
                row: row + start as u32,
                count: (count - start).min(PREFILL_TILE) as u32,
                slot: self.slot,
                position: self.position + start as u32,
            })
    }
}

#[derive(Default)]
struct Batch<'a> {
    parts: Vec<Part<'a>>,
    rows: usize,
    /// Rows after which a token is chosen, and the segments they end.
    picked: Vec<u32>,
    asking: Vec<usize>,
}

/// The rows of a step in which every sequence has one token and wants another.
fn continuations(segments: &[DeviceSegment<'_>]) -> Option<Vec<Next>> {
    let each = segments.iter();
    each.map(|segment| match (segment.tokens, segment.choice) {
        (&[token], Some((choice, step))) => Some(Next {
            token,
            slot: segment.cache.slot(),
            position: segment.cache.len() as u32,
            step,
            choice,
        }),
        _ => None,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_cut_into_tiles() {
        let part = Part {
            slot: 3,
            position: 10,
            tokens: &[0; 130],
        };
        let tiles: Vec<PrefillTile> = part.tiles(5).collect();
        let places: Vec<_> = tiles
            .iter()
            .map(|tile| (tile.row, tile.count, tile.position))
            .collect();
        assert_eq!(places, [(5, 64, 10), (69, 64, 74), (133, 2, 138)]);
        assert!(tiles.iter().all(|tile| tile.slot == 3));
    }
}
