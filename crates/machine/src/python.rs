//! Finding a Python that has torch.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Caches, MachineError, Torch, command, environment};

/// A Python that has torch, and what a sandbox must show to run it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Python {
    /// `sys.executable`, links unresolved: the link inside a virtual environment is what makes it one.
    pub executable: PathBuf,
    pub version: String,
    /// Every folder that must be readable to run it.
    pub prefixes: Vec<PathBuf>,
    /// The folder with `Python.h`; only bindings need it.
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
pub(crate) struct PythonFacts {
    pub(crate) executable: PathBuf,
    pub(crate) version: String,
    prefixes: Vec<PathBuf>,
    path: Vec<PathBuf>,
    include: Option<PathBuf>,
    torch: Option<PathBuf>,
}

/// Finds a Python with torch; installs nothing.
pub fn find_python(choice: &PythonChoice, caches: &Caches) -> Result<Option<Python>, MachineError> {
    let wanted = match choice {
        PythonChoice::Given(path) => Some(path.clone()),
        PythonChoice::Auto => env::var_os("WARPSMITH_PYTHON")
            .filter(|value| !value.is_empty())
            .map(PathBuf::from),
    };
    if let Some(program) = wanted {
        // The user's choice overrides our tested range; the caller can warn with `Torch::tested`.
        return with_torch(inspect(&program)?, &program).map(Some);
    }
    let on_path = ["python3", "python"]
        .iter()
        .flat_map(|name| command::on_path(name))
        // A broken one must not hide a good one.
        .filter_map(|program| with_torch(inspect(&program).ok()?, &program).ok())
        .find(|python| python.torch.tested());
    Ok(on_path.or_else(|| own_environment(caches)))
}

/// Our own environment, if the installation is complete and still works.
pub(crate) fn own_environment(caches: &Caches) -> Option<Python> {
    let program = environment::installed(caches)?;
    with_torch(inspect(&program).ok()?, &program).ok()
}

pub(crate) fn inspect(program: &Path) -> Result<PythonFacts, MachineError> {
    let bad = |reason: String| MachineError::BadPython {
        program: program.to_path_buf(),
        reason,
    };
    // `-I`: neither PYTHONPATH nor the current folder decides which torch is found.
    let answer = command::run_briefly(Command::new(program).args(["-I", "-c", INSPECT]), LIMIT)?;
    if !answer.success {
        let last = answer
            .stderr
            .lines()
            .last()
            .unwrap_or("it failed without a message")
            .to_owned();
        return Err(bad(last));
    }
    serde_json::from_str(&answer.stdout)
        .map_err(|error| bad(format!("its answer was not understood ({error})")))
}

fn with_torch(facts: PythonFacts, program: &Path) -> Result<Python, MachineError> {
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

/// The prefixes, and folders outside them: those a `.pth` file added, and the targets of links.
fn needed_folders(facts: &PythonFacts, torch: &Torch) -> Vec<PathBuf> {
    let mut wanted = facts.prefixes.clone();
    wanted.extend(facts.path.iter().cloned());
    // The real binary, and libpython beside it, may lie outside the prefix.
    if let Ok(real) = fs_err::canonicalize(&facts.executable) {
        wanted.extend(real.parent().map(Path::to_path_buf));
    }
    // The nvidia libraries lie beside torch, also where an installer linked torch from its own cache.
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
