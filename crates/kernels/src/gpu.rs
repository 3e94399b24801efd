//! A device with the kernels loaded on it: memory, copies, CUDA graphs.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use cudarc::cublas::CudaBlas;
use cudarc::driver::sys::{
    self, CUfunction_attribute, CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DeviceRepr, LaunchConfig, ValidAsZeroBits,
};

use crate::kv_attention::KvAttentionKernels;
use crate::ptx::PtxArch;
use crate::skinny_gemm::SkinnyGemmKernels;
use crate::{Buffer, CudaGraph, GpuError, blas, training};

pub struct Gpu {
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) blas: CudaBlas,
    pub(crate) kernels: InferenceKernels,
    /// Whether the device has programmatic dependent launch: a kernel may start before the one before it has ended.
    pub(crate) has_pdl: bool,
    pub(crate) training_kernels: OnceLock<training::gpu::TrainingKernels>,
    /// Which kernels training attends with.
    pub(crate) flash_attn_kind: training::gpu::FlashAttnKind,
    /// cuBLAS holds its address.
    _blas_workspace: CudaSlice<u8>,
}

pub(crate) struct InferenceKernels {
    pub(crate) embedding_fwd: CudaFunction,
    pub(crate) embedding_fwd_deferred_norm: CudaFunction,
    pub(crate) rms_norm_residual_inplace: CudaFunction,
    pub(crate) swiglu_fwd: CudaFunction,
    pub(crate) rope_append_kv: CudaFunction,
    pub(crate) kv_attention: KvAttentionKernels,
    pub(crate) sample_partials: CudaFunction,
    pub(crate) sample_tokens: CudaFunction,
    /// On Hopper alone.
    pub(crate) skinny_gemm: Option<SkinnyGemmKernels>,
}

impl Gpu {
    /// Whether the machine has NVIDIA's driver. That says nothing about devices.
    pub fn has_driver() -> bool {
        #[expect(unsafe_code, reason = "opens a library, whose initialisers then run")]
        // SAFETY: the driver's library does nothing when it is opened.
        unsafe {
            sys::is_culib_present()
        }
    }

    pub fn open(ordinal: usize) -> Result<Self, GpuError> {
        if !Self::has_driver() {
            return Err(GpuError::NoDriver);
        }
        cudarc::driver::result::init()?;
        let count = usize::try_from(CudaContext::device_count()?).unwrap_or(0);
        if ordinal >= count {
            return Err(GpuError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal)?;
        let (major, minor) = context.compute_capability()?;
        if major < 8 {
            return Err(GpuError::TooOld { major, minor });
        }
        #[expect(unsafe_code, reason = "see below")]
        // SAFETY: all work goes to one stream, in order: no buffer needs events of its own.
        unsafe {
            context.disable_event_tracking();
        }
        let stream = context.new_stream()?;
        let functions = InferenceKernels::load(&context, (major, minor))?;
        let (blas, workspace) = blas::open(&stream)?;
        Ok(Self {
            stream,
            blas,
            kernels: functions,
            has_pdl: major >= 9,
            training_kernels: OnceLock::new(),
            flash_attn_kind: training::gpu::FlashAttnKind::fastest_for((major, minor)),
            _blas_workspace: workspace,
        })
    }

    /// A buffer of zeros.
    pub fn zeros<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        len: usize,
    ) -> Result<Buffer<T>, GpuError> {
        Ok(self.stream.alloc_zeros(len)?)
    }

    pub fn upload<T: DeviceRepr>(&self, numbers: &[T]) -> Result<Buffer<T>, GpuError> {
        Ok(self.stream.clone_htod(numbers)?)
    }

    /// Copies to the beginning of a buffer.
    pub fn write<T: DeviceRepr>(
        &self,
        buffer: &mut Buffer<T>,
        numbers: &[T],
    ) -> Result<(), GpuError> {
        self.write_at(buffer, 0, numbers)
    }

    /// Copies to a buffer, from index `start` on.
    pub fn write_at<T: DeviceRepr>(
        &self,
        buffer: &mut Buffer<T>,
        start: usize,
        numbers: &[T],
    ) -> Result<(), GpuError> {
        if numbers.is_empty() {
            return Ok(());
        }
        let mut place = buffer.slice_mut(start..start + numbers.len());
        Ok(self.stream.memcpy_htod(numbers, &mut place)?)
    }

    /// Copies the beginning of a buffer to the host, after all work before.
    pub fn read<T: DeviceRepr + Clone + Default>(
        &self,
        buffer: &Buffer<T>,
        len: usize,
    ) -> Result<Vec<T>, GpuError> {
        self.read_at(buffer, 0..len)
    }

    /// Copies a range of a buffer to the host, after all work before.
    pub fn read_at<T: DeviceRepr + Clone + Default>(
        &self,
        buffer: &Buffer<T>,
        place: Range<usize>,
    ) -> Result<Vec<T>, GpuError> {
        if place.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.stream.clone_dtoh(&buffer.slice(place))?)
    }

    /// Copies within a buffer, between ranges that do not overlap.
    pub fn copy_within<T: DeviceRepr>(
        &self,
        buffer: &mut Buffer<T>,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<(), GpuError> {
        assert!(from + len <= to || to + len <= from);
        if len == 0 {
            return Ok(());
        }
        let (mut low, mut high) = buffer.split_at_mut(from.max(to));
        if from < to {
            let source = low.slice(from..from + len);
            self.stream
                .memcpy_dtod(&source, &mut high.slice_mut(..len))?;
        } else {
            let source = high.slice(..len);
            self.stream
                .memcpy_dtod(&source, &mut low.slice_mut(to..to + len))?;
        }
        Ok(())
    }

    /// Waits until all work of the stream is done.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        Ok(self.stream.synchronize()?)
    }

    /// Free bytes and all bytes of the device.
    pub fn free_and_total_memory(&self) -> Result<(usize, usize), GpuError> {
        Ok(self.stream.context().mem_get_info()?)
    }

    pub fn name(&self) -> Result<String, GpuError> {
        Ok(self.stream.context().name()?)
    }

    /// Captures what `work` launches as a CUDA graph. Nothing of it runs now.
    pub fn capture(
        &self,
        work: impl FnOnce() -> Result<(), GpuError>,
    ) -> Result<CudaGraph, GpuError> {
        self.stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let done = work();
        // Also after a failure, or the stream would stay in capture.
        let graph = self.stream.end_capture(CUgraphInstantiate_flags(0));
        done?;
        let graph = graph?.ok_or(GpuError::EmptyGraph)?;
        Ok(CudaGraph::new(graph, self.stream.context().clone()))
    }
}

impl InferenceKernels {
    fn load(context: &Arc<CudaContext>, capability: (i32, i32)) -> Result<Self, GpuError> {
        let arch = PtxArch::for_capability(capability);
        let module = |name: &'static str| arch.load(context, name);
        let (rowwise, sampling) = (module("inference_rowwise")?, module("sampling")?);
        Ok(Self {
            embedding_fwd: rowwise.load_function("embedding_fwd")?,
            embedding_fwd_deferred_norm: rowwise.load_function("embedding_fwd_deferred_norm")?,
            rms_norm_residual_inplace: rowwise.load_function("rms_norm_residual_inplace")?,
            swiglu_fwd: rowwise.load_function("swiglu_fwd")?,
            rope_append_kv: rowwise.load_function("rope_append_kv")?,
            kv_attention: KvAttentionKernels::load(
                &module("flash_attn_decode")?,
                &module("flash_attn_prefill")?,
            )?,
            sample_partials: sampling.load_function("sample_partials")?,
            sample_tokens: sampling.load_function("sample_tokens")?,
            skinny_gemm: if capability == (9, 0) {
                Some(SkinnyGemmKernels::load(&module("skinny_gemm")?)?)
            } else {
                None
            },
        })
    }
}

/// Lets a kernel use more dynamic shared memory than every device has.
pub(crate) fn allow_shared(function: &CudaFunction, bytes: u32) -> Result<(), GpuError> {
    let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    Ok(function.set_attribute(attribute, bytes.cast_signed())?)
}

/// Blocks and threads, without dynamic shared memory.
pub(crate) fn launch_config(grid: (usize, usize, usize), threads: usize) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (grid.0 as u32, grid.1 as u32, grid.2 as u32),
        block_dim: (threads as u32, 1, 1),
        shared_mem_bytes: 0,
    }
}
