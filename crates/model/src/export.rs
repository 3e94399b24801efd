//! Weights as files that others read: adapters merged into their matrices, tokenizer and chat template beside them.

mod gguf;
mod safetensors;

use std::path::Path;

pub use self::gguf::{GgufType, write_gguf};
pub(crate) use self::safetensors::{EncodedTensor, write_tensors};
pub use self::safetensors::{FloatType, write_folder};
use crate::matrix::Linear;
use crate::weights::{LayerWeight, WeightName};
use crate::{HostTensor, ModelError, Weights};

/// Calls with every tensor: its part, `weight` or `bias`, and its numbers in `f32`, rows in Hugging Face's order.
///
/// One after the other, so that the whole model need not be in memory as `f32`.
fn each_tensor(
    weights: &Weights,
    mut visit: impl FnMut(WeightName, &'static str, &HostTensor) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let vector = |numbers: &[f32]| HostTensor::vector(numbers.to_vec());
    visit(WeightName::Embedding, "weight", &weights.embedding.to_f32())?;
    visit(
        WeightName::FinalNorm,
        "weight",
        &vector(&weights.final_norm),
    )?;
    if let Some(output) = &weights.output {
        visit(WeightName::Output, "weight", &output.to_f32())?;
    }
    for (index, layer) in weights.layers.iter().enumerate() {
        let norms = [
            (LayerWeight::AttentionNorm, Some(&layer.attention_norm)),
            (
                LayerWeight::QueryNorm,
                layer.head_norms.as_ref().map(|norms| &norms.query),
            ),
            (
                LayerWeight::KeyNorm,
                layer.head_norms.as_ref().map(|norms| &norms.key),
            ),
            (LayerWeight::FeedForwardNorm, Some(&layer.feed_forward_norm)),
        ];
        for (part, norm) in norms {
            if let Some(norm) = norm {
                visit(WeightName::Layer(index, part), "weight", &vector(norm))?;
            }
        }
        let linears: [(LayerWeight, &Linear); 7] = [
            (LayerWeight::Query, &layer.query),
            (LayerWeight::Key, &layer.key),
            (LayerWeight::Value, &layer.value),
            (LayerWeight::AttentionOutput, &layer.attention_output),
            (LayerWeight::Gate, &layer.gate),
            (LayerWeight::Up, &layer.up),
            (LayerWeight::Down, &layer.down),
        ];
        for (part, linear) in linears {
            let part = WeightName::Layer(index, part);
            visit(part, "weight", &linear.merged_weight())?;
            if let Some(bias) = &linear.bias {
                visit(part, "bias", &vector(bias))?;
            }
        }
    }
    Ok(())
}

/// An export reads from the base as it goes, and nobody means to lose it.
fn check_apart(origin: &Path, target: &Path) -> Result<(), ModelError> {
    match (fs_err::canonicalize(origin), fs_err::canonicalize(target)) {
        (Ok(origin), Ok(target)) if origin == target => Err(ModelError::Overwrite { path: target }),
        _ => Ok(()),
    }
}

fn write_failed(path: &Path) -> impl Fn(std::io::Error) -> ModelError {
    move |error| ModelError::Write {
        path: path.to_path_buf(),
        reason: error.to_string(),
    }
}
