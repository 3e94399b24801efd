//! The parameters of one model, as generation and learning share them.
//!
//! Read once, never changed: whoever learns makes new ones. Rows of q and k are in Hugging Face's
//! order whatever file they came from.

mod interleaving;
mod names;
mod source;
mod stack;

use std::path::Path;

use self::source::Source;
use crate::gguf::GgufFile;
use crate::matrix::{Linear, Matrix};
use crate::{ModelConfig, ModelError};

pub(crate) use self::interleaving::{interleaved, interleaved_heads};
pub use self::names::{LayerWeight, WeightName};

#[derive(Debug, Clone)]
pub struct Weights {
    pub config: ModelConfig,
    pub embedding: Matrix,
    pub layers: Vec<LayerWeights>,
    pub final_norm: Vec<f32>,
    /// Absent where the embedding serves again.
    pub output: Option<Matrix>,
}

#[derive(Debug, Clone)]
pub struct LayerWeights {
    pub attention_norm: Vec<f32>,
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    /// Qwen3: norms of q and k over each head.
    pub head_norms: Option<HeadNorms>,
    pub attention_output: Linear,
    pub feed_forward_norm: Vec<f32>,
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
}

#[derive(Debug, Clone)]
pub struct HeadNorms {
    pub query: Vec<f32>,
    pub key: Vec<f32>,
}

impl Weights {
    /// A `.gguf` file, or a folder with `config.json` and `*.safetensors`.
    pub fn load(path: &Path) -> Result<Self, ModelError> {
        if path.is_dir() {
            let config = ModelConfig::from_json(&path.join("config.json"))?;
            Self::from_source(config, &mut source::read_safetensors(path)?)
        } else if path.is_file() {
            let mut gguf = GgufFile::open(path)?;
            let config = ModelConfig::from_gguf(&mut gguf)?;
            Self::from_source(config, &mut Source::Gguf(gguf))
        } else {
            Err(ModelError::NotFound {
                path: path.to_path_buf(),
            })
        }
    }

    fn from_source(config: ModelConfig, source: &mut Source) -> Result<Self, ModelError> {
        let shape = [config.vocabulary, config.hidden];
        let embedding = source.matrix(&config, WeightName::Embedding, shape)?;
        let output = if config.tied {
            None
        } else {
            Some(source.matrix(&config, WeightName::Output, shape)?)
        };
        let final_norm = source.vector(WeightName::FinalNorm, config.hidden)?;
        let layers = (0..config.layers)
            .map(|layer| LayerWeights::from_source(&config, source, layer))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            config,
            embedding,
            layers,
            final_norm,
            output,
        })
    }

    /// What turns the last hidden state into logits.
    pub fn head(&self) -> &Matrix {
        self.output.as_ref().unwrap_or(&self.embedding)
    }
}

impl LayerWeights {
    fn from_source(
        config: &ModelConfig,
        source: &mut Source,
        layer: usize,
    ) -> Result<Self, ModelError> {
        use LayerWeight as L;
        let hidden = config.hidden;
        let queries = config.heads * config.head_dim;
        let keys = config.kv_heads * config.head_dim;
        let mut linear = |part, rows, columns| -> Result<Linear, ModelError> {
            let part = WeightName::Layer(layer, part);
            Ok(Linear {
                weight: source.matrix(config, part, [rows, columns])?,
                bias: source.bias(config, part, rows)?,
                adapters: Vec::new(),
            })
        };
        let query = linear(L::Query, queries, hidden)?;
        let key = linear(L::Key, keys, hidden)?;
        let value = linear(L::Value, keys, hidden)?;
        let attention_output = linear(L::AttentionOutput, hidden, queries)?;
        let gate = linear(L::Gate, config.feed_forward, hidden)?;
        let up = linear(L::Up, config.feed_forward, hidden)?;
        let down = linear(L::Down, hidden, config.feed_forward)?;
        let mut vector = |part, length| source.vector(WeightName::Layer(layer, part), length);
        Ok(Self {
            attention_norm: vector(L::AttentionNorm, hidden)?,
            head_norms: match config.family {
                crate::ModelFamily::Qwen3 => Some(HeadNorms {
                    query: vector(L::QueryNorm, config.head_dim)?,
                    key: vector(L::KeyNorm, config.head_dim)?,
                }),
                crate::ModelFamily::Llama | crate::ModelFamily::Qwen2 => None,
            },
            feed_forward_norm: vector(L::FeedForwardNorm, hidden)?,
            query,
            key,
            value,
            attention_output,
            gate,
            up,
            down,
        })
    }
}
