//! Task sets as files: JSONL, and Parquet where the crate is built with the feature `parquet`.
//!
//! Columns of the public sets are `ops`, `data_source` and `code`; ours are there too where we made the set. `KernelBench`'s
//! own files have `level`, `problem_id`, `name` and `code`. All are read, by the names of their columns.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use warpsmith_schema::OpGraph;

use crate::kernelbench::identifier;
use crate::{LoadedTask, TaskError};

/// A task of a set, with what is known about it. As JSON it is a line of the set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetTask {
    pub id: String,
    /// What it is composed of, such as `torch.nn.ReLU`.
    pub ops: Vec<String>,
    /// Where the parts are from and how many there are: `torch#2`.
    pub data_source: String,
    pub code: String,
    pub graph: Option<OpGraph>,
    /// Median time of the module in eager mode, where the set was made.
    pub eager_us: Option<f64>,
    pub split: Option<Portion>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Portion {
    Train,
    Validation,
}

impl Portion {
    /// The word used in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Validation => "validation",
        }
    }
}

/// Writes a set, whole or not at all: Parquet where the name ends in `.parquet`, else a JSON object a line.
pub fn write_set(path: &Path, tasks: &[SetTask]) -> Result<(), TaskError> {
    let failed = |source| TaskError::Write {
        path: path.to_path_buf(),
        source,
    };
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let file = fs_err::File::create(&partial).map_err(failed)?;
    let written = if is_parquet(path) {
        crate::parquet::write(path, file, tasks)
    } else {
        write_lines(file, tasks).map_err(failed)
    };
    let renamed = written.and_then(|()| fs_err::rename(&partial, path).map_err(failed));
    if renamed.is_err() {
        let _ = fs_err::remove_file(&partial);
    }
    renamed
}

fn write_lines(file: fs_err::File, tasks: &[SetTask]) -> io::Result<()> {
    let mut file = io::BufWriter::new(file);
    for task in tasks {
        serde_json::to_writer(&mut file, task)?;
        file.write_all(b"\n")?;
    }
    file.flush()
}

pub(crate) fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "parquet")
}

/// A line or a row as it is found. All but the code may be missing.
#[derive(Default, Deserialize)]
pub(crate) struct Row {
    pub(crate) level: Option<u32>,
    pub(crate) problem_id: Option<u32>,
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) ops: Option<Ops>,
    pub(crate) code: String,
    pub(crate) graph: Option<Graph>,
}

/// A list, or one text, in which some sets keep a list.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Ops {
    Several(Vec<String>),
    One(String),
}

/// An object, or its text where a column can only hold text.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Graph {
    Text(String),
    Object(OpGraph),
}

pub(crate) fn load_set(path: &Path) -> Result<Vec<LoadedTask>, TaskError> {
    let rows = if is_parquet(path) {
        crate::parquet::read(path)?
    } else {
        lines(path)?
    };
    let mut tasks = Vec::new();
    let mut first_lines = HashMap::new();
    for (number, row) in rows {
        let task = row
            .into_task(number, path)
            .map_err(|reason| broken(path, number, reason))?;
        if let Some(earlier) = first_lines.insert(task.id.clone(), number) {
            let reason = format!("task `{}` is already on line {earlier}", task.id);
            return Err(broken(path, number, reason));
        }
        tasks.push(task);
    }
    Ok(tasks)
}

pub(crate) fn broken(path: &Path, line: usize, reason: String) -> TaskError {
    TaskError::BrokenLine {
        path: path.to_path_buf(),
        line,
        reason,
    }
}

fn lines(path: &Path) -> Result<Vec<(usize, Row)>, TaskError> {
    let text = fs_err::read_to_string(path).map_err(|source| TaskError::Read {
        path: path.to_path_buf(),
        source,
    })?;
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let row = serde_json::from_str(line)
            .map_err(|error| broken(path, index + 1, error.to_string()))?;
        rows.push((index + 1, row));
    }
    Ok(rows)
}

impl Row {
    fn into_task(self, number: usize, path: &Path) -> Result<LoadedTask, String> {
        if self.code.trim().is_empty() {
            return Err("`code` is empty".into());
        }
        let id = match (self.id, &self.name) {
            (Some(id), _) => id,
            (None, Some(name)) => identifier(self.level, self.problem_id, name),
            // The public sets name none of their tasks.
            (None, None) => identifier(self.level, self.problem_id, &number.to_string()),
        };
        let ops = self.ops.map(|ops| match ops {
            Ops::Several(ops) => ops.join(" "),
            Ops::One(text) => text,
        });
        let name = self.name.or(ops.filter(|ops| !ops.is_empty()));
        let graph = match self.graph {
            None => None,
            Some(Graph::Object(graph)) => Some(graph),
            Some(Graph::Text(text)) if text.is_empty() => None,
            Some(Graph::Text(text)) => {
                let graph = serde_json::from_str(&text);
                Some(graph.map_err(|error| format!("`graph`: {error}"))?)
            }
        };
        Ok(LoadedTask {
            origin: format!("{}#{id}", path.display()),
            name: name.unwrap_or_else(|| id.clone()),
            id,
            source: self.code,
            level: self.level,
            problem_id: self.problem_id,
            graph,
        })
    }
}
