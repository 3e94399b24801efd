//! Launching the kernels of a decode step.
//!
//! Each takes all it needs as one struct. On Hopper and later they may start before the one before them has ended: they read
//! weights, and what was kept long ago, while that one runs, then wait for it themselves.

use std::ffi::c_void;
use std::mem::zeroed;

use cudarc::driver::sys::{self, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig};
use cudarc::driver::{CudaFunction, DevicePtr};

use crate::{Gpu, GpuError};

/// How a kernel is spread over the device.
pub(crate) struct Spread {
    pub(crate) grid: (usize, usize, usize),
    pub(crate) threads: usize,
    /// Bytes beyond what the kernel declares.
    pub(crate) shared: u32,
    /// Neighbouring blocks that see each other's shared memory.
    pub(crate) cluster: usize,
}

impl Spread {
    pub(crate) fn plain(grid: (usize, usize, usize), threads: usize) -> Self {
        Self {
            grid,
            threads,
            shared: 0,
            cluster: 1,
        }
    }
}

impl Gpu {
    /// Where a buffer is, for a kernel's struct.
    pub(crate) fn address<T>(&self, buffer: &impl DevicePtr<T>) -> u64 {
        buffer.device_ptr(&self.stream).0
    }

    /// The same of what may be left out.
    pub(crate) fn address_if<T>(&self, buffer: Option<&impl DevicePtr<T>>) -> u64 {
        buffer.map_or(0, |buffer| self.address(buffer))
    }

    /// # Safety
    ///
    /// The kernel takes just such a struct, what it names is there for as long as the kernel may run, and the kernel waits for
    /// the one before it before it touches what that one writes.
    #[expect(unsafe_code, reason = "launches a kernel with addresses")]
    pub(crate) unsafe fn launch<T>(
        &self,
        function: &CudaFunction,
        spread: &Spread,
        asked: &T,
    ) -> Result<(), GpuError> {
        self.stream.context().bind_to_thread()?;
        let mut attributes = Vec::with_capacity(2);
        if self.overlaps {
            attributes.push(attribute(
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                |value| value.programmaticStreamSerializationAllowed = 1,
            ));
        }
        if spread.cluster > 1 {
            attributes.push(attribute(
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                |value| {
                    value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
                        x: spread.cluster as u32,
                        y: 1,
                        z: 1,
                    };
                },
            ));
        }
        let config = CUlaunchConfig {
            gridDimX: spread.grid.0 as u32,
            gridDimY: spread.grid.1 as u32,
            gridDimZ: spread.grid.2 as u32,
            blockDimX: spread.threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: spread.shared,
            hStream: self.stream.cu_stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        let mut arguments = [std::ptr::from_ref(asked).cast_mut().cast::<c_void>()];
        // SAFETY: the arguments are copied before this returns; the rest is the caller's word.
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
