//! Launching kernels that take their parameters as one struct.
//!
//! On Hopper and later they use programmatic dependent launch: a kernel may start before the one before it has ended. It reads
//! weights and what earlier steps wrote while that one runs, then waits for it itself.

use std::ffi::c_void;
use std::mem::zeroed;

use cudarc::driver::sys::{self, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig};
use cudarc::driver::{CudaFunction, DevicePtr};

use crate::{Gpu, GpuError};

/// Grid, block and shared memory of a launch.
pub(crate) struct LaunchShape {
    pub(crate) grid: (usize, usize, usize),
    pub(crate) threads: usize,
    /// Dynamic shared memory.
    pub(crate) shared_bytes: u32,
    /// Consecutive blocks that can access each other's shared memory.
    pub(crate) cluster: usize,
}

impl LaunchShape {
    pub(crate) fn new(grid: (usize, usize, usize), threads: usize) -> Self {
        Self {
            grid,
            threads,
            shared_bytes: 0,
            cluster: 1,
        }
    }
}

impl Gpu {
    /// A buffer's device address, for a kernel's parameters.
    pub(crate) fn address<T>(&self, buffer: &impl DevicePtr<T>) -> u64 {
        buffer.device_ptr(&self.stream).0
    }

    /// The same, null where there is no buffer.
    pub(crate) fn address_or_null<T>(&self, buffer: Option<&impl DevicePtr<T>>) -> u64 {
        buffer.map_or(0, |buffer| self.address(buffer))
    }

    /// # Safety
    ///
    /// The kernel takes exactly this struct, the buffers it names live for as long as the kernel may run, and the kernel waits for
    /// the one before it before it touches what that one writes.
    #[expect(unsafe_code, reason = "launches a kernel with addresses")]
    pub(crate) unsafe fn launch<T>(
        &self,
        function: &CudaFunction,
        shape: &LaunchShape,
        params: &T,
    ) -> Result<(), GpuError> {
        self.stream.context().bind_to_thread()?;
        let mut attributes = Vec::with_capacity(2);
        if self.has_pdl {
            attributes.push(attribute(
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                |value| value.programmaticStreamSerializationAllowed = 1,
            ));
        }
        if shape.cluster > 1 {
            attributes.push(attribute(
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                |value| {
                    value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
                        x: shape.cluster as u32,
                        y: 1,
                        z: 1,
                    };
                },
            ));
        }
        let config = CUlaunchConfig {
            gridDimX: shape.grid.0 as u32,
            gridDimY: shape.grid.1 as u32,
            gridDimZ: shape.grid.2 as u32,
            blockDimX: shape.threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared_bytes,
            hStream: self.stream.cu_stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        let mut arguments = [std::ptr::from_ref(params).cast_mut().cast::<c_void>()];
        // SAFETY: the arguments are copied before this returns; the caller guarantees the rest.
        unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                function.cu_function(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()?;
        Ok(())
    }
}

fn attribute(
    id: CUlaunchAttributeID,
    set: impl FnOnce(&mut sys::CUlaunchAttributeValue),
) -> CUlaunchAttribute {
    #[expect(unsafe_code, reason = "plain numbers, most of them unused")]
    // SAFETY: see the reason.
    let mut attribute: CUlaunchAttribute = unsafe { zeroed() };
    attribute.id = id;
    set(&mut attribute.value);
    attribute
}
