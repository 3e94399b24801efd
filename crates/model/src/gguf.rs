//! Reading a GGUF file: typed metadata and tensors that stay as quantised as they are.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::Device;
use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::{Content, Value};

use crate::ModelError;

pub(crate) struct Gguf {
    path: PathBuf,
    file: std::io::BufReader<fs_err::File>,
    content: Content,
}

impl Gguf {
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let file = fs_err::File::open(path).map_err(|source| ModelError::Read {
            path: path.to_path_buf(),
            source,
        })?;
        let mut file = std::io::BufReader::with_capacity(1 << 20, file);
        let content = Content::read(&mut file).map_err(|error| ModelError::Broken {
            path: path.to_path_buf(),
            reason: error.to_string(),
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            content,
        })
    }

    pub(crate) fn metadata(&self) -> &HashMap<String, Value> {
        &self.content.metadata
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn value<T>(
        &self,
        key: &str,
        wanted: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.content.metadata.get(key) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| ModelError::Setting {
                key: key.to_owned(),
                reason: format!("not {wanted}"),
            }),
        }
    }

    fn required<T>(&self, key: &str, found: Option<T>) -> Result<T, ModelError> {
        found.ok_or_else(|| ModelError::Broken {
            path: self.path.clone(),
            reason: format!("its metadata have no `{key}`"),
        })
    }

    pub(crate) fn optional_count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        self.value(key, "a count", unsigned)
    }

    pub(crate) fn count(&self, key: &str) -> Result<usize, ModelError> {
        self.required(key, self.optional_count(key)?)
    }

    pub(crate) fn optional_float(&self, key: &str) -> Result<Option<f32>, ModelError> {
        self.value(key, "a number", |value| match value {
            Value::F32(number) => Some(*number),
            Value::F64(number) => Some(*number as f32),
            _ => None,
        })
    }

    pub(crate) fn float(&self, key: &str) -> Result<f32, ModelError> {
        self.required(key, self.optional_float(key)?)
    }

    pub(crate) fn optional_text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        match self.content.metadata.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ModelError::Setting {
                key: key.to_owned(),
                reason: "not a text".into(),
            }),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<&str, ModelError> {
        self.required(key, self.optional_text(key)?)
    }

    pub(crate) fn texts(&self, key: &str) -> Result<Vec<String>, ModelError> {
        let found = self.value(key, "a list of texts", |value| match value {
            Value::Array(list) => list
                .iter()
                .map(|one| one.to_string().ok().cloned())
                .collect(),
            _ => None,
        })?;
        self.required(key, found)
    }

    pub(crate) fn optional_counts(&self, key: &str) -> Result<Option<Vec<usize>>, ModelError> {
        self.value(key, "a list of counts", |value| match value {
            Value::Array(list) => list.iter().map(unsigned).collect(),
            _ => None,
        })
    }

    pub(crate) fn has(&self, tensor: &str) -> bool {
        self.content.tensor_infos.contains_key(tensor)
    }

    /// The first number of a tensor's shape.
    pub(crate) fn rows(&self, tensor: &str) -> Result<usize, ModelError> {
        self.content
            .tensor_infos
            .get(tensor)
            .and_then(|info| info.shape.dims().first().copied())
            .ok_or_else(|| ModelError::MissingTensor {
                name: tensor.to_owned(),
            })
    }

    pub(crate) fn tensor(&mut self, name: &str) -> Result<QTensor, ModelError> {
        if !self.has(name) {
            return Err(ModelError::MissingTensor {
                name: name.to_owned(),
            });
        }
        self.content
            .tensor(&mut self.file, name, &Device::Cpu)
            .map_err(|error| ModelError::Broken {
                path: self.path.clone(),
                reason: format!("tensor `{name}`: {error}"),
            })
    }

    /// A short tensor as numbers, where the file has it.
    pub(crate) fn optional_floats(&mut self, name: &str) -> Result<Option<Vec<f32>>, ModelError> {
        if !self.has(name) {
            return Ok(None);
        }
        let tensor = self.tensor(name)?.dequantize(&Device::Cpu)?;
        Ok(Some(tensor.flatten_all()?.to_vec1()?))
    }
}

fn unsigned(value: &Value) -> Option<usize> {
    let number = match value {
        Value::U8(number) => u64::from(*number),
        Value::U16(number) => u64::from(*number),
        Value::U32(number) => u64::from(*number),
        Value::U64(number) => *number,
        Value::I8(number) => u64::try_from(*number).ok()?,
        Value::I16(number) => u64::try_from(*number).ok()?,
        Value::I32(number) => u64::try_from(*number).ok()?,
        Value::I64(number) => u64::try_from(*number).ok()?,
        _ => return None,
    };
    usize::try_from(number).ok()
}
