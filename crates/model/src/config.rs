//! The numbers that make a transformer of one of the three families: from GGUF metadata or from `config.json`.

use std::path::Path;

use serde::Deserialize;

use crate::ModelError;
use crate::gguf::GgufFile;

/// The families differ in little: Qwen2 adds biases to q, k and v, Qwen3 norms q and k by head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelFamily {
    Llama,
    Qwen2,
    Qwen3,
}

impl ModelFamily {
    pub const NAMES: [&'static str; 3] = ["llama", "qwen2", "qwen3"];

    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// GGUF's `general.architecture` and `config.json`'s `model_type` use the same words.
    fn parse(name: &str) -> Option<Self> {
        match name {
            "llama" => Some(Self::Llama),
            "qwen2" => Some(Self::Qwen2),
            "qwen3" => Some(Self::Qwen3),
            _ => None,
        }
    }
}

/// How rotary frequencies are changed for contexts longer than the model was first trained on.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    None,
    /// All frequencies divided by the same factor.
    Linear {
        factor: f32,
    },
    /// Llama 3.1: long wavelengths divided, short ones kept, a ramp between.
    Llama3 {
        factor: f32,
        low_frequency_factor: f32,
        high_frequency_factor: f32,
        original_context: f32,
    },
    /// One divisor per frequency, as GGUF stores what Llama 3.1's rule comes to.
    Divisors(Vec<f32>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    pub theta: f32,
    pub scaling: RopeScaling,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub family: ModelFamily,
    pub layers: usize,
    pub hidden: usize,
    pub feed_forward: usize,
    pub heads: usize,
    /// Heads that have keys and values of their own; `heads` is a multiple of it.
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocabulary: usize,
    pub norm_epsilon: f32,
    pub rope: Rope,
    /// Positions the model was trained for.
    pub context: usize,
    /// The output layer is the embedding again.
    pub tied: bool,
}

impl ModelConfig {
    /// Of a model's file or folder, without reading its weights.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        if path.is_dir() {
            Self::from_json(&path.join("config.json"))
        } else if path.is_file() {
            Self::from_gguf(&mut GgufFile::open(path)?)
        } else {
            Err(ModelError::NotFound {
                path: path.to_path_buf(),
            })
        }
    }

    /// What the metadata say; whether the embeddings are tied, only the list of tensors tells.
    pub(crate) fn from_gguf(gguf: &mut GgufFile) -> Result<Self, ModelError> {
        let architecture = gguf.text("general.architecture")?.to_owned();
        let family = ModelFamily::parse(&architecture).ok_or_else(|| ModelError::Family {
            path: gguf.path().to_path_buf(),
            found: architecture.clone(),
        })?;
        let key = |name: &str| format!("{architecture}.{name}");
        let heads = gguf.count(&key("attention.head_count"))?;
        let hidden = gguf.count(&key("embedding_length"))?;
        let head_dim = match gguf.optional_count(&key("attention.key_length"))? {
            Some(head_dim) => head_dim,
            None => share(hidden, heads)?,
        };
        let rotated = gguf
            .optional_count(&key("rope.dimension_count"))?
            .unwrap_or(head_dim);
        if rotated != head_dim {
            return Err(ModelError::Setting {
                key: key("rope.dimension_count"),
                reason: format!(
                    "{rotated}, and only heads rotated whole ({head_dim}) are supported"
                ),
            });
        }
        let rope_divisors = gguf.optional_numbers("rope_freqs.weight")?;
        let scaling_kind = gguf.optional_text(&key("rope.scaling.type"))?;
        let scaling = match (rope_divisors, scaling_kind) {
            (Some(divisors), _) => RopeScaling::Divisors(divisors.into_data()),
            (None, None | Some("none")) => RopeScaling::None,
            (None, Some("linear")) => RopeScaling::Linear {
                factor: gguf.float(&key("rope.scaling.factor"))?,
            },
            (None, Some(other)) => return Err(unsupported_scaling(other)),
        };
        Self {
            family,
            layers: gguf.count(&key("block_count"))?,
            hidden,
            feed_forward: gguf.count(&key("feed_forward_length"))?,
            heads,
            kv_heads: gguf
                .optional_count(&key("attention.head_count_kv"))?
                .unwrap_or(heads),
            head_dim,
            vocabulary: gguf.rows("token_embd.weight")?,
            norm_epsilon: gguf.float(&key("attention.layer_norm_rms_epsilon"))?,
            rope: Rope {
                theta: gguf
                    .optional_float(&key("rope.freq_base"))?
                    .unwrap_or(10_000.0),
                scaling,
            },
            context: gguf.count(&key("context_length"))?,
            tied: !gguf.has("output.weight"),
        }
        .checked()
    }

    /// Hugging Face's `config.json`.
    pub(crate) fn from_json(path: &Path) -> Result<Self, ModelError> {
        let text = fs_err::read_to_string(path).map_err(|source| ModelError::Read {
            path: path.to_path_buf(),
            source,
        })?;
        let broken = |reason: String| ModelError::Broken {
            path: path.to_path_buf(),
            reason,
        };
        let file: ConfigFile =
            serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
        let family = ModelFamily::parse(&file.model_type).ok_or_else(|| ModelError::Family {
            path: path.to_path_buf(),
            found: file.model_type.clone(),
        })?;
        if file.hidden_act.as_deref().unwrap_or("silu") != "silu" {
            return Err(ModelError::Setting {
                key: "hidden_act".into(),
                reason: "not `silu`".into(),
            });
        }
        if file.use_sliding_window == Some(true) {
            return Err(ModelError::Setting {
                key: "use_sliding_window".into(),
                reason: "true, and attention over a window is not supported".into(),
            });
        }
        let head_dim = match file.head_dim {
            Some(head_dim) => head_dim,
            None => share(file.hidden_size, file.num_attention_heads)?,
        };
        Self {
            family,
            layers: file.num_hidden_layers,
            hidden: file.hidden_size,
            feed_forward: file.intermediate_size,
            heads: file.num_attention_heads,
            kv_heads: file.num_key_value_heads.unwrap_or(file.num_attention_heads),
            head_dim,
            vocabulary: file.vocab_size,
            norm_epsilon: file.rms_norm_eps,
            rope: file.rope()?,
            context: file.max_position_embeddings,
            tied: file.tie_word_embeddings.unwrap_or(false),
        }
        .checked()
    }

    /// Everything else divides and indexes by these numbers, so nonsense stops here.
    fn checked(self) -> Result<Self, ModelError> {
        let sizes = [
            ("number of layers", self.layers),
            ("hidden size", self.hidden),
            ("feed-forward size", self.feed_forward),
            ("number of heads", self.heads),
            ("number of key and value heads", self.kv_heads),
            ("head size", self.head_dim),
            ("vocabulary", self.vocabulary),
            ("context length", self.context),
        ];
        if let Some((key, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(ModelError::Setting {
                key: (*key).to_owned(),
                reason: "0".into(),
            });
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(ModelError::Setting {
                key: "number of heads".into(),
                reason: format!(
                    "{}, no multiple of its {} key and value heads",
                    self.heads, self.kv_heads
                ),
            });
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(ModelError::Setting {
                key: "head size".into(),
                reason: format!("{}, an odd number", self.head_dim),
            });
        }
        if let RopeScaling::Divisors(divisors) = &self.rope.scaling
            && divisors.len() != self.head_dim / 2
        {
            return Err(ModelError::Shape {
                name: "rope_freqs.weight".into(),
                found: vec![divisors.len()],
                expected: vec![self.head_dim / 2],
            });
        }
        Ok(self)
    }

    /// Numbers in all matrices; norms and biases are too few to count.
    pub fn parameters(&self) -> usize {
        let heads = 2 * self.heads + 2 * self.kv_heads;
        let layer = self.hidden * (heads * self.head_dim + 3 * self.feed_forward);
        let tables = if self.tied { 1 } else { 2 };
        self.layers * layer + tables * self.vocabulary * self.hidden
    }

    /// Rotations per position, one for each pair of a head's numbers.
    pub fn frequencies(&self) -> Vec<f32> {
        let pairs = self.head_dim / 2;
        (0..pairs)
            .map(|pair| {
                let exponent = (2 * pair) as f32 / self.head_dim as f32;
                let frequency = 1.0 / self.rope.theta.powf(exponent);
                match &self.rope.scaling {
                    RopeScaling::None => frequency,
                    RopeScaling::Linear { factor } => frequency / factor,
                    RopeScaling::Divisors(divisors) => frequency / divisors[pair],
                    RopeScaling::Llama3 {
                        factor,
                        low_frequency_factor: low,
                        high_frequency_factor: high,
                        original_context,
                    } => {
                        let turns = original_context * frequency / std::f32::consts::TAU;
                        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                        kept * frequency + (1.0 - kept) * frequency / factor
                    }
                }
            })
            .collect()
    }
}

fn share(hidden: usize, heads: usize) -> Result<usize, ModelError> {
    match hidden.checked_div(heads) {
        Some(size) if size * heads == hidden => Ok(size),
        _ => Err(ModelError::Setting {
            key: "hidden size".into(),
            reason: format!("{hidden}, which {heads} heads cannot share"),
        }),
    }
}

fn unsupported_scaling(kind: &str) -> ModelError {
    ModelError::Setting {
        key: "rope scaling".into(),
        reason: format!("`{kind}`, which is not supported"),
    }
}

#[derive(Deserialize)]
struct ConfigFile {
    model_type: String,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    rms_norm_eps: f32,
    max_position_embeddings: usize,
    tie_word_embeddings: Option<bool>,
    hidden_act: Option<String>,
    use_sliding_window: Option<bool>,
    rope_theta: Option<f32>,
    rope_scaling: Option<RopeFile>,
    /// Where transformers 5 keeps both of the above.
    rope_parameters: Option<RopeFile>,
}

#[derive(Deserialize)]
struct RopeFile {
    rope_theta: Option<f32>,
    #[serde(alias = "type")]
    rope_type: Option<String>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<f32>,
}

impl ConfigFile {
    fn rope(&self) -> Result<Rope, ModelError> {
        let newer = self.rope_parameters.as_ref();
        let theta = newer
            .and_then(|rope| rope.rope_theta)
            .or(self.rope_theta)
            .unwrap_or(10_000.0);
        let scaling = match newer.or(self.rope_scaling.as_ref()) {
            Some(rope) => rope.scaling()?,
            None => RopeScaling::None,
        };
        Ok(Rope { theta, scaling })
    }
}

impl RopeFile {
    fn scaling(&self) -> Result<RopeScaling, ModelError> {
        let need = |value: Option<f32>, key: &str| {
            value.ok_or_else(|| ModelError::Setting {
                key: format!("rope scaling's `{key}`"),
                reason: "missing".into(),
            })
        };
        match self.rope_type.as_deref() {
            None | Some("default") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear {
                factor: need(self.factor, "factor")?,
            }),
            Some("llama3") => Ok(RopeScaling::Llama3 {
                factor: need(self.factor, "factor")?,
                low_frequency_factor: need(self.low_freq_factor, "low_freq_factor")?,
                high_frequency_factor: need(self.high_freq_factor, "high_freq_factor")?,
                original_context: need(
                    self.original_max_position_embeddings,
                    "original_max_position_embeddings",
                )?,
            }),
            Some(other) => Err(unsupported_scaling(other)),
        }
    }
}
