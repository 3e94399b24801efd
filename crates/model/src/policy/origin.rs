//! What tokens are tokens of.

use serde::{Deserialize, Serialize};
use warpsmith_schema::TokenRecord;

/// Whoever learns from tokens must read them with the same template and tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Hash of the chat template.
    pub template: String,
    /// Hash of the tokenizer.
    pub tokenizer: String,
}

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

    /// Tokens that were given, then those that were sampled with their log-probabilities.
    pub(super) fn record(
        &self,
        given: &[u32],
        sampled: impl IntoIterator<Item = (u32, f32)>,
    ) -> TokenRecord {
        let given = given.iter().map(|token| (*token, None));
        let sampled = sampled
            .into_iter()
            .map(|(token, log_probability)| (token, Some(log_probability)));
        let (ids, logprobs): (Vec<u32>, Vec<Option<f32>>) = given.chain(sampled).unzip();
        TokenRecord {
            loss_mask: logprobs.iter().map(Option::is_some).collect(),
            ids,
            logprobs,
            template: self.template.clone(),
            tokenizer: self.tokenizer.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sampled_tokens_are_learnt_from() {
        let record = Origin::of("a model").record(&[1, 2], [(9, -0.5)]);
        assert_eq!(record.ids, [1, 2, 9]);
        assert_eq!(record.logprobs, [None, None, Some(-0.5)]);
        assert_eq!(record.loss_mask, [false, false, true]);
    }
}
