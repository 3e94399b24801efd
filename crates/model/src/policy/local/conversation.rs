//! A conversation with tools as a chat template takes it.

use serde_json::{Value, json};
use warpsmith_schema::{Message, ToolCall, ToolSchema};

use super::calls::{self, CLOSE, OPEN};
use crate::chat::{self, Until};
use crate::{ChatTemplate, ModelError, Role, Tool};

/// Who tells the model of its tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolsBy {
    Template,
    /// The template has no place for tools, so they are told in the words of Qwen's, which does.
    Text,
}

impl ToolsBy {
    /// By what the template does with a tool.
    pub(super) fn of(template: &ChatTemplate) -> Self {
        const PROBE: &str = "warpsmith_probe";
        let tool = Tool::Function {
            name: PROBE.into(),
            description: String::new(),
            parameters: json!({ "type": "object", "properties": {} }),
        };
        match template.render(&[chat::TemplateMessage::new(Role::User, "?")], &[tool]) {
            Ok(text) if text.contains(PROBE) => Self::Template,
            _ => Self::Text,
        }
    }

    pub(super) fn render(
        self,
        template: &ChatTemplate,
        messages: &[Message],
        tools: &[ToolSchema],
        until: Until,
    ) -> Result<String, ModelError> {
        let messages: Vec<chat::TemplateMessage> =
            messages.iter().map(|one| spoken(one, tools)).collect();
        let tools: Vec<Tool> = tools.iter().map(tool).collect();
        match self {
            Self::Template => template.render_to(&messages, &tools, until),
            Self::Text => template.render_to(&in_text(messages, &tools), &[], until),
        }
    }
}

fn tool(schema: &ToolSchema) -> Tool {
    Tool::Function {
        name: schema.name.clone(),
        description: schema.description.clone(),
        parameters: schema.parameters.clone(),
    }
}

fn spoken(message: &Message, tools: &[ToolSchema]) -> chat::TemplateMessage {
    let role = match message {
        Message::System { .. } => Role::System,
        Message::User { .. } => Role::User,
        Message::Assistant { .. } => Role::Assistant,
        Message::Tool { .. } => Role::Tool,
    };
    let mut spoken = chat::TemplateMessage::new(role, message.text());
    match message {
        // Where the calls stand in the text it goes back word for word: the model then reads exactly what
        // it said, mistakes too, and nothing of it need be run again.
        Message::Assistant { text, calls } if calls::read(text, tools, 0).calls.is_empty() => {
            spoken.tool_calls = calls.iter().map(call).collect();
        }
        Message::Tool { name, .. } => spoken.name = Some(name.clone()),
        _ => {}
    }
    spoken
}

fn call(call: &ToolCall) -> chat::TemplateToolCall {
    chat::TemplateToolCall::Function {
        name: call.name.clone(),
        arguments: call.arguments.clone(),
    }
}

/// Tools in the system message, calls in the assistant's and results in the user's.
fn in_text(messages: Vec<chat::TemplateMessage>, tools: &[Tool]) -> Vec<chat::TemplateMessage> {
    let mut said: Vec<chat::TemplateMessage> = Vec::new();
    let mut after_result = false;
    for message in messages {
        let is_result = message.role == Role::Tool;
        let one = written_out(message);
        match said.last_mut() {
            // Results of one turn are one message: many templates want turns to alternate.
            Some(last) if is_result && after_result => {
                last.content = format!("{}\n{}", last.content, one.content);
            }
            _ => said.push(one),
        }
        after_result = is_result;
    }
    if !tools.is_empty() {
        let told = told(tools);
        match said.first_mut() {
            Some(first) if first.role == Role::System => {
                first.content = format!("{}\n\n{told}", first.content);
            }
            _ => said.insert(0, chat::TemplateMessage::new(Role::System, told)),
        }
    }
    said
}

/// With nothing left for the template to know but who speaks.
fn written_out(mut message: chat::TemplateMessage) -> chat::TemplateMessage {
    if message.role == Role::Tool {
        let result = format!("<tool_response>\n{}\n</tool_response>", message.content);
        return chat::TemplateMessage::new(Role::User, result);
    }
    let calls = std::mem::take(&mut message.tool_calls);
    let calls = calls
        .into_iter()
        .map(|chat::TemplateToolCall::Function { name, arguments }| {
            let name = Value::String(name);
            format!("{OPEN}\n{{\"name\": {name}, \"arguments\": {arguments}}}\n{CLOSE}")
        });
    let content = std::mem::take(&mut message.content);
    let content = Some(content).filter(|content| !content.is_empty());
    let lines: Vec<String> = content.into_iter().chain(calls).collect();
    message.content = lines.join("\n");
    message
}

/// As Qwen's template tells it.
fn told(tools: &[Tool]) -> String {
    let signatures: Vec<String> = tools.iter().map(signature).collect();
    format!(
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n\
         You are provided with function signatures within <tools></tools> XML tags:\n\
         <tools>\n{}\n</tools>\n\n\
         For each function call, return a json object with function name and arguments within {OPEN}{CLOSE} XML tags:\n\
         {OPEN}\n{{\"name\": <function-name>, \"arguments\": <args-json-object>}}\n{CLOSE}",
        signatures.join("\n")
    )
}

fn signature(tool: &Tool) -> String {
    let Tool::Function {
        name,
        description,
        parameters,
    } = tool;
    // In the order models know, whatever order a map would have.
    let (name, description) = (json!(name), json!(description));
    format!(
        r#"{{"type": "function", "function": {{"name": {name}, "description": {description}, "parameters": {parameters}}}}}"#
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde::Deserialize;

    use super::*;
    use crate::Tokenizer;

    #[derive(Deserialize)]
    struct Chats {
        chats: Vec<Chat>,
        templates: Vec<Rendered>,
    }

    #[derive(Deserialize)]
    struct Chat {
        tools: Vec<Tool>,
    }

    #[derive(Deserialize)]
    struct Rendered {
        template: String,
        rendered: Vec<String>,
    }

    fn chats() -> (Chats, Tokenizer) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokens");
        let text = fs_err::read_to_string(folder.join("chats.json")).unwrap();
        (
            serde_json::from_str(&text).unwrap(),
            Tokenizer::load(&folder).unwrap(),
        )
    }

    fn assistant(text: &str, calls: usize) -> Message {
        let call = ToolCall {
            id: "call_0".into(),
            name: "write".into(),
            arguments: json!({ "path": "a.cu", "text": "int x = 1; // \"é\" <&>\n" }),
        };
        Message::Assistant {
            text: text.into(),
            calls: vec![call; calls],
        }
    }

    fn result(text: &str) -> Message {
        Message::Tool {
            call: "call_0".into(),
            name: "write".into(),
            text: text.into(),
            failed: false,
        }
    }

    /// The last conversation of `chats.json`, in our nouns.
    fn conversation() -> Vec<Message> {
        vec![
            Message::System {
                text: "You write kernels.".into(),
            },
            Message::User { text: "Go".into() },
            assistant("", 2),
            result("done"),
            result("done again"),
            assistant("Now the other.", 1),
            result("error: 'x' <undefined>"),
        ]
    }

    fn schemas(chat: &Chat) -> Vec<ToolSchema> {
        let schema = |tool: &Tool| {
            let Tool::Function {
                name,
                description,
                parameters,
            } = tool.clone();
            ToolSchema {
                name,
                description,
                parameters,
            }
        };
        chat.tools.iter().map(schema).collect()
    }

    #[test]
    fn tools_and_calls_are_rendered_as_transformers_does() {
        let (file, tokenizer) = chats();
        let qwen = &file.templates[1];
        let template = ChatTemplate::new(qwen.template.clone(), &tokenizer).unwrap();
        let by = ToolsBy::of(&template);
        assert_eq!(by, ToolsBy::Template);
        let tools = schemas(&file.chats[2]);
        let found = by
            .render(&template, &conversation(), &tools, Until::NextReply)
            .unwrap();
        assert_eq!(found, qwen.rendered[2]);
    }

    /// A call the model wrote itself goes back as it wrote it, valid or not.
    #[test]
    fn what_a_model_said_is_repeated_word_for_word() {
        let (file, tokenizer) = chats();
        let template = ChatTemplate::new(file.templates[1].template.clone(), &tokenizer).unwrap();
        let text = "<tool_call>\n{\"name\":\"write\",  oops}\n</tool_call>";
        let call = ToolCall {
            id: "call_0".into(),
            name: "write".into(),
            arguments: Value::String("{\"name\":\"write\",  oops}".into()),
        };
        let messages = [
            Message::User { text: "Go".into() },
            Message::Assistant {
                text: text.into(),
                calls: vec![call],
            },
        ];
        for by in [ToolsBy::Template, ToolsBy::Text] {
            let found = by
                .render(&template, &messages, &[], Until::NextReply)
                .unwrap();
            let said = format!("<|im_start|>assistant\n{text}<|im_end|>\n");
            assert!(found.contains(&said), "{found}");
            assert_eq!(found.matches("<tool_call>").count(), 1);
        }
    }

    #[test]
    fn a_template_without_tools_has_them_in_the_text() {
        let (file, tokenizer) = chats();
        let template = ChatTemplate::new(file.templates[0].template.clone(), &tokenizer).unwrap();
        let by = ToolsBy::of(&template);
        assert_eq!(by, ToolsBy::Text);
        let tools = schemas(&file.chats[2]);
        let found = by
            .render(&template, &conversation(), &tools[1..], Until::NextReply)
            .unwrap();
        let expected = r#"<|im_start|>system
You write kernels.

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "judge", "description": "Judges.", "parameters": {"properties":{},"type":"object"}}}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
<|im_start|>user
Go<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "write", "arguments": {"path":"a.cu","text":"int x = 1; // \"é\" <&>\n"}}
</tool_call>
<tool_call>
{"name": "write", "arguments": {"path":"a.cu","text":"int x = 1; // \"é\" <&>\n"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
done
</tool_response>
<tool_response>
done again
</tool_response><|im_end|>
<|im_start|>assistant
Now the other.
<tool_call>
{"name": "write", "arguments": {"path":"a.cu","text":"int x = 1; // \"é\" <&>\n"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
error: 'x' <undefined>
</tool_response><|im_end|>
<|im_start|>assistant
"#;
        assert_eq!(found, expected);
        let only = [Message::User { text: "Go".into() }];
        let found = by
            .render(&template, &only, &tools, Until::NextReply)
            .unwrap();
        assert!(found.starts_with("<|im_start|>system\n# Tools"), "{found}");
    }
}
