use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Caches, MachineError, Torch, command, environment};

/// A Python that has torch, and all that is needed to run it where little else can be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Python {
    /// As Python names itself. Not resolved: the link inside a virtual environment is what makes it one.
    pub executable: PathBuf,
    pub version: String,
    /// Every folder that must be readable to run it.
    pub prefixes: Vec<PathBuf>,
    /// The folder with `Python.h`, which only bindings need.
    pub include: Option<PathBuf>,
    pub torch: Torch,
}

/// Which Python the user wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PythonChoice {
    /// `--python`: this one or an error, never another.
    Given(PathBuf),
    /// `WARPSMITH_PYTHON`, else one on the PATH with a tested torch, else our own.
    Auto,
}

const INSPECT: &str = include_str!("inspect.py");
const LIMIT: Duration = Duration::from_secs(20);

/// What `inspect.py` prints.
#[derive(Debug, Deserialize)]
pub(crate) struct Facts {
    pub(crate) executable: PathBuf,
    pub(crate) version: String,
    prefixes: Vec<PathBuf>,
    path: Vec<PathBuf>,
    include: Option<PathBuf>,
    torch: Option<PathBuf>,
}

/// Looks for a Python with torch and installs nothing.
pub fn find_python(choice: &PythonChoice, caches: &Caches) -> Result<Option<Python>, MachineError> {
    let wanted = match choice {
        PythonChoice::Given(path) => Some(path.clone()),
        PythonChoice::Auto => env::var_os("WARPSMITH_PYTHON")
            .filter(|value| !value.is_empty())
            .map(PathBuf::from),
    };
    if let Some(program) = wanted {
        // The user's word beats our tested range: `Torch::tested` lets the caller warn.
        return with_torch(inspect(&program)?, &program).map(Some);
    }
    let on_path = ["python3", "python"]
        .iter()
        .flat_map(|name| command::on_path(name))
        // One of many that is broken must not hide a good one.
        .filter_map(|program| with_torch(inspect(&program).ok()?, &program).ok())
        .find(|python| python.torch.tested());
    Ok(on_path.or_else(|| own(caches)))
}

/// Our own environment, if it was installed to the end and still works.
pub(crate) fn own(caches: &Caches) -> Option<Python> {
    let program = environment::installed(caches)?;
    with_torch(inspect(&program).ok()?, &program).ok()
}

pub(crate) fn inspect(program: &Path) -> Result<Facts, MachineError> {
    let bad = |reason: String| MachineError::BadPython {
        program: program.to_path_buf(),
        reason,
    };
    // `-I`: neither PYTHONPATH nor the current folder may decide which torch is found.
    let answer = command::ask(Command::new(program).args(["-I", "-c", INSPECT]), LIMIT)?;
    if !answer.success {
        let last = answer
            .stderr
            .lines()
            .last()
            .unwrap_or("it failed without a word")
            .to_owned();
        return Err(bad(last));
    }
    serde_json::from_str(&answer.stdout)
        .map_err(|error| bad(format!("its answer was not understood ({error})")))
}

fn with_torch(facts: Facts, program: &Path) -> Result<Python, MachineError> {
    let torch = facts
        .torch
        .as_deref()
        .and_then(Torch::read)
        .ok_or_else(|| MachineError::NoTorch {
            program: program.to_path_buf(),
        })?;
    Ok(Python {
        prefixes: needed_folders(&facts, &torch),
        executable: facts.executable,
        version: facts.version,
        include: facts.include,
        torch,
    })
}

/// The prefixes, and what lies outside them: folders a `.pth` file added, the target of each link.
fn needed_folders(facts: &Facts, torch: &Torch) -> Vec<PathBuf> {
    let mut wanted = facts.prefixes.clone();
    wanted.extend(facts.path.iter().cloned());
    // The real binary, and the libpython beside it, may lie elsewhere than the prefix says.
    if let Ok(real) = fs_err::canonicalize(&facts.executable) {
        wanted.extend(real.parent().map(Path::to_path_buf));
    }
    // The nvidia libraries lie beside torch, also where an installer linked it from its own cache.
    wanted.extend(torch.dir.parent().map(Path::to_path_buf));
    if let Ok(real) = fs_err::canonicalize(&torch.dir) {
        wanted.extend(real.parent().map(Path::to_path_buf));
    }
    let resolved: Vec<PathBuf> = wanted
        .iter()
        .filter_map(|folder| fs_err::canonicalize(folder).ok())
        .collect();
    wanted.extend(resolved);
    let mut folders: Vec<PathBuf> = Vec::new();
    for folder in wanted {
        if folder.is_dir() && !folders.iter().any(|known| folder.starts_with(known)) {
            folders.retain(|known| !known.starts_with(&folder));
            folders.push(folder);
        }
    }
    folders
}
