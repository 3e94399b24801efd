//! Examples, embedded.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use warpsmith_schema::Target;

use crate::failure::Stop;

include!(concat!(env!("OUT_DIR"), "/examples.rs"));

/// What `judge` shows when nothing is asked.
pub(crate) const DEFAULT: &str = "softmax";

pub(crate) fn names() -> BTreeSet<&'static str> {
    FILES
        .iter()
        .filter_map(|(path, _)| path.strip_suffix("/model.py"))
        .collect()
}

/// An embedded file, such as `softmax/model.py`.
pub(crate) fn file(path: &str) -> Option<&'static [u8]> {
    FILES
        .iter()
        .find(|(name, _)| *name == path)
        .map(|(_, content)| *content)
}

/// What an example is about: the first line of its module's docstring.
pub(crate) fn summary(name: &str) -> String {
    let source = file(&format!("{name}/model.py")).unwrap_or_default();
    let text = String::from_utf8_lossy(source);
    text.split("\"\"\"")
        .nth(1)
        .and_then(|doc| doc.trim().lines().next())
        .unwrap_or_default()
        .trim_end_matches('.')
        .to_owned()
}

/// An example laid out as a folder, so that it goes the way of every other solution. Deleted on drop.
#[derive(Debug)]
pub(crate) struct Laid {
    folder: TempDir,
    name: String,
}

impl Laid {
    pub(crate) fn out(name: &str) -> Result<Self, Stop> {
        if !names().contains(name) {
            let known: Vec<&str> = names().into_iter().collect();
            return Err(Stop::config(
                "no_example",
                format!("there is no example `{name}`"),
                Some(format!("the examples are {}", known.join(", "))),
            ));
        }
        let folder = TempDir::with_prefix("warpsmith-example-")?;
        write_below(name, folder.path())?;
        Ok(Self {
            folder,
            name: name.to_owned(),
        })
    }

    pub(crate) fn task(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }

    /// The folder itself, or the one file for this target where the example is of that form.
    pub(crate) fn solution(&self, target: Target) -> PathBuf {
        let single = self.task().join(format!("solution_{}.py", target.name()));
        if single.exists() { single } else { self.task() }
    }
}

/// The files of an example, in a folder of its name.
pub(crate) fn write_below(name: &str, folder: &Path) -> io::Result<()> {
    let prefix = format!("{name}/");
    for (path, content) in FILES {
        if path.starts_with(&prefix) {
            write(&folder.join(path), content)?;
        }
    }
    Ok(())
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs_err::create_dir_all(folder)?;
    }
    fs_err::write(path, content)
}
