//! How values lie in memory.

use warpsmith_schema::{Dtype, Target};

use super::ScalarType;

/// The type of a buffer's elements. Floats of every width are computed, and summed, in single precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ElementType {
    Float,
    BFloat16,
    Half,
    Int,
    Int32,
    Bool,
}

impl ElementType {
    /// `None` for a type that no kernel reads or writes.
    pub(crate) fn of(dtype: Dtype) -> Option<Self> {
        Some(match dtype {
            Dtype::Float32 => Self::Float,
            Dtype::Bfloat16 => Self::BFloat16,
            Dtype::Float16 => Self::Half,
            Dtype::Int64 => Self::Int,
            Dtype::Int32 => Self::Int32,
            Dtype::Bool => Self::Bool,
            Dtype::Float64 | Dtype::Int16 | Dtype::Int8 | Dtype::Uint8 => return None,
        })
    }

    /// The type that its values are computed in.
    pub(crate) fn scalar(self) -> ScalarType {
        match self {
            Self::Float | Self::BFloat16 | Self::Half => ScalarType::Float,
            Self::Int | Self::Int32 => ScalarType::Int,
            Self::Bool => ScalarType::Bool,
        }
    }

    /// Whether a value of a buffer has to be converted before anything is computed with it.
    pub(crate) fn is_narrow_float(self) -> bool {
        matches!(self, Self::BFloat16 | Self::Half)
    }

    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::Int => 8,
            Self::Float | Self::Int32 => 4,
            Self::BFloat16 | Self::Half => 2,
            Self::Bool => 1,
        }
    }

    /// In the code of a kernel.
    pub(crate) fn c_type(self, target: Target) -> &'static str {
        match (self, target) {
            (Self::Float, _) => "float",
            (Self::BFloat16, Target::Cuda) => "__nv_bfloat16",
            (Self::BFloat16, Target::Cpu) => "bfloat16",
            (Self::Half, Target::Cuda) => "__half",
            (Self::Half, Target::Cpu) => "half",
            (Self::Int, _) => "int64_t",
            (Self::Int32, _) => "int32_t",
            (Self::Bool, _) => "bool",
        }
    }

    /// In PyTorch.
    pub(crate) fn torch(self) -> &'static str {
        match self {
            Self::Float => "float32",
            Self::BFloat16 => "bfloat16",
            Self::Half => "float16",
            Self::Int => "int64",
            Self::Int32 => "int32",
            Self::Bool => "bool",
        }
    }
}

impl From<ScalarType> for ElementType {
    fn from(kind: ScalarType) -> Self {
        match kind {
            ScalarType::Float => Self::Float,
            ScalarType::Int => Self::Int,
            ScalarType::Bool => Self::Bool,
        }
    }
}
