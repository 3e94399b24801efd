//! A conversation that others had, as tokens to learn from.

use warpsmith_schema::{Message, ToolSchema};

use super::ChatCodec;
use crate::ModelError;
use crate::chat::Until;

/// A sequence of tokens, and which of them a model would have had to say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenizedTranscript {
    pub tokens: Vec<u32>,
    /// As many as tokens.
    pub loss_mask: Vec<bool>,
}

impl TokenizedTranscript {
    fn extend(&mut self, tokens: Vec<u32>, said: bool) {
        self.loss_mask.extend(vec![said; tokens.len()]);
        self.tokens.extend(tokens);
    }
}

impl ChatCodec {
    /// The conversation as the model would read it while replying: each turn of the assistant's is said from where a reply
    /// begins to the token that ends it. A new sequence begins where the template shows the past differently than before;
    /// replies that an earlier sequence has are given there. What follows the last reply is left out.
    pub fn transcripts(
        &self,
        messages: &[Message],
        tools: &[ToolSchema],
    ) -> Result<Vec<TokenizedTranscript>, ModelError> {
        let mut all = Vec::new();
        let mut current = TokenizedTranscript::default();
        let mut shown = String::new();
        for (place, message) in messages.iter().enumerate() {
            if !matches!(message, Message::Assistant { .. }) {
                continue;
            }
            let before = self.render(&messages[..place], tools, Until::NextReply)?;
            let after = self.render(&messages[..=place], tools, Until::LastMessage)?;
            let reply = after
                .strip_prefix(&before)
                .ok_or_else(|| ModelError::Template {
                    reason: "it shows a reply otherwise than it lets one begin".into(),
                })?;
            let added = if let Some(added) = before.strip_prefix(&shown) {
                added
            } else {
                all.push(std::mem::take(&mut current));
                &before
            };
            current.extend(self.tokenizer().encode(added)?, false);
            let mut said = self.tokenizer().encode(reply)?;
            // A template puts a line's end after the token that ends a turn; nobody says that.
            let end = said
                .iter()
                .rposition(|token| self.tokenizer().is_end(*token));
            let given = said.split_off(end.map_or(said.len(), |end| end + 1));
            current.extend(said, true);
            current.extend(given, false);
            shown = after;
        }
        if !current.tokens.is_empty() {
            all.push(current);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    /// A folder with the small tokenizer and a template.
    fn dialogue(template: &str) -> ChatCodec {
        let folder = tempfile::tempdir().unwrap();
        let tokens = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokens");
        fs_err::copy(
            tokens.join("tokenizer.json"),
            folder.path().join("tokenizer.json"),
        )
        .unwrap();
        let config = json!({ "eos_token": "<|im_end|>", "chat_template": template });
        fs_err::write(
            folder.path().join("tokenizer_config.json"),
            config.to_string(),
        )
        .unwrap();
        ChatCodec::open(folder.path(), None).unwrap()
    }

    const PLAIN: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    fn user(text: &str) -> Message {
        Message::User { text: text.into() }
    }

    fn assistant(text: &str) -> Message {
        Message::Assistant {
            text: text.into(),
            calls: Vec::new(),
        }
    }

    fn said(transcript: &TokenizedTranscript) -> Vec<u32> {
        assert_eq!(transcript.tokens.len(), transcript.loss_mask.len());
        let pairs = transcript.tokens.iter().zip(&transcript.loss_mask);
        let said = pairs.filter(|(_, said)| **said);
        said.map(|(token, _)| *token).collect()
    }

    #[test]
    fn the_assistants_turns_are_said_with_their_ends() {
        let dialogue = dialogue(PLAIN);
        let messages = [
            user("Go"),
            assistant("First."),
            user("On"),
            assistant("Second."),
            user("never answered"),
        ];
        let found = dialogue.transcripts(&messages, &[]).unwrap();
        assert_eq!(found.len(), 1);
        let encode = |text: &str| dialogue.tokenizer().encode(text).unwrap();
        let pieces = [
            (
                "<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n",
                false,
            ),
            ("First.<|im_end|>", true),
            ("\n", false),
            (
                "<|im_start|>user\nOn<|im_end|>\n<|im_start|>assistant\n",
                false,
            ),
            ("Second.<|im_end|>", true),
            ("\n", false),
        ];
        let mut expected = TokenizedTranscript::default();
        for (text, said) in pieces {
            expected.extend(encode(text), said);
        }
        assert_eq!(found[0], expected);
    }

    /// A template that drops what was thought in earlier turns: each turn is learnt as the model would have read it.
    #[test]
    fn a_template_that_forgets_begins_anew() {
        let forgetting = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.last %}{{ m.content }}{% else %}{{ m.content.split('</think>')[-1] }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
        let dialogue = dialogue(forgetting);
        let messages = [
            user("Go"),
            assistant("Hm.</think>One."),
            user("On"),
            assistant("Two."),
        ];
        let found = dialogue.transcripts(&messages, &[]).unwrap();
        let encode = |text: &str| dialogue.tokenizer().encode(text).unwrap();
        let said: Vec<Vec<u32>> = found.iter().map(said).collect();
        let expected = [
            encode("Hm.</think>One.<|im_end|>"),
            encode("Two.<|im_end|>"),
        ];
        assert_eq!(said, expected);
        let text = dialogue.tokenizer().decode(&found[1].tokens).unwrap();
        assert!(text.contains("One.") && !text.contains("Hm."), "{text}");
    }

    #[test]
    fn nothing_said_is_nothing_to_learn() {
        let dialogue = dialogue(PLAIN);
        assert_eq!(dialogue.transcripts(&[user("Go")], &[]).unwrap(), []);
    }
}
