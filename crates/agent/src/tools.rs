//! What an agent can do: its tools, their schemas, and what a call gives.
//!
//! No call is dropped: one that cannot be understood is answered with what was wrong with it.

mod args;
mod files;
pub(crate) mod judge;
mod shell;
#[cfg(test)]
mod tests;

use serde::de::DeserializeOwned;
use serde_json::Value;
use warpsmith_judge::JudgeError;
use warpsmith_schema::{ToolCall, ToolSchema, Verdict};

use crate::clip::clip;
use crate::shell::ShellSandbox;
use crate::{EpisodeJudge, FencedFiles, Workspace};
use args::Todo;
pub(crate) use args::schemas;
use judge::{JudgeTools, SubmitMeasurement};

/// What a call gave.
pub(crate) struct ToolAnswer {
    pub(crate) text: String,
    pub(crate) failed: bool,
    pub(crate) effect: Effect,
}

/// What a call means for an episode.
pub(crate) enum Effect {
    Nothing,
    /// A check short of timing found it wrong.
    Checked(Box<Verdict>),
    /// The workspace was judged as it was.
    Judged(Box<Verdict>, FencedFiles),
    /// The same, and the agent is done.
    Submitted(Box<Verdict>, FencedFiles),
}

impl ToolAnswer {
    fn good(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            failed: false,
            effect: Effect::Nothing,
        }
    }

    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self {
            failed: true,
            ..Self::good(text)
        }
    }
}

pub(crate) struct Tools<'a> {
    workspace: Workspace,
    shell: shell::ShellTool,
    judge: EpisodeJudge<'a>,
    todo: Vec<Todo>,
    /// Most characters of one answer.
    answer_characters: usize,
}

impl<'a> Tools<'a> {
    pub(crate) fn new(
        workspace: Workspace,
        sandbox: ShellSandbox,
        judge: EpisodeJudge<'a>,
        answer_characters: usize,
    ) -> Self {
        let shell = shell::ShellTool::new(workspace.root().to_owned(), sandbox);
        Self {
            workspace,
            shell,
            judge,
            todo: Vec::new(),
            answer_characters,
        }
    }

    /// Only the judge's own failure is an error.
    pub(crate) fn call(&mut self, call: &ToolCall) -> Result<ToolAnswer, JudgeError> {
        let mut answer = self.dispatch(call)?;
        answer.text = clip(&answer.text, self.answer_characters);
        Ok(answer)
    }

    fn dispatch(&mut self, call: &ToolCall) -> Result<ToolAnswer, JudgeError> {
        let given = &call.arguments;
        let answer = match call.name.as_str() {
            "bash" => with_arguments(given, |args| self.bash(&args)),
            "bash_output" => with_arguments(given, |args: args::Job| self.bash_output(args.job)),
            "bash_kill" => with_arguments(given, |args: args::Job| self.bash_kill(args.job)),
            "read" => with_arguments(given, |args| self.read(&args)),
            "write" => with_arguments(given, |args: args::Write| self.write(&args)),
            "edit" => with_arguments(given, |args: args::Edit| {
                self.edit(&args.path, &[args.change])
            }),
            "multi_edit" => with_arguments(given, |args: args::MultiEdit| {
                self.edit(&args.path, &args.edits)
            }),
            "glob" => with_arguments(given, |args: args::Glob| self.glob(&args.pattern)),
            "grep" => with_arguments(given, |args| self.grep(&args)),
            "todo" => with_arguments(given, |args: args::Todos| self.set_todo(args.items)),
            other => {
                let mut judge_tools = JudgeTools {
                    workspace: &self.workspace,
                    judge: &mut self.judge,
                    submit: SubmitMeasurement::Known,
                };
                return judge_tools.call(call).unwrap_or_else(|| {
                    Ok(ToolAnswer::bad(format!(
                        "there is no tool `{other}`; there are {}",
                        args::NAMES.join(", ")
                    )))
                });
            }
        };
        Ok(answer)
    }

    fn set_todo(&mut self, items: Vec<Todo>) -> ToolAnswer {
        self.todo = items;
        let lines: Vec<String> = self.todo.iter().map(Todo::line).collect();
        ToolAnswer::good(lines.join("\n"))
    }
}

/// Reads a call's arguments, or says what is wrong with them.
fn with_arguments<T: DeserializeOwned>(
    given: &Value,
    act: impl FnOnce(T) -> ToolAnswer,
) -> ToolAnswer {
    match parse_arguments(given) {
        Ok(args) => act(args),
        Err(wrong) => wrong,
    }
}

fn try_with_arguments<T: DeserializeOwned>(
    given: &Value,
    act: impl FnOnce(T) -> Result<ToolAnswer, JudgeError>,
) -> Result<ToolAnswer, JudgeError> {
    match parse_arguments(given) {
        Ok(args) => act(args),
        Err(wrong) => Ok(wrong),
    }
}

fn parse_arguments<T: DeserializeOwned>(given: &Value) -> Result<T, ToolAnswer> {
    // A call without arguments comes as null or as an empty text from some servers.
    let given = match given {
        Value::Null => Value::Object(serde_json::Map::new()),
        Value::String(text) if text.trim().is_empty() => Value::Object(serde_json::Map::new()),
        Value::String(text) => {
            return Err(ToolAnswer::bad(format!(
                "the arguments are not a JSON object: {}",
                clip(text, 200)
            )));
        }
        other => other.clone(),
    };
    serde_json::from_value(given)
        .map_err(|error| ToolAnswer::bad(format!("the arguments do not fit this tool: {error}")))
}

/// All tools, as a policy is told of them.
pub fn tool_schemas() -> Vec<ToolSchema> {
    schemas()
}
