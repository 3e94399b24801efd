//! Memory for forward and backward passes, shared by all models that train on a device.

use super::activations::{Activations, BatchCapacity, CHUNK_MULTIPLE};
use super::batch::DeviceBatch;
use super::pass::Pass;
use super::rope::cos_sin_table;
use super::weights::TrainableWeights;
use crate::training::batch::PackedBatch;
use crate::training::layout::ModelShape;
use crate::training::lora::LoraWidths;
use crate::{Buffer, Gpu, GpuError};

/// A device with the buffers of one pass. The models of a run use them one after the other.
pub struct TrainBuffers {
    gpu: Gpu,
    shape: ModelShape,
    /// `None` until they are allocated, and after an allocation failed.
    allocated: Option<Allocated>,
    /// Counts allocations: CUDA graphs that were captured before hold stale addresses.
    generation: u64,
    /// Counts batches that were loaded: a backward pass must follow its own forward pass.
    passes: u64,
}

pub(super) struct Allocated {
    pub(super) activations: Activations,
    pub(super) batch: DeviceBatch,
    cos_sin: Buffer<f32>,
}

impl TrainBuffers {
    /// For models of one shape. Nothing is allocated yet.
    pub fn new(gpu: Gpu, shape: ModelShape) -> Result<Self, GpuError> {
        shape.check()?;
        let (width, max) = (shape.hidden, gpu.training_kernels()?.max_norm_width);
        if width > max {
            return Err(GpuError::RowTooWide { width, max });
        }
        Ok(Self {
            gpu,
            shape,
            allocated: None,
            generation: 0,
            passes: 0,
        })
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// The capacity that is allocated.
    pub fn capacity(&self) -> Option<BatchCapacity> {
        let allocated = self.allocated.as_ref();
        allocated.map(|buffers| buffers.activations.capacity)
    }

    /// Frees what was allocated, and allocates this capacity.
    pub fn allocate(&mut self, capacity: BatchCapacity) -> Result<(), GpuError> {
        self.release()?;
        let batch = DeviceBatch::new(&self.gpu, capacity.rows, self.shape.head_dim)?;
        let capacity = BatchCapacity {
            rows: batch.row_capacity(),
            logits_chunk: capacity.logits_chunk.next_multiple_of(CHUNK_MULTIPLE),
            ..capacity
        };
        let cos_sin = cos_sin_table(&self.shape.rope_frequencies, capacity.positions);
        self.allocated = Some(Allocated {
            activations: Activations::new(&self.gpu, &self.shape, capacity)?,
            cos_sin: self.gpu.upload(&cos_sin)?,
            batch,
        });
        Ok(())
    }

    /// Grows the capacity, where needed, to batches of `rows` tokens whose sequences have at most `positions` tokens each.
    /// Activations are checkpointed if the device has too little memory to store all of them.
    pub fn reserve(
        &mut self,
        mut rows: usize,
        mut positions: usize,
        mut lora_widths: LoraWidths,
    ) -> Result<(), GpuError> {
        if let Some(current) = self.capacity() {
            lora_widths = lora_widths.max(current.lora_widths);
            if rows <= current.rows
                && positions <= current.positions
                && lora_widths == current.lora_widths
            {
                return Ok(());
            }
            rows = rows.max(current.rows);
            positions = positions.max(current.positions);
        }
        self.release()?;
        // A little more than needed: the next batch may be a little larger.
        let (rows, positions) = (
            rows.next_multiple_of(1024),
            positions.next_multiple_of(1024),
        );
        let (free, _) = self.gpu.free_and_total_memory()?;
        let capacity = BatchCapacity {
            lora_widths,
            ..BatchCapacity::new(&self.shape, rows, positions)
        };
        // An eighth stays free for others.
        self.allocate(capacity.fit_into(&self.shape, free / 8 * 7)?)
    }

    fn release(&mut self) -> Result<(), GpuError> {
        self.allocated = None;
        self.generation += 1;
        // Only then does the device count the memory as free.
        self.gpu.synchronize()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn allocated(&self) -> Result<&Allocated, GpuError> {
        self.allocated.as_ref().ok_or(NOT_ALLOCATED)
    }

    /// The number of the last pass.
    pub(super) fn passes(&self) -> u64 {
        self.passes
    }

    /// Begins a pass, and gives its number.
    pub(super) fn load(&mut self, batch: &PackedBatch) -> Result<u64, GpuError> {
        let buffers = self.allocated.as_mut().ok_or(NOT_ALLOCATED)?;
        let longest = batch.longest();
        let capacity = buffers.activations.capacity.positions;
        if longest > capacity {
            return Err(GpuError::OverCapacity {
                what: "positions",
                count: longest,
                capacity,
            });
        }
        buffers.batch.load(&self.gpu, batch)?;
        self.passes += 1;
        Ok(self.passes)
    }

    pub(super) fn batch(&mut self) -> Result<(&Gpu, &mut DeviceBatch), GpuError> {
        let buffers = self.allocated.as_mut().ok_or(NOT_ALLOCATED)?;
        Ok((&self.gpu, &mut buffers.batch))
    }

    pub(super) fn pass<'a>(
        &'a mut self,
        weights: &'a mut TrainableWeights,
    ) -> Result<Pass<'a>, GpuError> {
        let buffers = self.allocated.as_mut().ok_or(NOT_ALLOCATED)?;
        Ok(Pass {
            gpu: &self.gpu,
            shape: &self.shape,
            weights,
            activations: &mut buffers.activations,
            batch: &mut buffers.batch,
            cos_sin: &buffers.cos_sin,
        })
    }
}

const NOT_ALLOCATED: GpuError = GpuError::OverCapacity {
    what: "rows",
    count: 1,
    capacity: 0,
};
