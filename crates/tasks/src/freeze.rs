//! Reads a hostile folder once.
//!
//! The folder's author may still be changing it, and may have put anything in it: links to secrets, pipes that block, devices.
//! So each step opens one name relative to a folder that is already open, never follows a link, checks what was opened (not
//! what a path meant a moment earlier), and reads no more than the limits.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;

use crate::TaskError;

pub(crate) const FILE_LIMIT_BYTES: u64 = 2 << 20;
const TOTAL_LIMIT_BYTES: u64 = 16 << 20;
const COUNT_LIMIT: usize = 256;
const DEPTH_LIMIT: usize = 8;

const READ_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOCTTY);
const FOLDER_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// The files read so far. The limits apply to all of them together.
pub(crate) struct Freezer {
    origin: PathBuf,
    files: BTreeMap<String, Vec<u8>>,
    bytes: u64,
}

/// The kind of an entry, without following a link.
#[derive(Debug, PartialEq)]
pub(crate) enum Kind {
    File,
    Folder,
}

impl Freezer {
    pub(crate) fn new(origin: &Path) -> Self {
        Self {
            origin: origin.to_path_buf(),
            files: BTreeMap::new(),
            bytes: 0,
        }
    }

    pub(crate) fn into_files(self) -> BTreeMap<String, Vec<u8>> {
        self.files
    }

    pub(crate) fn files(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.files
    }

    /// Opens the solution's own folder. The user named it, so a link to it is followed.
    pub(crate) fn open_root(&self) -> Result<OwnedFd, TaskError> {
        openat(CWD, &self.origin, FOLDER_FLAGS, Mode::empty())
            .map_err(|error| read_error(&self.origin, error))
    }

    /// Reads one file and stores it under the name `key`.
    pub(crate) fn take_file(
        &mut self,
        folder: &OwnedFd,
        name: &str,
        path: &Path,
        key: String,
    ) -> Result<(), TaskError> {
        if self.files.len() == COUNT_LIMIT {
            return Err(self.too_large(format!("more than {COUNT_LIMIT} files")));
        }
        let file = openat(folder, name, READ_FLAGS, Mode::empty())
            .map_err(|error| read_error(path, error))?;
        let found = fstat(&file).map_err(|error| read_error(path, error))?;
        if accepted(FileType::from_raw_mode(found.st_mode), path)? != Kind::File {
            return Err(TaskError::Irregular {
                path: path.to_path_buf(),
            });
        }
        let mut content = Vec::new();
        // The size is not trusted: the file may grow while it is read.
        File::from(file)
            .take(FILE_LIMIT_BYTES + 1)
            .read_to_end(&mut content)
            .map_err(|source| TaskError::Read {
                path: path.to_path_buf(),
                source,
            })?;
        let length = content.len() as u64;
        if length > FILE_LIMIT_BYTES {
            return Err(TaskError::FileTooLarge {
                path: path.to_path_buf(),
                limit_bytes: FILE_LIMIT_BYTES,
            });
        }
        self.bytes += length;
        if self.bytes > TOTAL_LIMIT_BYTES {
            return Err(self.too_large(format!("more than {TOTAL_LIMIT_BYTES} bytes in all")));
        }
        self.files.insert(key, content);
        Ok(())
    }

    /// Reads everything below a folder; keys begin with `key`.
    pub(crate) fn take_folder(
        &mut self,
        parent: &OwnedFd,
        name: &str,
        path: &Path,
        key: &str,
    ) -> Result<(), TaskError> {
        self.take_below(parent, name, path, key, 1)
    }

    fn take_below(
        &mut self,
        parent: &OwnedFd,
        name: &str,
        path: &Path,
        key: &str,
        depth: usize,
    ) -> Result<(), TaskError> {
        if depth > DEPTH_LIMIT {
            return Err(self.too_large(format!("more than {DEPTH_LIMIT} folders deep")));
        }
        let folder = openat(
            parent,
            name,
            FOLDER_FLAGS.union(OFlags::NOFOLLOW),
            Mode::empty(),
        )
        .map_err(|error| read_error(path, error))?;
        let listing = Dir::read_from(&folder).map_err(|error| read_error(path, error))?;
        let mut names = Vec::new();
        for entry in listing {
            let entry = entry.map_err(|error| read_error(path, error))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == "." || name == ".." {
                continue;
            }
            if !is_plain(&name) {
                return Err(TaskError::Name {
                    path: path.join(name),
                });
            }
            names.push(name);
            // A folder may be endless, so no more names are listed than files can be taken.
            if names.len() > COUNT_LIMIT {
                return Err(
                    self.too_large(format!("more than {COUNT_LIMIT} entries in one folder"))
                );
            }
        }
        names.sort();
        for name in names {
            let path = path.join(&name);
            let key = format!("{key}/{name}");
            match kind(&folder, &name, &path)? {
                Some(Kind::File) => self.take_file(&folder, &name, &path, key)?,
                Some(Kind::Folder) => self.take_below(&folder, &name, &path, &key, depth + 1)?,
                // It was removed after the listing, so it is not part of the solution.
                None => {}
            }
        }
        Ok(())
    }

    fn too_large(&self, what: String) -> TaskError {
        TaskError::TooLarge {
            path: self.origin.clone(),
            what,
        }
    }
}

/// The kind of the entry with that name; `None` if there is none, an error for a link, a pipe or a device.
pub(crate) fn kind(folder: &OwnedFd, name: &str, path: &Path) -> Result<Option<Kind>, TaskError> {
    match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => accepted(FileType::from_raw_mode(found.st_mode), path).map(Some),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(read_error(path, error)),
    }
}

fn accepted(kind: FileType, path: &Path) -> Result<Kind, TaskError> {
    match kind {
        FileType::RegularFile => Ok(Kind::File),
        FileType::Directory => Ok(Kind::Folder),
        FileType::Symlink => Err(TaskError::Link {
            path: path.to_path_buf(),
        }),
        _ => Err(TaskError::Irregular {
            path: path.to_path_buf(),
        }),
    }
}

/// The kernel reports `LOOP` if the name became a link after it was checked.
fn read_error(path: &Path, error: Errno) -> TaskError {
    match error {
        Errno::LOOP => TaskError::Link {
            path: path.to_path_buf(),
        },
        Errno::NXIO => TaskError::Irregular {
            path: path.to_path_buf(),
        },
        other => TaskError::Read {
            path: path.to_path_buf(),
            source: io::Error::from(other),
        },
    }
}

/// Whether a name is safe on compilers' command lines, in make rules and in messages.
pub(crate) fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('-')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a.cu", "soft_max-2.cpp", ".keep", "K"] {
            assert!(is_plain(good), "{good}");
        }
        for bad in ["", "-o.cu", "a b.cu", "ä.cu", "a$(id).cu", "a\n.cu", "a/b"] {
            assert!(!is_plain(bad), "{bad}");
        }
    }
}
