//! A single task by its selector, such as `FILE.jsonl#level1/19`.

use std::path::{Path, PathBuf};

use crate::TaskError;
use crate::kernelbench::{load_all, load_module, read_source};
use warpsmith_schema::Task;

/// How many ids a hint lists.
const SHOWN: usize = 6;

/// One task: a `.py` file, a folder with `model.py`, or one of many as `FILE.jsonl#level1/19`.
///
/// After the `#` stands an id (`level1/19`), or a number or a name that only one task has. The part before it may also be a
/// `KernelBench` folder. Without a `#` the file must hold one task.
pub fn load(spec: &str) -> Result<Task, TaskError> {
    let path = Path::new(spec);
    // A path that exists is taken as it is, even with a `#` in it.
    if path.exists() {
        return load_path(path);
    }
    match spec.rsplit_once('#') {
        Some((file, wanted)) if Path::new(file).exists() => choose(Path::new(file), wanted),
        Some((file, _)) => Err(TaskError::Missing {
            path: PathBuf::from(file),
        }),
        None => Err(TaskError::Missing {
            path: path.to_path_buf(),
        }),
    }
}

fn load_path(path: &Path) -> Result<Task, TaskError> {
    if path.is_dir() {
        let model = path.join("model.py");
        if !model.exists() {
            return Err(TaskError::NotATask {
                path: path.to_path_buf(),
                reason: "it has no `model.py`",
            });
        }
        let named = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let name = named
            .file_name()
            .map_or_else(|| "task".into(), |name| name.to_string_lossy().into_owned());
        return Ok(Task {
            id: name.clone(),
            name,
            source: read_source(&model)?,
            level: None,
            problem_id: None,
            origin: path.display().to_string(),
            graph: None,
        });
    }
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("py") => load_module(path),
        Some("jsonl" | "parquet") => {
            let mut tasks = load_all(path)?;
            match (tasks.len(), tasks.pop()) {
                (1, Some(only)) => Ok(only),
                (_, last) => {
                    tasks.extend(last);
                    Err(TaskError::Ambiguous {
                        path: path.to_path_buf(),
                        wanted: path.display().to_string(),
                        matches: shown_ids(tasks.iter()),
                    })
                }
            }
        }
        _ => Err(TaskError::NotATask {
            path: path.to_path_buf(),
            reason: "its name ends in none of `.py`, `.jsonl` and `.parquet`",
        }),
    }
}

fn choose(path: &Path, wanted: &str) -> Result<Task, TaskError> {
    let tasks = load_all(path)?;
    let number: Option<u32> = wanted.parse().ok();
    let by_id = |task: &&Task| task.id == wanted;
    let by_number_or_name = |task: &&Task| {
        task.name == wanted
            || (number.is_some() && task.problem_id == number)
            || matches_name(task, wanted)
    };
    // Ids are unique; numbers and names need not be.
    let mut matches: Vec<&Task> = tasks.iter().filter(by_id).collect();
    if matches.is_empty() {
        matches = tasks.iter().filter(by_number_or_name).collect();
    }
    match matches[..] {
        [only] => Ok(only.clone()),
        [] => Err(TaskError::NoSuchTask {
            path: path.to_path_buf(),
            wanted: wanted.to_owned(),
            some: shown_ids(tasks.iter()),
        }),
        _ => Err(TaskError::Ambiguous {
            path: path.to_path_buf(),
            wanted: wanted.to_owned(),
            matches: shown_ids(matches.into_iter()),
        }),
    }
}

/// Whether a task is meant by `level1/19_ReLU`, `level1/ReLU` or `ReLU`.
fn matches_name(task: &Task, wanted: &str) -> bool {
    let bare = task
        .name
        .split_once('_')
        .filter(|(number, _)| number.parse::<u32>().is_ok())
        .map(|(_, bare)| bare);
    match (task.level, wanted.split_once('/')) {
        (Some(level), Some((folder, name))) if folder == format!("level{level}") => {
            task.name == name || bare == Some(name)
        }
        _ => bare == Some(wanted),
    }
}

fn shown_ids<'a>(tasks: impl ExactSizeIterator<Item = &'a Task>) -> Vec<String> {
    let count = tasks.len();
    let mut ids: Vec<String> = tasks.take(SHOWN).map(|task| task.id.clone()).collect();
    if count > SHOWN {
        ids.push(format!("and {} more", count - SHOWN));
    }
    ids
}
