//! What tokens are tokens of.

use serde::{Deserialize, Serialize};

/// Whoever learns from tokens must read them with the same template and tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Hash of the chat template.
    pub template: String,
    /// Hash of the tokenizer.
    pub tokenizer: String,
}

#[cfg(feature = "local")]
impl Origin {
    /// By the name of what both are part of: the hash of a file, or else where it is.
    pub(super) fn of(whole: &str) -> Self {
        let of = |part: &str| {
            blake3::hash(format!("{part} {whole}").as_bytes()).to_hex()[..16].to_owned()
        };
        Self {
            template: of("template"),
            tokenizer: of("tokenizer"),
        }
    }
}
