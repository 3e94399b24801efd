//! Operator graphs read from the modules themselves.
//!
//! `python/capture.py` traces a module with `torch.export` under fake tensors, writes its `ATen` graph in PyTorch's
//! functional names, interprets that graph and compares the result with the module on real inputs. A graph that does not compute what
//! the module computes is never handed out. Tasks are trusted: their code runs in this user's own Python.

mod process;

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use warpsmith_machine::{Caches, MachineError, Python};
use warpsmith_schema::{GRAPH_FORMS, OpGraph, Task};

use crate::scaled;
use process::{CaptureWorker, Request};

/// By name; the first is run, the others are what it imports.
const SCRIPTS: [(&str, &str); 6] = [
    ("capture.py", include_str!("../python/capture.py")),
    ("compare.py", include_str!("../python/compare.py")),
    ("tracer.py", include_str!("../python/tracer.py")),
    ("translate.py", include_str!("../python/translate.py")),
    ("functional.py", include_str!("../python/functional.py")),
    ("graph_forms.py", GRAPH_FORMS),
];

/// A graph whose values are large is compared on the module with its constants divided by this.
const SMALLER_BY: u32 = 16;

/// For one task. Most take a tenth of a second; where no smaller shapes have the same graph, the module runs twice on its own.
const LIMIT: Duration = Duration::from_mins(5);

/// Captures side by side at most: each holds PyTorch and a module's values in memory.
const MAX_CAPTURES: usize = 8;

/// What is known about a module, and what the cache keeps.
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
    let mut worker = CaptureWorker::new(python, cores(), LIMIT);
    capture_by(&mut worker, task, python, caches)
}

/// Gives tasks that came without a graph the one of their module. A task whose module has none stays as it is, and its id and
/// the reason are handed back: one module that cannot be captured does not end a run of many.
pub fn capture_graphs(
    tasks: &mut [Task],
    python: &Python,
    caches: &Caches,
) -> Result<Vec<(String, CaptureError)>, CaptureError> {
    let captures = capture_missing(tasks, python, caches);
    let mut refused = Vec::new();
    for (task, captured) in tasks.iter_mut().zip(captures) {
        match captured {
            None => {}
            Some(Ok(graph)) => task.graph = Some(graph),
            Some(Err(reason @ (CaptureError::NotCaptured(_) | CaptureError::NoAnswer { .. }))) => {
                refused.push((task.id.clone(), reason));
            }
            Some(Err(error)) => return Err(error),
        }
    }
    Ok(refused)
}

/// The graphs of tasks that came without one, in the order of `tasks`; several are captured side by side.
pub fn capture_missing(
    tasks: &[Task],
    python: &Python,
    caches: &Caches,
) -> Vec<Option<Result<OpGraph, CaptureError>>> {
    let missing = tasks.iter().filter(|task| task.graph.is_none()).count();
    let workers = cores().min(MAX_CAPTURES).min(missing);
    // Together the processes have as many threads as there are cores.
    let threads = cores() / workers.max(1);
    let captures: Vec<OnceLock<Result<OpGraph, CaptureError>>> =
        tasks.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let mut worker = CaptureWorker::new(python, threads, LIMIT);
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(index) else { break };
                    if task.graph.is_none() {
                        captures[index]
                            .get_or_init(|| capture_by(&mut worker, task, python, caches));
                    }
                }
            });
        }
    });
    captures.into_iter().map(OnceLock::into_inner).collect()
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn capture_by(
    worker: &mut CaptureWorker<'_>,
    task: &Task,
    python: &Python,
    caches: &Caches,
) -> Result<OpGraph, CaptureError> {
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
        tracing::info!(task = task.id, "capturing the graph of a module");
        let smaller = scaled(task, SMALLER_BY).source;
        let differs = smaller.trim_end() != task.source.trim_end();
        let reply = worker.capture(&Request {
            model: &task.source,
            smaller: differs.then_some(smaller.as_str()),
        })?;
        keep(&folder, &kept, &reply).map_err(CaptureError::Cache)?;
        reply
    };
    match reply {
        Reply::Graph(graph) => Ok(*graph),
        Reply::Failed(reason) => Err(reason.into()),
    }
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
