//! A language model and everything that talking to it takes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use warpsmith_kernels::Gpu;
use warpsmith_schema::PolicyVersion;

use super::ChatCodec;
use crate::gpu::{DeviceTransformer, KvCapacity};
use crate::{Adapter, BatchLimits, Engine, ModelError, Tokenizer, Transformer, Weights};

/// What computes a model's replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunsOn {
    Processor,
    /// The GPU of this number.
    Gpu(usize),
}

impl RunsOn {
    /// Whether it is worth trying a GPU: there is a driver, though perhaps no device.
    pub fn may_have_gpu() -> bool {
        Gpu::has_driver()
    }
}

pub struct ChatModel {
    pub engine: Engine,
    pub dialogue: ChatCodec,
    pub version: PolicyVersion,
}

impl ChatModel {
    /// Reads weights, tokenizer and chat template from a GGUF file or a folder, and stacks adapters on it, the first lowest.
    /// `hash` is of the base alone.
    pub fn load(
        name: &str,
        path: &Path,
        hash: Option<String>,
        adapters: &[PathBuf],
        on: RunsOn,
    ) -> Result<Self, ModelError> {
        // Known before gigabytes are read.
        let gpu = match on {
            RunsOn::Processor => None,
            RunsOn::Gpu(number) => Some(Gpu::open(number)?),
        };
        let adapters: Vec<Adapter> = adapters
            .iter()
            .map(|folder| Adapter::load(folder))
            .collect::<Result<_, _>>()?;
        let dialogue = ChatCodec::open(path, hash.as_deref())?;
        let mut weights = Weights::load(path)?;
        for adapter in &adapters {
            weights = weights.stacked(adapter)?;
        }
        let hash = if adapters.is_empty() {
            hash
        } else {
            let known = hash.unwrap_or_else(|| path.display().to_string());
            Some(stack_hash(&known, &adapters))
        };
        Ok(Self {
            engine: engine(weights, dialogue.tokenizer().clone(), gpu, None)?,
            dialogue,
            version: PolicyVersion {
                name: format!("local:{name}"),
                hash,
                step: None,
            },
        })
    }

    /// From weights that are in memory, such as those that were just learnt, for conversations of at most so many tokens.
    pub fn new(
        weights: Weights,
        dialogue: ChatCodec,
        version: PolicyVersion,
        on: RunsOn,
        longest: usize,
    ) -> Result<Self, ModelError> {
        let gpu = match on {
            RunsOn::Processor => None,
            RunsOn::Gpu(number) => Some(Gpu::open(number)?),
        };
        Ok(Self {
            engine: engine(weights, dialogue.tokenizer().clone(), gpu, Some(longest))?,
            dialogue,
            version,
        })
    }
}

fn engine(
    weights: Weights,
    tokenizer: Arc<Tokenizer>,
    gpu: Option<Gpu>,
    longest: Option<usize>,
) -> Result<Engine, ModelError> {
    let Some(gpu) = gpu else {
        let model = Transformer::new(Arc::new(weights));
        return Ok(Engine::new(model, tokenizer, BatchLimits::default()));
    };
    // What others gave back counts only then.
    gpu.synchronize()?;
    let (free, _) = gpu.free_and_total_memory()?;
    let room = KvCapacity::within(free, &weights.config, longest)?;
    let limits = BatchLimits {
        sequences: room.sequences,
        prompt_tokens_per_step: room.rows,
        // Slots run out first, and what was kept longest then makes room.
        kept_tokens: room.slots * room.positions,
    };
    let model = DeviceTransformer::new(gpu, &weights, room)?;
    Ok(Engine::new(model, tokenizer, limits))
}

/// Of the base and of each adapter's numbers, in their order.
fn stack_hash(base: &str, adapters: &[Adapter]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(base.as_bytes());
    for adapter in adapters {
        hasher.update(b"\n");
        hasher.update(adapter.hash().as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}
