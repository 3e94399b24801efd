use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One message of a conversation with a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    System {
        text: String,
    },
    User {
        text: String,
    },
    /// The policy's reply, word for word, and the tool calls parsed from it.
    Assistant {
        text: String,
        calls: Vec<ToolCall>,
    },
    /// The result of a tool call.
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

/// A policy's request to run a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolCall {
    /// Ties the result to the call.
    pub id: String,
    pub name: String,
    /// As the policy wrote them. A call whose arguments are not an object gets an error as its result; it is never dropped.
    pub arguments: Value,
}

/// The description of a tool that a policy is given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolSchema {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
}
