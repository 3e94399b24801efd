use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::StoreError;

/// An append-only log of one JSON value a line, which several writers may share.
///
/// A line is handed to the kernel in one write and counts once its newline is there. The rest of
/// a line torn by a crash is removed before the next is written: it never counted, and would
/// spoil what follows. The file is locked meanwhile, so that what one writer is writing is not
/// taken by another for such a rest.
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
        log.alone(remove_torn).map_err(write)?;
        Ok(log)
    }

    pub fn append<E: Serialize + ?Sized>(&mut self, event: &E) -> Result<(), StoreError> {
        let mut line = serde_json::to_vec(event).map_err(|source| StoreError::Json {
            path: self.path.clone(),
            source,
        })?;
        line.push(b'\n');
        let path = self.path.clone();
        self.alone(|file| {
            remove_torn(file)?;
            if file.write(&line)? == line.len() {
                return Ok(());
            }
            // The disk is full: the log stays readable, and the caller learns of it.
            remove_torn(file)?;
            Err(io::ErrorKind::StorageFull.into())
        })
        .map_err(|source| StoreError::Write { path, source })
    }

    /// Acts while no other writer does. Where the file system has no locks, one writer is assumed.
    fn alone<T>(&mut self, act: impl FnOnce(&mut fs_err::File) -> io::Result<T>) -> io::Result<T> {
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

    /// Every event of a log, also while it is being written.
    pub fn read<E: DeserializeOwned>(path: &Path) -> Result<Events<E>, StoreError> {
        let mut events = Vec::new();
        let torn_bytes = Self::each(path, |event| events.push(event))?;
        Ok(Events { events, torn_bytes })
    }

    /// One event after the other, for logs that need not fit into memory. Gives the length of a last line without its end.
    pub fn each<E: DeserializeOwned>(
        path: &Path,
        mut hear: impl FnMut(E),
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
                hear(
                    serde_json::from_slice(&text).map_err(|source| StoreError::BrokenEvent {
                        path: path.to_path_buf(),
                        line,
                        source,
                    })?,
                );
            }
        }
        Ok(0)
    }
}

/// What a log held when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Events<E> {
    pub events: Vec<E>,
    /// Length of a last line without its end: being written just now, or torn by a crash.
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
