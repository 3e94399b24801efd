//! The torch of a Python, found without importing it.

use std::path::{Path, PathBuf};

use serde::Serialize;

/// The torch of one Python, read from its files: importing it takes seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Torch {
    /// `torch.__version__`, such as `2.11.0+cu130`.
    pub version: String,
    /// The CUDA it was built for; `None` for a CPU build.
    pub cuda: Option<String>,
    pub dir: PathBuf,
    pub include_dirs: Vec<PathBuf>,
    pub lib_dir: PathBuf,
    pub cxx11_abi: bool,
}

impl Torch {
    /// The tested versions: from the first up to, but not including, the second.
    pub const TESTED: [(u32, u32); 2] = [(2, 10), (2, 13)];

    /// Reads torch's own folder; `None` where the installation is incomplete.
    pub(crate) fn read(dir: &Path) -> Option<Self> {
        let text = fs_err::read_to_string(dir.join("version.py")).ok()?;
        let include = dir.join("include");
        let lib_dir = dir.join("lib");
        if !lib_dir.is_dir() {
            return None;
        }
        Some(Self {
            version: assigned(&text, "__version__")?,
            cuda: assigned(&text, "cuda"),
            dir: dir.to_path_buf(),
            include_dirs: vec![include.clone(), include.join("torch/csrc/api/include")],
            lib_dir,
            cxx11_abi: cxx11_abi(dir),
        })
    }

    /// Whether this version is one our harness is tested with.
    pub fn tested(&self) -> bool {
        let [low, high] = Self::TESTED;
        major_minor(&self.version).is_some_and(|version| low <= version && version < high)
    }
}

/// The string a line such as `cuda: Optional[str] = '13.0'` assigns.
fn assigned(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (left, right) = line.split_once('=')?;
        let left = left.split(':').next()?.trim();
        let value = right.trim();
        let quote = value
            .chars()
            .next()
            .filter(|&quote| quote == '\'' || quote == '"')?;
        let inner = value[1..].split(quote).next()?;
        (left == name).then(|| inner.to_owned())
    })
}

/// Since 2.7 every build uses the new ABI; older builds say so in a file for `CMake`.
fn cxx11_abi(dir: &Path) -> bool {
    fs_err::read_to_string(dir.join("share/cmake/Torch/TorchConfig.cmake"))
        .map_or(true, |text| !text.contains("_GLIBCXX_USE_CXX11_ABI=0"))
}

pub(crate) fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    let number = |part: &str| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    Some((number(parts.next()?)?, number(parts.next()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn torch_folder(version: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs_err::create_dir(folder.path().join("lib")).unwrap();
        fs_err::write(folder.path().join("version.py"), version).unwrap();
        folder
    }

    #[test]
    fn a_version_file_is_read_as_text() {
        let folder = torch_folder(
            "from typing import Optional\n__all__ = ['__version__', 'cuda']\n__version__ = '2.11.0+cu130'\n\
             debug = False\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n",
        );
        let torch = Torch::read(folder.path()).unwrap();
        assert_eq!(
            (torch.version.as_str(), torch.cuda.as_deref()),
            ("2.11.0+cu130", Some("13.0"))
        );
        assert!(torch.tested() && torch.cxx11_abi);
    }

    #[test]
    fn a_cpu_build_has_no_cuda() {
        let folder = torch_folder("__version__ = '2.6.0+cpu'\ncuda: Optional[str] = None\n");
        let cmake = folder.path().join("share/cmake/Torch");
        fs_err::create_dir_all(&cmake).unwrap();
        fs_err::write(
            cmake.join("TorchConfig.cmake"),
            "set(F \"-D_GLIBCXX_USE_CXX11_ABI=0\")",
        )
        .unwrap();
        let torch = Torch::read(folder.path()).unwrap();
        assert_eq!(
            (torch.cuda.clone(), torch.tested(), torch.cxx11_abi),
            (None, false, false)
        );
    }

    #[test]
    fn the_range_ends_before_2_13() {
        let with = |version: &str| {
            Torch::read(torch_folder(&format!("__version__ = '{version}'")).path()).unwrap()
        };
        let tested: Vec<bool> = ["2.9.1", "2.10.0", "2.12.3", "2.13.0a0+git1", "3.0"]
            .map(|version| with(version).tested())
            .to_vec();
        assert_eq!(tested, [false, true, true, false, false]);
    }

    #[test]
    fn half_a_torch_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Torch::read(folder.path()), None);
        fs_err::write(folder.path().join("version.py"), "__version__ = '2.11.0'").unwrap();
        assert_eq!(Torch::read(folder.path()), None);
    }
}
