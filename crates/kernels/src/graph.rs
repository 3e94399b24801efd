//! Work that was recorded once and is launched as a whole.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaGraph};

use crate::GpuError;

/// What a stream was given to do, to be done again.
pub struct Graph {
    graph: CudaGraph,
    context: Arc<CudaContext>,
}

#[expect(unsafe_code, reason = "the driver's graphs are plain addresses")]
// SAFETY: the driver lets any thread use a graph as long as no two do so at once, which `&self` without `Sync` grants.
unsafe impl Send for Graph {}

impl Graph {
    pub(crate) fn new(graph: CudaGraph, context: Arc<CudaContext>) -> Self {
        Self { graph, context }
    }

    /// Does the work again, after everything that the stream was given before.
    pub fn launch(&self) -> Result<(), GpuError> {
        self.context.bind_to_thread()?;
        Ok(self.graph.launch()?)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Whichever thread this is. Where it fails the device is gone, and the graph with it.
        let _ = self.context.bind_to_thread();
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Graph").finish_non_exhaustive()
    }
}
