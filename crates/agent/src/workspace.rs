//! The folder an agent works in.
//!
//! Its shell runs in the sandbox and may put anything there, links to files of the host among them. What reads and writes
//! here runs outside, so it follows no link and opens nothing but regular files.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, mkdirat, openat2, statat,
};

use crate::FencedFiles;
use crate::fenced::is_submission_path;

/// The largest file that is read or written.
const FILE_BYTES: u64 = 1 << 20;
/// Folders below `kernels/`.
const DEPTH: usize = 8;
/// What is read of a shell's output.
const END_BYTES: u64 = 64 << 10;

pub struct Workspace {
    root: PathBuf,
    folder: OwnedFd,
    /// What is judged, whatever becomes of `model.py`.
    task: String,
    writers: Writers,
    /// What the agent has seen: it may not overwrite a file it never read.
    seen: BTreeSet<String>,
}

/// Who changes files here, beside this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writers {
    /// A shell in the sandbox, perhaps as another user.
    Shell,
    /// The user's own programs.
    User,
}

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error("`{path}` is not a path inside the workspace")]
    Outside { path: String },
    #[error("there is no file `{path}`")]
    Missing { path: String },
    #[error("`{path}` is not a regular file")]
    NotAFile { path: String },
    #[error("`{path}` is larger than {} KiB", FILE_BYTES >> 10)]
    TooLarge { path: String },
    #[error("`{path}` is not UTF-8")]
    NotText { path: String },
    #[error("`{path}` exists and was not read: read it first")]
    Unread { path: String },
    #[error("`{path}` is the task and may not be changed")]
    Fixed { path: String },
    #[error("`{path}` is of another task")]
    OtherTask { path: String },
    #[error("`{path}`: {source}")]
    Io { path: String, source: io::Error },
}

/// The task's own module, for reading.
pub(crate) const MODEL: &str = "model.py";
/// Where submitted solutions are kept.
const SUBMITTED: &str = "submitted";

impl Workspace {
    /// A folder with the task in it; one that is there already is gone on with.
    pub fn open(root: &Path, task: &str) -> io::Result<Self> {
        let workspace = Self::at(root, task, Writers::Shell)?;
        fchmod(&workspace.folder, Mode::from_raw_mode(0o777))?;
        let laid = workspace.put(MODEL, task.as_bytes());
        laid.map_err(|error| io::Error::other(error.to_string()))?;
        Ok(workspace)
    }

    /// The same in a folder of the user's: modes are left alone, and a `model.py` of another task is not overwritten.
    pub fn open_for_user(root: &Path, task: &str) -> Result<Self, WorkspaceError> {
        let workspace = Self::at(root, task, Writers::User)
            .map_err(|source| io_error(&root.display().to_string(), source))?;
        match workspace.peek(MODEL) {
            Ok(text) if text == task => {}
            Ok(_) => {
                return Err(WorkspaceError::OtherTask {
                    path: workspace.root.join(MODEL).display().to_string(),
                });
            }
            Err(WorkspaceError::Missing { .. }) => workspace.put(MODEL, task.as_bytes())?,
            Err(other) => return Err(other),
        }
        Ok(workspace)
    }

    /// Puts files there that the agent may overwrite without having read them.
    pub(crate) fn lay_out(&mut self, files: &FencedFiles) -> io::Result<()> {
        for (path, text) in files {
            let laid = self.put(path, text.as_bytes());
            laid.map_err(|error| io::Error::other(error.to_string()))?;
            self.seen.insert(path.clone());
        }
        Ok(())
    }

    fn at(root: &Path, task: &str, writers: Writers) -> io::Result<Self> {
        fs_err::create_dir_all(root.join("kernels"))?;
        let root = fs_err::canonicalize(root)?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let folder = rustix::fs::open(&root, flags, Mode::empty())?;
        Ok(Self {
            root,
            folder,
            task: task.to_owned(),
            writers,
            seen: BTreeSet::new(),
        })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The text of a file; from now on it may be changed.
    pub fn read(&mut self, path: &str) -> Result<String, WorkspaceError> {
        let text = self.peek(path)?;
        self.seen.insert(path.to_owned());
        Ok(text)
    }

    /// Writes a whole file: a new one, or one that was read before.
    pub fn write(&mut self, path: &str, text: &str) -> Result<(), WorkspaceError> {
        let owned = || path.to_owned();
        if path == MODEL {
            return Err(WorkspaceError::Fixed { path: owned() });
        }
        if !self.seen.contains(path) && self.exists(path)? {
            return Err(WorkspaceError::Unread { path: owned() });
        }
        if text.len() as u64 > FILE_BYTES {
            return Err(WorkspaceError::TooLarge { path: owned() });
        }
        self.put(path, text.as_bytes())?;
        self.seen.insert(owned());
        Ok(())
    }

    /// What would be judged now: `model_new.py` and the sources below `kernels/`. Anything else is left where it is.
    pub fn submission(&self) -> Result<FencedFiles, WorkspaceError> {
        let mut paths = Vec::new();
        if self.exists("model_new.py")? {
            paths.push("model_new.py".to_owned());
        }
        self.sources("kernels", DEPTH, &mut paths)?;
        paths
            .into_iter()
            .map(|path| Ok((path.clone(), self.peek(&path)?)))
            .collect()
    }

    /// Keeps files and the task in a new folder, `submitted/NUMBER`, whatever happens to the workspace afterwards.
    pub(crate) fn keep(&self, files: &FencedFiles) -> Result<PathBuf, WorkspaceError> {
        let mut number = 1_u32;
        while self.exists(&format!("{SUBMITTED}/{number:02}"))? {
            number += 1;
        }
        let place = format!("{SUBMITTED}/{number:02}");
        self.put(&format!("{place}/{MODEL}"), self.task.as_bytes())?;
        for (path, text) in files {
            self.put(&format!("{place}/{path}"), text.as_bytes())?;
        }
        Ok(self.root.join(place))
    }

    fn sources(
        &self,
        below: &str,
        depth: usize,
        found: &mut Vec<String>,
    ) -> Result<(), WorkspaceError> {
        let failed = |source: io::Error| io_error(below, source);
        let flags = OFlags::DIRECTORY | OFlags::RDONLY;
        let Ok(folder) = self.resolve(below, flags) else {
            return Ok(());
        };
        let entries = rustix::fs::Dir::read_from(&folder).map_err(|error| failed(error.into()))?;
        for entry in entries {
            let entry = entry.map_err(|error| failed(error.into()))?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if name == "." || name == ".." {
                continue;
            }
            let path = format!("{below}/{name}");
            let Ok(stat) = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory if depth > 0 => self.sources(&path, depth - 1, found)?,
                FileType::RegularFile if is_submission_path(&path) => found.push(path),
                _ => {}
            }
        }
        Ok(())
    }

    fn exists(&self, path: &str) -> Result<bool, WorkspaceError> {
        match self.resolve(path, OFlags::PATH) {
            Ok(_) => Ok(true),
            Err(WorkspaceError::Missing { .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    pub(crate) fn peek(&self, path: &str) -> Result<String, WorkspaceError> {
        let owned = || path.to_owned();
        // A pipe that nobody writes to would wait for ever otherwise.
        let fd = self.resolve(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let stat = fstat(&fd).map_err(|error| io_error(path, error.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(WorkspaceError::NotAFile { path: owned() });
        }
        let mut bytes = Vec::new();
        File::from(fd)
            .take(FILE_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| io_error(path, error))?;
        if bytes.len() as u64 > FILE_BYTES {
            return Err(WorkspaceError::TooLarge { path: owned() });
        }
        String::from_utf8(bytes).map_err(|_| WorkspaceError::NotText { path: owned() })
    }

    /// The last part of a file that may grow without end.
    pub(crate) fn peek_end(&self, path: &str) -> Result<String, WorkspaceError> {
        let failed = |error: io::Error| io_error(path, error);
        let fd = self.resolve(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let mut file = File::from(fd);
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return Err(WorkspaceError::NotAFile {
                path: path.to_owned(),
            });
        }
        file.seek(io::SeekFrom::Start(found.len().saturating_sub(END_BYTES)))
            .map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(END_BYTES)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Takes a file away, never what a link in its place leads to.
    pub(crate) fn remove(&self, below: &str, name: &str) {
        if let Ok(folder) = self.resolve(below, OFlags::DIRECTORY | OFlags::RDONLY) {
            let _ = rustix::fs::unlinkat(&folder, name, AtFlags::empty());
        }
    }

    fn put(&self, path: &str, content: &[u8]) -> Result<(), WorkspaceError> {
        let plain = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
        if !plain {
            return Err(WorkspaceError::Outside {
                path: path.to_owned(),
            });
        }
        if let Some((parents, _)) = path.rsplit_once('/') {
            self.make_folders(parents)?;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NONBLOCK;
        let fd = self.resolve(path, flags)?;
        let failed = |error: io::Error| io_error(path, error);
        let stat = fstat(&fd).map_err(|error| failed(error.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(WorkspaceError::NotAFile {
                path: path.to_owned(),
            });
        }
        // Fails where the shell made the file and nobody is root here; then it is the shell's to change already.
        if self.writers == Writers::Shell {
            let _ = fchmod(&fd, Mode::from_raw_mode(0o666));
        }
        File::from(fd).write_all(content).map_err(failed)
    }

    fn make_folders(&self, path: &str) -> Result<(), WorkspaceError> {
        let mut so_far = String::new();
        for part in path.split('/') {
            let parent = if so_far.is_empty() { "." } else { &so_far };
            let folder = self.resolve(parent, OFlags::DIRECTORY | OFlags::PATH)?;
            match mkdirat(&folder, part, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(io_error(path, error.into())),
            }
            if !so_far.is_empty() {
                so_far.push('/');
            }
            so_far.push_str(part);
            let made = self.resolve(&so_far, OFlags::DIRECTORY | OFlags::RDONLY)?;
            if self.writers == Writers::Shell {
                let _ = fchmod(&made, Mode::from_raw_mode(0o777));
            }
        }
        Ok(())
    }

    fn resolve(&self, path: &str, flags: OFlags) -> Result<OwnedFd, WorkspaceError> {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let mode = if flags.contains(OFlags::CREATE) {
            Mode::from_raw_mode(0o666)
        } else {
            Mode::empty()
        };
        let flags = flags | OFlags::CLOEXEC;
        openat2(self.folder.as_fd(), path, flags, mode, how).map_err(|error| {
            let path = path.to_owned();
            match error {
                rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR => {
                    WorkspaceError::Missing { path }
                }
                rustix::io::Errno::XDEV | rustix::io::Errno::INVAL => {
                    WorkspaceError::Outside { path }
                }
                rustix::io::Errno::LOOP | rustix::io::Errno::NXIO | rustix::io::Errno::ISDIR => {
                    WorkspaceError::NotAFile { path }
                }
                other => io_error(&path, other.into()),
            }
        })
    }
}

fn io_error(path: &str, source: io::Error) -> WorkspaceError {
    WorkspaceError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn workspace() -> (tempfile::TempDir, Workspace) {
        let folder = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(&folder.path().join("work"), "# the task\n").unwrap();
        (folder, workspace)
    }

    #[test]
    fn files_are_written_read_and_gathered() {
        let (_folder, mut workspace) = workspace();
        workspace.write("kernels/deep/x.cu", "int a;\n").unwrap();
        workspace.write("model_new.py", "import torch\n").unwrap();
        workspace
            .write("notes.txt", "none of the judge's business\n")
            .unwrap();
        assert_eq!(workspace.read("kernels/deep/x.cu").unwrap(), "int a;\n");
        let found: Vec<String> = workspace.submission().unwrap().into_keys().collect();
        assert_eq!(found, ["kernels/deep/x.cu", "model_new.py"]);
    }

    #[test]
    fn what_was_not_read_is_not_overwritten() {
        let (_folder, mut workspace) = workspace();
        fs_err::write(workspace.root().join("model_new.py"), "one\n").unwrap();
        let error = workspace.write("model_new.py", "two\n").unwrap_err();
        assert!(matches!(error, WorkspaceError::Unread { .. }), "{error}");
        workspace.read("model_new.py").unwrap();
        workspace.write("model_new.py", "two\n").unwrap();
        assert!(matches!(
            workspace.write("model.py", ""),
            Err(WorkspaceError::Fixed { .. })
        ));
    }

    #[test]
    fn a_folder_of_the_users_keeps_its_modes_and_its_task() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let open = |task: &str| Workspace::open_for_user(folder.path(), task);
        let mode = || {
            fs_err::metadata(folder.path())
                .unwrap()
                .permissions()
                .mode()
        };
        let before = mode();
        open("# one\n").unwrap();
        open("# one\n").unwrap();
        assert_eq!(mode(), before);
        let error = open("# another\n").err().unwrap();
        assert!(matches!(error, WorkspaceError::OtherTask { .. }), "{error}");
        let kept = fs_err::read_to_string(folder.path().join(MODEL)).unwrap();
        assert_eq!(kept, "# one\n");
    }

    #[test]
    fn what_was_submitted_is_kept_apart() {
        let (_folder, workspace) = workspace();
        fs_err::write(workspace.root().join(MODEL), "# changed\n").unwrap();
        let files = FencedFiles::from([("kernels/x.cu".to_owned(), "int a;\n".to_owned())]);
        let first = workspace.keep(&files).unwrap();
        let second = workspace.keep(&files).unwrap();
        assert!(first.ends_with("submitted/01") && second.ends_with("submitted/02"));
        let read = |name: &str| fs_err::read_to_string(second.join(name)).unwrap();
        assert_eq!(
            (read(MODEL), read("kernels/x.cu")),
            ("# the task\n".to_owned(), "int a;\n".to_owned())
        );

        let elsewhere = tempfile::tempdir().unwrap();
        fs_err::remove_dir_all(workspace.root().join(SUBMITTED)).unwrap();
        symlink(elsewhere.path(), workspace.root().join(SUBMITTED)).unwrap();
        assert!(workspace.keep(&files).is_err());
        assert_eq!(fs_err::read_dir(elsewhere.path()).unwrap().count(), 0);
    }

    /// The shell may have put links anywhere.
    #[test]
    fn links_lead_nowhere() {
        let (folder, mut workspace) = workspace();
        let secret = folder.path().join("secret");
        fs_err::write(&secret, "secret\n").unwrap();
        let root = workspace.root().to_owned();
        symlink(&secret, root.join("model_new.py")).unwrap();
        symlink(folder.path(), root.join("out")).unwrap();
        symlink(&secret, root.join("kernels/x.cu")).unwrap();
        for path in [
            "model_new.py",
            "out/secret",
            "../secret",
            "kernels/x.cu",
            "/etc/passwd",
        ] {
            assert!(workspace.read(path).is_err(), "{path}");
            assert!(workspace.write(path, "changed\n").is_err(), "{path}");
        }
        assert_eq!(fs_err::read_to_string(&secret).unwrap(), "secret\n");
        assert!(
            workspace.submission().is_err(),
            "a link in the place of the module is error"
        );
        workspace.remove("out", "secret");
        assert!(secret.exists());
    }

    #[test]
    fn pipes_and_folders_are_no_files() {
        let (_folder, mut workspace) = workspace();
        let pipe = workspace.root().join("kernels/pipe.cu");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(workspace.read("kernels/pipe.cu").is_err());
        assert!(workspace.write("kernels/pipe.cu", "x").is_err());
        assert!(workspace.read("kernels").is_err());
        assert!(workspace.submission().unwrap().is_empty());
    }
}
