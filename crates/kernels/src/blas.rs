//! Finds and opens cuBLAS.

use std::path::PathBuf;
use std::sync::Arc;

use cudarc::cublas::{CudaBlas, sys};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut};

use crate::GpuError;

/// Workspace of cuBLAS: given once, so that nothing is allocated while a CUDA graph is captured.
const WORKSPACE_BYTES: usize = 32 << 20;

pub(crate) fn open(stream: &Arc<CudaStream>) -> Result<(CudaBlas, CudaSlice<u8>), GpuError> {
    let found = is_present() || (load() && is_present());
    if !found {
        return Err(GpuError::NoCublas);
    }
    let blas = CudaBlas::new(stream.clone())?;
    let mut workspace = stream.alloc_zeros::<u8>(WORKSPACE_BYTES)?;
    {
        let (pointer, _used) = workspace.device_ptr_mut(stream);
        #[expect(unsafe_code, reason = "hands memory to cuBLAS")]
        // SAFETY: the memory is stored beside the handle, and dropped after it.
        unsafe {
            sys::cublasSetWorkspace_v2(*blas.handle(), pointer as *mut _, WORKSPACE_BYTES)
                .result()?;
        }
    }
    Ok((blas, workspace))
}

fn is_present() -> bool {
    #[expect(unsafe_code, reason = "opens a library, whose initialisers then run")]
    // SAFETY: cuBLAS does nothing when it is opened.
    unsafe {
        sys::is_culib_present()
    }
}

/// Loads it from where CUDA is installed: toolkits are often not among the linker's folders. A library that is loaded is
/// found by its name from then on.
fn load() -> bool {
    let homes = ["CUDA_HOME", "CUDA_PATH"].map(|name| std::env::var_os(name).map(PathBuf::from));
    let homes = homes.into_iter().flatten();
    homes
        .chain([PathBuf::from("/usr/local/cuda")])
        .map(|home| home.join("lib64/libcublas.so.13"))
        .any(|path| {
            #[expect(unsafe_code, reason = "opens a library, whose initialisers then run")]
            // SAFETY: cuBLAS does nothing when it is opened.
            let library = unsafe { libloading::Library::new(path) };
            // Never unloaded.
            library.map(std::mem::forget).is_ok()
        })
}
