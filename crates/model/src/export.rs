//! Weights as files that others read: adapters merged into their matrices, tokenizer and chat template beside them.

mod gguf;
mod safetensors;

use std::path::Path;

pub use self::gguf::{GgufType, write_gguf};
pub(crate) use self::safetensors::write_tensors;
pub use self::safetensors::{FloatType, write_folder};
use crate::matrix::Linear;
use crate::weights::{LayerPart, Part};
use crate::{HostTensor, ModelError, Weights};

/// Calls with every tensor: its part, `weight` or `bias`, and its numbers in `f32`, rows in Hugging Face's order.
///
/// One after the other, so that the whole model need not be in memory as `f32`.
fn each_tensor(
    weights: &Weights,
    mut visit: impl FnMut(Part, &'static str, &HostTensor) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let vector = |numbers: &[f32]| HostTensor::vector(numbers.to_vec());
    visit(Part::Embedding, "weight", &weights.embedding.to_f32())?;
    visit(Part::FinalNorm, "weight", &vector(&weights.final_norm))?;
    if let Some(output) = &weights.output {
        visit(Part::Output, "weight", &output.to_f32())?;
    }
    for (index, layer) in weights.layers.iter().enumerate() {
        let norms = [
            (LayerPart::AttentionNorm, Some(&layer.attention_norm)),
            (
                LayerPart::QueryNorm,
                layer.head_norms.as_ref().map(|norms| &norms.query),
            ),
            (
                LayerPart::KeyNorm,
                layer.head_norms.as_ref().map(|norms| &norms.key),
            ),
            (LayerPart::FeedForwardNorm, Some(&layer.feed_forward_norm)),
        ];
        for (part, norm) in norms {
            if let Some(norm) = norm {
                visit(Part::Layer(index, part), "weight", &vector(norm))?;
            }
        }
        let linears: [(LayerPart, &Linear); 7] = [
            (LayerPart::Query, &layer.query),
            (LayerPart::Key, &layer.key),
            (LayerPart::Value, &layer.value),
            (LayerPart::AttentionOutput, &layer.attention_output),
            (LayerPart::Gate, &layer.gate),
            (LayerPart::Up, &layer.up),
            (LayerPart::Down, &layer.down),
        ];
        for (part, linear) in linears {
            let part = Part::Layer(index, part);
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
