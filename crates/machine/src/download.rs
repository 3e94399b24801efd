//! Downloads that resume, and that count only with the right hash.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tracing::{debug, info, warn};
use ureq::Agent;

use crate::{MachineError, ProgressReporter, http, index};

/// Where a file can be fetched. The hash says which file it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownloadSource {
    Url(String),
    /// A file of a package in the user's Python index (`UV_DEFAULT_INDEX`, `UV_INDEX_URL`, `PIP_INDEX_URL`, else `PyPI`).
    PythonIndex {
        package: String,
        file: String,
    },
}

impl DownloadSource {
    fn name(&self) -> String {
        match self {
            // Credentials in the address must not show in an error or a log.
            Self::Url(url) => without_credentials(url),
            Self::PythonIndex { package, .. } => {
                format!("{}/{package}/", without_credentials(&index::index_url()))
            }
        }
    }

    fn address(&self, agent: &Agent) -> Result<String, String> {
        match self {
            Self::Url(url) => Ok(url.clone()),
            Self::PythonIndex { package, file } => {
                index::locate(agent, &index::index_url(), package, file)
            }
        }
    }
}

fn without_credentials(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let host_end = rest.find('/').unwrap_or(rest.len());
            match rest[..host_end].rfind('@') {
                Some(at) => format!("{scheme}://{}", &rest[at + 1..]),
                None => url.to_owned(),
            }
        }
        None => url.to_owned(),
    }
}

/// A broken connection is resumed this often from one source, as long as each try brought something.
const TRIES: u32 = 12;

/// Fetches a file to `dest`, resuming what an earlier run left, and accepts it only with that hash.
///
/// The sources are tried in order. Nothing appears at `dest` before the hash was checked.
pub fn download(
    sources: &[DownloadSource],
    sha256: &str,
    dest: &Path,
    progress: &dyn ProgressReporter,
) -> Result<(), MachineError> {
    let store_error = |path: &Path| {
        let path = path.to_path_buf();
        move |source: io::Error| MachineError::Store { path, source }
    };
    let file = dest
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let folder = dest
        .parent()
        .unwrap_or_else(|| Path::new("."))
        .to_path_buf();
    fs_err::create_dir_all(&folder).map_err(store_error(&folder))?;
    if dest.is_file() && hash_file(dest).map_err(store_error(dest))? == sha256 {
        return Ok(());
    }

    let partial = partial_path(dest, sha256);
    let lock = fs_err::File::options()
        .create(true)
        .append(true)
        .open(&partial)
        .map_err(store_error(&partial))?;
    // Two processes that append to the same file would corrupt it.
    lock.file().lock().map_err(store_error(&partial))?;
    if dest.is_file() && hash_file(dest).map_err(store_error(dest))? == sha256 {
        return Ok(());
    }

    let agent = http::agent()?;
    let mut failures = Vec::new();
    for source in sources {
        loop {
            let continued = fs_err::metadata(&partial)
                .map_err(store_error(&partial))?
                .len()
                > 0;
            let outcome = fetch(&agent, source, &file, &partial, progress);
            progress.finish();
            match outcome {
                Ok(found) if found == sha256 => {
                    info!(file, source = source.name(), "download finished");
                    return fs_err::rename(&partial, dest).map_err(store_error(dest));
                }
                Ok(found) => {
                    // A wrong file cannot become the right one by resuming it. If it began with what
                    // another run or source had left, this source gets a clean start.
                    truncate(&partial).map_err(store_error(&partial))?;
                    if continued {
                        continue;
                    }
                    failures.push(format!("{} gave a file with sha256 {found}", source.name()));
                }
                Err(FetchFailure::Remote(reason)) => {
                    warn!(
                        file,
                        source = source.name(),
                        reason,
                        "download source failed"
                    );
                    failures.push(format!("{}: {reason}", source.name()));
                }
                Err(FetchFailure::Local(error)) => return Err(store_error(&partial)(error)),
            }
            break;
        }
    }
    Err(MachineError::Download {
        file,
        sha256: sha256.to_owned(),
        folder,
        failures,
    })
}

/// The hash is part of its name, so that the rest of another version is never resumed.
fn partial_path(dest: &Path, sha256: &str) -> PathBuf {
    let name = dest.file_name().unwrap_or_default().to_string_lossy();
    dest.with_file_name(format!(
        ".{name}.{}.partial",
        sha256.get(..12).unwrap_or(sha256)
    ))
}

enum FetchFailure {
    /// The server's: the next source may work.
    Remote(String),
    /// This machine's, such as a full disk: no source can help.
    Local(io::Error),
}

/// Completes the partial file from one source and returns its hash.
fn fetch(
    agent: &Agent,
    source: &DownloadSource,
    file: &str,
    partial: &Path,
    progress: &dyn ProgressReporter,
) -> Result<String, FetchFailure> {
    let address = source.address(agent).map_err(FetchFailure::Remote)?;
    let mut reason = String::new();
    for _ in 0..TRIES {
        let before = fs_err::metadata(partial)
            .map_err(FetchFailure::Local)?
            .len();
        match fetch_once(agent, &address, file, partial, progress) {
            Ok(()) => return hash_file(partial).map_err(FetchFailure::Local),
            Err(FetchFailure::Local(error)) => return Err(FetchFailure::Local(error)),
            Err(FetchFailure::Remote(why)) => {
                debug!(file, reason = why, "connection ended early");
                reason = why;
            }
        }
        let after = fs_err::metadata(partial)
            .map_err(FetchFailure::Local)?
            .len();
        if after <= before {
            break;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    Err(FetchFailure::Remote(reason))
}

/// One request, for what is still missing.
fn fetch_once(
    agent: &Agent,
    address: &str,
    file: &str,
    partial: &Path,
    progress: &dyn ProgressReporter,
) -> Result<(), FetchFailure> {
    let remote = |error: ureq::Error| FetchFailure::Remote(error.to_string());
    let have = fs_err::metadata(partial)
        .map_err(FetchFailure::Local)?
        .len();
    let mut request = agent.get(address);
    if have > 0 {
        request = request.header("range", format!("bytes={have}-"));
    }
    let mut response = request.call().map_err(remote)?;
    let range = response
        .headers()
        .get("content-range")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let missing = match response.status().as_u16() {
        206 if range.starts_with(&format!("bytes {have}-")) => response.body().content_length(),
        200 => {
            truncate(partial).map_err(FetchFailure::Local)?;
            response.body().content_length()
        }
        // The file is complete; its hash is checked by the caller.
        416 if range == format!("bytes */{have}") => return Ok(()),
        416 => {
            truncate(partial).map_err(FetchFailure::Local)?;
            return Err(FetchFailure::Remote(
                "what was fetched earlier does not fit".into(),
            ));
        }
        206 => {
            return Err(FetchFailure::Remote(format!(
                "answered another range: `{range}`"
            )));
        }
        status => return Err(FetchFailure::Remote(format!("answered {status}"))),
    };
    let mut target = fs_err::File::options()
        .append(true)
        .open(partial)
        .map_err(FetchFailure::Local)?;
    let already = target.metadata().map_err(FetchFailure::Local)?.len();
    progress.start(
        &format!("fetching {file}"),
        missing.map(|missing| missing + already),
    );
    progress.advance(already);
    let mut body = response.body_mut().as_reader();
    let mut buffer = vec![0; 256 << 10];
    let mut received = 0;
    loop {
        let count = match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(FetchFailure::Remote(error.to_string())),
        };
        target
            .write_all(&buffer[..count])
            .map_err(FetchFailure::Local)?;
        received += count as u64;
        progress.advance(count as u64);
    }
    match missing {
        Some(missing) if received < missing => Err(FetchFailure::Remote(format!(
            "the connection ended {} bytes early",
            missing - received
        ))),
        _ => target.sync_all().map_err(FetchFailure::Local),
    }
}

fn truncate(path: &Path) -> io::Result<()> {
    fs_err::File::options()
        .write(true)
        .truncate(true)
        .open(path)
        .map(drop)
}

fn hash_file(path: &Path) -> io::Result<String> {
    let mut file = fs_err::File::open(path)?;
    let mut hasher = Sha256::new();
    io::copy(&mut file, &mut hasher)?;
    Ok(hex(&hasher.finalize()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_shown() {
        assert_eq!(
            without_credentials("https://me:secret@host/simple"),
            "https://host/simple"
        );
        assert_eq!(without_credentials("https://host/a@b"), "https://host/a@b");
    }
}
