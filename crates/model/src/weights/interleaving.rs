//! The one thing in which tensors of the two kinds of file differ: the order of some rows.

use super::names::{LayerWeight, WeightName};
use crate::{HostTensor, ModelConfig, ModelFamily};

/// Heads of a tensor whose rows llama.cpp's converter interleaves: q and k of the Llama family.
///
/// It does so to rotate neighbours instead of halves. Put back on loading, there is one kind of
/// rotation here, and an adapter trained on the safetensors fits the GGUF.
pub(crate) fn interleaved_heads(config: &ModelConfig, part: WeightName) -> Option<usize> {
    match (config.family, part) {
        (ModelFamily::Llama, WeightName::Layer(_, LayerWeight::Query)) => Some(config.heads),
        (ModelFamily::Llama, WeightName::Layer(_, LayerWeight::Key)) => Some(config.kv_heads),
        _ => None,
    }
}

/// For each row in Hugging Face's order, its place among interleaved rows.
pub(super) fn halves(rows: usize, heads: usize) -> impl Iterator<Item = usize> {
    let head_dim = rows / heads;
    (0..rows).map(move |row| {
        let (head, place) = (row / head_dim, row % head_dim);
        let (half, pair) = (place / (head_dim / 2), place % (head_dim / 2));
        head * head_dim + 2 * pair + half
    })
}

/// Back from halves to llama.cpp's order, for a file of ours: a matrix or a bias.
pub(crate) fn interleaved(tensor: &HostTensor, heads: usize) -> HostTensor {
    let rows = tensor.shape()[0];
    let row_length = tensor.data().len() / rows;
    let mut moved = HostTensor::zeros(tensor.shape());
    for (row, place) in halves(rows, heads).enumerate() {
        moved.data_mut()[place * row_length..][..row_length]
            .copy_from_slice(&tensor.data()[row * row_length..][..row_length]);
    }
    moved
}
