//! Published collections of kernels and of conversations, as Parquet: each row becomes a trajectory that nobody judged.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use warpsmith_schema::{Message, Trajectory};

use crate::TrainError;

/// What is what in a Parquet file: `messages=COL`, `prompt=COL,reply=COL` or `source=COL,code=COL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Columns {
    /// Conversations: lists of `{role, content}`, the assistant's turns to be learnt.
    Messages { messages: String },
    /// A question and its answer, as they are.
    Texts { prompt: String, reply: String },
    /// A PyTorch module and the file that replaces it, in the form of an episode: what a policy here is asked, and answers.
    Modules { source: String, code: String },
}

impl Default for Columns {
    /// As `warpsmith export` writes them, and most published conversations.
    fn default() -> Self {
        Self::Messages {
            messages: "messages".to_owned(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names no columns: give `messages=COLUMN`, `prompt=COLUMN,reply=COLUMN` or `source=COLUMN,code=COLUMN`"
)]
pub struct ColumnsError(String);

impl FromStr for Columns {
    type Err = ColumnsError;

    fn from_str(text: &str) -> Result<Self, ColumnsError> {
        let wrong = || ColumnsError(text.to_owned());
        let pairs: Option<Vec<(&str, &str)>> =
            text.split(',').map(|pair| pair.split_once('=')).collect();
        let mut pairs = pairs.ok_or_else(wrong)?;
        pairs.sort_unstable();
        if pairs.iter().any(|(_, column)| column.is_empty()) {
            return Err(wrong());
        }
        match *pairs.as_slice() {
            [("messages", messages)] => Ok(Self::Messages {
                messages: messages.to_owned(),
            }),
            [("prompt", prompt), ("reply", reply)] => Ok(Self::Texts {
                prompt: prompt.to_owned(),
                reply: reply.to_owned(),
            }),
            [("code", code), ("source", source)] => Ok(Self::Modules {
                source: source.to_owned(),
                code: code.to_owned(),
            }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Messages { messages } => write!(out, "messages={messages}"),
            Self::Texts { prompt, reply } => write!(out, "prompt={prompt},reply={reply}"),
            Self::Modules { source, code } => write!(out, "source={source},code={code}"),
        }
    }
}

/// Which of a benchmark's tasks a text holds, if any.
pub type BenchmarkTask<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// What a collection has.
#[derive(Debug, Default)]
pub(super) struct Collection {
    pub(super) trajectories: Vec<Trajectory>,
    /// Tasks of a benchmark, one for each row that was left out because it holds it.
    pub(super) benchmark: Vec<String>,
}

/// Every row that has what the columns name. Rows with nothing there are left out, and those that hold a benchmark's task.
pub(super) fn read_collection(
    path: &Path,
    columns: &Columns,
    benchmark_task: &BenchmarkTask<'_>,
) -> Result<Collection, TrainError> {
    let rows = present::read(path, columns).map_err(|reason| TrainError::Collection {
        path: path.to_path_buf(),
        reason,
    })?;
    let mut found = Collection::default();
    for row in rows {
        let held = given_texts(&row).find_map(benchmark_task);
        match held {
            Some(task) => found.benchmark.push(task),
            None => found.trajectories.push(row),
        }
    }
    Ok(found)
}

/// What came of the row. The prompt around a module is ours and has an example of its own.
fn given_texts(row: &Trajectory) -> impl Iterator<Item = &str> {
    let source = &row.task.source;
    let ours =
        |message: &Message| !source.is_empty() && !matches!(message, Message::Assistant { .. });
    let said = row.messages.iter().filter(move |message| !ours(message));
    std::iter::once(source.as_str()).chain(said.map(Message::text))
}

#[cfg(not(feature = "parquet"))]
mod present {
    use std::path::Path;

    use warpsmith_schema::Trajectory;

    use super::Columns;

    pub(super) fn read(_: &Path, _: &Columns) -> Result<Vec<Trajectory>, String> {
        Err("this build cannot read Parquet: build it with the feature `parquet`".to_owned())
    }
}

#[cfg(feature = "parquet")]
mod present {
    use std::path::Path;

    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::{Field, Row};
    use warpsmith_agent::{PromptStyle, unjudged_trajectory};
    use warpsmith_schema::{
        EpisodeEnding, EpisodeMode, Message, PolicyVersion, Target, Task, Trajectory,
    };

    use super::Columns;

    pub(super) fn read(path: &Path, columns: &Columns) -> Result<Vec<Trajectory>, String> {
        let file = fs_err::File::open(path).map_err(|error| error.to_string())?;
        let failed = |error: parquet::errors::ParquetError| error.to_string();
        let reader = SerializedFileReader::new(file.into_parts().0).map_err(failed)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let mut found = Vec::new();
        for (number, row) in reader.get_row_iter(None).map_err(failed)?.enumerate() {
            let row = row.map_err(failed)?;
            let id = format!("{name}-{}", number + 1);
            let made = made(&row, columns, &id);
            found.extend(made.map_err(|reason| format!("row {}: {reason}", number + 1))?);
        }
        Ok(found)
    }

    /// `None` where there is nothing to learn.
    fn made(row: &Row, columns: &Columns, id: &str) -> Result<Option<Trajectory>, String> {
        let policy = PolicyVersion {
            name: "collection".to_owned(),
            hash: None,
            step: None,
        };
        let messages = match columns {
            Columns::Modules { source, code } => {
                let (Some(source), Some(code)) = (text(row, source)?, text(row, code)?) else {
                    return Ok(None);
                };
                let task = task(id, source);
                let fence = if code.contains("```") { "````" } else { "```" };
                let reply = format!(
                    "write model_new.py\n{fence}python\n{}\n{fence}",
                    code.trim_end()
                );
                let style = PromptStyle::Full;
                let made = unjudged_trajectory(&task, Target::Cuda, style, &policy, 1, reply);
                return Ok(Some(made));
            }
            Columns::Texts { prompt, reply } => {
                let (Some(prompt), Some(reply)) = (text(row, prompt)?, text(row, reply)?) else {
                    return Ok(None);
                };
                vec![Message::User { text: prompt }, said(reply)]
            }
            Columns::Messages { messages } => conversation(field(row, messages)?)?,
        };
        let says = |message: &Message| matches!(message, Message::Assistant { text, .. } if !text.trim().is_empty());
        if !messages.iter().any(says) {
            return Ok(None);
        }
        let task = task(id, String::new());
        Ok(Some(Trajectory {
            id: id.to_owned(),
            messages,
            ending: EpisodeEnding::Finished,
            ..Trajectory::begin(&task, Target::Cuda, &policy, 1, EpisodeMode::Single)
        }))
    }

    fn task(id: &str, source: String) -> Task {
        Task {
            id: id.to_owned(),
            name: id.to_owned(),
            source,
            level: None,
            problem_id: None,
            origin: "collection".to_owned(),
            graph: None,
        }
    }

    fn said(text: String) -> Message {
        Message::Assistant {
            text,
            calls: Vec::new(),
        }
    }

    fn conversation(field: &Field) -> Result<Vec<Message>, String> {
        let list = match field {
            Field::Null => return Ok(Vec::new()),
            Field::ListInternal(list) => list,
            _ => return Err("the conversation is no list of `{role, content}`".to_owned()),
        };
        let turn = |field: &Field| {
            let Field::Group(turn) = field else {
                return Err("a turn of the conversation is no `{role, content}`".to_owned());
            };
            let role = text(turn, "role")?.unwrap_or_default();
            let text = text(turn, "content")?.unwrap_or_default();
            match role.as_str() {
                "system" => Ok(Message::System { text }),
                "user" => Ok(Message::User { text }),
                "assistant" => Ok(said(text)),
                other => Err(format!("there is no role `{other}` to learn from")),
            }
        };
        list.elements().iter().map(turn).collect()
    }

    fn field<'a>(row: &'a Row, column: &str) -> Result<&'a Field, String> {
        let found = row.get_column_iter().find(|(name, _)| *name == column);
        found.map(|(_, field)| field).ok_or_else(|| {
            let names: Vec<&str> = row
                .get_column_iter()
                .map(|(name, _)| name.as_str())
                .collect();
            format!(
                "there is no column `{column}`; there are {}",
                names.join(", ")
            )
        })
    }

    fn text(row: &Row, column: &str) -> Result<Option<String>, String> {
        match field(row, column)? {
            Field::Null => Ok(None),
            Field::Str(text) if text.trim().is_empty() => Ok(None),
            Field::Str(text) => Ok(Some(text.clone())),
            Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
                Ok(text) => Ok(Some(text.to_owned())),
                Err(_) => Err(format!("`{column}` is no text")),
            },
            _ => Err(format!("`{column}` is no text")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_named_by_what_they_hold() {
        for text in [
            "messages=chat",
            "prompt=q,reply=a",
            "source=python_code,code=triton_code",
        ] {
            assert_eq!(text.parse::<Columns>().unwrap().to_string(), text);
        }
        let swapped: Columns = "code=b,source=a".parse().unwrap();
        assert_eq!(swapped.to_string(), "source=a,code=b");
        for wrong in [
            "",
            "messages",
            "messages=",
            "prompt=a",
            "prompt=a,code=b",
            "a=b",
        ] {
            assert!(wrong.parse::<Columns>().is_err(), "{wrong}");
        }
        assert_eq!(Columns::default().to_string(), "messages=messages");
    }
}
