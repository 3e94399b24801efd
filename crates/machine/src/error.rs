//! Errors of this crate and what the user can do about them.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why the machine cannot provide something. Always an infrastructure failure, never a verdict.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("no folder for caches: neither `WARPSMITH_CACHE`, `XDG_CACHE_HOME` nor `HOME` is set")]
    NoCacheFolder,
    #[error("there is no cache named `{name}`")]
    UnknownCache {
        name: String,
        known: Vec<&'static str>,
    },
    #[error("failed to use a cache folder")]
    Cache(#[source] io::Error),
    #[error("failed to start `{program}`")]
    Start {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{program}` did not answer within {} s", limit.as_secs())]
    TimedOut { program: PathBuf, limit: Duration },
    #[error("`{program}` is not a usable Python: {reason}")]
    BadPython { program: PathBuf, reason: String },
    #[error("the Python `{program}` has no torch")]
    NoTorch { program: PathBuf },
    #[error("no Python from 3.10 to 3.14 is on the PATH")]
    NoBasePython,
    #[error("no Python with a tested torch was found, and `--offline` forbids fetching one")]
    Offline,
    #[error("`{folder}` has {free_gb:.1} GB free, and PyTorch needs {needed_gb:.1} GB")]
    DiskFull {
        folder: PathBuf,
        free_gb: f64,
        needed_gb: f64,
    },
    #[error("there is no PyTorch for {architecture} that we have tested")]
    Architecture { architecture: &'static str },
    #[error("installing PyTorch failed at `{step}`: {tail}")]
    Install {
        step: &'static str,
        tail: String,
        log: PathBuf,
    },
    #[error("`{file}` could not be fetched from any source: {}", failures.join("; "))]
    Download {
        file: String,
        sha256: String,
        folder: PathBuf,
        failures: Vec<String>,
    },
    #[error("failed to write the download `{path}`")]
    Store {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the certificates in `{path}` could not be used: {reason}")]
    Certificates { path: PathBuf, reason: String },
}

impl MachineError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoCacheFolder => Some("set `WARPSMITH_CACHE` to a folder you may write to".into()),
            Self::UnknownCache { known, .. } => Some(format!("the caches are {}", known.join(", "))),
            Self::BadPython { .. } | Self::TimedOut { .. } => Some(
                "give another one with `--python` or `WARPSMITH_PYTHON`, or unset it and run `warpsmith setup`".into(),
            ),
            Self::NoTorch { program } => Some(format!(
                "install it with `{} -m pip install torch==2.11.0`, or leave out `--python` and run `warpsmith setup`",
                program.display()
            )),
            Self::NoBasePython => Some("install one, on Debian or Ubuntu with `apt install python3`".into()),
            Self::Offline => Some(
                "run `warpsmith setup` once without `--offline`, or give a Python with torch by `--python`".into(),
            ),
            Self::DiskFull { .. } => Some(
                "free some space, or set `WARPSMITH_CACHE` to a folder on a larger disk".into(),
            ),
            Self::Architecture { .. } => {
                Some("install torch yourself and give that Python by `--python`".into())
            }
            Self::Install { log, .. } => Some(format!(
                "the whole log is `{}`; running the command again continues where it stopped",
                log.display()
            )),
            Self::Download { file, sha256, folder, .. } => Some(format!(
                "check the network and `HTTPS_PROXY`, or copy `{file}` (sha256 {sha256}) by hand into `{}`",
                folder.display()
            )),
            Self::Certificates { .. } => Some(
                "`SSL_CERT_FILE` must name a PEM file with the certificates of the authorities to trust".into(),
            ),
            Self::Cache(_) | Self::Store { .. } => {
                Some("check the permissions and the free space of the cache folder".into())
            }
            Self::Start { .. } => None,
        }
    }
}
