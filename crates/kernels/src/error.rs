use cudarc::cublas::result::CublasError;
use cudarc::driver::DriverError;

/// Why something on a GPU did not work.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    #[error("there is no NVIDIA driver on this machine")]
    NoDriver,
    #[error("there is no GPU number {ordinal}: this machine has {count}")]
    NoDevice { ordinal: usize, count: usize },
    #[error("the GPU is too old: compute capability {major}.{minor}, at least 8.0 is needed")]
    TooOld { major: i32, minor: i32 },
    #[error("cuBLAS was not found")]
    NoCublas,
    #[error("the GPU cannot do attention with heads of {head_dim} in groups of {group}")]
    UnsupportedAttention { head_dim: usize, group: usize },
    #[error(
        "the GPU kernels cannot read rows of {width} numbers: the width must be a multiple of {}",
        crate::VEC
    )]
    UnsupportedWidth { width: usize },
    #[error("this GPU cannot train models whose rows have {width} numbers: {max} at most")]
    RowTooWide { width: usize, max: usize },
    #[error("the GPU cannot train models with biases outside of queries, keys and values")]
    UnsupportedBias,
    #[error("the GPU cannot run the skinny GEMM kernels: compute capability 9.0 is needed")]
    NoSkinnyGemm,
    #[error("the GPU has no wgmma instructions: compute capability 9.0 is needed")]
    NoWgmma,
    #[error("{count} {what} exceed the capacity of {capacity}")]
    OverCapacity {
        what: &'static str,
        count: usize,
        capacity: usize,
    },
    #[error(
        "training needs {:.1} GB on the GPU, which has {:.1} GB free",
        *needed as f64 / 1e9,
        *free as f64 / 1e9
    )]
    OutOfMemory { needed: usize, free: usize },
    #[error("a state of {found} parameters does not belong to this model, which has {expected}")]
    WrongStateSize { found: usize, expected: usize },
    #[error("nothing was launched while a CUDA graph was captured")]
    EmptyGraph,
    #[error("the program has no PTX of the module `{module}`")]
    MissingPtx { module: &'static str },
    #[error("the GPU failed")]
    Driver(#[from] DriverError),
    #[error("cuBLAS failed")]
    Cublas(#[from] CublasError),
}

impl GpuError {
    /// Whether this machine's GPU can never do it: retrying is useless, the CPU can be used instead.
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self,
            Self::NoDriver
                | Self::NoDevice { .. }
                | Self::TooOld { .. }
                | Self::NoCublas
                | Self::UnsupportedAttention { .. }
                | Self::UnsupportedWidth { .. }
                | Self::RowTooWide { .. }
                | Self::UnsupportedBias
        )
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoDriver => Some("install NVIDIA's driver, version 580 or later".into()),
            Self::NoDevice { .. } => Some("choose another with `--device`".into()),
            Self::NoCublas => Some(
                "install CUDA 13, or put the folder of libcublas.so.13 (PyTorch brings one) into LD_LIBRARY_PATH".into(),
            ),
            Self::TooOld { .. } | Self::UnsupportedAttention { .. } | Self::UnsupportedWidth { .. } | Self::RowTooWide { .. } | Self::UnsupportedBias => {
                Some("run the model on the CPU".into())
            }
            Self::OverCapacity { .. } | Self::OutOfMemory { .. } => Some("train with fewer or shorter sequences per microbatch".into()),
            Self::WrongStateSize { .. }
            | Self::NoSkinnyGemm
            | Self::NoWgmma
            | Self::EmptyGraph
            | Self::MissingPtx { .. }
            | Self::Driver(_) | Self::Cublas(_) => None,
        }
    }
}
