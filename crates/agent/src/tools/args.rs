//! What each tool takes. The schemas that policies see are made from these types.

use schemars::{JsonSchema, SchemaGenerator};
use serde::Deserialize;
use serde_json::Value;
use warpsmith_schema::ToolSchema;

pub(super) const NAMES: [&str; 15] = [
    "bash",
    "bash_output",
    "bash_kill",
    "read",
    "write",
    "edit",
    "multi_edit",
    "glob",
    "grep",
    "todo",
    "compile",
    "verify",
    "profile",
    "judge",
    "submit",
];

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Bash {
    /// What to run. The shell keeps its folder and variables from one call to the next.
    pub(super) command: String,
    /// Seconds before it is stopped; 60 unless told, 600 at most.
    pub(super) timeout_s: Option<u64>,
    /// Leave it running and go on; `bash_output` shows what it prints.
    #[serde(default)]
    pub(super) background: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Job {
    /// The number that `bash` gave.
    pub(super) job: u32,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Read {
    /// Below the workspace.
    pub(super) path: String,
    /// The first line to show, counted from one.
    pub(super) offset: Option<usize>,
    /// How many lines to show.
    pub(super) limit: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Write {
    /// Below the workspace.
    pub(super) path: String,
    /// The whole file.
    pub(super) content: String,
}

/// One replacement.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub(super) struct Change {
    /// Text that is in the file, exactly and once.
    pub(super) old: String,
    /// What takes its place.
    pub(super) new: String,
    /// Replace it wherever it stands.
    #[serde(default)]
    pub(super) all: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Edit {
    /// Below the workspace.
    pub(super) path: String,
    #[serde(flatten)]
    pub(super) change: Change,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MultiEdit {
    /// Below the workspace.
    pub(super) path: String,
    /// In this order; if one does not fit, none is made.
    pub(super) edits: Vec<Change>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Glob {
    /// Such as `kernels/**/*.cu`.
    pub(super) pattern: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Grep {
    /// An extended regular expression.
    pub(super) pattern: String,
    /// A file or folder; else the workspace.
    pub(super) path: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Open,
    Doing,
    Done,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Todo {
    pub(super) text: String,
    pub(super) state: State,
}

impl Todo {
    pub(super) fn line(&self) -> String {
        let mark = match self.state {
            State::Open => ' ',
            State::Doing => '>',
            State::Done => 'x',
        };
        format!("[{mark}] {}", self.text)
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Todos {
    /// The whole list, which replaces the last one.
    pub(super) items: Vec<Todo>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Profile {
    /// The original module alone.
    #[serde(default)]
    pub(super) original: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

pub(crate) fn schemas() -> Vec<ToolSchema> {
    vec![
        schema::<Bash>(
            "bash",
            "Run a command in the workspace's shell. No network, no GPU.",
        ),
        schema::<Job>("bash_output", "Show what a background command has printed."),
        schema::<Job>("bash_kill", "Stop a background command."),
        schema::<Read>("read", "Show a file, with line numbers."),
        schema::<Write>(
            "write",
            "Write a whole file. One that exists must have been read first.",
        ),
        schema::<Edit>("edit", "Replace a piece of a file that was read."),
        schema::<MultiEdit>(
            "multi_edit",
            "Several replacements in one file, all or none.",
        ),
        schema::<Glob>("glob", "List files by a pattern."),
        schema::<Grep>("grep", "Search files by a regular expression."),
        schema::<Todos>("todo", "Keep a list of what is to be done."),
        schema::<Nothing>(
            "compile",
            "Compile the solution and show what the compiler says.",
        ),
        schema::<Nothing>(
            "verify",
            "Compile, then compare results with the original on fresh inputs.",
        ),
        schema::<Profile>(
            "profile",
            "Show where the time goes, in the original and in the solution.",
        ),
        schema::<Nothing>(
            "judge",
            "Compile, verify and time against eager PyTorch and torch.compile. This time counts.",
        ),
        schema::<Nothing>("submit", "Judge the solution and end the work."),
    ]
}

fn schema<T: JsonSchema>(name: &str, description: &str) -> ToolSchema {
    let mut parameters = SchemaGenerator::default()
        .into_root_schema_for::<T>()
        .to_value();
    if let Value::Object(fields) = &mut parameters {
        fields.remove("$schema");
        fields.remove("title");
    }
    ToolSchema {
        name: name.to_owned(),
        description: description.to_owned(),
        parameters,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_a_schema_of_an_object() {
        let found = schemas();
        let names: Vec<&str> = found.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, NAMES);
        for tool in found {
            assert_eq!(tool.parameters["type"], "object", "{}", tool.name);
        }
    }
}
