use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use warpsmith_schema::{Versioned, read_document};

use crate::StoreError;

/// An append-only log of one JSON value a line, which several writers may share.
///
/// A line is handed to the kernel in one write and counts once its newline is there. The rest of
/// a line torn by a crash is removed before the next is written: it never counted, and would
/// spoil what follows. The file is locked meanwhile, so that no writer takes the line that another
/// is writing for such a rest.
#[derive(Debug)]
pub struct EventLog {
    file: fs_err::File,
    path: PathBuf,
}

impl EventLog {
    /// Opens or begins a log.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let write = |source| StoreError::Write {
            path: path.to_path_buf(),
            source,
        };
        let file = fs_err::File::options()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .map_err(write)?;
        let mut log = Self {
            file,
            path: path.to_path_buf(),
        };
        log.locked(remove_torn).map_err(write)?;
        Ok(log)
    }

    pub fn append<E: Serialize + ?Sized>(&mut self, event: &E) -> Result<(), StoreError> {
        let mut line = serde_json::to_vec(event).map_err(|source| StoreError::Json {
            path: self.path.clone(),
            source,
        })?;
        line.push(b'\n');
        let path = self.path.clone();
        self.locked(|file| {
            remove_torn(file)?;
            if file.write(&line)? == line.len() {
                return Ok(());
            }
            // The disk is full: the log stays readable, and the caller gets the error.
            remove_torn(file)?;
            Err(io::ErrorKind::StorageFull.into())
        })
        .map_err(|source| StoreError::Write { path, source })
    }

    /// Acts under the lock of the file. Where the file system has no locks, one writer is assumed.
    fn locked<T>(&mut self, act: impl FnOnce(&mut fs_err::File) -> io::Result<T>) -> io::Result<T> {
        let locked = self.file.file().lock().is_ok();
        let done = act(&mut self.file);
        if locked {
            self.file.file().unlock()?;
        }
        done
    }

    /// Returns once what was appended would survive a power cut.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.file.sync_data().map_err(|source| StoreError::Write {
            path: self.path.clone(),
            source,
        })
    }

    /// Every line of a log, also while it is being written.
    pub fn read_lines<T: DeserializeOwned>(path: &Path) -> Result<LogLines<T>, StoreError> {
        let mut lines = Vec::new();
        let torn_bytes = Self::for_each_line(path, |line| lines.push(line))?;
        Ok(LogLines { lines, torn_bytes })
    }

    /// One line after the other, for logs that need not fit into memory. Returns the length of a last line without its
    /// newline.
    pub fn for_each_line<T: DeserializeOwned>(
        path: &Path,
        mut visit: impl FnMut(T),
    ) -> Result<usize, StoreError> {
        for_each_text(path, |line, text| {
            visit(
                serde_json::from_slice(text).map_err(|source| StoreError::BrokenLine {
                    path: path.to_path_buf(),
                    line,
                    source,
                })?,
            );
            Ok(())
        })
    }

    /// As [`EventLog::read_lines`], for documents that name their format: another format is refused.
    pub fn read_documents<D: Versioned>(path: &Path) -> Result<LogLines<D>, StoreError> {
        let mut lines = Vec::new();
        let torn_bytes = Self::for_each_document(path, |line| lines.push(line))?;
        Ok(LogLines { lines, torn_bytes })
    }

    /// As [`EventLog::for_each_line`], for documents that name their format: another format is refused.
    pub fn for_each_document<D: Versioned>(
        path: &Path,
        mut visit: impl FnMut(D),
    ) -> Result<usize, StoreError> {
        for_each_text(path, |line, text| {
            visit(read_document(text).map_err(|error| StoreError::document(path, line, error))?);
            Ok(())
        })
    }
}

/// Visits the complete, non-empty lines of a file with their numbers. No file is an empty one.
fn for_each_text(
    path: &Path,
    mut visit: impl FnMut(usize, &[u8]) -> Result<(), StoreError>,
) -> Result<usize, StoreError> {
    let read = |source| StoreError::Read {
        path: path.to_path_buf(),
        source,
    };
    let mut lines = match fs_err::File::open(path) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(source) => return Err(read(source)),
    };
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let length = lines.read_until(b'\n', &mut text).map_err(read)?;
        if text.last() != Some(&b'\n') {
            return Ok(length);
        }
        if length > 1 {
            visit(line, &text)?;
        }
    }
    Ok(0)
}

/// What a log held when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLines<T> {
    pub lines: Vec<T>,
    /// Length of a last line without its newline: being written just now, or torn by a crash.
    pub torn_bytes: usize,
}

/// Cuts the file after its last newline; most often there is nothing to cut.
fn remove_torn(file: &mut fs_err::File) -> io::Result<()> {
    const BLOCK: u64 = 64 << 10;
    let length = file.metadata()?.len();
    let mut end = length;
    let mut block = Vec::new();
    let mut size = 1;
    while end > 0 {
        let start = end.saturating_sub(size);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        (&mut *file).take(end - start).read_to_end(&mut block)?;
        if let Some(last) = block.iter().rposition(|&byte| byte == b'\n') {
            end = start + last as u64 + 1;
            break;
        }
        end = start;
        size = BLOCK;
    }
    if end < length {
        file.set_len(end)
    } else {
        Ok(())
    }
}
