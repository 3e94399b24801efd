//! Tasks from modules and folders: a single `.py` file, or a `KernelBench` checkout.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::TaskError;
use crate::set::load_set;
use warpsmith_schema::{MODEL_NEW, Task};

/// A larger file was named by mistake.
const SOURCE_LIMIT_BYTES: u64 = 2 << 20;

/// Every task of a `KernelBench` folder, of a JSONL file or of a Parquet file, in order of level and number.
///
/// A folder may be the checkout, its `KernelBench/`, one `level1/`, or any folder of `.py` files.
pub fn load_all(path: &Path) -> Result<Vec<Task>, TaskError> {
    let found = fs_err::metadata(path).map_err(|_| TaskError::Missing {
        path: path.to_path_buf(),
    })?;
    let mut tasks = if found.is_dir() {
        load_folder(path)?
    } else {
        load_set(path)?
    };
    if tasks.is_empty() {
        return Err(TaskError::Empty {
            path: path.to_path_buf(),
            sets: if found.is_dir() {
                sets(path)?
            } else {
                Vec::new()
            },
        });
    }
    // The sort is stable: tasks without numbers keep the order of their lines.
    tasks.sort_by_key(sort_key);
    Ok(tasks)
}

fn load_folder(path: &Path) -> Result<Vec<Task>, TaskError> {
    let nested = path.join("KernelBench");
    let path = if nested.is_dir() {
        nested.as_path()
    } else {
        path
    };
    let mut files = modules(path)?;
    for folder in entries(path)? {
        if folder.is_dir() && level_of(&folder).is_some() {
            files.extend(modules(&folder)?);
        }
    }
    files.iter().map(|file| load_module(file)).collect()
}

/// Files in a folder that may be sets. Several would each be another choice, so none is read unasked.
fn sets(folder: &Path) -> Result<Vec<PathBuf>, TaskError> {
    let is_set = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        matches!(ending, Some("jsonl" | "parquet"))
    };
    Ok(entries(folder)?.into_iter().filter(is_set).collect())
}

fn sort_key(task: &Task) -> (u32, u32) {
    (
        task.level.unwrap_or(u32::MAX),
        task.problem_id.unwrap_or(u32::MAX),
    )
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, TaskError> {
    let read = |source| TaskError::Read {
        path: folder.to_path_buf(),
        source,
    };
    let mut paths = fs_err::read_dir(folder)
        .map_err(read)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(read)?;
    paths.sort();
    Ok(paths)
}

fn modules(folder: &Path) -> Result<Vec<PathBuf>, TaskError> {
    let is_module = |path: &PathBuf| {
        path.extension().is_some_and(|ending| ending == "py")
            && path.is_file()
            // A solution may lie beside its task.
            && !path
                .file_name()
                .is_some_and(|name| name == MODEL_NEW || name.as_encoded_bytes().starts_with(b"_"))
    };
    Ok(entries(folder)?.into_iter().filter(is_module).collect())
}

/// The number in a folder name such as `level3`.
fn level_of(folder: &Path) -> Option<u32> {
    folder
        .file_name()?
        .to_str()?
        .strip_prefix("level")?
        .parse()
        .ok()
}

/// One module. In a `KernelBench` folder its path tells its level and number.
pub(crate) fn load_module(path: &Path) -> Result<Task, TaskError> {
    let source = read_source(path)?;
    let name = path
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let level = absolute.parent().and_then(level_of);
    let problem_id = name
        .split_once('_')
        .and_then(|(number, _)| number.parse().ok())
        .filter(|_| level.is_some());
    Ok(Task {
        id: identifier(level, problem_id, &name),
        name,
        source,
        level,
        problem_id,
        origin: path.display().to_string(),
        graph: None,
    })
}

pub(crate) fn read_source(path: &Path) -> Result<String, TaskError> {
    let read = |source| TaskError::Read {
        path: path.to_path_buf(),
        source,
    };
    if !path.is_file() {
        return Err(TaskError::NotATask {
            path: path.to_path_buf(),
            reason: "it is not a regular file",
        });
    }
    let mut source = String::new();
    fs_err::File::open(path)
        .map_err(read)?
        .take(SOURCE_LIMIT_BYTES + 1)
        .read_to_string(&mut source)
        .map_err(read)?;
    if source.len() as u64 > SOURCE_LIMIT_BYTES {
        return Err(TaskError::FileTooLarge {
            path: path.to_path_buf(),
            limit_bytes: SOURCE_LIMIT_BYTES,
        });
    }
    if source.trim().is_empty() {
        return Err(TaskError::NotATask {
            path: path.to_path_buf(),
            reason: "it is empty",
        });
    }
    Ok(source)
}

pub(crate) fn identifier(level: Option<u32>, problem_id: Option<u32>, name: &str) -> String {
    match (level, problem_id) {
        (Some(level), Some(problem)) => format!("level{level}/{problem}"),
        (Some(level), None) => format!("level{level}/{name}"),
        _ => name.to_owned(),
    }
}
