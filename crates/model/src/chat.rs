//! A conversation as the model was trained to read it: its own chat template, with tools.

use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};

use crate::gguf::GgufFile;
use crate::{ModelError, Tokenizer};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    System,
    User,
    Assistant,
    /// The result of a tool call.
    Tool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TemplateMessage {
    pub role: Role,
    pub content: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<TemplateToolCall>,
    /// The tool that a result is of; some templates show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl TemplateMessage {
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            tool_calls: Vec::new(),
            name: None,
        }
    }
}

/// In the form the templates expect, that of the `OpenAI` interface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "function", rename_all = "snake_case")]
pub enum TemplateToolCall {
    Function {
        name: String,
        arguments: serde_json::Value,
    },
}

/// A tool the model may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "function", rename_all = "snake_case")]
pub enum Tool {
    Function {
        name: String,
        description: String,
        /// A JSON Schema of the arguments.
        parameters: serde_json::Value,
    },
}

/// Where a rendered conversation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// Where the assistant's next message begins.
    NextReply,
    /// After the last message.
    LastMessage,
}

#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    beginning: String,
    end: String,
}

const NAME: &str = "chat";

impl ChatTemplate {
    /// The template in the `.gguf` file or the folder that also holds the weights.
    pub fn load(path: &Path, tokenizer: &Tokenizer) -> Result<Self, ModelError> {
        let source = source(path)?.ok_or_else(|| ModelError::Template {
            reason: format!("`{}` has none: it is no chat model", path.display()),
        })?;
        Self::new(source, tokenizer)
    }

    pub fn new(source: String, tokenizer: &Tokenizer) -> Result<Self, ModelError> {
        let mut environment = Environment::new();
        // As transformers renders them.
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|error| template_error(&error))?;
        environment.set_syntax(syntax);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |message: String| -> Result<Value, _> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment
            .add_template_owned(NAME, source)
            .map_err(|error| template_error(&error))?;
        Ok(Self {
            environment,
            beginning: tokenizer.beginning().unwrap_or_default().to_owned(),
            end: tokenizer.end().unwrap_or_default().to_owned(),
        })
    }

    /// The whole conversation, ending where the assistant's next message begins.
    pub fn render(
        &self,
        messages: &[TemplateMessage],
        tools: &[Tool],
    ) -> Result<String, ModelError> {
        self.render_to(messages, tools, Until::NextReply)
    }

    pub(crate) fn render_to(
        &self,
        messages: &[TemplateMessage],
        tools: &[Tool],
        until: Until,
    ) -> Result<String, ModelError> {
        let tools = (!tools.is_empty()).then_some(tools);
        self.environment
            .get_template(NAME)
            .and_then(|template| {
                template.render(context! {
                    messages => Serde(messages),
                    tools => tools.map(Serde),
                    add_generation_prompt => until == Until::NextReply,
                    bos_token => self.beginning.as_str(),
                    eos_token => self.end.as_str(),
                })
            })
            .map_err(|error| template_error(&error))
    }
}

fn template_error(error: &minijinja::Error) -> ModelError {
    ModelError::Template {
        reason: error.to_string(),
    }
}

#[derive(Deserialize)]
struct TemplateFile {
    chat_template: Option<Templates>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

/// The template itself, where the model has one.
pub(crate) fn source(path: &Path) -> Result<Option<String>, ModelError> {
    if path.is_dir() {
        return from_folder(path);
    }
    let gguf = GgufFile::open(path)?;
    let text = gguf.optional_text("tokenizer.chat_template")?;
    Ok(text.map(str::to_owned))
}

fn from_folder(folder: &Path) -> Result<Option<String>, ModelError> {
    let apart = folder.join("chat_template.jinja");
    if apart.is_file() {
        return match fs_err::read_to_string(&apart) {
            Ok(text) => Ok(Some(text)),
            Err(source) => Err(ModelError::Read {
                path: apart,
                source,
            }),
        };
    }
    let path = folder.join("tokenizer_config.json");
    let Ok(text) = fs_err::read_to_string(&path) else {
        return Ok(None);
    };
    let file: TemplateFile = serde_json::from_str(&text).map_err(|error| ModelError::Broken {
        path,
        reason: error.to_string(),
    })?;
    Ok(match file.chat_template {
        None => None,
        Some(Templates::One(template)) => Some(template),
        Some(Templates::Named(all)) => {
            let named = |wanted: &str| all.iter().find(|one| one.name == wanted);
            named("tool_use")
                .or_else(|| named("default"))
                .map(|one| one.template.clone())
        }
    })
}

/// As Python's `json.dumps` writes it, which is what the model saw in training: a space after `,` and `:`.
#[expect(
    clippy::needless_pass_by_value,
    reason = "a filter is given its options by value"
)]
fn to_json(value: &Value, options: Kwargs) -> Result<Value, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Templates may say how to treat other alphabets and order; we do what transformers does.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let failed = |error: serde_json::Error| {
        minijinja::Error::new(ErrorKind::BadSerialization, error.to_string())
    };
    let mut text = Vec::new();
    match indent {
        None => {
            let mut writer = serde_json::Serializer::with_formatter(&mut text, PythonStyle);
            value.serialize(&mut writer).map_err(failed)?;
        }
        Some(width) => {
            let spaces = " ".repeat(width);
            let style = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            let mut writer = serde_json::Serializer::with_formatter(&mut text, style);
            value.serialize(&mut writer).map_err(failed)?;
        }
    }
    let text = String::from_utf8(text)
        .map_err(|error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from_safe_string(text))
}

struct PythonStyle;

impl serde_json::ser::Formatter for PythonStyle {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}
