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
    Attention { head_dim: usize, group: usize },
    #[error(
        "rows of {width} numbers cannot be read on the GPU: their number must be a multiple of {}",
        crate::AT_ONCE
    )]
    Width { width: usize },
    #[error("rows of {width} numbers cannot be learnt from on this GPU: {most} at most")]
    TooWide { width: usize, most: usize },
    #[error("the GPU has no products of few rows: compute capability 9.0 is needed")]
    FewRows,
    #[error("the GPU has no attention by groups of warps: compute capability 9.0 is needed")]
    WarpGroups,
    #[error("{count} {what} do not fit: there is room for {room}")]
    NoRoom {
        what: &'static str,
        count: usize,
        room: usize,
    },
    #[error(
        "learning needs {:.1} GB on the GPU, which has {:.1} GB free",
        *needed as f64 / 1e9,
        *free as f64 / 1e9
    )]
    Memory { needed: usize, free: usize },
    #[error("a state of {found} numbers is none of this model's, which has {wanted}")]
    OtherState { found: usize, wanted: usize },
    #[error("nothing was launched while a graph was captured")]
    NothingCaptured,
    #[error("the GPU failed")]
    Driver(#[from] DriverError),
    #[error("cuBLAS failed")]
    Cublas(#[from] CublasError),
}

impl GpuError {
    /// There is no GPU here that could do it, however often it is asked.
    pub fn is_of_the_machine(&self) -> bool {
        matches!(
            self,
            Self::NoDriver
                | Self::NoDevice { .. }
                | Self::TooOld { .. }
                | Self::NoCublas
                | Self::Attention { .. }
                | Self::Width { .. }
                | Self::TooWide { .. }
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
            Self::TooOld { .. } | Self::Attention { .. } | Self::Width { .. } | Self::TooWide { .. } => {
                Some("run the model on the processor".into())
            }
            Self::NoRoom { .. } | Self::Memory { .. } => Some("learn from fewer or shorter sequences at once".into()),
            Self::OtherState { .. }
            | Self::FewRows
            | Self::WarpGroups
            | Self::NothingCaptured | Self::Driver(_) | Self::Cublas(_) => None,
        }
    }
}
