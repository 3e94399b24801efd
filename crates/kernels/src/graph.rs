//! CUDA graphs: work that was captured once and is launched as a whole.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaGraph as DriverGraph};

use crate::GpuError;

/// The launches of a captured stream, to be launched again.
pub struct CudaGraph {
    graph: DriverGraph,
    context: Arc<CudaContext>,
}

#[expect(unsafe_code, reason = "the driver's graphs are plain addresses")]
// SAFETY: the driver lets any thread use a graph as long as no two do so at once, which `&self` without `Sync` grants.
unsafe impl Send for CudaGraph {}

impl CudaGraph {
    pub(crate) fn new(graph: DriverGraph, context: Arc<CudaContext>) -> Self {
        Self { graph, context }
    }

    /// Launches the work again, after everything in the stream before.
    pub fn launch(&self) -> Result<(), GpuError> {
        self.context.bind_to_thread()?;
        Ok(self.graph.launch()?)
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        // The graph may be dropped on any thread. Where binding fails the device is gone, and the graph with it.
        let _ = self.context.bind_to_thread();
    }
}

impl std::fmt::Debug for CudaGraph {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("CudaGraph").finish_non_exhaustive()
    }
}
