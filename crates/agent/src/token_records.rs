//! The tokens of an episode, put together from those of its replies.

use warpsmith_model::policy::ReplyTokens;
use warpsmith_schema::TokenRecord;

/// All of an episode's tokens so far, or nothing once a reply came without them: a record with gaps cannot be trained on.
#[derive(Debug)]
pub(crate) struct TokenRecords(Option<Vec<TokenRecord>>);

impl TokenRecords {
    pub(crate) fn begin() -> Self {
        Self(Some(Vec::new()))
    }

    /// Goes on with what an earlier process kept.
    pub(crate) fn resume(kept: Option<Vec<TokenRecord>>) -> Self {
        Self(kept)
    }

    /// Adds the tokens of a reply, which is the message of this index.
    pub(crate) fn add(&mut self, message: u32, tokens: Option<ReplyTokens>) {
        let (Some(records), Some(tokens)) = (&mut self.0, tokens) else {
            self.0 = None;
            return;
        };
        // What the policy really read decides: the record goes on only where the prompt begins with all of it.
        let record = match records.pop() {
            Some(record) if continues(&record, &tokens) => record,
            other => {
                records.extend(other);
                TokenRecord {
                    ids: Vec::new(),
                    logprobs: Vec::new(),
                    loss_mask: Vec::new(),
                    replies: Vec::new(),
                    template: tokens.template.clone(),
                    tokenizer: tokens.tokenizer.clone(),
                }
            }
        };
        records.push(extended(record, message, &tokens));
    }

    pub(crate) fn so_far(&self) -> Option<Vec<TokenRecord>> {
        self.0.clone().filter(|records| !records.is_empty())
    }
}

fn continues(record: &TokenRecord, tokens: &ReplyTokens) -> bool {
    // Longer by at least one: else two replies would be one run of sampled tokens.
    tokens.prompt.len() > record.ids.len()
        && tokens.prompt.starts_with(&record.ids)
        && (&tokens.template, &tokens.tokenizer) == (&record.template, &record.tokenizer)
}

fn extended(mut record: TokenRecord, message: u32, tokens: &ReplyTokens) -> TokenRecord {
    let given = tokens.prompt[record.ids.len()..]
        .iter()
        .map(|id| (*id, None));
    let sampled = tokens.sampled.iter().map(|one| (one.id, Some(one.logprob)));
    for (id, logprob) in given.chain(sampled) {
        record.ids.push(id);
        record.logprobs.push(logprob);
        record.loss_mask.push(logprob.is_some());
    }
    record.replies.push(message);
    record
}

#[cfg(test)]
mod tests {
    use warpsmith_model::policy::SampledToken;

    use super::*;

    fn reply(prompt: &[u32], sampled: &[u32]) -> ReplyTokens {
        let sampled = sampled.iter().map(|&id| SampledToken { id, logprob: -0.5 });
        ReplyTokens {
            prompt: prompt.to_vec(),
            sampled: sampled.collect(),
            template: Some("template".to_owned()),
            tokenizer: None,
        }
    }

    fn records(replies: Vec<Option<ReplyTokens>>) -> Option<Vec<TokenRecord>> {
        let mut records = TokenRecords::begin();
        for (number, tokens) in replies.into_iter().enumerate() {
            records.add(2 * number as u32, tokens);
        }
        records.so_far()
    }

    #[test]
    fn a_conversation_that_goes_on_is_one_sequence() {
        let found = records(vec![
            Some(reply(&[1, 2], &[3, 4])),
            Some(reply(&[1, 2, 3, 4, 5], &[6])),
        ])
        .unwrap();
        let expected = TokenRecord {
            ids: vec![1, 2, 3, 4, 5, 6],
            logprobs: vec![None, None, Some(-0.5), Some(-0.5), None, Some(-0.5)],
            loss_mask: vec![false, false, true, true, false, true],
            replies: vec![0, 2],
            template: Some("template".to_owned()),
            tokenizer: None,
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn another_prefix_begins_another_sequence() {
        for other in [
            // Tokenised anew, cut, or without anything between.
            vec![1, 2, 7, 5],
            vec![1, 2],
            vec![1, 2, 3, 4],
        ] {
            let found = records(vec![
                Some(reply(&[1, 2], &[3, 4])),
                Some(reply(&other, &[6])),
            ])
            .unwrap();
            assert_eq!(found.len(), 2, "{other:?}");
            assert_eq!(found[0].ids, [1, 2, 3, 4]);
            assert_eq!(found[1].ids, [other, vec![6]].concat());
            assert_eq!(
                found[1]
                    .loss_mask
                    .iter()
                    .filter(|sampled| **sampled)
                    .count(),
                1
            );
            assert_eq!((&found[0].replies, &found[1].replies), (&vec![0], &vec![2]));
        }
    }

    #[test]
    fn a_reply_without_tokens_leaves_no_record() {
        assert_eq!(records(vec![]), None);
        assert_eq!(records(vec![Some(reply(&[1], &[2])), None]), None);
        assert_eq!(records(vec![None, Some(reply(&[1], &[2]))]), None);
    }
}
