//! A folder as Hugging Face's libraries write it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use half::{bf16, f16};
use safetensors::{Dtype, View};
use serde_json::{Value, json};

use super::{check_apart, each_tensor, write_failed};
use crate::gguf::GgufFile;
use crate::{
    HostTensor, ModelConfig, ModelError, ModelFamily, RopeScaling, Tokenizer, Weights, chat,
};

/// What numbers are stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatType {
    F32,
    F16,
    Bf16,
}

impl FloatType {
    fn encode(self, tensor: &HostTensor) -> EncodedTensor {
        let numbers = tensor.data().iter();
        let (dtype, bytes) = match self {
            Self::F32 => (Dtype::F32, View::data(&tensor).into_owned()),
            Self::F16 => {
                let bytes = numbers.flat_map(|one| f16::from_f32(*one).to_le_bytes());
                (Dtype::F16, bytes.collect())
            }
            Self::Bf16 => {
                let bytes = numbers.flat_map(|one| bf16::from_f32(*one).to_le_bytes());
                (Dtype::BF16, bytes.collect())
            }
        };
        EncodedTensor {
            dtype,
            shape: tensor.shape().to_vec(),
            bytes,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }
}

/// A tensor as a file has it.
pub(crate) struct EncodedTensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl View for EncodedTensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.bytes.as_slice().into()
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Everything of a folder that is neither weights nor `config.json`.
const COPIED: [&str; 10] = [
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
];

/// Writes a folder that transformers loads, its adapters merged.
///
/// `origin` is the file or folder the weights were read from, whose tokenizer and chat template go along.
pub fn write_folder(
    weights: &Weights,
    origin: &Path,
    folder: &Path,
    numbers: FloatType,
) -> Result<(), ModelError> {
    check_apart(origin, folder)?;
    fs_err::create_dir_all(folder).map_err(write_failed(folder))?;
    let mut config = if origin.is_dir() {
        copy_beside(origin, folder)?;
        read_json(&origin.join("config.json"))?
    } else {
        let tokenizer = write_tokenizer(origin, folder)?;
        written_config(&weights.config, weights, tokenizer.as_ref())?
    };
    // transformers 5 calls it `dtype`, older ones `torch_dtype`; each reads both.
    let key = if config.get("dtype").is_some() {
        "dtype"
    } else {
        "torch_dtype"
    };
    config[key] = json!(numbers.name());
    write_json(&folder.join("config.json"), &config)?;

    let mut tensors = BTreeMap::new();
    each_tensor(weights, |part, kind, tensor| {
        let name = format!("{}.{kind}", part.in_safetensors());
        tensors.insert(name, numbers.encode(tensor));
        Ok(())
    })?;
    let path = folder.join("model.safetensors");
    write_tensors(tensors, &path).map_err(|reason| ModelError::Write { path, reason })
}

/// One safetensors file, or in words why there is none.
pub(crate) fn write_tensors<T: View>(
    tensors: BTreeMap<String, T>,
    path: &Path,
) -> Result<(), String> {
    // transformers refuses a file that does not say for whom it is.
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let in_words = |error: std::io::Error| error.to_string();
    // What is written takes the place of this file and would be for its owner's eyes only.
    let mut empty = fs_err::OpenOptions::new();
    let empty = empty
        .create(true)
        .append(true)
        .open(path)
        .map_err(in_words)?;
    let permissions = empty.metadata().map_err(in_words)?.permissions();
    safetensors::serialize_to_file(tensors, Some(format), path)
        .map_err(|error| error.to_string())?;
    fs_err::set_permissions(path, permissions).map_err(in_words)
}

fn copy_beside(origin: &Path, folder: &Path) -> Result<(), ModelError> {
    for name in COPIED {
        let (from, to) = (origin.join(name), folder.join(name));
        if from.is_file() {
            fs_err::copy(from, &to).map_err(write_failed(&to))?;
        }
    }
    Ok(())
}

/// A GGUF file's tokenizer and template in files of their own, where it has any.
fn write_tokenizer(origin: &Path, folder: &Path) -> Result<Option<Tokenizer>, ModelError> {
    let has_one = GgufFile::open(origin)?
        .optional_text("tokenizer.ggml.model")?
        .is_some();
    if !has_one {
        return Ok(None);
    }
    let tokenizer = Tokenizer::load(origin)?;
    let path = folder.join("tokenizer.json");
    fs_err::write(&path, tokenizer.to_json()?).map_err(write_failed(&path))?;
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.beginning(),
        "eos_token": tokenizer.end(),
        "chat_template": chat::source(origin)?,
        "clean_up_tokenization_spaces": false,
    });
    write_json(&folder.join("tokenizer_config.json"), &config)?;
    let generation = json!({ "eos_token_id": tokenizer.ends() });
    write_json(&folder.join("generation_config.json"), &generation)?;
    Ok(Some(tokenizer))
}

/// `config.json` for weights that never had one.
fn written_config(
    config: &ModelConfig,
    weights: &Weights,
    tokenizer: Option<&Tokenizer>,
) -> Result<Value, ModelError> {
    let class = match config.family {
        ModelFamily::Llama => "LlamaForCausalLM",
        ModelFamily::Qwen2 => "Qwen2ForCausalLM",
        ModelFamily::Qwen3 => "Qwen3ForCausalLM",
    };
    let scaling = match &config.rope.scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Llama3 {
            factor,
            low_frequency_factor,
            high_frequency_factor,
            original_context,
        } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_frequency_factor,
            "high_freq_factor": high_frequency_factor,
            "original_max_position_embeddings": *original_context as usize,
        }),
        RopeScaling::Divisors(_) => {
            return Err(ModelError::CannotExport {
                form: "a safetensors folder",
                reason:
                    "a GGUF file has the result of its rotary scaling, `config.json` needs the rule"
                        .into(),
            });
        }
    };
    let biased = weights
        .layers
        .iter()
        .any(|layer| layer.attention_output.bias.is_some());
    let id = |token: Option<&str>| -> Result<Option<u32>, ModelError> {
        match (tokenizer, token) {
            (Some(tokenizer), Some(token)) => Ok(tokenizer.encode(token)?.first().copied()),
            _ => Ok(None),
        }
    };
    Ok(json!({
        "architectures": [class],
        "model_type": config.family.name(),
        "vocab_size": config.vocabulary,
        "hidden_size": config.hidden,
        "intermediate_size": config.feed_forward,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rope.theta,
        "rope_scaling": scaling,
        "tie_word_embeddings": config.tied,
        "attention_bias": biased,
        "use_sliding_window": false,
        "bos_token_id": id(tokenizer.and_then(Tokenizer::beginning))?,
        "eos_token_id": id(tokenizer.and_then(Tokenizer::end))?,
    }))
}

fn read_json(path: &Path) -> Result<Value, ModelError> {
    let text = fs_err::read_to_string(path).map_err(|source| ModelError::Read {
        path: path.to_path_buf(),
        source,
    })?;
    serde_json::from_str(&text).map_err(|error| ModelError::Broken {
        path: path.to_path_buf(),
        reason: error.to_string(),
    })
}

fn write_json(path: &Path, value: &Value) -> Result<(), ModelError> {
    fs_err::write(path, format!("{value:#}\n")).map_err(write_failed(path))
}
