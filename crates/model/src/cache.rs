//! Keys and values of what a sequence has already seen.

use crate::ModelConfig;

/// One sequence's keys and values. Grows with the sequence, and can be cut back to a shared prefix.
#[derive(Debug, Clone)]
pub struct KvCache {
    pub(crate) layers: Vec<LayerCache>,
    head_dim: usize,
    /// Whole positions; a layer may hold more while a step is under way or after one failed.
    len: usize,
}

/// For each key and value head, all positions in order.
#[derive(Debug, Clone)]
pub(crate) struct LayerCache {
    pub(crate) keys: Vec<Vec<f32>>,
    pub(crate) values: Vec<Vec<f32>>,
}

impl KvCache {
    pub fn new(config: &ModelConfig) -> Self {
        let heads = vec![Vec::new(); config.kv_heads];
        let layer = LayerCache {
            keys: heads.clone(),
            values: heads,
        };
        Self {
            layers: vec![layer; config.layers],
            head_dim: config.head_dim,
            len: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets everything from that position on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        let numbers = self.len * self.head_dim;
        for layer in &mut self.layers {
            for head in layer.keys.iter_mut().chain(&mut layer.values) {
                head.truncate(numbers);
            }
        }
    }

    /// A copy of the first positions.
    pub(crate) fn prefix(&self, len: usize) -> Self {
        let len = self.len.min(len);
        let numbers = len * self.head_dim;
        let cut = |heads: &[Vec<f32>]| -> Vec<Vec<f32>> {
            heads.iter().map(|head| head[..numbers].to_vec()).collect()
        };
        Self {
            layers: self
                .layers
                .iter()
                .map(|layer| LayerCache {
                    keys: cut(&layer.keys),
                    values: cut(&layer.values),
                })
                .collect(),
            head_dim: self.head_dim,
            len,
        }
    }

    /// Positions count only once every layer has them.
    pub(crate) fn commit(&mut self, positions: usize) {
        self.len += positions;
    }
}

impl LayerCache {
    /// Adds positions given as rows of all heads side by side.
    pub(crate) fn append(&mut self, keys: &[f32], values: &[f32], head_dim: usize) {
        let width = head_dim * self.keys.len();
        for (into, from) in [(&mut self.keys, keys), (&mut self.values, values)] {
            for row in from.chunks_exact(width) {
                for (head, numbers) in into.iter_mut().zip(row.chunks_exact(head_dim)) {
                    head.extend_from_slice(numbers);
                }
            }
        }
    }
}
