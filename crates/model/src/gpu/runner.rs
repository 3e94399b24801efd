//! Generation by a device.

use warpsmith_kernels::RowSampling;

use super::{DeviceCache, DeviceSegment, DeviceTransformer};
use crate::{Cache, ModelConfig, ModelError, Runner, Sampled, Sampler, SequenceStep};

impl Cache for DeviceCache {
    fn len(&self) -> usize {
        Self::len(self)
    }

    fn truncate(&mut self, len: usize) {
        Self::truncate(self, len);
    }
}

impl Runner for DeviceTransformer {
    type Cache = DeviceCache;

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn context(&self) -> usize {
        self.config.context.min(self.work.room.positions)
    }

    fn new_cache(&mut self) -> Option<DeviceCache> {
        Self::new_cache(self)
    }

    fn prefix(&mut self, of: &DeviceCache, len: usize) -> Result<Option<DeviceCache>, ModelError> {
        Self::prefix(self, of, len)
    }

    fn run(
        &mut self,
        asked: &mut [SequenceStep<'_, DeviceCache>],
    ) -> Result<Vec<Option<Sampled>>, ModelError> {
        let mut segments: Vec<DeviceSegment<'_>> = asked
            .iter_mut()
            .map(|one| DeviceSegment {
                cache: &mut *one.cache,
                tokens: one.tokens,
                choice: one.choice.map(|(sampling, step)| (choice(sampling), step)),
            })
            .collect();
        self.step(&mut segments)
    }
}

fn choice(sampling: Sampler) -> RowSampling {
    let (temperature, top_p, seed) = sampling.numbers();
    RowSampling {
        temperature,
        top_p,
        seed,
    }
}
