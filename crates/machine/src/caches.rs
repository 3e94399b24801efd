//! The cache folders.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::MachineError;

/// The root of all caches: one folder, so that a user can see, move and delete what is kept between runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caches {
    pub root: PathBuf,
}

/// One cache, as `warpsmith cache ls` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheEntry {
    pub name: &'static str,
    pub purpose: &'static str,
    pub path: PathBuf,
    pub bytes: u64,
    pub files: u64,
}

/// Name and purpose of every cache; only these are ever deleted.
const KINDS: [(&str, &str); 12] = [
    ("objects", "compiled kernels by content"),
    ("baselines", "measured times of the original modules"),
    ("harness", "the Python side of the judge"),
    ("evidence", "bundles that let a verdict be replayed"),
    ("python", "our own Python environment with PyTorch"),
    ("models", "language models"),
    ("support", "precompiled headers and the support library"),
    ("compile", "what torch.compile generated for baselines"),
    (
        "kill-rates",
        "how many wrong variants of a task the judge refuses",
    ),
    ("graphs", "operator graphs captured from modules"),
    ("tuning", "times of variants of the compiler's kernels"),
    ("fleet", "the server that connects machines"),
];

impl Caches {
    /// `$WARPSMITH_CACHE`, else `$XDG_CACHE_HOME/warpsmith`, else `~/.cache/warpsmith`. Creates nothing.
    pub fn locate() -> Result<Self, MachineError> {
        Self::from_variables(|name| env::var_os(name).map(PathBuf::from))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<Self, MachineError> {
        let set = |name: &str| variable(name).filter(|value| !value.as_os_str().is_empty());
        let root = set("WARPSMITH_CACHE")
            // The XDG specification says that relative values are to be ignored.
            .or_else(|| {
                set("XDG_CACHE_HOME")
                    .filter(|folder| folder.is_absolute())
                    .map(|folder| folder.join("warpsmith"))
            })
            .or_else(|| set("HOME").map(|home| home.join(".cache/warpsmith")))
            .ok_or(MachineError::NoCacheFolder)?;
        // Sandboxes and compilers run in other folders, where a relative root would be another one.
        let root = std::path::absolute(&root).map_err(MachineError::Cache)?;
        Ok(Self { root })
    }

    pub fn objects(&self) -> PathBuf {
        self.root.join("objects")
    }

    pub fn baselines(&self) -> PathBuf {
        self.root.join("baselines")
    }

    pub fn harness(&self) -> PathBuf {
        self.root.join("harness")
    }

    pub fn evidence(&self) -> PathBuf {
        self.root.join("evidence")
    }

    pub fn python(&self) -> PathBuf {
        self.root.join("python")
    }

    pub fn models(&self) -> PathBuf {
        self.root.join("models")
    }

    pub fn support(&self) -> PathBuf {
        self.root.join("support")
    }

    pub fn kill_rates(&self) -> PathBuf {
        self.root.join("kill-rates")
    }

    pub fn graphs(&self) -> PathBuf {
        self.root.join("graphs")
    }

    pub fn tuning(&self) -> PathBuf {
        self.root.join("tuning")
    }

    /// Programs that a fleet of machines needs.
    pub fn fleet(&self) -> PathBuf {
        self.root.join("fleet")
    }

    /// The cache of `torch.compile` (inductor).
    pub fn compile(&self) -> PathBuf {
        self.root.join("compile")
    }

    /// Every cache, empty ones included.
    pub fn entries(&self) -> Result<Vec<CacheEntry>, MachineError> {
        KINDS
            .iter()
            .map(|&(name, purpose)| {
                let path = self.root.join(name);
                let (bytes, files) = folder_size(&path).map_err(MachineError::Cache)?;
                Ok(CacheEntry {
                    name,
                    purpose,
                    path,
                    bytes,
                    files,
                })
            })
            .collect()
    }

    /// Deletes one cache, or all of them, and returns how many bytes that freed.
    pub fn clean(&self, name: Option<&str>) -> Result<u64, MachineError> {
        let known = KINDS.map(|(name, _)| name);
        let chosen: Vec<&str> = match name {
            Some(wanted) => known
                .iter()
                .copied()
                .filter(|name| *name == wanted)
                .collect(),
            None => known.to_vec(),
        };
        if let (Some(name), true) = (name, chosen.is_empty()) {
            return Err(MachineError::UnknownCache {
                name: name.to_owned(),
                known: known.to_vec(),
            });
        }
        let mut freed = 0;
        for name in chosen {
            let path = self.root.join(name);
            freed += folder_size(&path).map_err(MachineError::Cache)?.0;
            match fs_err::remove_dir_all(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(MachineError::Cache(error));
                }
                _ => {}
            }
        }
        Ok(freed)
    }
}

/// Bytes and files below a folder, without following links; 0 where there is none.
///
/// Files that vanish meanwhile are skipped: other processes use the caches too.
pub(crate) fn folder_size(path: &Path) -> io::Result<(u64, u64)> {
    let (mut bytes, mut files) = (0, 0);
    let mut folders = vec![path.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = match fs_err::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            match entry.metadata() {
                Ok(found) if found.is_dir() => folders.push(entry.path()),
                Ok(found) => {
                    bytes += found.len();
                    files += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok((bytes, files))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn located(variables: &[(&str, &str)]) -> Result<Caches, MachineError> {
        Caches::from_variables(|name| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| PathBuf::from(value))
        })
    }

    #[test]
    fn the_root_follows_the_variables_in_order() {
        let all = [
            ("WARPSMITH_CACHE", "/a"),
            ("XDG_CACHE_HOME", "/b"),
            ("HOME", "/c"),
        ];
        assert_eq!(located(&all).unwrap().root, PathBuf::from("/a"));
        assert_eq!(
            located(&all[1..]).unwrap().root,
            PathBuf::from("/b/warpsmith")
        );
        assert_eq!(
            located(&all[2..]).unwrap().root,
            PathBuf::from("/c/.cache/warpsmith")
        );
        assert_eq!(
            located(&[
                ("WARPSMITH_CACHE", ""),
                ("XDG_CACHE_HOME", "relative"),
                ("HOME", "/c")
            ])
            .unwrap()
            .root,
            PathBuf::from("/c/.cache/warpsmith")
        );
        assert!(matches!(located(&[]), Err(MachineError::NoCacheFolder)));
    }

    #[test]
    fn entries_count_and_clean_frees_only_what_is_ours() {
        let folder = tempfile::tempdir().unwrap();
        let caches = Caches {
            root: folder.path().to_path_buf(),
        };
        fs_err::create_dir_all(caches.objects().join("ab")).unwrap();
        fs_err::write(caches.objects().join("ab/cd"), [0; 100]).unwrap();
        fs_err::create_dir_all(caches.models()).unwrap();
        fs_err::write(caches.models().join("m"), [0; 7]).unwrap();
        fs_err::write(folder.path().join("notes.txt"), "mine").unwrap();

        let entries = caches.entries().unwrap();
        let sizes: Vec<_> = entries
            .iter()
            .map(|entry| (entry.name, entry.bytes, entry.files))
            .collect();
        assert!(sizes.contains(&("objects", 100, 1)));
        assert!(sizes.contains(&("python", 0, 0)));

        assert_eq!(caches.clean(Some("objects")).unwrap(), 100);
        assert!(!caches.objects().exists() && caches.models().exists());
        let error = caches.clean(Some("../..")).unwrap_err();
        assert!(error.hint().unwrap().contains("objects"));
        assert_eq!(caches.clean(None).unwrap(), 7);
        assert!(folder.path().join("notes.txt").exists());
    }
}
