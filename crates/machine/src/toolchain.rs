//! The C++ and the CUDA compiler.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::command::{is_executable, on_path, run_briefly};
use crate::download::hex;

const LIMIT: Duration = Duration::from_secs(10);

/// A C++ compiler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CxxCompiler {
    pub path: PathBuf,
    /// The first line of `--version`.
    pub version: String,
    /// Identifies the compiler: part of every object's cache key.
    pub id: String,
}

/// The CUDA compiler and where its headers and libraries lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Nvcc {
    pub path: PathBuf,
    /// Such as `13.0.88`.
    pub version: String,
    pub cuda_home: PathBuf,
    /// As for [`Compiler::id`].
    pub id: String,
}

/// `$CXX` where it names one program, else `g++`, `c++` or `clang++` on the PATH.
pub fn find_cxx() -> Option<CxxCompiler> {
    let chosen = env::var_os("CXX").map(PathBuf::from).and_then(|program| {
        if program.is_absolute() {
            is_executable(&program).then_some(program)
        } else {
            on_path(program.to_str()?).into_iter().next()
        }
    });
    chosen
        .into_iter()
        .chain(
            ["g++", "c++", "clang++"]
                .iter()
                .flat_map(|name| on_path(name)),
        )
        .find_map(|path| {
            let text = ask_program(&path, "--version")?;
            let target = ask_program(&path, "-dumpmachine")?;
            let version = text.lines().next()?.trim().to_owned();
            Some(CxxCompiler {
                id: identity(&path, &[&text, &target]),
                version,
                path,
            })
        })
}

/// The toolkit of `CUDA_HOME` or `CUDA_PATH`, else `nvcc` on the PATH, else in `/usr/local/cuda`.
pub fn find_nvcc() -> Option<Nvcc> {
    ["CUDA_HOME", "CUDA_PATH"]
        .iter()
        .filter_map(env::var_os)
        .map(|home| PathBuf::from(home).join("bin/nvcc"))
        .chain(on_path("nvcc"))
        .chain([PathBuf::from("/usr/local/cuda/bin/nvcc")])
        .filter(|path| is_executable(path))
        .find_map(|path| {
            let text = ask_program(&path, "--version")?;
            let version = nvcc_version(&text)?;
            Some(Nvcc {
                cuda_home: cuda_home(&path),
                id: identity(&path, &[&text]),
                version,
                path,
            })
        })
}

/// The folder above the real binary, except where a distribution installs the toolkit across `/usr`.
fn cuda_home(nvcc: &Path) -> PathBuf {
    let real = fs_err::canonicalize(nvcc).unwrap_or_else(|_| nvcc.to_path_buf());
    let above = |path: &Path| path.parent().and_then(Path::parent).map(Path::to_path_buf);
    [
        above(&real),
        above(nvcc),
        Some(PathBuf::from("/usr/lib/cuda")),
        Some(PathBuf::from("/usr")),
    ]
    .into_iter()
    .flatten()
    .find(|home| home.join("include/cuda_runtime.h").is_file())
    .or_else(|| above(&real))
    .unwrap_or_else(|| PathBuf::from("/usr/local/cuda"))
}

/// From `Cuda compilation tools, release 13.0, V13.0.88`.
fn nvcc_version(text: &str) -> Option<String> {
    let release = text.lines().find(|line| line.contains("release "))?;
    let version = release.rsplit(", V").next()?.trim();
    version
        .starts_with(|first: char| first.is_ascii_digit())
        .then(|| version.to_owned())
}

fn ask_program(program: &Path, flag: &str) -> Option<String> {
    // The identity of a compiler must not depend on the user's language.
    let answer = run_briefly(Command::new(program).arg(flag).env("LC_ALL", "C"), LIMIT).ok()?;
    answer.success.then_some(answer.stdout)
}

/// The real path distinguishes a wrapper from what it wraps; the texts distinguish versions.
fn identity(program: &Path, texts: &[&str]) -> String {
    let real = fs_err::canonicalize(program).unwrap_or_else(|_| program.to_path_buf());
    let mut hasher = Sha256::new();
    hasher.update(real.as_os_str().as_encoded_bytes());
    for text in texts {
        hasher.update([0]);
        hasher.update(text.as_bytes());
    }
    hex(&hasher.finalize()[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvcc_says_its_version() {
        let text = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\n\
                    Build cuda_13.0.r13.0/compiler.36424714_0\n";
        assert_eq!(nvcc_version(text).unwrap(), "13.0.88");
        assert_eq!(nvcc_version("error"), None);
    }

    #[test]
    fn identities_are_stable_and_distinct() {
        let compiler = Path::new("/usr/bin/env");
        assert_eq!(identity(compiler, &["12.2"]), identity(compiler, &["12.2"]));
        assert_ne!(identity(compiler, &["12.2"]), identity(compiler, &["12.3"]));
        assert_ne!(identity(compiler, &["a", "b"]), identity(compiler, &["ab"]));
        assert_ne!(
            identity(compiler, &["12.2"]),
            identity(Path::new("/usr/bin/true"), &["12.2"])
        );
    }

    #[test]
    fn a_toolkit_is_recognised_by_its_header() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("cuda-13.0");
        fs_err::create_dir_all(home.join("bin")).unwrap();
        fs_err::create_dir_all(home.join("include")).unwrap();
        fs_err::write(home.join("bin/nvcc"), "").unwrap();
        fs_err::write(home.join("include/cuda_runtime.h"), "").unwrap();
        assert_eq!(
            cuda_home(&home.join("bin/nvcc")),
            fs_err::canonicalize(&home).unwrap()
        );
    }
}
