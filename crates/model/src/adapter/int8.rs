//! An adapter in 8 bits, to ship: a quarter of its size in `f32`. PEFT does not read this form.
//!
//! A row of `A` and the column of `B` that takes it up have one scale each, since training makes pairs of very different size.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype;

use super::files::{A, Factor, PREFIX, SETTINGS, TENSORS, name};
use super::{Adapter, AdapterError, settings};
use crate::HostTensor;
use crate::export::EncodedTensor;
use crate::safetensors_file::SafetensorsFile;

const MOST: f32 = 127.0;
/// `lora_A.weight` has its scales in `lora_A.scale`.
const SCALE: &str = "scale";

impl Factor {
    /// Which of the rank's scales a number belongs to.
    fn scale_of(self, place: usize, columns: usize) -> usize {
        match self {
            Self::A => place / columns,
            Self::B => place % columns,
        }
    }
}

impl Adapter {
    /// Writes a folder that [`Adapter::load`] reads; the numbers are those of 8 bits from then on. Gives the tensors' size in bytes.
    pub fn save_int8(&self, folder: &Path) -> Result<u64, AdapterError> {
        let failed = |reason: String| AdapterError::Write {
            path: folder.to_path_buf(),
            reason,
        };
        fs_err::create_dir_all(folder).map_err(|error| failed(error.to_string()))?;
        let text = settings::written(&self.settings, &self.projections());
        fs_err::write(folder.join(SETTINGS), text).map_err(|error| failed(error.to_string()))?;
        let mut tensors = BTreeMap::new();
        for (place, pair) in &self.pairs {
            for (factor, numbers) in [(Factor::A, &pair.a), (Factor::B, &pair.b)] {
                let name = format!("{PREFIX}{place}.{}", name(factor));
                let (quantized, scales) = quantize(factor, numbers, self.settings.rank);
                tensors.insert(scale_name(&name), scales);
                tensors.insert(name, quantized);
            }
        }
        let path = folder.join(TENSORS);
        crate::export::write_tensors(tensors, &path).map_err(failed)?;
        let written = fs_err::metadata(&path).map_err(|error| failed(error.to_string()))?;
        Ok(written.len())
    }
}

/// The scales' tensor beside one of numbers.
fn scale_name(name: &str) -> String {
    let stem = name.strip_suffix("weight").unwrap_or(name);
    format!("{stem}{SCALE}")
}

/// Whether a tensor is read with the one it belongs to.
pub(super) fn is_scale(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SCALE)
}

fn quantize(factor: Factor, numbers: &HostTensor, rank: usize) -> (EncodedTensor, EncodedTensor) {
    let columns = numbers.columns();
    let mut scales = vec![0.0_f32; rank];
    for (place, number) in numbers.data().iter().enumerate() {
        let scale = &mut scales[factor.scale_of(place, columns)];
        *scale = scale.max(number.abs());
    }
    for scale in &mut scales {
        *scale /= MOST;
    }
    let byte = |(place, number): (usize, &f32)| {
        let scale = scales[factor.scale_of(place, columns)];
        let scaled = if scale > 0.0 { number / scale } else { 0.0 };
        (scaled.round().clamp(-MOST, MOST) as i8).cast_unsigned()
    };
    let quantized = EncodedTensor {
        dtype: Dtype::I8,
        shape: numbers.shape().to_vec(),
        bytes: numbers.data().iter().enumerate().map(byte).collect(),
    };
    let scales = EncodedTensor {
        dtype: Dtype::F32,
        shape: vec![rank],
        bytes: scales.iter().flat_map(|one| one.to_le_bytes()).collect(),
    };
    (quantized, scales)
}

/// The numbers of a tensor in 8 bits; `None` for one of another type, in words where it cannot be read.
pub(super) fn dequantized(
    file: &SafetensorsFile,
    name: &str,
) -> Option<Result<HostTensor, String>> {
    let (shape, bytes) = file.int8(name)?;
    Some(restored(file, name, shape, bytes))
}

fn restored(
    file: &SafetensorsFile,
    name: &str,
    shape: &[usize],
    bytes: &[u8],
) -> Result<HostTensor, String> {
    let factor = if name.ends_with(A) {
        Factor::A
    } else {
        Factor::B
    };
    let scale = scale_name(name);
    let scales = file.tensor(&scale).map_err(|error| error.to_string())?;
    let scales = scales.data();
    let &[rows, columns] = shape else {
        return Err(format!("tensor `{name}` is no matrix"));
    };
    let rank = match factor {
        Factor::A => rows,
        Factor::B => columns,
    };
    if scales.len() != rank {
        let found = scales.len();
        return Err(format!(
            "`{scale}` has {found} numbers for a rank of {rank}"
        ));
    }
    let number = |(place, byte): (usize, &u8)| {
        f32::from(byte.cast_signed()) * scales[factor.scale_of(place, columns)]
    };
    let numbers = bytes.iter().enumerate().map(number).collect();
    Ok(HostTensor::new(shape, numbers))
}
