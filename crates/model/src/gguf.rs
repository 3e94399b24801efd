//! GGUF files: typed metadata, and tensors that stay as quantised as they are.

mod read;
mod value;
mod write;

use std::collections::HashMap;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use self::read::Head;
use crate::quantized::GgmlTensor;
use crate::{HostTensor, ModelError};

pub use self::value::GgufValue;
pub use self::write::write;

#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    file: BufReader<fs_err::File>,
    bytes: u64,
    head: Head,
}

impl GgufFile {
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let unreadable = |source| ModelError::Read {
            path: path.to_path_buf(),
            source,
        };
        let file = fs_err::File::open(path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        let mut file = BufReader::with_capacity(1 << 20, file);
        let head = Head::read(&mut file, bytes).map_err(|reason| ModelError::Broken {
            path: path.to_path_buf(),
            reason,
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            bytes,
            head,
        })
    }

    pub fn metadata(&self) -> &HashMap<String, GgufValue> {
        &self.head.metadata
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn value<'a, T>(
        &'a self,
        key: &str,
        kind: &str,
        read: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.head.metadata.get(key) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| ModelError::Setting {
                key: key.to_owned(),
                reason: format!("not {kind}"),
            }),
        }
    }

    fn required<T>(&self, key: &str, found: Option<T>) -> Result<T, ModelError> {
        found.ok_or_else(|| self.broken(format!("its metadata have no `{key}`")))
    }

    fn broken(&self, reason: String) -> ModelError {
        ModelError::Broken {
            path: self.path.clone(),
            reason,
        }
    }

    pub(crate) fn optional_count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        self.value(key, "a count", GgufValue::to_count)
    }

    pub(crate) fn count(&self, key: &str) -> Result<usize, ModelError> {
        self.required(key, self.optional_count(key)?)
    }

    pub(crate) fn optional_float(&self, key: &str) -> Result<Option<f32>, ModelError> {
        self.value(key, "a number", GgufValue::to_float)
    }

    pub(crate) fn float(&self, key: &str) -> Result<f32, ModelError> {
        self.required(key, self.optional_float(key)?)
    }

    pub(crate) fn optional_text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.value(key, "a text", GgufValue::as_text)
    }

    pub(crate) fn text(&self, key: &str) -> Result<&str, ModelError> {
        self.required(key, self.optional_text(key)?)
    }

    pub(crate) fn texts(&self, key: &str) -> Result<Vec<String>, ModelError> {
        let found = self.value(key, "a list of texts", |value| {
            let texts = value.as_array()?.iter();
            texts
                .map(|text| text.as_text().map(str::to_owned))
                .collect()
        })?;
        self.required(key, found)
    }

    pub(crate) fn optional_counts(&self, key: &str) -> Result<Option<Vec<usize>>, ModelError> {
        self.value(key, "a list of counts", |value| {
            value.as_array()?.iter().map(GgufValue::to_count).collect()
        })
    }

    pub(crate) fn has(&self, tensor: &str) -> bool {
        self.head.tensors.contains_key(tensor)
    }

    /// The first number of a tensor's shape.
    pub(crate) fn rows(&self, tensor: &str) -> Result<usize, ModelError> {
        self.head
            .tensors
            .get(tensor)
            .and_then(|info| info.shape.first().copied())
            .ok_or_else(|| ModelError::MissingTensor {
                name: tensor.to_owned(),
            })
    }

    pub(crate) fn tensor(&mut self, name: &str) -> Result<GgmlTensor, ModelError> {
        let info = self
            .head
            .tensors
            .get(name)
            .ok_or_else(|| ModelError::MissingTensor {
                name: name.to_owned(),
            })?;
        let start = self.head.data_start.saturating_add(info.offset);
        let remaining = self.bytes.saturating_sub(start);
        let length = match info.data_bytes() {
            None => {
                let (shape, kind) = (&info.shape, info.ggml_type);
                let reason = format!("tensor `{name}` of shape {shape:?} cannot be of {kind:?}");
                return Err(self.broken(reason));
            }
            Some(length) if length as u64 > remaining => {
                let reason = format!(
                    "tensor `{name}` ends {length} bytes after byte {start}, beyond the file's end"
                );
                return Err(self.broken(reason));
            }
            Some(length) => length,
        };
        let (shape, ggml_type) = (info.shape.clone(), info.ggml_type);
        let mut bytes = vec![0; length];
        let read = self
            .file
            .seek(SeekFrom::Start(start))
            .and_then(|_| self.file.read_exact(&mut bytes));
        read.map_err(|error| self.broken(format!("tensor `{name}`: {error}")))?;
        Ok(GgmlTensor::new(ggml_type, shape, bytes))
    }

    /// A tensor as numbers, where the file has it.
    pub(crate) fn optional_numbers(
        &mut self,
        name: &str,
    ) -> Result<Option<HostTensor>, ModelError> {
        if !self.has(name) {
            return Ok(None);
        }
        Ok(Some(self.tensor(name)?.dequantize()))
    }
}
