//! Our own Python environment, for a user without torch or with a version we have not tested.
//!
//! `uv`, itself fetched from the package index by hash, installs it from a list in which every file
//! is pinned by hash. A marker that is written last says that it is complete. Without the marker it
//! is installed again, from what `uv` had already fetched.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tracing::{debug, warn};

use crate::caches::folder_size;
use crate::download::hex;
use crate::python::{PythonFacts, inspect, own_environment};
use crate::torch::major_minor;
use crate::{
    Caches, MachineError, ProgressReporter, Python, PythonChoice, command, find_python, free_disk,
    uv,
};

const REQUIREMENTS: &str = include_str!("requirements.txt");
const TORCH: &str = "2.11.0";

/// The cost of installing our own environment, as measured on x86-64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallEstimate {
    pub download_bytes: u64,
    pub disk_bytes: u64,
    pub folder: PathBuf,
}

/// The cost of our own environment, to announce it beforehand.
pub fn install_estimate(caches: &Caches) -> InstallEstimate {
    InstallEstimate {
        download_bytes: 2_740_000_000,
        disk_bytes: 4_880_000_000,
        folder: folder(caches),
    }
}

/// Space beyond the result: for the wheel being unpacked and for other programs.
const SPARE_BYTES: u64 = 1_000_000_000;

/// Finds a Python with torch or installs our own; with `offline` it only finds.
pub fn ensure_python(
    choice: &PythonChoice,
    caches: &Caches,
    progress: &dyn ProgressReporter,
    offline: bool,
) -> Result<Python, MachineError> {
    if let Some(python) = find_python(choice, caches)? {
        return Ok(python);
    }
    if offline {
        return Err(MachineError::Offline);
    }
    let base = base_python()?;
    fs_err::create_dir_all(caches.python()).map_err(MachineError::Cache)?;
    let lock = lock(caches, progress)?;
    // The process that held the lock may have installed it.
    if let Some(python) = own_environment(caches) {
        return Ok(python);
    }
    announce(caches, progress)?;
    let begun = Instant::now();
    let installer = Installer {
        caches,
        progress,
        base: &base,
        lock: &lock,
    };
    installer.install()?;
    let python = own_environment(caches)
        .ok_or_else(|| installer.failed("check", "torch is not where it should be"))?;
    progress.message(&format!(
        "PyTorch {} is ready after {} s: {}",
        python.torch.version,
        begun.elapsed().as_secs(),
        python.executable.display()
    ));
    Ok(python)
}

fn folder(caches: &Caches) -> PathBuf {
    caches.python().join(format!("torch-{TORCH}"))
}

fn marker(caches: &Caches) -> PathBuf {
    folder(caches).join("warpsmith-complete")
}

/// The content of the marker: another list of packages is another installation.
fn fingerprint() -> String {
    hex(&Sha256::digest(REQUIREMENTS.as_bytes()))
}

/// Our environment's interpreter, if the installation is complete.
pub(crate) fn installed(caches: &Caches) -> Option<PathBuf> {
    let written = fs_err::read_to_string(marker(caches)).ok()?;
    (written.trim() == fingerprint()).then(|| folder(caches).join("bin/python"))
}

/// One installation at a time. The kernel releases the lock with its last holder, so it is never stale.
fn lock(caches: &Caches, progress: &dyn ProgressReporter) -> Result<std::fs::File, MachineError> {
    let path = caches.python().join("install.lock");
    let file = fs_err::File::options()
        .create(true)
        .append(true)
        .open(path)
        .map_err(MachineError::Cache)?
        .into_file();
    if file.try_lock().is_err() {
        progress.message("another process is installing PyTorch: waiting for it");
        file.lock().map_err(MachineError::Cache)?;
    }
    Ok(file)
}

/// A Python new enough to build the environment on, and not too new for torch's wheels.
fn base_python() -> Result<PythonFacts, MachineError> {
    [
        "python3",
        "python3.13",
        "python3.12",
        "python3.11",
        "python3.10",
        "python3.14",
        "python",
    ]
    .iter()
    .flat_map(|name| command::on_path(name))
    .filter_map(|program| inspect(&program).ok())
    .find(|facts| {
        major_minor(&facts.version).is_some_and(|version| ((3, 10)..=(3, 14)).contains(&version))
    })
    .ok_or(MachineError::NoBasePython)
}

/// Announces the installation, and refuses where the disk is too full.
fn announce(caches: &Caches, progress: &dyn ProgressReporter) -> Result<(), MachineError> {
    let cost = install_estimate(caches);
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let (kept, _) = folder_size(&uv::cache_folder(caches)).map_err(MachineError::Cache)?;
    let free = free_disk(&caches.python()).map_err(MachineError::Cache)? + kept;
    let needed = cost.disk_bytes + SPARE_BYTES;
    if free < needed {
        return Err(MachineError::DiskFull {
            folder: caches.python(),
            free_gb: gb(free),
            needed_gb: gb(needed),
        });
    }
    progress.message(&format!(
        "no Python with a tested PyTorch found: fetching PyTorch {TORCH} ({:.1} GB, then {:.1} GB in `{}`); \
         half a minute to a few minutes on a fast line",
        gb(cost.download_bytes),
        gb(cost.disk_bytes),
        cost.folder.display()
    ));
    Ok(())
}

struct Installer<'a> {
    caches: &'a Caches,
    progress: &'a dyn ProgressReporter,
    base: &'a PythonFacts,
    lock: &'a std::fs::File,
}

impl Installer<'_> {
    fn install(&self) -> Result<(), MachineError> {
        let log = self.log();
        fs_err::write(&log, "").map_err(MachineError::Cache)?;
        let uv = uv::ensure_uv(self.caches, &self.base.executable, self.progress, &log)?;
        let environment = folder(self.caches);
        remove(&environment)?;
        let requirements = self.caches.python().join("requirements.txt");
        fs_err::write(&requirements, REQUIREMENTS).map_err(MachineError::Cache)?;

        self.run(
            "uv venv",
            uv::command(&uv, self.caches)
                .arg("venv")
                .arg("--python")
                .arg(&self.base.executable)
                .arg(&environment),
        )?;
        self.progress.start(
            "installing PyTorch",
            Some(install_estimate(self.caches).disk_bytes),
        );
        let outcome = self.run(
            "uv pip install",
            uv::command(&uv, self.caches)
                .args([
                    "pip",
                    "install",
                    "--require-hashes",
                    "--only-binary",
                    ":all:",
                    "--compile-bytecode",
                ])
                .arg("--python")
                .arg(environment.join("bin/python"))
                .arg("-r")
                .arg(&requirements),
        );
        self.progress.finish();
        outcome?;

        let mut file = fs_err::File::create(marker(self.caches)).map_err(MachineError::Cache)?;
        writeln!(file, "{}", fingerprint())
            .and_then(|()| file.sync_all())
            .map_err(MachineError::Cache)?;
        // The files themselves are hard links into the environment: this frees only what was not linked.
        remove(&uv::cache_folder(self.caches))
    }

    fn log(&self) -> PathBuf {
        self.caches.python().join("install.log")
    }

    fn failed(&self, step: &'static str, tail: &str) -> MachineError {
        MachineError::Install {
            step,
            tail: tail.to_owned(),
            log: self.log(),
        }
    }

    /// Runs a step to its end; the bar follows the growth of the folder that `uv` unpacks to.
    fn run(&self, step: &'static str, command: &mut Command) -> Result<(), MachineError> {
        let program = PathBuf::from(command.get_program());
        let log = self.log();
        let output = fs_err::File::options()
            .append(true)
            .open(&log)
            .map_err(MachineError::Cache)?
            .into_file();
        let errors = output.try_clone().map_err(MachineError::Cache)?;
        // The child shares the lock through its stdin: if we are killed, no other process installs at the same time.
        let held = self.lock.try_clone().map_err(MachineError::Cache)?;
        let start = |source: io::Error| MachineError::Start {
            program: program.clone(),
            source,
        };
        let mut child = command
            .stdin(Stdio::from(held))
            .stdout(Stdio::from(output))
            .stderr(Stdio::from(errors))
            .spawn()
            .map_err(start)?;
        let mut seen = 0;
        let mut measured = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(start)? {
                break status;
            }
            thread::sleep(Duration::from_millis(100));
            if measured.elapsed() > Duration::from_secs(1) {
                // Files come and go meanwhile; if measuring fails, the bar stands still.
                let (bytes, _) = folder_size(&uv::cache_folder(self.caches)).unwrap_or((seen, 0));
                self.progress.advance(bytes.saturating_sub(seen));
                seen = seen.max(bytes);
                measured = Instant::now();
            }
        };
        if status.success() {
            debug!(step, "installation step finished");
            return Ok(());
        }
        warn!(step, log = %log.display(), "installation step failed");
        Err(self.failed(
            step,
            &last_lines(&fs_err::read_to_string(&log).unwrap_or_default()),
        ))
    }
}

fn remove(folder: &Path) -> Result<(), MachineError> {
    match fs_err::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(MachineError::Cache(error)),
        _ => Ok(()),
    }
}

/// The end of a log on one line: the reason is there.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines[lines.len().saturating_sub(4)..].join(" ")
}
