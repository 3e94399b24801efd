//! The forward pass on the processor: new positions of several sequences at once.
//!
//! The rows of all sequences go through the matrices together, so that weights are read once a step
//! however many sequences there are and however many positions each brings; only attention looks at
//! one sequence at a time.

use std::sync::Arc;

use rayon::prelude::*;

use crate::attention::Attention;
use crate::matrix::Linear;
use crate::weights::LayerWeights;
use crate::{HostTensor, KvCache, ModelError, Weights};

/// Which positions' logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsFor {
    /// Only keys and values: the prompt goes on in the next step.
    Nothing,
    Last,
    All,
}

/// New positions of one sequence.
#[derive(Debug)]
pub struct Segment<'a> {
    pub cache: &'a mut KvCache,
    pub tokens: &'a [u32],
    pub logits_for: LogitsFor,
}

#[derive(Debug, Clone)]
pub struct Transformer {
    weights: Arc<Weights>,
    frequencies: Vec<f32>,
}

impl Transformer {
    pub fn new(weights: Arc<Weights>) -> Self {
        let frequencies = weights.config.frequencies();
        Self {
            weights,
            frequencies,
        }
    }

    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    pub fn new_cache(&self) -> KvCache {
        KvCache::new(&self.weights.config)
    }

    /// Runs every segment's tokens and returns, for each, the logits that were wanted.
    ///
    /// After an error no cache has grown.
    pub fn forward(&self, segments: &mut [Segment<'_>]) -> Result<Vec<HostTensor>, ModelError> {
        self.check(segments)?;
        for segment in &mut *segments {
            // What a failed step may have left.
            segment.cache.truncate(segment.cache.len());
        }
        let config = &self.weights.config;
        let tokens: Vec<u32> = segments
            .iter()
            .flat_map(|one| one.tokens)
            .copied()
            .collect();
        let positions: Vec<usize> = segments
            .iter()
            .flat_map(|one| (0..one.tokens.len()).map(|offset| one.cache.len() + offset))
            .collect();
        let rotations = self.rotations(&positions);
        let mut hidden = self.weights.embedding.select(&tokens);
        for (index, layer) in self.weights.layers.iter().enumerate() {
            self.attend(layer, index, segments, &rotations, &mut hidden);
            self.feed_forward(layer, &mut hidden);
        }
        for segment in &mut *segments {
            segment.cache.commit(segment.tokens.len());
        }

        let (mut start, mut wanted) = (0, Vec::new());
        let mut counts = Vec::with_capacity(segments.len());
        for segment in &*segments {
            let end = start + segment.tokens.len();
            let first = match segment.logits_for {
                LogitsFor::Nothing => end,
                LogitsFor::Last => end - 1,
                LogitsFor::All => start,
            };
            wanted.extend_from_slice(&hidden.data()[first * config.hidden..end * config.hidden]);
            counts.push(end - first);
            start = end;
        }
        let last = HostTensor::new([wanted.len() / config.hidden, config.hidden], wanted);
        let mut logits = if last.rows() == 0 {
            Vec::new()
        } else {
            let last = norm(&last, &self.weights.final_norm, config.norm_epsilon);
            self.weights.head().forward(&last).into_data()
        };
        // Split from the back, so that each segment's rows are moved once.
        let mut split: Vec<HostTensor> = counts
            .iter()
            .rev()
            .map(|&count| {
                let data = logits.split_off(logits.len() - count * config.vocabulary);
                HostTensor::new([count, config.vocabulary], data)
            })
            .collect();
        split.reverse();
        Ok(split)
    }

    fn check(&self, segments: &[Segment<'_>]) -> Result<(), ModelError> {
        let config = &self.weights.config;
        if segments.is_empty() {
            return Err(ModelError::NoTokens);
        }
        for segment in segments {
            if segment.tokens.is_empty() {
                return Err(ModelError::NoTokens);
            }
            let needed = segment.cache.len() + segment.tokens.len();
            if needed > config.context {
                return Err(ModelError::ContextFull {
                    needed,
                    context: config.context,
                });
            }
            let outside = |token: &&u32| **token as usize >= config.vocabulary;
            if let Some(&token) = segment.tokens.iter().find(outside) {
                return Err(ModelError::Token {
                    token,
                    vocabulary: config.vocabulary,
                });
            }
        }
        Ok(())
    }

    /// Cosines and sines of each row's position, side by side.
    fn rotations(&self, positions: &[usize]) -> HostTensor {
        let pairs = self.frequencies.len();
        let mut data = Vec::with_capacity(positions.len() * 2 * pairs);
        for &position in positions {
            let angles = || self.frequencies.iter().map(|one| position as f32 * one);
            data.extend(angles().map(f32::cos));
            data.extend(angles().map(f32::sin));
        }
        HostTensor::new([positions.len(), 2 * pairs], data)
    }

    fn attend(
        &self,
        layer: &LayerWeights,
        index: usize,
        segments: &mut [Segment<'_>],
        rotations: &HostTensor,
        hidden: &mut HostTensor,
    ) {
        let config = &self.weights.config;
        let input = norm(hidden, &layer.attention_norm, config.norm_epsilon);
        let [mut queries, mut keys, values] =
            Linear::forward_all([&layer.query, &layer.key, &layer.value], &input);
        if let Some(norms) = &layer.head_norms {
            norm_heads(&mut queries, &norms.query, config.norm_epsilon);
            norm_heads(&mut keys, &norms.key, config.norm_epsilon);
        }
        rotate(&mut queries, rotations);
        rotate(&mut keys, rotations);
        let mut attended = HostTensor::zeros(queries.shape());
        let mut start = 0;
        for segment in segments {
            let end = start + segment.tokens.len();
            let span = |rows: &HostTensor| start * rows.columns()..end * rows.columns();
            let first_position = segment.cache.len();
            let cache = &mut segment.cache.layers[index];
            cache.append(
                &keys.data()[span(&keys)],
                &values.data()[span(&values)],
                config.head_dim,
            );
            let attention = Attention {
                cache,
                queries: &queries.data()[span(&queries)],
                heads: config.heads,
                head_dim: config.head_dim,
                first_position,
            };
            attention.write(&mut attended.data_mut()[span(&queries)]);
            start = end;
        }
        hidden.add(&layer.attention_output.forward(&attended));
    }

    fn feed_forward(&self, layer: &LayerWeights, hidden: &mut HostTensor) {
        let input = norm(
            hidden,
            &layer.feed_forward_norm,
            self.weights.config.norm_epsilon,
        );
        let [mut gate, up] = Linear::forward_all([&layer.gate, &layer.up], &input);
        gate.data_mut()
            .par_chunks_mut(PARALLEL_CHUNK)
            .zip(up.data().par_chunks(PARALLEL_CHUNK))
            .for_each(|(gate, up)| {
                for (gate, up) in gate.iter_mut().zip(up) {
                    *gate = *gate / (1.0 + (-*gate).exp()) * up;
                }
            });
        hidden.add(&layer.down.forward(&gate));
    }
}

/// Fewer numbers than this are not worth another thread: waking one costs more than a row's work.
const PARALLEL_CHUNK: usize = 16_384;

fn norm(rows: &HostTensor, weight: &[f32], epsilon: f32) -> HostTensor {
    let mut normed = rows.clone();
    normed
        .data_mut()
        .par_chunks_mut(rows.columns())
        .with_min_len(PARALLEL_CHUNK.div_ceil(rows.columns()))
        .for_each(|row| norm_in_place(row, weight, epsilon));
    normed
}

fn norm_heads(rows: &mut HostTensor, weight: &[f32], epsilon: f32) {
    rows.data_mut()
        .chunks_exact_mut(weight.len())
        .for_each(|head| norm_in_place(head, weight, epsilon));
}

/// Root mean square norm.
fn norm_in_place(row: &mut [f32], weight: &[f32], epsilon: f32) {
    let squares: f32 = row.iter().map(|one| one * one).sum();
    let scale = (squares / row.len() as f32 + epsilon).sqrt().recip();
    for (one, weight) in row.iter_mut().zip(weight) {
        *one = *one * scale * weight;
    }
}

/// Rotary positions: each head's first half turns against its second.
fn rotate(rows: &mut HostTensor, rotations: &HostTensor) {
    let (columns, pairs) = (rows.columns(), rotations.columns() / 2);
    for (row, rotation) in rows
        .data_mut()
        .chunks_exact_mut(columns)
        .zip(rotations.data().chunks_exact(2 * pairs))
    {
        let (cosines, sines) = rotation.split_at(pairs);
        for head in row.chunks_exact_mut(2 * pairs) {
            let (first, second) = head.split_at_mut(pairs);
            for pair in 0..pairs {
                let (one, two) = (first[pair], second[pair]);
                first[pair] = one * cosines[pair] - two * sines[pair];
                second[pair] = two * cosines[pair] + one * sines[pair];
            }
        }
    }
}
