//! GGUF files against the same weights from safetensors and, for quantised ones, against their own
//! dequantised numbers.
#![cfg(feature = "local")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use warpsmith_model::gguf::{self, GgufFile, GgufValue};
use warpsmith_model::quantized::{GgmlTensor, GgmlType};
use warpsmith_model::{
    HostTensor, LogitsFor, ModelError, SafetensorsFile, Segment, Transformer, Weights,
};

use crate::quantize::quantize;

type Tensors = HashMap<String, HostTensor>;

fn checkpoint(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/checkpoints")
        .join(name)
}

fn read_checkpoint(name: &str) -> Tensors {
    let mut tensors = Tensors::new();
    for entry in fs_err::read_dir(checkpoint(name)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "safetensors") {
            tensors.extend(SafetensorsFile::read(&path).unwrap().tensors().unwrap());
        }
    }
    tensors
}

/// llama.cpp's names, written out apart from the reader's.
fn gguf_name(name: &str) -> String {
    let mut name = name.replace("model.layers.", "blk.");
    for (from, to) in [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ] {
        name = name.replace(from, to);
    }
    name
}

/// `LlamaModel.permute` of llama.cpp's `convert_hf_to_gguf.py`:
/// `weights.reshape(n_head, 2, rows // n_head // 2, columns).swapaxes(1, 2).reshape(weights.shape)`.
fn permute(tensor: &HostTensor, heads: usize) -> HostTensor {
    let pairs = tensor.rows() / heads / 2;
    let mut data = Vec::new();
    for head in 0..heads {
        for pair in 0..pairs {
            for half in 0..2 {
                data.extend_from_slice(tensor.row((head * 2 + half) * pairs + pair));
            }
        }
    }
    HostTensor::new(tensor.shape(), data)
}

struct Sizes {
    hidden: u32,
    feed_forward: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    theta: f32,
}

const SMALL: Sizes = Sizes {
    hidden: 64,
    feed_forward: 96,
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    theta: 1e6,
};

fn write(path: &Path, family: &str, sizes: &Sizes, tensors: &Tensors, ggml_type: GgmlType) {
    let key = |name: &str| format!("{family}.{name}");
    let metadata = [
        (
            "general.architecture".into(),
            GgufValue::String(family.into()),
        ),
        (key("block_count"), GgufValue::U32(2)),
        (key("context_length"), GgufValue::U32(256)),
        (key("embedding_length"), GgufValue::U32(sizes.hidden)),
        (
            key("feed_forward_length"),
            GgufValue::U32(sizes.feed_forward),
        ),
        (key("attention.head_count"), GgufValue::U32(sizes.heads)),
        (
            key("attention.head_count_kv"),
            GgufValue::U32(sizes.kv_heads),
        ),
        (key("attention.key_length"), GgufValue::U32(sizes.head_dim)),
        (
            key("attention.layer_norm_rms_epsilon"),
            GgufValue::F32(1e-6),
        ),
        (key("rope.freq_base"), GgufValue::F32(sizes.theta)),
    ];
    let tensors: Vec<(String, GgmlTensor)> = tensors
        .iter()
        .map(|(name, tensor)| {
            let tensor = match family {
                "llama" if name.contains("q_proj") => permute(tensor, sizes.heads as usize),
                "llama" if name.contains("k_proj") => permute(tensor, sizes.kv_heads as usize),
                _ => tensor.clone(),
            };
            (gguf_name(name), rounded(&tensor, ggml_type))
        })
        .collect();
    let metadata = metadata.iter().map(|(key, value)| (key.as_str(), value));
    let mut file = fs_err::File::create(path).unwrap();
    gguf::write(&mut file, metadata, &tensors).unwrap();
}

/// Matrices in that type, vectors in `f32`.
fn rounded(tensor: &HostTensor, ggml_type: GgmlType) -> GgmlTensor {
    match tensor.shape() {
        [_] => quantize(tensor, GgmlType::F32),
        _ => quantize(tensor, ggml_type),
    }
}

const PROMPT: [u32; 12] = [3, 150, 9, 27, 81, 110, 4, 4, 99, 12, 0, 64];

/// Logits of every position of a short prompt.
fn logits(path: &Path) -> Vec<f32> {
    let model = Transformer::new(Arc::new(Weights::load(path).unwrap()));
    let mut segments = [Segment {
        cache: &mut model.new_cache(),
        tokens: &PROMPT,
        logits_for: LogitsFor::All,
    }];
    model.forward(&mut segments).unwrap().remove(0).into_data()
}

fn worst(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len());
    left.iter()
        .zip(right)
        .map(|(left, right)| (left - right).abs())
        .fold(0.0, f32::max)
}

/// Llama 3's rotary scaling as llama.cpp's converter stores it: `Llama3ScaledRope` of the checkpoint's settings.
fn llama3_divisors(head_dim: usize) -> HostTensor {
    let (factor, low, high, context) = (8.0f64, 1.0f64, 4.0f64, 64.0f64);
    let divisors: Vec<f32> = (0..head_dim / 2)
        .map(|pair| {
            let frequency = 500_000f64.powf(-((2 * pair) as f64) / head_dim as f64);
            let wavelength = std::f64::consts::TAU / frequency;
            let divisor = if wavelength < context / high {
                1.0
            } else if wavelength > context / low {
                factor
            } else {
                let smooth = (context / wavelength - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            };
            divisor as f32
        })
        .collect();
    HostTensor::vector(divisors)
}

/// The safetensors side is held against transformers in `oracle.rs`, so this is too.
#[test]
fn unquantised_files_equal_safetensors() {
    let folder = tempfile::tempdir().unwrap();
    for (family, head_dim, theta) in [("llama", 16, 5e5), ("qwen2", 16, 1e6), ("qwen3", 32, 1e6)] {
        let expected = logits(&checkpoint(family));
        let mut tensors = read_checkpoint(family);
        if family == "llama" {
            tensors.insert(
                "rope_freqs.weight".into(),
                llama3_divisors(head_dim as usize),
            );
        }
        let sizes = Sizes {
            head_dim,
            theta,
            ..SMALL
        };
        for (ggml_type, limit) in [(GgmlType::F32, 1e-4), (GgmlType::F16, 2e-2)] {
            let path = folder.path().join(format!("{family}-{ggml_type:?}.gguf"));
            write(&path, family, &sizes, &tensors, ggml_type);
            let worst = worst(&logits(&path), &expected);
            assert!(worst <= limit, "{family} {ggml_type:?}: off by {worst}");
        }
    }
}

/// K-quants need rows of 256, so these weights are wider than the checkpoints'.
fn wide_tensors(sizes: &Sizes) -> Tensors {
    let mut state = 1u64;
    let mut random = |shape: &[usize], mean: f32, scale: f32| {
        let data: Vec<f32> = (0..shape.iter().product())
            .map(|_| {
                // A few rounds of a linear generator: any numbers without a pattern do.
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let unit = (state >> 40) as f32 / (1u64 << 24) as f32;
                mean + scale * (unit - 0.5)
            })
            .collect();
        HostTensor::new(shape, data)
    };
    let hidden = sizes.hidden as usize;
    let wide = sizes.feed_forward as usize;
    let keys = (sizes.kv_heads * sizes.head_dim) as usize;
    let mut tensors = Tensors::from([
        (
            "model.embed_tokens.weight".into(),
            random(&[160, hidden], 0.0, 1.0),
        ),
        ("lm_head.weight".into(), random(&[160, hidden], 0.0, 0.4)),
        ("model.norm.weight".into(), random(&[hidden], 1.0, 0.2)),
    ]);
    for layer in 0..2 {
        for (name, shape, mean, scale) in [
            ("input_layernorm", vec![hidden], 1.0, 0.2),
            ("post_attention_layernorm", vec![hidden], 1.0, 0.2),
            ("self_attn.q_proj", vec![hidden, hidden], 0.0, 0.3),
            ("self_attn.k_proj", vec![keys, hidden], 0.0, 0.3),
            ("self_attn.v_proj", vec![keys, hidden], 0.0, 0.3),
            ("self_attn.o_proj", vec![hidden, hidden], 0.0, 0.3),
            ("mlp.gate_proj", vec![wide, hidden], 0.0, 0.3),
            ("mlp.up_proj", vec![wide, hidden], 0.0, 0.3),
            ("mlp.down_proj", vec![hidden, wide], 0.0, 0.3),
        ] {
            let name = format!("model.layers.{layer}.{name}.weight");
            tensors.insert(name, random(&shape, mean, scale));
        }
    }
    tensors
}

#[test]
fn quantised_files_equal_their_dequantised_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = Sizes {
        hidden: 256,
        feed_forward: 512,
        heads: 8,
        kv_heads: 4,
        head_dim: 32,
        theta: 1e4,
    };
    let tensors = wide_tensors(&sizes);
    for ggml_type in [
        GgmlType::Q4_0,
        GgmlType::Q4_1,
        GgmlType::Q8_0,
        GgmlType::Q4K,
        GgmlType::Q5K,
        GgmlType::Q6K,
    ] {
        let quantised = folder.path().join(format!("{ggml_type:?}.gguf"));
        write(&quantised, "llama", &sizes, &tensors, ggml_type);
        // Rows are permuted whole, so rounding before or after gives the same numbers.
        let rounded = tensors
            .iter()
            .map(|(name, tensor)| {
                let tensor = rounded(tensor, ggml_type).dequantize();
                (name.clone(), tensor)
            })
            .collect();
        let full = folder.path().join(format!("{ggml_type:?}-full.gguf"));
        write(&full, "llama", &sizes, &rounded, GgmlType::F32);
        let (quantised, full) = (logits(&quantised), logits(&full));
        let difference: Vec<f32> = quantised.iter().zip(&full).map(|(a, b)| a - b).collect();
        // Activations are rounded to eight bits before each matrix (half a percent each time, held by
        // a test of `matrix`), which these weights amplify to 2 or 3 % whatever the format. Wrong rows
        // or scales would make this about 1.
        let share = length(&difference) / length(&full);
        assert!(
            share <= 0.05,
            "{ggml_type:?}: off by {share} of the logits' length"
        );
    }
}

fn length(numbers: &[f32]) -> f32 {
    numbers.iter().map(|one| one * one).sum::<f32>().sqrt()
}

#[test]
fn broken_files_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Weights::load(&folder.path().join("none.gguf")).unwrap_err();
    assert!(matches!(missing, ModelError::NotFound { .. }), "{missing}");
    assert!(missing.hint().unwrap().contains("models list"));

    let text = folder.path().join("text.gguf");
    fs_err::write(&text, "not a model at all, but long enough to be read").unwrap();
    let broken = Weights::load(&text).unwrap_err();
    assert!(matches!(broken, ModelError::Broken { .. }), "{broken}");
    assert!(broken.hint().unwrap().contains("text.gguf"));

    let tensors = read_checkpoint("qwen2");
    let cut = folder.path().join("cut.gguf");
    write(&cut, "qwen2", &SMALL, &tensors, GgmlType::F32);
    let bytes = fs_err::read(&cut).unwrap();
    fs_err::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let short = Weights::load(&cut).unwrap_err();
    assert!(matches!(short, ModelError::Broken { .. }), "{short}");

    let other = folder.path().join("other.gguf");
    write(&other, "gemma", &SMALL, &tensors, GgmlType::F32);
    let family = Weights::load(&other).unwrap_err();
    assert!(family.to_string().contains("`gemma`"), "{family}");
    assert!(family.hint().unwrap().contains("llama, qwen2, qwen3"));

    let wrong = folder.path().join("wrong.gguf");
    let sizes = Sizes {
        feed_forward: 100,
        ..SMALL
    };
    write(&wrong, "qwen2", &sizes, &tensors, GgmlType::F32);
    let shape = Weights::load(&wrong).unwrap_err();
    assert_eq!(
        shape.to_string(),
        "tensor `blk.0.ffn_gate.weight` has shape [96, 64] where [100, 64] is needed"
    );
}

/// A file that was cut or changed anywhere is refused or read, and never the end of the process.
#[test]
fn cut_and_changed_files_are_refused_or_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.gguf");
    let tensors = read_checkpoint("qwen2");
    write(&path, "qwen2", &SMALL, &tensors, GgmlType::Q8_0);
    let whole = fs_err::read(&path).unwrap();
    assert!(Weights::load(&path).is_ok());
    // The head takes some three thousand bytes.
    for length in (0..4000).step_by(37).chain([whole.len() - 1]) {
        fs_err::write(&path, &whole[..length]).unwrap();
        let error = Weights::load(&path).unwrap_err();
        assert!(
            matches!(error, ModelError::Broken { .. }),
            "{length}: {error}"
        );
    }
    for place in 0..3000 {
        let mut changed = whole.clone();
        // The highest bits of lengths among them.
        changed[place] ^= if place % 2 == 0 { 0xff } else { 0x80 };
        fs_err::write(&path, &changed).unwrap();
        let _ = Weights::load(&path);
    }
}

#[test]
fn the_first_version_and_its_short_lengths_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("first.gguf");
    let mut bytes = b"GGUF".to_vec();
    // The version, no tensors, one key; the key, its kind (a text), the text.
    for number in [1u32, 0, 1] {
        bytes.extend(number.to_le_bytes());
    }
    for (text, kind) in [("general.name", Some(8u32)), ("old", None)] {
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(kind.map(u32::to_le_bytes).into_iter().flatten());
    }
    fs_err::write(&path, &bytes).unwrap();
    let file = GgufFile::open(&path).unwrap();
    let name = GgufValue::String("old".into());
    assert_eq!(file.metadata().get("general.name"), Some(&name));
    bytes[4] = 4;
    fs_err::write(&path, &bytes).unwrap();
    let error = GgufFile::open(&path).unwrap_err();
    assert!(error.to_string().contains("version 4"), "{error}");
}
