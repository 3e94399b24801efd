//! One safetensors file in memory, its tensors as `f32` when they are asked for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensors};

use crate::{HostTensor, ModelError};

#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    header: Metadata,
    /// Of all tensors; the header's offsets were checked against it.
    data: Vec<u8>,
}

impl SafetensorsFile {
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let mut data = fs_err::read(path).map_err(|source| ModelError::Read {
            path: path.to_path_buf(),
            source,
        })?;
        let (header_bytes, header) =
            SafeTensors::read_metadata(&data).map_err(|error| ModelError::Broken {
                path: path.to_path_buf(),
                reason: error.to_string(),
            })?;
        // The header's length stands before it, in eight bytes.
        data.drain(..8 + header_bytes);
        Ok(Self {
            path: path.to_path_buf(),
            header,
            data,
        })
    }

    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    pub fn has(&self, name: &str) -> bool {
        self.header.info(name).is_some()
    }

    /// A tensor of floating-point numbers, in `f32`.
    pub fn tensor(&self, name: &str) -> Result<HostTensor, ModelError> {
        let info = self
            .header
            .info(name)
            .ok_or_else(|| ModelError::MissingTensor {
                name: name.to_owned(),
            })?;
        let bytes = &self.data[info.data_offsets.0..info.data_offsets.1];
        let data = to_f32(info.dtype, bytes).ok_or_else(|| ModelError::Broken {
            path: self.path.clone(),
            reason: format!(
                "tensor `{name}` is of type {:?}, not of floating-point numbers",
                info.dtype
            ),
        })?;
        Ok(HostTensor::new(info.shape.clone(), data))
    }

    /// Shape and bytes of a tensor of 8-bit integers; `None` where it is of another type.
    pub fn int8(&self, name: &str) -> Option<(&[usize], &[u8])> {
        let info = self.header.info(name)?;
        let bytes = &self.data[info.data_offsets.0..info.data_offsets.1];
        (info.dtype == Dtype::I8).then_some((info.shape.as_slice(), bytes))
    }

    /// All tensors by name.
    pub fn tensors(&self) -> Result<BTreeMap<String, HostTensor>, ModelError> {
        let names = self.names().into_iter();
        names
            .map(|name| Ok((name.clone(), self.tensor(&name)?)))
            .collect()
    }
}

/// `None` where the type is none of floating-point numbers.
fn to_f32(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    fn convert<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f32) -> Vec<f32> {
        let (numbers, _) = bytes.as_chunks::<N>();
        numbers.iter().copied().map(number).collect()
    }
    match dtype {
        Dtype::F64 => Some(convert(bytes, |one| f64::from_le_bytes(one) as f32)),
        Dtype::F32 => Some(convert(bytes, f32::from_le_bytes)),
        Dtype::F16 => Some(convert(bytes, |one| f16::from_le_bytes(one).to_f32())),
        Dtype::BF16 => Some(convert(bytes, |one| bf16::from_le_bytes(one).to_f32())),
        _ => None,
    }
}
