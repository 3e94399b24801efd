//! What an agent can do: its tools, their schemas, and what a call gives.
//!
//! Nothing an agent asks for is dropped. A call that cannot be understood is answered with what was wrong with it.

mod args;
mod files;
pub(crate) mod judging;
mod shell;
#[cfg(test)]
mod tests;

use serde::de::DeserializeOwned;
use serde_json::Value;
use warpsmith_judge::JudgeError;
use warpsmith_schema::{ToolCall, ToolSchema, Verdict};

use crate::clip::clip;
use crate::shell::Confines;
use crate::{Court, Files, Workspace};
use args::Todo;
pub(crate) use args::schemas;
use judging::Judging;

/// What a call gave.
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) failed: bool,
    pub(crate) effect: Effect,
}

/// What a call means for the episode.
pub(crate) enum Effect {
    Nothing,
    /// The judge went part of the way and found it wrong.
    Rehearsed(Box<Verdict>),
    /// The workspace was judged as it was.
    Judged(Box<Verdict>, Files),
    /// The same, and the agent is done.
    Submitted(Box<Verdict>, Files),
}

impl Answer {
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
    shell: shell::Keeper,
    court: &'a mut dyn Court,
    todo: Vec<Todo>,
    /// Most characters of one answer.
    answer_characters: usize,
}

impl<'a> Tools<'a> {
    pub(crate) fn new(
        workspace: Workspace,
        confines: Confines,
        court: &'a mut dyn Court,
        answer_characters: usize,
    ) -> Self {
        let shell = shell::Keeper::new(workspace.root().to_owned(), confines);
        Self {
            workspace,
            shell,
            court,
            todo: Vec::new(),
            answer_characters,
        }
    }

    /// Only the judge's own failure is an error.
    pub(crate) fn call(&mut self, call: &ToolCall) -> Result<Answer, JudgeError> {
        let mut answer = self.dispatch(call)?;
        answer.text = clip(&answer.text, self.answer_characters);
        Ok(answer)
    }

    fn dispatch(&mut self, call: &ToolCall) -> Result<Answer, JudgeError> {
        let given = &call.arguments;
        let answer = match call.name.as_str() {
            "bash" => with(given, |args| self.bash(&args)),
            "bash_output" => with(given, |args: args::Job| self.bash_output(args.job)),
            "bash_kill" => with(given, |args: args::Job| self.bash_kill(args.job)),
            "read" => with(given, |args| self.read(&args)),
            "write" => with(given, |args: args::Write| self.write(&args)),
            "edit" => with(given, |args: args::Edit| {
                self.edit(&args.path, &[args.change])
            }),
            "multi_edit" => with(given, |args: args::MultiEdit| {
                self.edit(&args.path, &args.edits)
            }),
            "glob" => with(given, |args: args::Glob| self.glob(&args.pattern)),
            "grep" => with(given, |args| self.grep(&args)),
            "todo" => with(given, |args: args::Todos| self.note(args.items)),
            other => {
                let mut judging = Judging {
                    workspace: &self.workspace,
                    court: &mut *self.court,
                };
                return judging.call(call).unwrap_or_else(|| {
                    Ok(Answer::bad(format!(
                        "there is no tool `{other}`; there are {}",
                        args::NAMES.join(", ")
                    )))
                });
            }
        };
        Ok(answer)
    }

    fn note(&mut self, items: Vec<Todo>) -> Answer {
        self.todo = items;
        let lines: Vec<String> = self.todo.iter().map(Todo::line).collect();
        Answer::good(lines.join("\n"))
    }
}

/// Reads a call's arguments, or says what is wrong with them.
fn with<T: DeserializeOwned>(given: &Value, act: impl FnOnce(T) -> Answer) -> Answer {
    match read(given) {
        Ok(args) => act(args),
        Err(wrong) => wrong,
    }
}

fn tried<T: DeserializeOwned>(
    given: &Value,
    act: impl FnOnce(T) -> Result<Answer, JudgeError>,
) -> Result<Answer, JudgeError> {
    match read(given) {
        Ok(args) => act(args),
        Err(wrong) => Ok(wrong),
    }
}

fn read<T: DeserializeOwned>(given: &Value) -> Result<T, Answer> {
    // A call without arguments comes as null or as an empty text from some servers.
    let given = match given {
        Value::Null => Value::Object(serde_json::Map::new()),
        Value::String(text) if text.trim().is_empty() => Value::Object(serde_json::Map::new()),
        Value::String(text) => {
            return Err(Answer::bad(format!(
                "the arguments are not a JSON object: {}",
                clip(text, 200)
            )));
        }
        other => other.clone(),
    };
    serde_json::from_value(given)
        .map_err(|error| Answer::bad(format!("the arguments do not fit this tool: {error}")))
}

/// All tools, as a policy is told of them.
pub fn tool_schemas() -> Vec<ToolSchema> {
    schemas()
}
