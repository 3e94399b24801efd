//! PyTorch's headers, compiled once: half a gigabyte each that saves most of the time of a file that binds tensors.

use std::path::PathBuf;

use fs_err as fs;
use warpsmith_schema::Target;

use super::{Toolchain, run_trusted};
use crate::JudgeError;

/// Which headers, and how what includes them is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PrecompiledHeader {
    /// Tensors and bindings, for code that computes.
    Torch,
    /// The same for what only hands tensors on to kernels.
    Binding,
    /// Tensors and CUDA's runtime, without bindings: they take half of the time.
    Host,
}

const TORCH: &str = "#include <torch/types.h>\n#include <torch/csrc/utils/pybind.h>\n#include <torch/csrc/Exceptions.h>\n#include <ATen/Parallel.h>\n";
/// Files that need more of CUDA include it themselves.
const HOST: &str = "#include <math.h>\n#include <stdlib.h>\n#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n\
    #include <c10/cuda/CUDAGuard.h>\n\
    #if __has_include(<cublas_v2.h>) && __has_include(<cublasLt.h>) && __has_include(<cusparse.h>) && __has_include(<cusolverDn.h>)\n\
    #include <ATen/cuda/CUDAContext.h>\n#endif\n";

impl PrecompiledHeader {
    fn text(self) -> &'static str {
        match self {
            Self::Torch | Self::Binding => TORCH,
            Self::Host => HOST,
        }
    }

    /// Of g++. Bindings and launches gain nothing by more, which costs a second or two; PyTorch's own `load_inline` asks for none.
    pub(super) fn optimisation(self) -> &'static [&'static str] {
        match self {
            Self::Torch => &["-O3", "-fopenmp", "-march=native"],
            Self::Binding | Self::Host => &["-O1"],
        }
    }

    /// What a target's files may need.
    pub(super) fn of(target: Target) -> &'static [Self] {
        match target {
            Target::Cpu => &[Self::Torch],
            Target::Cuda => &[Self::Torch, Self::Binding, Self::Host],
        }
    }
}

impl Toolchain {
    /// Compiles all headers that this target's files may need.
    pub(crate) fn precompile_all(&self) -> Result<(), JudgeError> {
        let mut headers = PrecompiledHeader::of(self.target).iter();
        headers.try_for_each(|header| self.precompile(*header))
    }

    pub(super) fn precompile(&self, header: PrecompiledHeader) -> Result<(), JudgeError> {
        let path = self.precompiled_path(header);
        let precompiled = path.with_extension("h.gch");
        if precompiled.exists() {
            return Ok(());
        }
        let folder = self.precompiled_dir(header);
        fs::create_dir_all(folder).map_err(JudgeError::io("make the header folder"))?;
        fs::write(&path, header.text())
            .map_err(JudgeError::io("write the header to precompile"))?;
        let mut arguments = self.cxx_flags(Some(header));
        let language = ["-x", "c++-header"].map(str::to_owned);
        arguments.extend(language.into_iter().chain([path.display().to_string()]));
        run_trusted(&self.cxx.path, &arguments, &precompiled)
    }

    /// What a file includes to have it.
    pub(super) fn precompiled_path(&self, header: PrecompiledHeader) -> PathBuf {
        self.precompiled_dir(header).join("warpsmith_torch.h")
    }

    pub(super) fn precompiled_dir(&self, header: PrecompiledHeader) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        for flag in self.cxx_flags(Some(header)) {
            hasher.update(flag.as_bytes());
        }
        hasher.update(self.cxx.id.as_bytes());
        hasher.update(self.python.torch.version.as_bytes());
        hasher.update(header.text().as_bytes());
        self.caches.support().join(format!(
            "torch-header-{}",
            &hasher.finalize().to_hex()[..12]
        ))
    }
}
