//! `uv`, the installer of Python packages: fetched by hash, and run so that only our list decides the result.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::{is_executable, run_briefly};
use crate::environment::last_lines;
use crate::{Caches, DownloadSource, MachineError, ProgressReporter, download, http, index};

const UV: &str = "0.13.7";

pub(crate) fn cache_folder(caches: &Caches) -> PathBuf {
    caches.python().join("uv-cache")
}

/// The `uv` program, fetched once. The base Python unpacks the wheel, so that we need no zip reader.
pub(crate) fn ensure_uv(
    caches: &Caches,
    base: &Path,
    progress: &dyn ProgressReporter,
    log: &Path,
) -> Result<PathBuf, MachineError> {
    let program = caches.python().join(format!("uv-{UV}"));
    if is_executable(&program) {
        return Ok(program);
    }
    let wheel = wheel()?;
    let file = wheel.file_name();
    let archive = caches.python().join(&file);
    let sources = [
        DownloadSource::PythonIndex {
            package: "uv".into(),
            file: file.clone(),
        },
        DownloadSource::Url(wheel.url()),
    ];
    download(&sources, wheel.sha256, &archive, progress)?;
    let unpacked = caches.python().join(format!("uv-{UV}.new"));
    let answer = run_briefly(
        Command::new(base)
            .args(["-I", "-c", UNPACK])
            .arg(&archive)
            .arg(format!("uv-{UV}.data/scripts/uv"))
            .arg(&unpacked),
        Duration::from_mins(1),
    )?;
    if !answer.success {
        return Err(MachineError::Install {
            step: "unpack uv",
            tail: last_lines(&answer.stderr),
            log: log.to_path_buf(),
        });
    }
    fs_err::rename(&unpacked, &program).map_err(MachineError::Cache)?;
    fs_err::remove_file(&archive).map_err(MachineError::Cache)?;
    Ok(program)
}

/// A command of `uv` with the user's index, proxy and certificates, but without settings that would change the result.
pub(crate) fn command(uv: &Path, caches: &Caches) -> Command {
    let mut command = Command::new(uv);
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        let changes_result =
            name.starts_with("UV_") && !KEPT.iter().any(|prefix| name.starts_with(prefix));
        if changes_result
            || ["VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME", "PYTHONPATH"].contains(&name.as_ref())
        {
            command.env_remove(name.as_ref());
        }
    }
    if let Some(index) = index::configured() {
        command
            .env_remove("UV_INDEX_URL")
            .env("UV_DEFAULT_INDEX", index);
    }
    if let Some(bundle) = http::certificate_bundle() {
        command.env("SSL_CERT_FILE", bundle);
    }
    command
        // Not in the user's project, whose uv settings are for something else.
        .current_dir(caches.python())
        .env("UV_CACHE_DIR", cache_folder(caches))
        .env("UV_LINK_MODE", "hardlink")
        .env("UV_PYTHON_DOWNLOADS", "never")
        .env("UV_NO_PROGRESS", "1");
    if env::var_os("UV_HTTP_TIMEOUT").is_none() {
        command.env("UV_HTTP_TIMEOUT", "120");
    }
    command
}

/// Settings of `uv` that say how to reach packages, not which packages.
const KEPT: [&str; 9] = [
    "UV_INDEX",
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_HTTP",
    "UV_NATIVE_TLS",
    "UV_SYSTEM_CERTS",
    "UV_INSECURE_HOST",
    "UV_KEYRING_PROVIDER",
];

const UNPACK: &str = "import os, sys, zipfile
archive, member, target = sys.argv[1:]
with zipfile.ZipFile(archive) as wheel, open(target, 'wb') as out:
    out.write(wheel.read(member))
os.chmod(target, 0o755)
";

struct Wheel {
    tags: &'static str,
    folder: &'static str,
    sha256: &'static str,
}

impl Wheel {
    fn file_name(&self) -> String {
        format!("uv-{UV}-py3-none-{}.whl", self.tags)
    }

    fn url(&self) -> String {
        format!(
            "https://files.pythonhosted.org/packages/{}/{}",
            self.folder,
            self.file_name()
        )
    }
}

fn wheel() -> Result<Wheel, MachineError> {
    match env::consts::ARCH {
        "x86_64" => Ok(Wheel {
            tags: "manylinux_2_17_x86_64.manylinux2014_x86_64",
            folder: "b9/93/0e053a2ca4523ee9825ccbedeb7121470d0a188933f11688b6d90d7f5c08",
            sha256: "2c9bdc4a872b60a93c5f26c0791089ea11585a4f9d3b3c017d78eb8487505e25",
        }),
        "aarch64" => Ok(Wheel {
            tags: "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
            folder: "96/72/da1119f94034d7173e6c8e2cd77a6299744458f0af3cb8e3a04d5cd419d1",
            sha256: "a90f5d95716ab83091f0f73a8e7ec64e557abf2a28537fcd719b2ac88e6f725a",
        }),
        architecture => Err(MachineError::Architecture { architecture }),
    }
}
