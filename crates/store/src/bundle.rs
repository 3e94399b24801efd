//! A bundle of files whose hashes are in its manifest.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::StoreError;

const MANIFEST: &str = "manifest.json";
const FORMAT: u32 = 1;
/// What a bundle may hold besides `submission/`.
const FILES: [&str; 7] = [
    "verdict.json",
    "task.py",
    "seeds.json",
    "environment.json",
    "samples.json",
    "compile.log",
    "printed.log",
];

#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    format: u32,
    /// blake3 of every file, by its path in the bundle.
    files: BTreeMap<String, String>,
}

/// A bundle that is being written. It appears under its name complete, or not at all.
#[derive(Debug)]
pub struct BundleWriter {
    place: PathBuf,
    temporary: PathBuf,
    files: BTreeMap<String, String>,
}

impl BundleWriter {
    /// Adds a file: one of the known names, or `submission/…`.
    pub fn write(&mut self, name: &str, content: &[u8]) -> Result<(), StoreError> {
        if !is_bundle_file(name) {
            return Err(StoreError::Name {
                name: name.to_owned(),
            });
        }
        if self.files.contains_key(name) {
            return Err(StoreError::Exists {
                path: self.place.join(name),
            });
        }
        self.put(name, content)?;
        self.files.insert(name.to_owned(), hash(content));
        Ok(())
    }

    pub fn write_json<T: Serialize + ?Sized>(
        &mut self,
        name: &str,
        value: &T,
    ) -> Result<(), StoreError> {
        let mut content = serde_json::to_vec_pretty(value).map_err(|source| StoreError::Json {
            path: self.place.join(name),
            source,
        })?;
        content.push(b'\n');
        self.write(name, &content)
    }

    /// Writes the manifest and gives the bundle its name.
    pub fn finish(self) -> Result<Bundle, StoreError> {
        let manifest = Manifest {
            format: FORMAT,
            files: self.files.clone(),
        };
        let content = serde_json::to_vec_pretty(&manifest).map_err(|source| StoreError::Json {
            path: self.place.join(MANIFEST),
            source,
        })?;
        self.put(MANIFEST, &content)?;
        // Renaming onto a folder with files in it fails, so an earlier bundle is never replaced.
        fs_err::rename(&self.temporary, &self.place).map_err(|source| match source.kind() {
            io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::NotADirectory => StoreError::Exists {
                path: self.place.clone(),
            },
            _ => StoreError::Write {
                path: self.place.clone(),
                source,
            },
        })?;
        Ok(Bundle {
            path: self.place.clone(),
            files: manifest.files,
        })
    }

    fn put(&self, name: &str, content: &[u8]) -> Result<(), StoreError> {
        let path = self.temporary.join(name);
        let write = |source| StoreError::Write {
            path: self.place.join(name),
            source,
        };
        if let Some(folder) = path.parent() {
            fs_err::create_dir_all(folder).map_err(write)?;
        }
        let mut file = fs_err::File::create_new(&path).map_err(write)?;
        file.write_all(content)
            .and_then(|()| file.sync_all())
            .map_err(write)
    }
}

impl Drop for BundleWriter {
    fn drop(&mut self) {
        // After `finish` there is nothing left under this name.
        let _ = fs_err::remove_dir_all(&self.temporary);
    }
}

/// The evidence for a verdict, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    path: PathBuf,
    files: BTreeMap<String, String>,
}

impl Bundle {
    /// Begins a bundle that will lie at `place`, beside which it is put together.
    pub fn create(place: &Path) -> Result<BundleWriter, StoreError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let exists = || StoreError::Exists {
            path: place.to_path_buf(),
        };
        if place.exists() {
            return Err(exists());
        }
        let name = place.file_name().ok_or_else(exists)?.to_string_lossy();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let temporary = place.with_file_name(format!(".{name}.{}-{count}", process::id()));
        let write = |source| StoreError::Write {
            path: place.to_path_buf(),
            source,
        };
        // A leftover can only be from a dead process whose id we now have.
        match fs_err::remove_dir_all(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(write(error)),
            _ => {}
        }
        fs_err::create_dir_all(&temporary).map_err(write)?;
        Ok(BundleWriter {
            place: place.to_path_buf(),
            temporary,
            files: BTreeMap::new(),
        })
    }

    /// Opens a bundle and checks every file of it against the manifest.
    ///
    /// This finds damage and edits. It cannot find a manifest rewritten to match them: who must
    /// know keeps [`Bundle::hash`] elsewhere.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let file = path.join(MANIFEST);
        let text = match fs_err::read(&file) {
            Ok(text) => text,
            Err(error)
                if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory]
                    .contains(&error.kind()) =>
            {
                return Err(StoreError::NotABundle {
                    path: path.to_path_buf(),
                });
            }
            Err(source) => return Err(StoreError::Read { path: file, source }),
        };
        let manifest: Manifest = serde_json::from_slice(&text)
            .map_err(|source| StoreError::Json { path: file, source })?;
        let bundle = Self {
            path: path.to_path_buf(),
            files: manifest.files,
        };
        if manifest.format != FORMAT {
            return Err(bundle.tampered(MANIFEST, "it has another format"));
        }
        for name in bundle.files.keys() {
            // The manifest is input like any other: it must not lead outside the folder.
            if !is_bundle_file(name) {
                return Err(StoreError::Name { name: name.clone() });
            }
            bundle.read(name)?;
        }
        bundle.refuse_additions()?;
        Ok(bundle)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// One hash over all of it.
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for (name, file) in &self.files {
            // Neither names nor hashes contain a newline.
            hasher.update(format!("{file} {name}\n").as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// A file's content, checked again: it may have changed since the bundle was opened.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, StoreError> {
        let expected = self.files.get(name).ok_or_else(|| StoreError::Name {
            name: name.to_owned(),
        })?;
        let path = self.path.join(name);
        match fs_err::symlink_metadata(&path) {
            Ok(found) if found.is_file() => {}
            Ok(_) => return Err(self.tampered(name, "it is not a regular file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(self.tampered(name, "it is missing"));
            }
            Err(source) => return Err(StoreError::Read { path, source }),
        }
        let content = fs_err::read(&path).map_err(|source| StoreError::Read { path, source })?;
        if hash(&content) == *expected {
            Ok(content)
        } else {
            Err(self.tampered(name, "its hash differs"))
        }
    }

    fn refuse_additions(&self) -> Result<(), StoreError> {
        let mut folders = vec![self.path.clone()];
        while let Some(folder) = folders.pop() {
            let read = |source| StoreError::Read {
                path: folder.clone(),
                source,
            };
            for entry in fs_err::read_dir(&folder).map_err(read)? {
                let entry = entry.map_err(read)?;
                let path = entry.path();
                if entry.file_type().map_err(read)?.is_dir() {
                    folders.push(path);
                    continue;
                }
                let name = path
                    .strip_prefix(&self.path)
                    .unwrap_or(&path)
                    .to_string_lossy();
                if name != MANIFEST && !self.files.contains_key(name.as_ref()) {
                    return Err(self.tampered(&name, "it was added later"));
                }
            }
        }
        Ok(())
    }

    fn tampered(&self, file: &str, what: &'static str) -> StoreError {
        StoreError::Tampered {
            path: self.path.clone(),
            file: file.to_owned(),
            what,
        }
    }
}

fn hash(content: &[u8]) -> String {
    blake3::hash(content).to_hex().to_string()
}

/// Known files, and plain relative paths below `submission/`.
fn is_bundle_file(name: &str) -> bool {
    let is_plain = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    FILES.contains(&name)
        || name
            .strip_prefix("submission/")
            .is_some_and(|rest| rest.split('/').all(is_plain))
}
