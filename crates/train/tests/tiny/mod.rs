//! A chat model of random numbers, small enough to learn in a test, as a folder.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tempfile::TempDir;
use warpsmith_model::HostTensor;

/// Of the small tokenizer of the model crate's tests.
pub(crate) const VOCABULARY: usize = 705;
const HIDDEN: usize = 32;
const FEED_FORWARD: usize = 48;
const LAYERS: usize = 2;

pub(crate) const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

pub(crate) struct Tiny {
    path: PathBuf,
    /// Removed with the last of it, where it is ours.
    _folder: Option<TempDir>,
}

impl Tiny {
    /// With the tokenizer's vocabulary.
    pub(crate) fn new() -> Self {
        Self::with_vocabulary(VOCABULARY)
    }

    pub(crate) fn with_vocabulary(vocabulary: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), vocabulary);
        Self {
            path: folder.path().to_path_buf(),
            _folder: Some(folder),
        }
    }

    /// One that another process made.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self {
            path,
            _folder: None,
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.path.clone()
    }
}

/// Files as transformers writes them.
pub(crate) fn write(folder: &Path, vocabulary: usize) {
    fs_err::create_dir_all(folder).unwrap();
    let tokens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/tokens");
    let file = |name: &str| folder.join(name);
    fs_err::copy(tokens.join("tokenizer.json"), file("tokenizer.json")).unwrap();
    let settings = json!({ "eos_token": "<|im_end|>", "chat_template": TEMPLATE });
    fs_err::write(file("tokenizer_config.json"), settings.to_string()).unwrap();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "vocab_size": vocabulary, "hidden_size": HIDDEN, "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
        "tie_word_embeddings": true, "torch_dtype": "float32",
    });
    fs_err::write(file("config.json"), config.to_string()).unwrap();
    let mut random = StdRng::seed_from_u64(5);
    let mut tensors = HashMap::new();
    let mut matrix = |name: String, rows: usize, columns: usize| {
        let size = (1.0 / columns as f32).sqrt();
        let numbers: Vec<f32> = (0..rows * columns)
            .map(|_| random.random_range(-size..size))
            .collect();
        let tensor = HostTensor::new([rows, columns], numbers);
        tensors.insert(format!("{name}.weight"), tensor);
    };
    matrix("model.embed_tokens".into(), vocabulary, HIDDEN);
    let kv = HIDDEN / 2;
    for layer in 0..LAYERS {
        for (name, rows, columns) in [
            ("self_attn.q_proj", HIDDEN, HIDDEN),
            ("self_attn.k_proj", kv, HIDDEN),
            ("self_attn.v_proj", kv, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HIDDEN),
            ("mlp.gate_proj", FEED_FORWARD, HIDDEN),
            ("mlp.up_proj", FEED_FORWARD, HIDDEN),
            ("mlp.down_proj", HIDDEN, FEED_FORWARD),
        ] {
            matrix(format!("model.layers.{layer}.{name}"), rows, columns);
        }
    }
    let ones = HostTensor::vector(vec![1.0; HIDDEN]);
    tensors.insert("model.norm.weight".to_owned(), ones.clone());
    for layer in 0..LAYERS {
        for name in ["input_layernorm", "post_attention_layernorm"] {
            tensors.insert(format!("model.layers.{layer}.{name}.weight"), ones.clone());
        }
    }
    safetensors::serialize_to_file(&tensors, None, &file("model.safetensors")).unwrap();
}
