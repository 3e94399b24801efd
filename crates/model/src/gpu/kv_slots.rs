//! Where sequences keep their keys and values on a device.

use std::sync::{Arc, Mutex, PoisonError};

use warpsmith_kernels::{Buffer, Gpu, bf16};

use crate::{ModelConfig, ModelError};

/// How much a device is asked to hold at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvCapacity {
    /// Sequences that go on together.
    pub sequences: usize,
    /// Sequences whose keys and values are kept, those that go on included.
    pub slots: usize,
    /// Positions of a sequence.
    pub positions: usize,
    /// Tokens of prompts in one pass.
    pub rows: usize,
}

impl KvCapacity {
    /// For a model on a device with so many bytes free, half of which are left to others: whoever judges kernels needs the
    /// same device. Where it is known how long a conversation becomes, more of them have room.
    pub fn within(
        free: usize,
        config: &ModelConfig,
        longest: Option<usize>,
    ) -> Result<Self, ModelError> {
        const MOST_POSITIONS: usize = 16_384;
        const MOST_TOGETHER: usize = 64 * MOST_POSITIONS;
        const MOST_SLOTS: usize = 256;
        let weights = 2 * config.parameters();
        let longest = longest.unwrap_or(MOST_POSITIONS).min(MOST_POSITIONS);
        let positions = config.context.min(longest.next_multiple_of(256));
        let slot = 2 * 2 * config.layers * config.kv_heads * config.head_dim * positions;
        let slots = (free / 2).saturating_sub(weights) / slot;
        // One to go on and one to keep.
        if slots < 2 {
            return Err(ModelError::GpuMemory {
                free,
                needed: 2 * (weights + 2 * slot),
            });
        }
        let slots = slots.min(MOST_TOGETHER / positions).min(MOST_SLOTS);
        Ok(Self {
            sequences: slots - slots / 4,
            slots,
            positions,
            rows: 4096,
        })
    }
}

pub(super) struct KvSlots {
    /// A layer each, `[slot][head][position][number]`; one slot more than can be taken.
    pub(super) keys: Vec<Buffer<bf16>>,
    pub(super) values: Vec<Buffer<bf16>>,
    free: Arc<Mutex<Vec<u32>>>,
    pub(super) capacity: KvCapacity,
    head_dim: usize,
    kv_heads: usize,
}

/// One sequence's place on a device, given back when it is dropped.
#[derive(Debug)]
pub struct DeviceCache {
    slot: u32,
    len: usize,
    free: Arc<Mutex<Vec<u32>>>,
}

impl DeviceCache {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets everything from that position on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    pub(super) fn slot(&self) -> u32 {
        self.slot
    }

    pub(super) fn grow(&mut self, positions: usize) {
        self.len += positions;
    }
}

impl Drop for DeviceCache {
    fn drop(&mut self) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(self.slot);
    }
}

impl KvSlots {
    pub(super) fn new(
        gpu: &Gpu,
        config: &ModelConfig,
        room: KvCapacity,
    ) -> Result<Self, ModelError> {
        let numbers = (room.slots + 1) * config.kv_heads * room.positions * config.head_dim;
        let each = || {
            (0..config.layers)
                .map(|_| Ok(gpu.zeros(numbers)?))
                .collect::<Result<_, ModelError>>()
        };
        Ok(Self {
            keys: each()?,
            values: each()?,
            // The lowest is taken first.
            free: Arc::new(Mutex::new((0..room.slots as u32).rev().collect())),
            capacity: room,
            head_dim: config.head_dim,
            kv_heads: config.kv_heads,
        })
    }

    /// The slot that is never taken: rows that only fill up a batch write there.
    pub(super) fn spare(&self) -> u32 {
        self.capacity.slots as u32
    }

    pub(super) fn take(&self) -> Option<DeviceCache> {
        let slot = self
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()?;
        Some(DeviceCache {
            slot,
            len: 0,
            free: self.free.clone(),
        })
    }

    pub(super) fn prefix(
        &mut self,
        gpu: &Gpu,
        of: &DeviceCache,
        len: usize,
    ) -> Result<Option<DeviceCache>, ModelError> {
        let Some(mut made) = self.take() else {
            return Ok(None);
        };
        let len = len.min(of.len);
        let head = self.capacity.positions * self.head_dim;
        for layer in self.keys.iter_mut().chain(&mut self.values) {
            for index in 0..self.kv_heads {
                let place = |slot: u32| (slot as usize * self.kv_heads + index) * head;
                gpu.copy_within(layer, place(of.slot), place(made.slot), len * self.head_dim)?;
            }
        }
        made.len = len;
        Ok(Some(made))
    }
}
