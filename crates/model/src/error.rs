use std::path::PathBuf;

use warpsmith_machine::MachineError;

use crate::adapter::AdapterError;

/// Why a model could not be had, loaded or run. Always infrastructure, never a verdict.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("there is no model at `{path}`")]
    NotFound { path: PathBuf },
    #[error("`{path}` is an adapter, not a model")]
    AdapterAlone { path: PathBuf },
    #[error("failed to read `{path}`")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to write `{path}`: {reason}")]
    Write { path: PathBuf, reason: String },
    #[error("the model cannot be written as {form}: {reason}")]
    CannotExport { form: &'static str, reason: String },
    #[error("`{path}` is the model itself, which an export would overwrite")]
    Overwrite { path: PathBuf },
    #[error("`{path}` is not a model we can read: {reason}")]
    Broken { path: PathBuf, reason: String },
    #[error("`{path}` holds a model of the family `{found}`")]
    Family { path: PathBuf, found: String },
    #[error("the model has no tensor `{name}`")]
    MissingTensor { name: String },
    #[error("tensor `{name}` has shape {found:?} where {expected:?} is needed")]
    Shape {
        name: String,
        found: Vec<usize>,
        expected: Vec<usize>,
    },
    #[error("the model's `{key}` is {reason}")]
    Setting { key: String, reason: String },
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    Token { token: u32, vocabulary: usize },
    #[error("the text needs {needed} tokens and the model's context holds {context}")]
    ContextFull { needed: usize, context: usize },
    #[error("there are no tokens to go on from")]
    NoTokens,
    #[error("the tokenizer in `{origin}` cannot be used: {reason}")]
    Tokenizer { origin: String, reason: String },
    #[error("the chat template failed: {reason}")]
    Template { reason: String },
    #[error("`{option}` is {value}, which is not {allowed}")]
    Sampling {
        option: &'static str,
        value: f64,
        allowed: &'static str,
    },
    #[error("there is no model named `{name}`")]
    UnknownModel {
        name: String,
        known: Vec<&'static str>,
    },
    #[error("the model `{name}` is not on this machine, and `--offline` forbids fetching it")]
    Offline {
        name: &'static str,
        file: PathBuf,
        sha256: String,
    },
    #[error("the model `{name}` ({size}) could not be fetched: {}", failures.join("; "))]
    Fetch {
        name: &'static str,
        size: String,
        file: PathBuf,
        sha256: String,
        failures: Vec<String>,
    },
    #[error(
        "`{path}` is not the adapter that was trained for `{model}`: its sha256 is not {expected}"
    )]
    Altered {
        path: PathBuf,
        model: &'static str,
        expected: &'static str,
    },
    #[error("`{folder}` has {free_gb:.1} GB free, and the model needs {needed_gb:.1} GB")]
    DiskFull {
        folder: PathBuf,
        free_gb: f64,
        needed_gb: f64,
    },
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error(transparent)]
    Gpu(#[from] warpsmith_kernels::GpuError),
    #[error(
        "the GPU has {:.1} GB free, and this model needs {:.1} GB there",
        *free as f64 / 1e9,
        *needed as f64 / 1e9
    )]
    GpuMemory { free: usize, needed: usize },
}

impl ModelError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotFound { .. } => Some(
                "give a `.gguf` file, a folder with `config.json` and `*.safetensors`, or a name from `warpsmith models list`".into(),
            ),
            Self::AdapterAlone { path } => Some(format!("name the model before it: `MODEL+{}`", path.display())),
            Self::Broken { path, .. } => Some(format!(
                "a model is a `.gguf` file, or a folder with `config.json`, `tokenizer.json` and `*.safetensors`; if `{}` was fetched, \
                 delete it and fetch it again: `warpsmith models pull` checks the hash",
                path.display()
            )),
            Self::Family { .. } => Some(format!(
                "models of the families {} can be run here",
                crate::ModelFamily::NAMES.join(", ")
            )),
            Self::MissingTensor { .. } | Self::Shape { .. } => Some(
                "the file is incomplete, or of a variant of its family that is not supported".into(),
            ),
            Self::Setting { .. } => Some("use another model, or one converted without that setting".into()),
            Self::ContextFull { .. } => Some("shorten the prompt, or use a model with a longer context".into()),
            Self::Tokenizer { .. } => Some("put the model's own `tokenizer.json` beside its weights".into()),
            Self::UnknownModel { known, .. } => Some(format!(
                "the known models are {}; a `.gguf` file or a safetensors folder can be given by path",
                known.join(", ")
            )),
            Self::Offline { file, sha256, .. } => Some(format!(
                "run `warpsmith models pull` once without `--offline`, or copy the file (sha256 {sha256}) to `{}`",
                file.display()
            )),
            Self::Fetch { file, sha256, .. } => Some(format!(
                "check the network and `HTTPS_PROXY`, or copy the file (sha256 {sha256}) by hand to `{}`",
                file.display()
            )),
            Self::Altered { model, .. } => Some(format!(
                "take it from the source tree again (`adapters/{model}`), or use `local:{model}+none`"
            )),
            Self::DiskFull { .. } => Some(
                "free some space, or set `WARPSMITH_CACHE` to a folder on a larger disk".into(),
            ),
            Self::Adapter(error) => Some(error.hint()),
            Self::Machine(error) => error.hint(),
            Self::Read { .. } => Some("check that the file is there and may be read".into()),
            Self::Write { .. } => Some("check that the folder may be written and the disk has room".into()),
            Self::CannotExport { .. } => Some("export it in the form of the base: GGUF from GGUF, safetensors from safetensors".into()),
            Self::Overwrite { .. } => Some("export to another place".into()),
            Self::Gpu(error) => error.hint(),
            Self::GpuMemory { .. } => Some(
                "use a smaller model, free the GPU, or run the model on the processor".into(),
            ),
            Self::Token { .. } | Self::NoTokens | Self::Template { .. } | Self::Sampling { .. } => None,
        }
    }
}
