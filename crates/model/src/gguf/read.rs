//! The head of a GGUF file: metadata, and where its tensors are.
//!
//! Little-endian files of the versions 1 to 3. A file may be broken or hostile: every length is held against what is left of
//! the file before anything is allocated for it.

use std::collections::HashMap;
use std::io::Read;

use super::value::{GgufValue, ValueType};
use crate::quantized::GgmlType;

pub(super) const MAGIC: [u8; 4] = *b"GGUF";
pub(super) const ALIGNMENT: u64 = 32;
/// `GGML_MAX_DIMS`.
const MAX_DIMENSIONS: u32 = 4;
/// Arrays of arrays may not go deeper: reading them recurses.
const MAX_DEPTH: usize = 16;

#[derive(Debug)]
pub(super) struct Head {
    pub(super) metadata: HashMap<String, GgufValue>,
    pub(super) tensors: HashMap<String, TensorInfo>,
    /// Where the data of the tensors begin.
    pub(super) data_start: u64,
}

#[derive(Debug)]
pub(super) struct TensorInfo {
    pub(super) ggml_type: GgmlType,
    /// Outermost dimension first, unlike in the file.
    pub(super) shape: Vec<usize>,
    /// From the start of the data.
    pub(super) offset: u64,
}

impl Head {
    /// Reads from the start of a file of that many bytes, or says what is wrong with it.
    pub(super) fn read(file: &mut impl Read, file_bytes: u64) -> Result<Self, String> {
        let mut reader = Reader {
            file,
            file_bytes,
            remaining: file_bytes,
            version: Version::Long,
        };
        let magic = reader.bytes()?;
        if magic != MAGIC {
            return Err(format!(
                "it begins with {magic:02x?}, where GGUF files say `GGUF`"
            ));
        }
        reader.version = match reader.u32()? {
            1 => Version::Short,
            2 | 3 => Version::Long,
            other => return Err(format!("it is of GGUF version {other}, which is not known")),
        };
        let tensor_count = reader.length()?;
        let metadata_count = reader.length()?;
        // A key, the kind of its value, and a byte at least; a name, dimensions, a type and an offset.
        let prefix = reader.version.length_bytes();
        reader.check(metadata_count, prefix + 5, "metadata")?;
        reader.check(tensor_count, prefix + 16, "tensors")?;

        let mut metadata = HashMap::new();
        for _ in 0..metadata_count {
            let key = reader.text()?;
            let kind = reader.value_type()?;
            metadata.insert(key, reader.value(kind, 0)?);
        }
        let mut tensors = HashMap::new();
        for _ in 0..tensor_count {
            let name = reader.text()?;
            let info = reader.tensor_info(&name)?;
            tensors.insert(name, info);
        }
        let alignment = match metadata.get("general.alignment") {
            None => ALIGNMENT,
            Some(value) => value
                .to_count()
                .and_then(|count| u64::try_from(count).ok())
                .filter(|alignment| alignment.is_power_of_two())
                .ok_or("its `general.alignment` is not a power of two")?,
        };
        let data_start = reader
            .position()
            .checked_next_multiple_of(alignment)
            .ok_or("its `general.alignment` is beyond every file")?;
        Ok(Self {
            metadata,
            tensors,
            data_start,
        })
    }
}

impl TensorInfo {
    /// How many bytes its data have; `None` where blocks do not fill its rows, or no number says how many.
    pub(super) fn data_bytes(&self) -> Option<usize> {
        let elements = self
            .shape
            .iter()
            .try_fold(1usize, |product, size| product.checked_mul(*size))?;
        let columns = self.shape.last().copied().unwrap_or(1);
        if !columns.is_multiple_of(self.ggml_type.block_len()) {
            return None;
        }
        (elements / self.ggml_type.block_len()).checked_mul(self.ggml_type.block_bytes())
    }
}

/// What lengths are written as.
#[derive(Debug, Clone, Copy)]
enum Version {
    /// The first version: four bytes.
    Short,
    Long,
}

impl Version {
    fn length_bytes(self) -> u64 {
        match self {
            Self::Short => 4,
            Self::Long => 8,
        }
    }
}

struct Reader<'a, R> {
    file: &'a mut R,
    file_bytes: u64,
    remaining: u64,
    version: Version,
}

impl<R: Read> Reader<'_, R> {
    fn position(&self) -> u64 {
        self.file_bytes - self.remaining
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), String> {
        self.check(buffer.len() as u64, 1, "bytes")?;
        self.file
            .read_exact(buffer)
            .map_err(|error| error.to_string())?;
        self.remaining -= buffer.len() as u64;
        Ok(())
    }

    /// Whether so many things can still come.
    fn check(&self, count: u64, least_bytes: u64, what: &str) -> Result<(), String> {
        if count.saturating_mul(least_bytes) <= self.remaining {
            return Ok(());
        }
        Err(format!(
            "it ends too early: {count} {what} should follow byte {} of {}",
            self.position(),
            self.file_bytes
        ))
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn length(&mut self) -> Result<u64, String> {
        match self.version {
            Version::Short => Ok(u64::from(self.u32()?)),
            Version::Long => self.u64(),
        }
    }

    fn text(&mut self) -> Result<String, String> {
        let length = self.length()?;
        self.check(length, 1, "characters")?;
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes)?;
        // Some writers end texts as C does.
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        // Vocabularies with broken UTF-8 have been seen.
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    fn value_type(&mut self) -> Result<ValueType, String> {
        let id = self.u32()?;
        ValueType::parse(id).ok_or_else(|| format!("a value is of kind {id}, which is not known"))
    }

    fn value(&mut self, kind: ValueType, depth: usize) -> Result<GgufValue, String> {
        Ok(match kind {
            ValueType::U8 => GgufValue::U8(u8::from_le_bytes(self.bytes()?)),
            ValueType::I8 => GgufValue::I8(i8::from_le_bytes(self.bytes()?)),
            ValueType::U16 => GgufValue::U16(u16::from_le_bytes(self.bytes()?)),
            ValueType::I16 => GgufValue::I16(i16::from_le_bytes(self.bytes()?)),
            ValueType::U32 => GgufValue::U32(self.u32()?),
            ValueType::I32 => GgufValue::I32(i32::from_le_bytes(self.bytes()?)),
            ValueType::F32 => GgufValue::F32(f32::from_le_bytes(self.bytes()?)),
            ValueType::U64 => GgufValue::U64(self.u64()?),
            ValueType::I64 => GgufValue::I64(i64::from_le_bytes(self.bytes()?)),
            ValueType::F64 => GgufValue::F64(f64::from_le_bytes(self.bytes()?)),
            ValueType::Bool => match self.bytes()? {
                [0] => GgufValue::Bool(false),
                [1] => GgufValue::Bool(true),
                [other] => return Err(format!("a yes or no is {other}")),
            },
            ValueType::String => GgufValue::String(self.text()?),
            ValueType::Array => {
                let kind = self.value_type()?;
                let length = self.length()?;
                self.check(length, self.least_bytes(kind), "values")?;
                if depth == MAX_DEPTH {
                    return Err(format!("its arrays are nested deeper than {MAX_DEPTH}"));
                }
                let values = (0..length).map(|_| self.value(kind, depth + 1));
                GgufValue::Array(values.collect::<Result<_, _>>()?)
            }
        })
    }

    /// What the shortest value of a kind takes in the file.
    fn least_bytes(&self, kind: ValueType) -> u64 {
        match kind {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::U64 | ValueType::I64 | ValueType::F64 => 8,
            ValueType::String => self.version.length_bytes(),
            ValueType::Array => 4 + self.version.length_bytes(),
        }
    }

    fn tensor_info(&mut self, name: &str) -> Result<TensorInfo, String> {
        let dimensions = self.u32()?;
        if dimensions > MAX_DIMENSIONS {
            return Err(format!("tensor `{name}` has {dimensions} dimensions"));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = usize::try_from(self.length()?);
            shape.push(size.map_err(|error| format!("tensor `{name}`: {error}"))?);
        }
        shape.reverse();
        let id = self.u32()?;
        let ggml_type = GgmlType::parse(id).ok_or_else(|| {
            format!("tensor `{name}` is of ggml's type {id}, which cannot be read here")
        })?;
        Ok(TensorInfo {
            ggml_type,
            shape,
            offset: self.u64()?,
        })
    }
}
