//! One GGUF file, as llama.cpp's converter would write it.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use super::{check_apart, each_tensor, write_failed};
use crate::gguf::{self, GgufFile, GgufValue};
use crate::quantized::{GgmlTensor, GgmlType};
use crate::weights::{interleaved, interleaved_heads};
use crate::{HostTensor, ModelConfig, ModelError, RopeScaling, Tokenizer, Weights, chat};

/// What matrices are stored as; vectors are always `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufType {
    F32,
    F16,
    Q8_0,
}

impl GgufType {
    /// `general.file_type` of llama.cpp.
    fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 7,
        }
    }

    fn encode(self, tensor: &HostTensor) -> GgmlTensor {
        match (self, tensor.shape()) {
            (Self::F32, _) | (_, [_]) => GgmlTensor::f32(tensor),
            (Self::Q8_0, [.., columns]) if columns.is_multiple_of(GgmlType::Q8_0.block_len()) => {
                GgmlTensor::q8_0(tensor)
            }
            // Rows that blocks do not fill are as llama.cpp's converter leaves them.
            (Self::F16 | Self::Q8_0, _) => GgmlTensor::f16(tensor),
        }
    }
}

/// Writes a file that llama.cpp's tools and [`Weights::load`] read, its adapters merged.
///
/// `origin` is the file or folder the weights were read from, whose tokenizer and chat template go along.
pub fn write_gguf(
    weights: &Weights,
    origin: &Path,
    path: &Path,
    numbers: GgufType,
) -> Result<(), ModelError> {
    check_apart(origin, path)?;
    let config = &weights.config;
    let mut metadata = if origin.is_dir() {
        written_metadata(config, origin)?
    } else {
        copied_metadata(&GgufFile::open(origin)?)
    };
    metadata.insert(
        "general.file_type".into(),
        GgufValue::U32(numbers.file_type()),
    );
    metadata.insert("general.quantization_version".into(), GgufValue::U32(2));

    let mut tensors: Vec<(String, GgmlTensor)> = Vec::new();
    if let Some(divisors) = rope_divisors(config) {
        let divisors = GgmlTensor::f32(&HostTensor::vector(divisors));
        tensors.push(("rope_freqs.weight".into(), divisors));
    }
    each_tensor(weights, |part, kind, tensor| {
        let stored = match interleaved_heads(config, part) {
            Some(heads) => numbers.encode(&interleaved(tensor, heads)),
            None => numbers.encode(tensor),
        };
        tensors.push((format!("{}.{kind}", part.in_gguf()), stored));
        Ok(())
    })?;

    let file = fs_err::File::create(path).map_err(write_failed(path))?;
    let mut file = std::io::BufWriter::with_capacity(1 << 20, file);
    let metadata = metadata.iter().map(|(key, value)| (key.as_str(), value));
    gguf::write(&mut file, metadata, &tensors)
        .and_then(|()| file.flush())
        .map_err(write_failed(path))
}

/// All that a file says of itself but how it was laid out, which is ours to choose.
fn copied_metadata(gguf: &GgufFile) -> BTreeMap<String, GgufValue> {
    gguf.metadata()
        .iter()
        .filter(|(key, _)| !key.starts_with("split.") && *key != "general.alignment")
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn written_metadata(
    config: &ModelConfig,
    folder: &Path,
) -> Result<BTreeMap<String, GgufValue>, ModelError> {
    let family = config.family.name();
    let mut metadata = BTreeMap::from([(
        "general.architecture".to_owned(),
        GgufValue::String(family.to_owned()),
    )]);
    for (key, count) in [
        ("block_count", config.layers),
        ("context_length", config.context),
        ("embedding_length", config.hidden),
        ("feed_forward_length", config.feed_forward),
        ("attention.head_count", config.heads),
        ("attention.head_count_kv", config.kv_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
        ("rope.dimension_count", config.head_dim),
        ("vocab_size", config.vocabulary),
    ] {
        let count = u32::try_from(count).map_err(|_| ModelError::Setting {
            key: key.to_owned(),
            reason: format!("{count}, more than a GGUF file can say"),
        })?;
        metadata.insert(format!("{family}.{key}"), GgufValue::U32(count));
    }
    let mut floats = vec![
        ("attention.layer_norm_rms_epsilon", config.norm_epsilon),
        ("rope.freq_base", config.rope.theta),
    ];
    if let RopeScaling::Linear { factor } = config.rope.scaling {
        floats.push(("rope.scaling.factor", factor));
        let kind = GgufValue::String("linear".to_owned());
        metadata.insert(format!("{family}.rope.scaling.type"), kind);
    }
    for (key, number) in floats {
        metadata.insert(format!("{family}.{key}"), GgufValue::F32(number));
    }
    // Weights alone are of use too, to whoever brings the tokens.
    if folder.join("tokenizer.json").is_file() {
        metadata.extend(Tokenizer::load(folder)?.to_gguf(config.vocabulary)?);
    }
    if let Some(template) = chat::source(folder)? {
        metadata.insert(
            "tokenizer.chat_template".into(),
            GgufValue::String(template),
        );
    }
    Ok(metadata)
}

/// What Llama 3's rule comes to, which is what GGUF has instead of the rule.
fn rope_divisors(config: &ModelConfig) -> Option<Vec<f32>> {
    match &config.rope.scaling {
        RopeScaling::None | RopeScaling::Linear { .. } => None,
        RopeScaling::Divisors(divisors) => Some(divisors.clone()),
        RopeScaling::Llama3 { .. } => {
            let mut plain = config.clone();
            plain.rope.scaling = RopeScaling::None;
            let divisors = plain.frequencies().into_iter().zip(config.frequencies());
            Some(divisors.map(|(plain, scaled)| plain / scaled).collect())
        }
    }
}
