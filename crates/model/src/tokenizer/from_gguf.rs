//! Byte-level BPE rebuilt from GGUF metadata, which name the way of splitting text but do not hold it.

use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, Tokenizer};

use crate::ModelError;
use crate::gguf::Gguf;

/// The ways of splitting we know, each as the `tokenizer.json` of its models has it.
enum Splitting {
    /// Digits one by one, then GPT-2's rule.
    Smollm,
    Gpt2,
    /// Unicode is composed first; digits one by one.
    Qwen2,
    /// Digits in threes; a word of the vocabulary is taken whole.
    Llama3,
}

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// `llama_token_type` of llama.cpp.
const CONTROL: usize = 3;
const USER_DEFINED: usize = 4;

pub(super) fn build(gguf: &Gguf) -> Result<Tokenizer, ModelError> {
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
    let splitting = match gguf
        .optional_text("tokenizer.ggml.pre")?
        .unwrap_or("default")
    {
        "smollm" => Splitting::Smollm,
        "gpt-2" | "default" => Splitting::Gpt2,
        "qwen2" => Splitting::Qwen2,
        "llama-bpe" | "llama3" | "llama-v3" => Splitting::Llama3,
        other => {
            return Err(unusable(format!(
                "its way of splitting text, `{other}`, is not known here"
            )));
        }
    };
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
        .ignore_merges(matches!(splitting, Splitting::Llama3))
        .build()
        .map_err(|error| unusable(error.to_string()))?;

    let mut tokenizer = Tokenizer::new(model);
    if matches!(splitting, Splitting::Qwen2) {
        tokenizer
            .with_normalizer(Some(NFC))
            .map_err(|error| unusable(error.to_string()))?;
    }
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

impl Splitting {
    fn splitter(&self) -> tokenizers::Result<PreTokenizerWrapper> {
        let by = |pattern: &str| -> tokenizers::Result<PreTokenizerWrapper> {
            let split = Split::new(
                SplitPattern::Regex(pattern.to_owned()),
                SplitDelimiterBehavior::Isolated,
                false,
            )?;
            let bytes = ByteLevel::new(false, false, false);
            Ok(Sequence::new(vec![split.into(), bytes.into()]).into())
        };
        let gpt2 = ByteLevel::new(false, true, true);
        match self {
            Self::Smollm => Ok(Sequence::new(vec![Digits::new(true).into(), gpt2.into()]).into()),
            Self::Gpt2 => Ok(gpt2.into()),
            Self::Qwen2 => by(QWEN2),
            Self::Llama3 => by(LLAMA3),
        }
    }
}
