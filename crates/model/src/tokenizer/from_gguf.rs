//! Byte-level BPE rebuilt from GGUF metadata, which name the way of splitting text but do not hold it.

use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::BPE;
use tokenizers::{AddedToken, Tokenizer};

use super::splitting::Splitting;
use crate::ModelError;
use crate::gguf::GgufFile;

/// `llama_token_type` of llama.cpp.
pub(super) const CONTROL: usize = 3;
pub(super) const USER_DEFINED: usize = 4;

pub(super) fn build(gguf: &GgufFile) -> Result<Tokenizer, ModelError> {
    let unusable = |reason: String| ModelError::Tokenizer {
        origin: gguf.path().display().to_string(),
        reason,
    };
    let kind = gguf.text("tokenizer.ggml.model")?;
    if kind != "gpt2" {
        return Err(unusable(format!(
            "it is of the kind `{kind}`, and only byte-level BPE (`gpt2`) can be rebuilt"
        )));
    }
    let name = gguf
        .optional_text("tokenizer.ggml.pre")?
        .unwrap_or("default");
    let splitting = Splitting::parse(name).ok_or_else(|| {
        unusable(format!(
            "its way of splitting text, `{name}`, is not known here"
        ))
    })?;
    let tokens = gguf.texts("tokenizer.ggml.tokens")?;
    let merges = gguf
        .texts("tokenizer.ggml.merges")?
        .iter()
        .map(|merge| {
            let (left, right) = merge.split_once(' ')?;
            Some((left.to_owned(), right.to_owned()))
        })
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| unusable("a merge is not of two parts".into()))?;
    let ids = (0u32..).zip(&tokens);
    let vocabulary: std::collections::HashMap<String, u32> =
        ids.map(|(id, token)| (token.clone(), id)).collect();
    let model = BPE::builder()
        .vocab_and_merges(
            vocabulary
                .into_iter()
                .collect::<tokenizers::models::bpe::Vocab>(),
            merges,
        )
        .ignore_merges(splitting.ignores_merges())
        .build()
        .map_err(|error| unusable(error.to_string()))?;

    let mut tokenizer = Tokenizer::new(model);
    tokenizer
        .with_normalizer(splitting.normalizer())
        .map_err(|error| unusable(error.to_string()))?;
    let splitter = splitting
        .splitter()
        .map_err(|error| unusable(error.to_string()))?;
    tokenizer.with_pre_tokenizer(Some(splitter));
    tokenizer.with_decoder(Some(ByteLevel::default()));

    let kinds = gguf
        .optional_counts("tokenizer.ggml.token_type")?
        .unwrap_or_default();
    let of_kind = |wanted: usize| {
        tokens
            .iter()
            .zip(&kinds)
            .filter(move |(_, kind)| **kind == wanted)
    };
    let added = of_kind(USER_DEFINED)
        .map(|(token, _)| AddedToken::from(token.as_str(), false).normalized(false));
    tokenizer
        .add_tokens(added.collect::<Vec<_>>())
        .map_err(|error| unusable(error.to_string()))?;
    let special = of_kind(CONTROL).map(|(token, _)| AddedToken::from(token.as_str(), true));
    tokenizer
        .add_special_tokens(special.collect::<Vec<_>>())
        .map_err(|error| unusable(error.to_string()))?;
    Ok(tokenizer)
}
