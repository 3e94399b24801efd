use std::io;
use std::path::PathBuf;

/// Why a task or a solution could not be loaded. The user or the author can always fix it.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("there is no task at `{path}`")]
    Missing { path: PathBuf },
    #[error("failed to read `{path}`")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{path}` is not a task: {reason}")]
    NotATask { path: PathBuf, reason: &'static str },
    #[error("{}:{line}: {reason}", path.display())]
    BrokenLine {
        path: PathBuf,
        line: usize,
        reason: String,
    },
    #[error("`{path}` holds no task")]
    Empty {
        path: PathBuf,
        /// Sets in that folder, of which one may be meant.
        sets: Vec<PathBuf>,
    },
    #[error("`{path}` has no task `{wanted}`")]
    NoSuchTask {
        path: PathBuf,
        wanted: String,
        some: Vec<String>,
    },
    #[error("`{wanted}` could be {} tasks of `{path}`", matches.len())]
    Ambiguous {
        path: PathBuf,
        wanted: String,
        matches: Vec<String>,
    },

    #[error("`{path}` defines neither `get_inputs` nor `get_inputs_variants`")]
    NoInputs { path: PathBuf },
    #[error("`get_inputs_variants` cannot be used: {why}")]
    NoVariants { why: String },
    #[error("there is no class `Model` with a `forward`")]
    NoForward,
    #[error("{}:{line}: not a fingerprint: {reason}", path.display())]
    BrokenFingerprint {
        path: PathBuf,
        line: usize,
        reason: String,
    },
    #[error("failed to read `{path}`: {reason}")]
    BrokenParquet { path: PathBuf, reason: String },
    #[error("`{path}` is a Parquet file, which this build does not know")]
    NoParquet { path: PathBuf },
    #[error("failed to write `{path}`")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    #[error("there is no solution at `{path}`")]
    NoSolution { path: PathBuf },
    #[error("the solution `{path}` has no `model_new.py`")]
    NoModel { path: PathBuf },
    #[error("the solution `{path}` has no source in `{folder}/`")]
    NoKernels { path: PathBuf, folder: &'static str },
    #[error("`{path}` is a symbolic link")]
    Link { path: PathBuf },
    #[error("`{path}` is neither a regular file nor a folder")]
    Irregular { path: PathBuf },
    #[error("`{path}` has a name we do not take")]
    Name { path: PathBuf },
    #[error("`{path}` is larger than {limit_bytes} bytes")]
    FileTooLarge { path: PathBuf, limit_bytes: u64 },
    #[error("the solution `{path}` is too large: {what}")]
    TooLarge { path: PathBuf, what: String },
}

impl TaskError {
    /// What the user can do about the error.
    pub fn hint(&self) -> Option<String> {
        let list = |names: &[String]| names.join(", ");
        match self {
            Self::Missing { .. } | Self::NotATask { .. } => Some(
                "a task is a `.py` file, a folder with `model.py`, or `FILE.jsonl#level1/19`; `warpsmith new NAME` makes one".into(),
            ),
            Self::Read { .. } | Self::Write { .. } => None,
            Self::BrokenLine { .. } => Some(
                "each line is one JSON object with `code`, and `name`, `level`, `problem_id`, `ops` and `graph` where it has them".into(),
            ),
            Self::Empty { sets, .. } if !sets.is_empty() => {
                let sets: Vec<String> = sets.iter().map(|set| format!("`{}`", set.display())).collect();
                Some(format!("name one of the sets that lie there: {}", list(&sets)))
            }
            Self::Empty { .. } => Some(
                "expected a KernelBench folder (`level1/1_Name.py`) or a JSONL or Parquet file of `level, problem_id, name, code`".into(),
            ),
            Self::NoSuchTask { some, .. } => Some(format!("it has {}", list(some))),
            Self::Ambiguous { path, matches, .. } => Some(format!(
                "say which one, such as `{}#{}`: {}",
                path.display(),
                matches.first().map_or("level1/1", String::as_str),
                list(matches)
            )),
            Self::NoInputs { .. } => Some(
                "define `get_inputs()`, which returns a list of tensors, or `get_inputs_variants()`, which returns several".into(),
            ),
            Self::NoVariants { .. } => Some(
                "it returns a list with the inputs of each shape, as `get_inputs` returns those of one".into(),
            ),
            Self::NoForward => Some(
                "a task is a module with `class Model(nn.Module)`, `get_inputs` and `get_init_inputs`".into(),
            ),
            Self::BrokenParquet { .. } => Some(
                "expected a column `code`, compressed with snappy or not at all; any other file can be had as JSONL from `pandas`".into(),
            ),
            Self::NoParquet { .. } => Some(
                "build with `--features parquet`, or use JSONL".into(),
            ),
            Self::BrokenFingerprint { .. } => Some(
                "fingerprints are made from the tasks: `cargo run -p warpsmith-decontaminate --example fingerprints -- TASKS FILE`".into(),
            ),
            Self::NoSolution { .. } | Self::NoModel { .. } => Some(
                "a solution is a folder with `model_new.py` and `kernels/`, or one `.py` file with an inline extension".into(),
            ),
            Self::NoKernels { .. } => Some(
                "put the kernels there as `.cu` or `.cpp`, or use `load_inline` in `model_new.py`".into(),
            ),
            Self::Link { .. } => Some("links are never followed: put the file itself there".into()),
            Self::Irregular { .. } => Some("only files and folders belong in a solution".into()),
            Self::Name { .. } => {
                Some("names are made of letters, digits, `.`, `_` and `-`, and do not begin with `-`".into())
            }
            Self::FileTooLarge { .. } | Self::TooLarge { .. } => Some(
                "a solution is source: at most 2 MiB a file, 256 files, 16 MiB in all, 8 folders deep".into(),
            ),
        }
    }
}
