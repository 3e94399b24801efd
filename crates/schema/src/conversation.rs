use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One message between a policy and the world.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    System {
        text: String,
    },
    User {
        text: String,
    },
    /// What the policy said, word for word, and the calls read from it.
    Assistant {
        text: String,
        calls: Vec<ToolCall>,
    },
    /// What a call gave.
    Tool {
        call: String,
        name: String,
        text: String,
        failed: bool,
    },
}

impl Message {
    pub fn text(&self) -> &str {
        match self {
            Self::System { text }
            | Self::User { text }
            | Self::Assistant { text, .. }
            | Self::Tool { text, .. } => text,
        }
    }
}

/// A tool that a policy asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolCall {
    /// Ties the answer to the call.
    pub id: String,
    pub name: String,
    /// As given: a call whose arguments are not an object is answered with what is wrong, never dropped.
    pub arguments: Value,
}

/// A tool as a policy is told of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolSchema {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
}
