//! A language model and everything that talking to it takes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use warpsmith_schema::PolicyVersion;

use super::Dialogue;
use crate::policy::Origin;
use crate::{Adapter, Engine, Limits, ModelError, Transformer, Weights};

pub struct ChatModel {
    pub engine: Engine,
    pub dialogue: Dialogue,
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
    ) -> Result<Self, ModelError> {
        let adapters: Vec<Adapter> = adapters
            .iter()
            .map(|folder| Adapter::load(folder))
            .collect::<Result<_, _>>()?;
        // Template and tokenizer lie in the file that was hashed; where none was, its path at least tells models apart.
        let known = hash.clone().unwrap_or_else(|| path.display().to_string());
        let dialogue = Dialogue::load(path, Origin::of(&known))?;
        let mut weights = Weights::load(path)?;
        for adapter in &adapters {
            weights = weights.stacked(adapter)?;
        }
        let hash = if adapters.is_empty() {
            hash
        } else {
            Some(stack_hash(&known, &adapters)?)
        };
        Ok(Self {
            engine: Engine::new(
                Transformer::new(Arc::new(weights)),
                dialogue.tokenizer().clone(),
                Limits::default(),
            ),
            dialogue,
            version: PolicyVersion {
                name: format!("local:{name}"),
                hash,
                step: None,
            },
        })
    }
}

/// Of the base and of each adapter's numbers, in their order.
fn stack_hash(base: &str, adapters: &[Adapter]) -> Result<String, ModelError> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(base.as_bytes());
    for adapter in adapters {
        hasher.update(b"\n");
        hasher.update(adapter.hash()?.as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}
