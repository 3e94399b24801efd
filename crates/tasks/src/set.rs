//! Task sets as files: JSONL, and Parquet where the crate is built with the feature `parquet`.
//!
//! Public sets have the columns `ops`, `data_source` and `code`; sets made by `synth` have more. `KernelBench`'s own files have
//! `level`, `problem_id`, `name` and `code`. All of these are read, by the names of their columns.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use warpsmith_schema::{OpGraph, Task};

use crate::TaskError;
use crate::kernelbench::{identifier, load_all};

/// A task of a set with its public columns. Its JSON is a line of the set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetTask {
    pub id: String,
    /// These three where the set it is from has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem_id: Option<u32>,
    /// The operators that it is composed of, such as `torch.nn.ReLU`.
    pub ops: Vec<String>,
    /// The library of the operators and their number: `torch#2`; else where the task is from.
    pub data_source: String,
    pub code: String,
    pub graph: Option<OpGraph>,
    /// The median time of an eager call on the device that the set was made on.
    pub eager_us: Option<f64>,
    pub split: Option<SetSplit>,
}

/// The two sides of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SetSplit {
    Train,
    Validation,
}

impl SetSplit {
    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Validation => "validation",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::Train, Self::Validation]
            .into_iter()
            .find(|split| split.name() == name)
    }
}

/// Writes a set completely or not at all: as Parquet if the name ends in `.parquet`, else as JSON lines.
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

/// A line or a row of any set. All columns but `code` may be missing.
#[derive(Default, Deserialize)]
pub(crate) struct SetRow {
    pub(crate) level: Option<u32>,
    pub(crate) problem_id: Option<u32>,
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) ops: Option<OpsColumn>,
    pub(crate) code: String,
    pub(crate) graph: Option<GraphColumn>,
    pub(crate) data_source: Option<String>,
    pub(crate) eager_us: Option<f64>,
    pub(crate) split: Option<String>,
}

/// A list, or a text as some sets have it.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum OpsColumn {
    Several(Vec<String>),
    One(String),
}

/// An object, or its JSON in a column of text.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum GraphColumn {
    Text(String),
    Object(OpGraph),
}

pub(crate) fn load_set(path: &Path) -> Result<Vec<Task>, TaskError> {
    let rows = read_rows(path)?.into_iter();
    Ok(rows.map(|(task, _)| task).collect())
}

/// Tasks with all columns of their set: of a folder, JSONL or Parquet.
pub fn read_set(path: &Path) -> Result<Vec<SetTask>, TaskError> {
    let from = path.file_stem().unwrap_or_default().to_string_lossy();
    if path.is_dir() {
        let tasks = load_all(path)?.into_iter();
        return Ok(tasks.map(|task| SetTask::of(task, &from)).collect());
    }
    let set_task = |(task, row): (Task, SetColumns)| SetTask {
        ops: row.ops,
        eager_us: row.eager_us,
        split: row.split,
        ..SetTask::of(task, row.data_source.as_deref().unwrap_or(&from))
    };
    Ok(read_rows(path)?.into_iter().map(set_task).collect())
}

impl SetTask {
    fn of(task: Task, data_source: &str) -> Self {
        Self {
            name: (task.name != task.id).then_some(task.name),
            id: task.id,
            level: task.level,
            problem_id: task.problem_id,
            ops: Vec::new(),
            data_source: data_source.to_owned(),
            code: task.source,
            graph: task.graph,
            eager_us: None,
            split: None,
        }
    }
}

/// What a row has beyond its task.
struct SetColumns {
    ops: Vec<String>,
    data_source: Option<String>,
    eager_us: Option<f64>,
    split: Option<SetSplit>,
}

fn read_rows(path: &Path) -> Result<Vec<(Task, SetColumns)>, TaskError> {
    let rows = if is_parquet(path) {
        crate::parquet::read(path)?
    } else {
        lines(path)?
    };
    let mut tasks = Vec::new();
    let mut first_lines = HashMap::new();
    for (number, row) in rows {
        let columns = row.columns();
        let task = row
            .into_task(number, path)
            .map_err(|reason| broken_line(path, number, reason))?;
        if let Some(earlier) = first_lines.insert(task.id.clone(), number) {
            let reason = format!("task `{}` is already on line {earlier}", task.id);
            return Err(broken_line(path, number, reason));
        }
        tasks.push((task, columns));
    }
    Ok(tasks)
}

pub(crate) fn broken_line(path: &Path, line: usize, reason: String) -> TaskError {
    TaskError::BrokenLine {
        path: path.to_path_buf(),
        line,
        reason,
    }
}

fn lines(path: &Path) -> Result<Vec<(usize, SetRow)>, TaskError> {
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
            .map_err(|error| broken_line(path, index + 1, error.to_string()))?;
        rows.push((index + 1, row));
    }
    Ok(rows)
}

impl SetRow {
    fn columns(&self) -> SetColumns {
        SetColumns {
            ops: match &self.ops {
                Some(OpsColumn::Several(ops)) => ops.clone(),
                Some(OpsColumn::One(text)) if !text.is_empty() => vec![text.clone()],
                _ => Vec::new(),
            },
            data_source: self.data_source.clone(),
            eager_us: self.eager_us,
            split: self.split.as_deref().and_then(SetSplit::named),
        }
    }

    fn into_task(self, number: usize, path: &Path) -> Result<Task, String> {
        if self.code.trim().is_empty() {
            return Err("`code` is empty".into());
        }
        let id = match (self.id, &self.name) {
            (Some(id), _) => id,
            (None, Some(name)) => identifier(self.level, self.problem_id, name),
            // Public sets have no names.
            (None, None) => identifier(self.level, self.problem_id, &number.to_string()),
        };
        let ops = self.ops.map(|ops| match ops {
            OpsColumn::Several(ops) => ops.join(" "),
            OpsColumn::One(text) => text,
        });
        let name = self.name.or(ops.filter(|ops| !ops.is_empty()));
        let graph = match self.graph {
            None => None,
            Some(GraphColumn::Object(graph)) => Some(graph),
            Some(GraphColumn::Text(text)) if text.is_empty() => None,
            Some(GraphColumn::Text(text)) => {
                let graph = serde_json::from_str(&text);
                Some(graph.map_err(|error| format!("`graph`: {error}"))?)
            }
        };
        Ok(Task {
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
