//! The one thing in which tensors of the two kinds of file differ: the order of some rows.

use candle_core::quantized::{QStorage, QTensor};
use candle_core::{Device, Tensor};

use super::names::{LayerPart, Part};
use crate::{Config, Family, ModelError};

/// Heads of a tensor whose rows llama.cpp's converter interleaves: q and k of the Llama family.
///
/// It does so to rotate neighbours instead of halves. Put back on loading, there is one kind of
/// rotation here, and an adapter trained on the safetensors fits the GGUF.
pub(crate) fn interleaved_heads(config: &Config, part: Part) -> Option<usize> {
    match (config.family, part) {
        (Family::Llama, Part::Layer(_, LayerPart::Query)) => Some(config.heads),
        (Family::Llama, Part::Layer(_, LayerPart::Key)) => Some(config.kv_heads),
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

/// Moves whole rows, and a row is a whole number of quantisation blocks: nothing is rounded again.
pub(super) fn in_halves(tensor: &QTensor, heads: usize) -> Result<QTensor, ModelError> {
    let rows = tensor.shape().dims()[0];
    let data = tensor.data()?;
    let row_bytes = data.len() / rows;
    let mut moved = Vec::with_capacity(data.len());
    for row in halves(rows, heads) {
        moved.extend_from_slice(&data[row * row_bytes..][..row_bytes]);
    }
    let storage = QStorage::from_data(moved.into(), &Device::Cpu, tensor.dtype())?;
    Ok(QTensor::new(storage, tensor.shape().clone())?)
}

/// Back from halves to llama.cpp's order, for a file of ours: a matrix or a bias.
pub(crate) fn interleaved(tensor: &Tensor, heads: usize) -> Result<Tensor, ModelError> {
    let rows = tensor.dims()[0];
    let apart = tensor.reshape((heads, 2, rows / heads / 2, ()))?;
    Ok(apart.transpose(1, 2)?.reshape(tensor.shape())?)
}
