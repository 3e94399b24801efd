//! PEFT's folder: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Adapter, AdapterError, LoraPair, LoraTarget, Projection, int8, settings};
use crate::safetensors_file::SafetensorsFile;
use crate::{HostTensor, ModelError};

pub(super) const SETTINGS: &str = "adapter_config.json";
pub(super) const TENSORS: &str = "adapter_model.safetensors";
pub(super) const PREFIX: &str = "base_model.model.";
pub(super) const A: &str = "lora_A.weight";
const B: &str = "lora_B.weight";

/// What was found of one place so far.
#[derive(Default)]
struct Found {
    a: Option<HostTensor>,
    b: Option<HostTensor>,
}

impl Adapter {
    /// Reads a folder that PEFT's `save_pretrained`, or [`Adapter::save`], wrote.
    pub fn load(folder: &Path) -> Result<Self, ModelError> {
        for file in [SETTINGS, TENSORS] {
            if !folder.join(file).is_file() {
                let folder = folder.to_path_buf();
                return Err(AdapterError::Missing { folder, file }.into());
            }
        }
        let (settings, modules) = settings::read(&folder.join(SETTINGS))?;
        let path = folder.join(TENSORS);
        // By name, so that of several mistakes always the same is told.
        let tensors = SafetensorsFile::read(&path)
            .map_err(|error| error.to_string())
            .and_then(|file| tensors(&file))
            .map_err(|reason| AdapterError::Broken { path, reason })?;
        let mut found: BTreeMap<LoraTarget, Found> = BTreeMap::new();
        for (name, tensor) in tensors {
            let (place, factor) =
                parse(&name).ok_or(AdapterError::UnknownTensor { tensor: name })?;
            let found = found.entry(place).or_default();
            let slot = match factor {
                Factor::A => &mut found.a,
                Factor::B => &mut found.b,
            };
            *slot = Some(tensor);
        }
        let mut factors = BTreeMap::new();
        for (place, found) in found {
            let half = |missing| AdapterError::HalfPair {
                module: place.to_string(),
                missing,
            };
            let a = found.a.ok_or_else(|| half(A))?;
            let b = found.b.ok_or_else(|| half(B))?;
            factors.insert(place, LoraPair { a, b });
        }
        let adapter = Self::new(settings, factors)?;
        let adapted = adapter.projections();
        // PEFT writes a tensor for every module it lists, so that one without was lost.
        let lost = |module: &&String| {
            let last = module.rsplit('.').next();
            !adapted.iter().any(|one| Some(one.name()) == last)
        };
        match modules.iter().find(lost) {
            Some(module) => Err(AdapterError::NoTensors {
                module: module.clone(),
            }
            .into()),
            None => Ok(adapter),
        }
    }

    /// Writes a folder that PEFT, vLLM and [`Adapter::load`] read.
    pub fn save(&self, folder: &Path) -> Result<(), AdapterError> {
        let failed = |reason: String| AdapterError::Write {
            path: folder.to_path_buf(),
            reason,
        };
        fs_err::create_dir_all(folder).map_err(|error| failed(error.to_string()))?;
        let settings = settings::written(&self.settings, &self.projections());
        fs_err::write(folder.join(SETTINGS), settings)
            .map_err(|error| failed(error.to_string()))?;
        let tensors = self.pairs.iter().flat_map(|(place, factors)| {
            let name = |factor| format!("{PREFIX}{place}.{}", name(factor));
            [(name(Factor::A), &factors.a), (name(Factor::B), &factors.b)]
        });
        let tensors: BTreeMap<String, &HostTensor> = tensors.collect();
        crate::export::write_tensors(tensors, &folder.join(TENSORS)).map_err(failed)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Factor {
    A,
    B,
}

/// What PEFT calls it below its module.
pub(super) fn name(factor: Factor) -> &'static str {
    match factor {
        Factor::A => A,
        Factor::B => B,
    }
}

/// All tensors by name, those in 8 bits with their scales; else why one cannot be read.
fn tensors(file: &SafetensorsFile) -> Result<BTreeMap<String, HostTensor>, String> {
    let mut found = BTreeMap::new();
    for tensor in file.names() {
        if int8::is_scale(&tensor) {
            continue;
        }
        let numbers = match int8::dequantized(file, &tensor) {
            Some(numbers) => numbers?,
            None => file.tensor(&tensor).map_err(|error| error.to_string())?,
        };
        found.insert(tensor, numbers);
    }
    Ok(found)
}

/// `base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight`.
fn parse(name: &str) -> Option<(LoraTarget, Factor)> {
    let name = name.strip_prefix(PREFIX)?;
    let (module, factor) = match (name.strip_suffix(A), name.strip_suffix(B)) {
        (Some(module), _) => (module, Factor::A),
        (None, module) => (module?, Factor::B),
    };
    let module = module.strip_suffix('.')?;
    let layer = module.split('.').nth(2)?.parse().ok()?;
    Projection::ALL
        .into_iter()
        .map(|projection| LoraTarget { layer, projection })
        .find(|place| place.to_string() == module)
        .map(|place| (place, factor))
}
