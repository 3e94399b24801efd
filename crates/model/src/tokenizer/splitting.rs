//! How a text is cut before its pieces become tokens. GGUF names the way; `tokenizer.json` spells it out.

use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    SplitDelimiterBehavior,
};

/// The ways of splitting we know, each as the `tokenizer.json` of its models has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Splitting {
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

/// A text that no two ways we know split alike, with what others treat in ways of their own.
const PROBE: &str = "I'm, they'LL: x=1234567.8e-9;\r\n\r\n\t  if (a_b->c != 'd') { } // cafe\u{301} 你好世界\n   \u{a0}ñandú ١٢٣ 🙂👍🏽 #@!\n end ";

impl Splitting {
    const ALL: [Self; 4] = [Self::Smollm, Self::Gpt2, Self::Qwen2, Self::Llama3];

    /// By the name that llama.cpp gives it, or one of the names.
    pub(super) fn parse(name: &str) -> Option<Self> {
        match name {
            "smollm" => Some(Self::Smollm),
            "gpt-2" | "default" => Some(Self::Gpt2),
            "qwen2" => Some(Self::Qwen2),
            "llama-bpe" | "llama3" | "llama-v3" => Some(Self::Llama3),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Smollm => "smollm",
            Self::Gpt2 => "gpt-2",
            Self::Qwen2 => "qwen2",
            Self::Llama3 => "llama-bpe",
        }
    }

    /// What a tokenizer does, told by its doing: there are many ways to spell out the same.
    pub(super) fn of(tokenizer: &tokenizers::Tokenizer) -> tokenizers::Result<Option<Self>> {
        let Some(splitter) = tokenizer.get_pre_tokenizer() else {
            return Ok(None);
        };
        let found = pieces(tokenizer.get_normalizer(), splitter)?;
        for splitting in Self::ALL {
            if pieces(splitting.normalizer().as_ref(), &splitting.splitter()?)? == found {
                return Ok(Some(splitting));
            }
        }
        Ok(None)
    }

    pub(super) fn normalizer(self) -> Option<NFC> {
        (self == Self::Qwen2).then_some(NFC)
    }

    /// Whether a word of the vocabulary is taken whole, whatever the merges say.
    pub(super) fn ignores_merges(self) -> bool {
        self == Self::Llama3
    }

    pub(super) fn splitter(self) -> tokenizers::Result<PreTokenizerWrapper> {
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

fn pieces(
    normalizer: Option<&impl Normalizer>,
    splitter: &impl PreTokenizer,
) -> tokenizers::Result<Vec<String>> {
    let mut text = NormalizedString::from(PROBE);
    if let Some(normalizer) = normalizer {
        normalizer.normalize(&mut text)?;
    }
    let mut split = PreTokenizedString::from(text);
    splitter.pre_tokenize(&mut split)?;
    let pieces = split.get_splits(OffsetReferential::Original, OffsetType::None);
    Ok(pieces
        .into_iter()
        .map(|(piece, ..)| piece.to_owned())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_recognised_by_what_it_does() {
        for splitting in Splitting::ALL {
            assert_eq!(Splitting::parse(splitting.name()), Some(splitting));
            let model = tokenizers::models::bpe::BPE::default();
            let mut tokenizer = tokenizers::Tokenizer::new(model);
            assert_eq!(Splitting::of(&tokenizer).unwrap(), None);
            tokenizer.with_pre_tokenizer(Some(splitting.splitter().unwrap()));
            tokenizer.with_normalizer(splitting.normalizer()).unwrap();
            assert_eq!(Splitting::of(&tokenizer).unwrap(), Some(splitting));
        }
    }
}
