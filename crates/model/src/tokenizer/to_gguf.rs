//! A byte-level BPE as GGUF metadata: what `from_gguf` reads, and llama.cpp.

use serde::Deserialize;

use super::from_gguf::{CONTROL, USER_DEFINED};
use super::splitting::Splitting;
use super::{Tokenizer, unusable};
use crate::ModelError;
use crate::gguf::GgufValue;

const NORMAL: usize = 1;
const UNUSED: usize = 5;

/// The model in a `tokenizer.json`; its merges cannot be had in any other way.
#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    merges: Vec<(String, String)>,
    #[serde(default)]
    ignore_merges: bool,
}

#[derive(Deserialize)]
struct File {
    model: Model,
}

impl Tokenizer {
    /// With as many tokens as the model has embeddings, where its tokenizer has fewer.
    pub(crate) fn to_gguf(
        &self,
        vocabulary: usize,
    ) -> Result<Vec<(String, GgufValue)>, ModelError> {
        let file: File = serde_json::from_str(&self.to_json()?)
            .map_err(|error| cannot(&format!("it is no BPE: {error}")))?;
        let splitting = Splitting::of(&self.inner)
            .map_err(|error| unusable(&error))?
            .filter(|splitting| splitting.ignores_merges() == file.model.ignore_merges)
            .ok_or_else(|| cannot("its way of splitting text has no name in GGUF"))?;

        let known = self.inner.get_vocab(true);
        let count = known
            .values()
            .map(|id| *id as usize + 1)
            .fold(vocabulary, usize::max);
        let mut tokens: Vec<(String, usize)> = (0..count)
            .map(|id| (format!("[PAD{id}]"), UNUSED))
            .collect();
        for (token, id) in known {
            tokens[id as usize] = (token, NORMAL);
        }
        for (id, token) in self.inner.get_added_tokens_decoder() {
            tokens[id as usize].1 = if token.special { CONTROL } else { USER_DEFINED };
        }

        let text = |text: &str| GgufValue::String(text.to_owned());
        let merges = file.model.merges.iter();
        let merges = merges.map(|(left, right)| GgufValue::String(format!("{left} {right}")));
        let (tokens, kinds): (Vec<GgufValue>, Vec<GgufValue>) = tokens
            .into_iter()
            .map(|(token, kind)| (GgufValue::String(token), GgufValue::I32(kind as i32)))
            .unzip();
        let mut metadata = vec![
            ("model", text("gpt2")),
            ("pre", text(splitting.name())),
            ("tokens", GgufValue::Array(tokens)),
            ("token_type", GgufValue::Array(kinds)),
            ("merges", GgufValue::Array(merges.collect())),
        ];
        let id = |token: Option<&str>| token.and_then(|token| self.inner.token_to_id(token));
        let (beginning, end) = (id(self.beginning()), id(self.end()));
        if let Some(id) = beginning {
            metadata.push(("bos_token_id", GgufValue::U32(id)));
        }
        if let Some(id) = end {
            metadata.push(("eos_token_id", GgufValue::U32(id)));
        }
        if let Some(id) = self.ends.iter().find(|id| Some(**id) != end) {
            metadata.push(("eot_token_id", GgufValue::U32(*id)));
        }
        let first = self
            .inner
            .encode_fast("", true)
            .map_err(|error| unusable(&error))?;
        let adds = beginning.is_some() && first.get_ids().first().copied() == beginning;
        metadata.push(("add_bos_token", GgufValue::Bool(adds)));
        Ok(metadata
            .into_iter()
            .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value))
            .collect())
    }
}

fn cannot(reason: &str) -> ModelError {
    ModelError::CannotExport {
        form: "a GGUF file",
        reason: format!("its tokenizer cannot be written: {reason}"),
    }
}
