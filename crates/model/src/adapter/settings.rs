//! What an adapter is besides its tensors: PEFT's `adapter_config.json`.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{AdapterError, Projection};

#[derive(Debug, Clone, PartialEq)]
pub struct AdapterSettings {
    pub rank: usize,
    pub alpha: f64,
    pub scaling: Scaling,
    /// The model it was trained on, in its maker's words.
    pub base: Option<String>,
}

/// How strongly an adapter speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scaling {
    /// `alpha / rank`.
    Rank,
    /// `alpha / √rank` (rsLoRA).
    RootOfRank,
}

impl AdapterSettings {
    pub fn scale(&self) -> f32 {
        let rank = self.rank as f64;
        let scale = match self.scaling {
            Scaling::Rank => self.alpha / rank,
            Scaling::RootOfRank => self.alpha / rank.sqrt(),
        };
        scale as f32
    }
}

#[derive(Deserialize)]
struct ConfigFile {
    peft_type: String,
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: bool,
    target_modules: Option<Targets>,
    base_model_name_or_path: Option<String>,
    bias: Option<String>,
    init_lora_weights: Option<Value>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Targets {
    Names(Vec<String>),
    /// A regular expression, or `all-linear`.
    Pattern(#[expect(dead_code, reason = "the tensors say which modules it meant")] String),
}

/// Options that say how an adapter was trained or where it applies, which the tensors show by themselves.
const WITHOUT_EFFECT: [&str; 18] = [
    "auto_mapping",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
];

/// Ways to begin that leave the base as it was; PEFT's others train beside a changed one.
const HARMLESS_BEGINNINGS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// The settings in a file, and the modules it says were trained, where it lists them.
pub(super) fn read(path: &Path) -> Result<(AdapterSettings, Vec<String>), AdapterError> {
    let text = fs_err::read_to_string(path).map_err(|source| AdapterError::Read {
        path: path.to_path_buf(),
        source,
    })?;
    let broken = |reason: String| AdapterError::Broken {
        path: path.to_path_buf(),
        reason,
    };
    let file: ConfigFile =
        serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
    if let Some((option, value)) = file.unsupported() {
        return Err(AdapterError::Unsupported {
            path: path.to_path_buf(),
            option,
            value: value.to_string(),
        });
    }
    if file.r == 0 {
        return Err(broken("its rank `r` is 0".into()));
    }
    let settings = AdapterSettings {
        rank: file.r,
        alpha: file.lora_alpha,
        scaling: if file.use_rslora {
            Scaling::RootOfRank
        } else {
            Scaling::Rank
        },
        base: file.base_model_name_or_path,
    };
    let modules = match file.target_modules {
        Some(Targets::Names(names)) => names,
        Some(Targets::Pattern(_)) | None => Vec::new(),
    };
    Ok((settings, modules))
}

impl ConfigFile {
    /// The first option that would make the adapter compute something else than we do.
    ///
    /// PEFT keeps adding options, so what is not known here must be off.
    fn unsupported(&self) -> Option<(String, Value)> {
        if self.peft_type != "LORA" {
            return Some(("peft_type".into(), json!(self.peft_type)));
        }
        if let Some(bias) = self.bias.as_deref().filter(|bias| *bias != "none") {
            return Some(("bias".into(), json!(bias)));
        }
        if let Some(Value::String(beginning)) = &self.init_lora_weights
            && !HARMLESS_BEGINNINGS.contains(&beginning.as_str())
        {
            return Some(("init_lora_weights".into(), json!(beginning)));
        }
        self.others
            .iter()
            .find(|(option, value)| !WITHOUT_EFFECT.contains(&option.as_str()) && !is_off(value))
            .map(|(option, value)| (option.clone(), value.clone()))
    }
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// As PEFT reads it; what is not said has PEFT's default.
pub(super) fn written(settings: &AdapterSettings, projections: &BTreeSet<Projection>) -> String {
    let names: Vec<&str> = projections.iter().map(|one| one.name()).collect();
    let file = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": settings.base,
        "inference_mode": true,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": 0.0,
        "use_rslora": settings.scaling == Scaling::RootOfRank,
        "use_dora": false,
        "target_modules": names,
        "modules_to_save": null,
        "fan_in_fan_out": false,
        "bias": "none",
    });
    format!("{file:#}\n")
}
