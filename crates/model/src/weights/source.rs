//! The two kinds of file tensors come from, made to look the same.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::interleaving::{halves, interleaved_heads};
use super::names::WeightName;
use crate::gguf::GgufFile;
use crate::matrix::Matrix;
use crate::safetensors_file::SafetensorsFile;
use crate::{HostTensor, ModelConfig, ModelError};

pub(super) enum Source {
    Gguf(GgufFile),
    /// One file, or shards.
    Safetensors(Vec<SafetensorsFile>),
}

impl Source {
    fn name(&self, part: WeightName, kind: &str) -> String {
        match self {
            Self::Gguf(_) => format!("{}.{kind}", part.in_gguf()),
            Self::Safetensors(_) => format!("{}.{kind}", part.in_safetensors()),
        }
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Self::Gguf(gguf) => gguf.has(name),
            Self::Safetensors(files) => files.iter().any(|file| file.has(name)),
        }
    }

    /// A weight matrix of that many rows and columns, its rows in Hugging Face's order.
    pub(super) fn matrix(
        &mut self,
        config: &ModelConfig,
        part: WeightName,
        shape: [usize; 2],
    ) -> Result<Matrix, ModelError> {
        let name = self.name(part, "weight");
        match self {
            Self::Gguf(gguf) => {
                let tensor = gguf.tensor(&name)?;
                check(&name, tensor.shape(), &shape)?;
                let tensor = match interleaved_heads(config, part) {
                    Some(heads) => tensor.with_rows(halves(shape[0], heads)),
                    None => tensor,
                };
                Ok(Matrix::new(&tensor))
            }
            Self::Safetensors(files) => {
                let tensor = find(files, &name)?;
                check(&name, tensor.shape(), &shape)?;
                Ok(tensor.into())
            }
        }
    }

    pub(super) fn vector(
        &mut self,
        part: WeightName,
        length: usize,
    ) -> Result<Vec<f32>, ModelError> {
        let name = self.name(part, "weight");
        self.floats(&name, length)
    }

    /// A bias, where the model has one.
    pub(super) fn bias(
        &mut self,
        config: &ModelConfig,
        part: WeightName,
        length: usize,
    ) -> Result<Option<Vec<f32>>, ModelError> {
        let name = self.name(part, "bias");
        if !self.has(&name) {
            return Ok(None);
        }
        let bias = self.floats(&name, length)?;
        Ok(Some(match (&self, interleaved_heads(config, part)) {
            (Self::Gguf(_), Some(heads)) => halves(length, heads).map(|row| bias[row]).collect(),
            _ => bias,
        }))
    }

    fn floats(&mut self, name: &str, length: usize) -> Result<Vec<f32>, ModelError> {
        let tensor = match self {
            Self::Gguf(gguf) => gguf.tensor(name)?.dequantize(),
            Self::Safetensors(files) => find(files, name)?,
        };
        check(name, tensor.shape(), &[length])?;
        Ok(tensor.into_data())
    }
}

fn check(name: &str, found: &[usize], expected: &[usize]) -> Result<(), ModelError> {
    if found == expected {
        return Ok(());
    }
    Err(ModelError::Shape {
        name: name.to_owned(),
        found: found.to_vec(),
        expected: expected.to_vec(),
    })
}

fn find(files: &[SafetensorsFile], name: &str) -> Result<HostTensor, ModelError> {
    let file = files.iter().find(|file| file.has(name));
    let file = file.ok_or_else(|| ModelError::MissingTensor {
        name: name.to_owned(),
    })?;
    file.tensor(name)
}

#[derive(Deserialize)]
struct Shards {
    weight_map: HashMap<String, String>,
}

/// All tensors of a safetensors folder, in one file or in shards.
pub(super) fn read_safetensors(folder: &Path) -> Result<Source, ModelError> {
    let single = folder.join("model.safetensors");
    let index = folder.join("model.safetensors.index.json");
    let files: Vec<PathBuf> = if single.is_file() {
        vec![single]
    } else if index.is_file() {
        let text = fs_err::read_to_string(&index).map_err(|source| ModelError::Read {
            path: index.clone(),
            source,
        })?;
        let shards: Shards = serde_json::from_str(&text).map_err(|error| ModelError::Broken {
            path: index.clone(),
            reason: error.to_string(),
        })?;
        let names: BTreeSet<String> = shards.weight_map.into_values().collect();
        names.iter().map(|name| folder.join(name)).collect()
    } else {
        return Err(ModelError::NotFound { path: single });
    };
    let mut read = Vec::with_capacity(files.len());
    for path in files {
        if !path.is_file() {
            return Err(ModelError::NotFound { path });
        }
        read.push(SafetensorsFile::read(&path)?);
    }
    Ok(Source::Safetensors(read))
}
