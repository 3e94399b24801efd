//! A device with everything loaded on it.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use cudarc::cublas::CudaBlas;
use cudarc::driver::sys::{
    self, CUfunction_attribute, CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, DeviceRepr, LaunchConfig,
    ValidAsZeroBits,
};
use cudarc::nvrtc::Ptx;

use crate::attention::Attention;
use crate::few_rows::FewRows;
use crate::{Buffer, GpuError, Graph, blas, training};

pub struct Gpu {
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) blas: CudaBlas,
    pub(crate) functions: Functions,
    /// Whether a kernel may start before the one before it has ended.
    pub(crate) overlaps: bool,
    pub(crate) training: OnceLock<training::Functions>,
    /// What training attends with.
    pub(crate) attention: training::Attention,
    /// cuBLAS has its address.
    _blas_room: CudaSlice<u8>,
}

pub(crate) struct Functions {
    pub(crate) embed: CudaFunction,
    pub(crate) embed_stream: CudaFunction,
    pub(crate) add_norm: CudaFunction,
    pub(crate) swiglu: CudaFunction,
    pub(crate) rotate_append: CudaFunction,
    pub(crate) attention: Attention,
    pub(crate) sample_parts: CudaFunction,
    pub(crate) sample: CudaFunction,
    /// On Hopper.
    pub(crate) few_rows: Option<FewRows>,
}

impl Gpu {
    /// Whether there is a driver at all; says nothing of devices.
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
        // SAFETY: everything is done on one stream, in order: no buffer needs events of its own.
        unsafe {
            context.disable_event_tracking();
        }
        let stream = context.new_stream()?;
        let functions = Functions::load(&context, (major, minor))?;
        let (blas, room) = blas::open(&stream)?;
        Ok(Self {
            stream,
            blas,
            functions,
            overlaps: major >= 9,
            training: OnceLock::new(),
            attention: training::Attention::of((major, minor)),
            _blas_room: room,
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

    /// Writes the beginning of a buffer.
    pub fn write<T: DeviceRepr>(
        &self,
        buffer: &mut Buffer<T>,
        numbers: &[T],
    ) -> Result<(), GpuError> {
        self.write_at(buffer, 0, numbers)
    }

    /// Writes a buffer from a place on.
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

    /// The beginning of a buffer, once all work before is done.
    pub fn read<T: DeviceRepr + Clone + Default>(
        &self,
        buffer: &Buffer<T>,
        len: usize,
    ) -> Result<Vec<T>, GpuError> {
        self.read_at(buffer, 0..len)
    }

    /// Part of a buffer, once all work before is done.
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

    /// Copies within a buffer, from one place to another that does not overlap it.
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

    /// Waits until all work is done.
    pub fn wait(&self) -> Result<(), GpuError> {
        Ok(self.stream.synchronize()?)
    }

    /// Free bytes and all bytes of the device.
    pub fn memory(&self) -> Result<(usize, usize), GpuError> {
        Ok(self.stream.context().mem_get_info()?)
    }

    pub fn name(&self) -> Result<String, GpuError> {
        Ok(self.stream.context().name()?)
    }

    /// What `work` launches, to be launched again as one: nothing of it is run now.
    pub fn capture(&self, work: impl FnOnce() -> Result<(), GpuError>) -> Result<Graph, GpuError> {
        self.stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let done = work();
        // Also after a failure, or the stream would stay in capture.
        let graph = self.stream.end_capture(CUgraphInstantiate_flags(0));
        done?;
        let graph = graph?.ok_or(GpuError::NothingCaptured)?;
        Ok(Graph::new(graph, self.stream.context().clone()))
    }
}

impl Functions {
    fn load(context: &Arc<CudaContext>, capability: (i32, i32)) -> Result<Self, GpuError> {
        /// There are two of each: what starts early on Hopper cannot be said for devices before it.
        macro_rules! module {
            ($name:literal) => {
                module(
                    context,
                    if capability.0 >= 9 {
                        include_str!(concat!("../ptx/90/", $name, ".ptx"))
                    } else {
                        include_str!(concat!("../ptx/80/", $name, ".ptx"))
                    },
                )?
            };
        }
        let (rows, sample) = (module!("rows"), module!("sample"));
        Ok(Self {
            embed: rows.load_function("embed")?,
            embed_stream: rows.load_function("embed_stream")?,
            add_norm: rows.load_function("add_norm")?,
            swiglu: rows.load_function("swiglu")?,
            rotate_append: rows.load_function("rotate_append")?,
            attention: Attention::load(
                &module!("attention_decode"),
                &module!("attention_prefill"),
            )?,
            sample_parts: sample.load_function("sample_parts")?,
            sample: sample.load_function("sample")?,
            few_rows: if capability == (9, 0) {
                let few = module(context, include_str!("../ptx/90/few_rows.ptx"))?;
                Some(FewRows::load(&few)?)
            } else {
                None
            },
        })
    }
}

pub(crate) fn module(context: &Arc<CudaContext>, ptx: &str) -> Result<Arc<CudaModule>, GpuError> {
    Ok(context.load_module(Ptx::from_src(ptx))?)
}

/// Lets a kernel use more shared memory than all devices have.
pub(crate) fn allow_shared(function: &CudaFunction, bytes: u32) -> Result<(), GpuError> {
    let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    Ok(function.set_attribute(attribute, bytes.cast_signed())?)
}

/// Blocks and threads, without shared memory beyond what the kernel declares.
pub(crate) fn plain(grid: (usize, usize, usize), threads: usize) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (grid.0 as u32, grid.1 as u32, grid.2 as u32),
        block_dim: (threads as u32, 1, 1),
        shared_mem_bytes: 0,
    }
}
