//! Operator graphs read from the modules themselves.
//!
//! `python/capture.py` traces a module with `torch.export` under fake tensors, writes its `ATen` graph in PyTorch's
//! functional names, interprets that graph and compares the result with the module on real inputs. A graph that does not compute what
//! the module computes is never handed out. Tasks are trusted: their code runs in this user's own Python.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use warpsmith_machine::{Caches, MachineError, Python, run_briefly};
use warpsmith_schema::{OpGraph, Task};

use crate::scaled;

/// By name; the first is run, the others are what it imports.
const SCRIPTS: [(&str, &str); 3] = [
    ("capture.py", include_str!("../python/capture.py")),
    ("translate.py", include_str!("../python/translate.py")),
    ("functional.py", include_str!("../python/functional.py")),
];

/// A graph whose values are too large to compute here is compared on the module with its constants divided by this.
const SMALLER_BY: u32 = 16;

/// Tracing takes seconds; the comparison runs the module twice on real inputs, which takes longer on a slow processor.
const LIMIT: Duration = Duration::from_mins(5);

/// Captures side by side at most: each holds PyTorch and a module's values in memory.
const MAX_CAPTURES: usize = 8;

/// What the script prints, and what the cache keeps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Graph(Box<OpGraph>),
    Failed(NotCaptured),
}

/// Why a module has no graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct NotCaptured {
    pub stage: CaptureStage,
    pub message: String,
    /// The operator that has no place in a graph.
    pub operator: Option<String>,
    /// The line of `model.py` where it happened.
    pub line: Option<u32>,
}

/// Where a capture ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureStage {
    /// `model.py` does not load, or its module cannot be made.
    Load,
    /// `torch.export` cannot follow `forward`.
    Trace,
    /// The traced program has something that a graph cannot say.
    Translate,
    /// The graph does not compute what the module computes.
    Compare,
}

#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error("the module's graph cannot be captured")]
    NotCaptured(#[from] NotCaptured),
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error("the capture of a graph ended without an answer: {message}")]
    NoAnswer { message: String },
    #[error("failed to keep a captured graph")]
    Cache(#[source] std::io::Error),
}

impl CaptureError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotCaptured(NotCaptured { stage, .. }) => Some(match stage {
                CaptureStage::Load => "run the file with Python to see the whole error",
                CaptureStage::Trace => {
                    "`forward` must not branch on values of tensors; branches on the configuration are fine"
                }
                CaptureStage::Translate => {
                    "write that line with operators of PyTorch; an agent (`--policy`) needs no graph"
                }
                CaptureStage::Compare => {
                    "a random operator, or state that changes from call to call, cannot be captured"
                }
            }),
            Self::NoAnswer { .. } => {
                Some("a module that needs more memory than there is ends like this")
            }
            Self::Machine(_) | Self::Cache(_) => None,
        }
    }
}

/// The graph of a task's module. It is kept by the hash of the source, the scripts and PyTorch's version, refusals too.
pub fn capture(task: &Task, python: &Python, caches: &Caches) -> Result<OpGraph, CaptureError> {
    let mut hasher = blake3::Hasher::new();
    let scripts = SCRIPTS.iter().map(|(_, script)| *script);
    for part in scripts.chain([python.torch.version.as_str(), task.source.as_str()]) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let folder = caches.graphs();
    let kept = folder.join(format!("{}.json", hasher.finalize().to_hex()));
    let reply = if let Some(reply) = read_kept(&kept) {
        reply
    } else {
        let reply = run(task, python)?;
        keep(&folder, &kept, &reply).map_err(CaptureError::Cache)?;
        reply
    };
    match reply {
        Reply::Graph(graph) => Ok(*graph),
        Reply::Failed(reason) => Err(reason.into()),
    }
}

/// The graphs of tasks that came without one, in the order of `tasks`; several are captured side by side.
pub fn capture_missing(
    tasks: &[Task],
    python: &Python,
    caches: &Caches,
) -> Vec<Option<Result<OpGraph, CaptureError>>> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let captures: Vec<OnceLock<Result<OpGraph, CaptureError>>> =
        tasks.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..cores.min(MAX_CAPTURES).min(tasks.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(index) else { break };
                    if task.graph.is_none() {
                        captures[index].get_or_init(|| capture(task, python, caches));
                    }
                }
            });
        }
    });
    captures.into_iter().map(OnceLock::into_inner).collect()
}

/// A file that is broken or of an older program is made again.
fn read_kept(path: &Path) -> Option<Reply> {
    serde_json::from_slice(&fs_err::read(path).ok()?).ok()
}

/// Written beside its place and moved there, so that nobody reads half of it.
fn keep(folder: &Path, path: &Path, reply: &Reply) -> std::io::Result<()> {
    fs_err::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer(&mut file, reply)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

fn run(task: &Task, python: &Python) -> Result<Reply, CaptureError> {
    let folder = tempfile::tempdir().map_err(CaptureError::Cache)?;
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs_err::write(&path, text).map_err(CaptureError::Cache)?;
        Ok::<_, CaptureError>(path)
    };
    for (name, script) in SCRIPTS {
        write(name, script)?;
    }
    let mut command = Command::new(&python.executable);
    command
        .current_dir(folder.path())
        .args(["-B", SCRIPTS[0].0]);
    command.arg(write("model.py", &task.source)?);
    let smaller = scaled(task, SMALLER_BY).source;
    if smaller.trim_end() != task.source.trim_end() {
        command.arg(write("smaller.py", &smaller)?);
    }
    tracing::info!(task = task.id, "capturing the graph of a module");
    let answer = run_briefly(&mut command, LIMIT)?;
    // Whatever the module prints goes to stderr; libraries may still write before the answer.
    let last = answer.stdout.lines().last().unwrap_or_default();
    serde_json::from_str(last).map_err(|_| {
        let tail: Vec<&str> = answer.stderr.lines().rev().take(3).collect();
        CaptureError::NoAnswer {
            message: tail.into_iter().rev().collect::<Vec<_>>().join("; "),
        }
    })
}
