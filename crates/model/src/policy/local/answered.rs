//! Conversations that were answered before, so that each goes on from the very tokens that were read and sampled.
//!
//! Text does not lead back to tokens: a model may spell a word in other pieces than the tokenizer would, and templates trim
//! and rewrite. So only what was added is rendered and tokenised. Where the template would now show something of the past
//! differently, that does not hold, and the whole conversation is rendered anew.

use warpsmith_schema::{Message, ToolSchema};

use crate::chat::Until;
use crate::{ModelError, Tokenizer};

/// As many as are likely to be asked in turn.
const KEPT: usize = 32;

/// The most recently answered last.
#[derive(Debug, Default)]
pub(super) struct AnsweredConversations(Vec<AnsweredConversation>);

#[derive(Debug)]
struct AnsweredConversation {
    /// With the reply as the last.
    messages: Vec<Message>,
    tools: Vec<ToolSchema>,
    /// What the template made of all before the reply.
    rendered: String,
    /// All that was read and sampled.
    tokens: Vec<u32>,
}

/// What a model is to read.
#[derive(Debug)]
pub(super) struct Prompt {
    /// As the template has the whole of it.
    rendered: String,
    pub(super) tokens: Vec<u32>,
}

/// How the model's template has a conversation.
pub(super) type Form<'a> = dyn Fn(&[Message], Until) -> Result<String, ModelError> + 'a;

impl AnsweredConversations {
    /// The tokens of a conversation: those of an earlier one and what was added, where it goes on from one.
    pub(super) fn prompt(
        &mut self,
        messages: &[Message],
        tools: &[ToolSchema],
        tokenizer: &Tokenizer,
        form: &Form<'_>,
    ) -> Result<Prompt, ModelError> {
        let rendered = form(messages, Until::NextReply)?;
        let longest = self
            .0
            .iter()
            .enumerate()
            .filter(|(_, past)| past.tools == tools && messages.starts_with(&past.messages))
            .max_by_key(|(_, past)| past.messages.len());
        if let Some((place, past)) = longest
            && let Some(added) = past.added(&rendered, tokenizer, form)?
        {
            // It comes back with the reply to this.
            let mut tokens = self.0.remove(place).tokens;
            tokens.extend(added);
            return Ok(Prompt { rendered, tokens });
        }
        let tokens = tokenizer.encode(&rendered)?;
        Ok(Prompt { rendered, tokens })
    }

    /// Remembers what was read and how it was answered.
    pub(super) fn keep(
        &mut self,
        messages: &[Message],
        tools: &[ToolSchema],
        prompt: Prompt,
        reply: Message,
        sampled: impl Iterator<Item = u32>,
    ) {
        let Prompt {
            rendered,
            mut tokens,
        } = prompt;
        tokens.extend(sampled);
        let mut messages = messages.to_vec();
        messages.push(reply);
        self.0.push(AnsweredConversation {
            messages,
            tools: tools.to_vec(),
            rendered,
            tokens,
        });
        if self.0.len() > KEPT {
            self.0.remove(0);
        }
    }
}

impl AnsweredConversation {
    /// The tokens between the reply and the next, or `None` if the template does not simply go on from it.
    fn added(
        &self,
        whole: &str,
        tokenizer: &Tokenizer,
        form: &Form<'_>,
    ) -> Result<Option<Vec<u32>>, ModelError> {
        let (Some(reply), Some(&last)) = (self.messages.last(), self.tokens.last()) else {
            return Ok(None);
        };
        let closed = form(&self.messages, Until::LastMessage)?;
        let Some(next) = whole.strip_prefix(&closed).map(str::len) else {
            return Ok(None);
        };
        let Some(end) = end_of_turn(&closed, &self.rendered, reply.text()) else {
            return Ok(None);
        };
        let mut added = tokenizer.encode(&whole[whole.len() - next - end.len()..])?;
        if tokenizer.is_end(last) {
            // The model ended its turn itself; with another token than the template's, this is no way to go on.
            if added.first() != Some(&last) {
                return Ok(None);
            }
            added.remove(0);
        }
        Ok(Some(added))
    }
}

/// What the template puts behind a reply. Some trim the reply itself.
fn end_of_turn<'a>(closed: &'a str, before: &str, reply: &str) -> Option<&'a str> {
    let turn = closed.strip_prefix(before)?;
    [reply, reply.trim()]
        .into_iter()
        .find_map(|reply| turn.strip_prefix(reply))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde::Deserialize;

    use super::*;
    use crate::ChatTemplate;
    use crate::policy::local::conversation::ToolsBy;

    const END: &str = "<|im_end|>";

    /// Trims, as Llama's does.
    const TRIMMING: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    /// Shows only the last message whole, as templates of models that think aloud do.
    const FORGETTING: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.last or m.role != 'assistant' %}{{ m.content }}{% else %}{{ m.content.split('</think>')[-1] }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    #[derive(Deserialize)]
    struct Chats {
        templates: Vec<Shipped>,
    }

    #[derive(Deserialize)]
    struct Shipped {
        template: String,
    }

    /// What answers, but for the model.
    struct Desk {
        tokenizer: Tokenizer,
        template: ChatTemplate,
        by: ToolsBy,
        pasts: AnsweredConversations,
    }

    impl Desk {
        fn new(template: &str) -> Self {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokens");
            let tokenizer = Tokenizer::load(&folder).unwrap();
            let template = ChatTemplate::new(template.to_owned(), &tokenizer).unwrap();
            Self {
                by: ToolsBy::of(&template),
                tokenizer,
                template,
                pasts: AnsweredConversations::default(),
            }
        }

        /// Templates of the models that can be had by name: `SmolLM2`'s has no place for tools, Qwen2.5's has one.
        fn shipped(number: usize) -> Self {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokens/chats.json");
            let file: Chats = serde_json::from_str(&fs_err::read_to_string(path).unwrap()).unwrap();
            Self::new(&file.templates[number].template)
        }

        /// The tokens of a text, each letter by itself: never as the tokenizer would have it.
        fn letters(&self, text: &str) -> Vec<u32> {
            let letters = text.chars().map(String::from);
            letters.flat_map(|letter| self.encode(&letter)).collect()
        }

        fn encode(&self, text: &str) -> Vec<u32> {
            self.tokenizer.encode(text).unwrap()
        }

        fn prompt(&mut self, messages: &[Message], tools: &[ToolSchema]) -> Prompt {
            let form = |messages: &[Message], until: Until| {
                self.by.render(&self.template, messages, tools, until)
            };
            self.pasts
                .prompt(messages, tools, &self.tokenizer, &form)
                .unwrap()
        }

        /// The model reads the conversation and says this, letter by letter, with the token that ends it.
        fn answer(
            &mut self,
            messages: &mut Vec<Message>,
            tools: &[ToolSchema],
            text: &str,
            end: &str,
        ) -> Vec<u32> {
            let prompt = self.prompt(messages, tools);
            let sampled = [self.letters(text), self.encode(end)].concat();
            let all = [prompt.tokens.clone(), sampled.clone()].concat();
            let said = assistant(text);
            self.pasts
                .keep(messages, tools, prompt, said.clone(), sampled.into_iter());
            messages.push(said);
            all
        }
    }

    fn assistant(text: &str) -> Message {
        Message::Assistant {
            text: text.to_owned(),
            calls: Vec::new(),
        }
    }

    fn user(text: &str) -> Message {
        Message::User {
            text: text.to_owned(),
        }
    }

    fn result(text: &str) -> Message {
        Message::Tool {
            call: "call_0".to_owned(),
            name: "read".to_owned(),
            text: text.to_owned(),
            failed: false,
        }
    }

    fn tools() -> Vec<ToolSchema> {
        vec![ToolSchema {
            name: "read".to_owned(),
            description: "Reads a file.".to_owned(),
            parameters: serde_json::json!({ "type": "object", "properties": {} }),
        }]
    }

    /// Several answers of tools become one turn, and the model's own tokens stay as they were sampled.
    #[test]
    fn a_conversation_goes_on_from_its_own_tokens() {
        for number in 0..2 {
            let mut desk = Desk::shipped(number);
            let tools = tools();
            // Without a system message: both templates then put in one of their own.
            let mut messages = vec![user("Go")];
            let mut before = desk.answer(&mut messages, &tools, "I look.", END);
            for turn in 0..3 {
                messages.extend([result("int a;"), result("int b;")]);
                let prompt = desk.prompt(&messages, &tools);
                let added = "\n<|im_start|>user\n<tool_response>\nint a;\n</tool_response>\n<tool_response>\nint b;\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
                assert_eq!(prompt.tokens, [before, desk.encode(added)].concat());
                // Tokenised anew it would be something else.
                assert_ne!(prompt.tokens, desk.encode(&prompt.rendered));
                let text = format!("Reply {turn}.");
                let sampled = [desk.letters(&text), desk.encode(END)].concat();
                before = [prompt.tokens.clone(), sampled.clone()].concat();
                let said = assistant(&text);
                desk.pasts
                    .keep(&messages, &tools, prompt, said.clone(), sampled.into_iter());
                messages.push(said);
            }
        }
    }

    #[test]
    fn a_reply_that_was_cut_is_closed_for_the_model() {
        let mut desk = Desk::shipped(1);
        let mut messages = vec![user("Go")];
        let before = desk.answer(&mut messages, &[], "I was about t", "");
        messages.push(user("On"));
        let added = "<|im_end|>\n<|im_start|>user\nOn<|im_end|>\n<|im_start|>assistant\n";
        let expected = [before, desk.encode(added)].concat();
        assert_eq!(desk.prompt(&messages, &[]).tokens, expected);
    }

    #[test]
    fn a_template_may_trim_what_was_said() {
        let mut desk = Desk::new(TRIMMING);
        let mut messages = vec![user("Go")];
        let before = desk.answer(&mut messages, &[], "\n Well. \n", END);
        messages.push(user("On"));
        let added = "\n<|im_start|>user\nOn<|im_end|>\n<|im_start|>assistant\n";
        let expected = [before, desk.encode(added)].concat();
        assert_eq!(desk.prompt(&messages, &[]).tokens, expected);
    }

    /// Where the past is not what it was, everything is rendered anew.
    #[test]
    fn another_past_is_begun_anew() {
        type Change = fn(&mut Vec<Message>, &mut Vec<ToolSchema>);
        let changes: [(&str, &str, Change); 4] = [
            ("a message was left out", END, |messages, _| {
                messages[2] = result("[left out]");
            }),
            ("another reply", END, |messages, _| {
                messages[3] = assistant("Other.");
            }),
            ("other tools", END, |_, tools| tools.clear()),
            (
                "an end that the template does not know",
                "<|endoftext|>",
                |_, _| {},
            ),
        ];
        for (what, end, change) in changes {
            let mut desk = Desk::shipped(1);
            let mut tools = tools();
            let mut messages = vec![user("Go")];
            desk.answer(&mut messages, &tools, "First.", END);
            messages.push(result("int a;"));
            desk.answer(&mut messages, &tools, "Second.", end);
            messages.push(result("int b;"));
            change(&mut messages, &mut tools);
            let prompt = desk.prompt(&messages, &tools);
            assert_eq!(prompt.tokens, desk.encode(&prompt.rendered), "{what}");
        }
    }

    #[test]
    fn a_template_that_forgets_is_followed() {
        let mut desk = Desk::new(FORGETTING);
        let mut messages = vec![user("Go")];
        desk.answer(&mut messages, &[], "Hm.</think>Well.", END);
        messages.push(user("On"));
        let prompt = desk.prompt(&messages, &[]);
        assert_eq!(prompt.tokens, desk.encode(&prompt.rendered));
        assert!(!prompt.rendered.contains("Hm."));
    }

    #[test]
    fn conversations_asked_in_turn_each_go_on() {
        let mut desk = Desk::shipped(0);
        let mut talks: Vec<(Vec<Message>, Vec<u32>)> = Vec::new();
        for name in ["A", "B", "C"] {
            let mut messages = vec![user("Go")];
            let tokens = desk.answer(&mut messages, &[], name, END);
            talks.push((messages, tokens));
        }
        for _ in 0..2 {
            for (messages, tokens) in &mut talks {
                messages.push(user("On"));
                let all = desk.answer(messages, &[], "Yes.", END);
                assert!(all.starts_with(tokens));
                *tokens = all;
            }
        }
        assert_eq!(desk.pasts.0.len(), 3);
        for number in 0..2 * KEPT {
            desk.answer(&mut vec![user(&number.to_string())], &[], "Yes.", END);
        }
        assert_eq!(desk.pasts.0.len(), KEPT);
    }
}
