//! What a run would need of memory and time: arithmetic on a model's shape, before anything is started.
//!
//! Memory is what the networks of this crate hold on to, without what allocators and libraries add. Time is tokens over
//! speeds that somebody measured or gave.

mod stages;

use serde::Serialize;
use warpsmith_model::{ModelConfig, Projection};

pub use self::stages::{
    EstimateMachine, GivenSpeeds, KnownBefore, OfflineStage, ReinforceStage, StageEstimate,
};

/// Every weight of a model.
pub fn weights(config: &ModelConfig) -> u64 {
    let layer: usize = Projection::ALL
        .iter()
        .map(|one| {
            let (from, to) = sizes(config, *one);
            from * to
        })
        .sum();
    let norms = 2 * config.hidden;
    let embeddings = if config.tied { 1 } else { 2 } * config.vocabulary * config.hidden;
    (config.layers * (layer + norms) + embeddings + config.hidden) as u64
}

/// Weights of an adapter beside these projections.
pub fn adapter_weights(config: &ModelConfig, rank: usize, targets: &[Projection]) -> u64 {
    let each = targets.iter().map(|one| {
        let (from, to) = sizes(config, *one);
        rank * (from + to)
    });
    (config.layers * each.sum::<usize>()) as u64
}

/// What goes into a projection, and what comes out.
fn sizes(config: &ModelConfig, projection: Projection) -> (usize, usize) {
    let (hidden, wide) = (config.hidden, config.feed_forward);
    let queries = config.heads * config.head_dim;
    let keys = config.kv_heads * config.head_dim;
    match projection {
        Projection::Query => (hidden, queries),
        Projection::Key | Projection::Value => (hidden, keys),
        Projection::AttentionOutput => (queries, hidden),
        Projection::Gate | Projection::Up => (hidden, wide),
        Projection::Down => (wide, hidden),
    }
}

/// What computes, and in which numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Hardware {
    /// In `f32`; every network has its own copy of the model, and attention keeps its scores while a layer goes back.
    Processor,
    /// In `bf16`; networks share the model, and scores are made again.
    Gpu,
}

/// Networks and what goes through them.
#[derive(Debug, Clone, PartialEq)]
pub struct Networks {
    pub config: ModelConfig,
    /// Trainable weights of each network that learns.
    pub trainable: u64,
    /// Networks that learn: an actor, a critic.
    pub learners: u64,
    /// Networks that only score: a reference.
    pub frozen: u64,
    pub tokens_per_microbatch: u64,
    /// The longest sequence.
    pub longest: u64,
    /// Conversations that a model which speaks holds at once. They may all grow to `longest`.
    pub conversations: u64,
    /// Of the model as it lies on the disk and speaks.
    pub file_bytes: u64,
}

/// In bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    pub weights: u64,
    /// Trainable weights: an adapter, or all in `f32`.
    pub trainable: u64,
    /// Gradients and the optimiser's means.
    pub optimizer: u64,
    pub activations: u64,
    pub kv_cache: u64,
}

impl Memory {
    pub fn total(&self) -> u64 {
        self.weights + self.trainable + self.optimizer + self.activations + self.kv_cache
    }
}

/// Logits are made so many at a time; and their gradients beside them.
const LOGITS: u64 = 2 << 24;

impl Networks {
    pub fn memory(&self, hardware: Hardware) -> Memory {
        let Self { config, .. } = self;
        let networks = self.learners + self.frozen;
        let number = match hardware {
            Hardware::Processor => 4,
            Hardware::Gpu => 2,
        };
        let copies = match hardware {
            Hardware::Processor => networks,
            Hardware::Gpu => 1,
        };
        let (hidden, wide) = (config.hidden as u64, config.feed_forward as u64);
        let keys = (config.kv_heads * config.head_dim) as u64;
        let queries = (config.heads * config.head_dim) as u64;
        let tokens = self.tokens_per_microbatch;
        // What goes into every layer is kept; of one layer at a time everything on the way.
        let kept = (config.layers as u64 + 1) * hidden;
        let layer = 6 * hidden + 3 * queries + 4 * keys + 4 * wide;
        let scores = match hardware {
            Hardware::Processor => 5 * config.heads as u64 * self.longest.min(tokens),
            Hardware::Gpu => 0,
        };
        let training = u64::from(self.learners > 0);
        Memory {
            weights: number * copies * weights(config) + self.file_bytes,
            trainable: 4 * self.learners * self.trainable,
            optimizer: 12 * self.learners * self.trainable,
            activations: training * (number * tokens * (kept + 2 * layer + scores) + 4 * LOGITS),
            kv_cache: number * self.conversations * self.longest * 2 * keys * config.layers as u64,
        }
    }
}

/// What there is to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Work {
    /// Tokens of forward and backward passes.
    pub trained_tokens: f64,
    /// Tokens that only go forward.
    pub scored_tokens: f64,
    /// Tokens that a policy generates.
    pub generated_tokens: f64,
    pub judgements: f64,
}

/// How quickly it is done.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Speeds {
    /// Tokens a second, forward and back.
    pub learn: f64,
    /// Tokens a second, of all conversations together.
    pub generate: f64,
    /// Judgements a minute.
    pub judge: f64,
}

/// Of a token's way forward and back, forward is this share.
const FORWARD: f64 = 1.0 / 3.0;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Seconds {
    pub learn: f64,
    pub generate: f64,
    pub judge: f64,
    /// While some episodes are judged others are written: the longer of the two counts.
    pub total: f64,
}

impl Work {
    pub fn seconds(&self, speeds: &Speeds) -> Seconds {
        let passes = self.trained_tokens + FORWARD * self.scored_tokens;
        let learn = passes / speeds.learn;
        let generate = self.generated_tokens / speeds.generate;
        let judge = 60.0 * self.judgements / speeds.judge;
        Seconds {
            learn,
            generate,
            judge,
            total: learn + generate.max(judge),
        }
    }
}

#[cfg(test)]
mod tests {
    use warpsmith_model::catalogue;

    use super::*;

    fn qwen() -> ModelConfig {
        catalogue::find("qwen2.5-coder-1.5b").unwrap().config
    }

    /// The model's card says 1.54 billion; PEFT prints 36,929,536 for rank 32 on all seven projections.
    #[test]
    fn weights_are_those_that_others_count() {
        let config = qwen();
        // The card counts the output layer and the embedding once.
        let tied = ModelConfig {
            tied: true,
            ..config.clone()
        };
        let found = weights(&tied) as f64;
        assert!((found - 1.5437e9).abs() < 1e6, "{found}");
        assert_eq!(adapter_weights(&config, 32, &Projection::ALL), 36_929_536);
        assert_eq!(
            adapter_weights(&config, 8, &[Projection::Query]),
            28 * 8 * (1536 + 1536)
        );
    }

    #[test]
    fn memory_grows_with_what_needs_it() {
        let ppo = Networks {
            config: qwen(),
            trainable: 36_929_536,
            learners: 2,
            frozen: 0,
            tokens_per_microbatch: 4096,
            longest: 2048,
            conversations: 8,
            file_bytes: 1_117_000_000,
        };
        let cpu = ppo.memory(Hardware::Processor);
        let gpu = ppo.memory(Hardware::Gpu);
        // Two copies in f32 against one in bf16.
        let one = weights(&ppo.config);
        assert_eq!(cpu.weights - ppo.file_bytes, 8 * one);
        assert_eq!(gpu.weights - ppo.file_bytes, 2 * one);
        assert_eq!(
            (cpu.trainable, cpu.optimizer),
            (8 * ppo.trainable, 24 * ppo.trainable)
        );
        assert_eq!(cpu.kv_cache, 4 * 8 * 2048 * 2 * 256 * 28);
        assert_eq!(gpu.kv_cache, cpu.kv_cache / 2);
        let long = Networks {
            longest: 4096,
            ..ppo.clone()
        };
        assert!(long.memory(Hardware::Processor).activations > cpu.activations);
        assert_eq!(long.memory(Hardware::Gpu).activations, gpu.activations);
        let silent = Networks {
            learners: 0,
            conversations: 0,
            ..ppo
        };
        let silent = silent.memory(Hardware::Gpu);
        assert_eq!((silent.activations, silent.kv_cache), (0, 0));
        let parts = cpu.weights + cpu.trainable + cpu.optimizer + cpu.activations + cpu.kv_cache;
        assert_eq!(cpu.total(), parts);
    }

    #[test]
    fn judging_and_writing_go_on_side_by_side() {
        let work = Work {
            trained_tokens: 100.0,
            scored_tokens: 300.0,
            generated_tokens: 500.0,
            judgements: 3.0,
        };
        let speeds = Speeds {
            learn: 10.0,
            generate: 50.0,
            judge: 6.0,
        };
        let expected = Seconds {
            learn: 20.0,
            generate: 10.0,
            judge: 30.0,
            total: 50.0,
        };
        assert_eq!(work.seconds(&speeds), expected);
    }
}
