//! One metadata value of a GGUF file.

/// Arrays hold values of one kind.
#[derive(Debug, Clone, PartialEq)]
pub enum GgufValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Vec<Self>),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// `gguf_metadata_value_type` of the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    pub(super) fn parse(id: u32) -> Option<Self> {
        Self::ALL.get(id as usize).copied()
    }
}

impl GgufValue {
    pub(super) fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// An integer of any kind that is not negative.
    pub(crate) fn to_count(&self) -> Option<usize> {
        let number = match self {
            Self::U8(number) => u64::from(*number),
            Self::U16(number) => u64::from(*number),
            Self::U32(number) => u64::from(*number),
            Self::U64(number) => *number,
            Self::I8(number) => u64::try_from(*number).ok()?,
            Self::I16(number) => u64::try_from(*number).ok()?,
            Self::I32(number) => u64::try_from(*number).ok()?,
            Self::I64(number) => u64::try_from(*number).ok()?,
            _ => return None,
        };
        usize::try_from(number).ok()
    }

    pub(crate) fn to_float(&self) -> Option<f32> {
        match self {
            Self::F32(number) => Some(*number),
            Self::F64(number) => Some(*number as f32),
            _ => None,
        }
    }

    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(values) => Some(values),
            _ => None,
        }
    }
}
