//! The result as a folder: a correct module, and, where it is faster, a package that can be installed.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use warpsmith_schema::{MODEL_NEW, Submission, Task};

use super::package::{self, PackageOptions};

/// The original under the name that users import.
const UNCHANGED: &str = "\"\"\"No faster module was found: this is the original.\"\"\"\n\nfrom model import Model as ModelNew\n\n__all__ = [\"ModelNew\"]\n";

pub(super) fn files(
    task: &Task,
    faster: Option<&Submission>,
    options: &PackageOptions,
) -> BTreeMap<String, Vec<u8>> {
    let mut files = match faster {
        Some(submission) => {
            let mut files = package::files(task, submission, options);
            files.extend(submission.files.clone());
            files
        }
        None => BTreeMap::from([(MODEL_NEW.to_owned(), UNCHANGED.as_bytes().to_vec())]),
    };
    files.insert("model.py".to_owned(), task.source.clone().into_bytes());
    files
}

/// Writes the files. A folder that has them already stays untouched, with whatever else lies there; one with another result
/// is moved aside.
pub(super) fn lay_out(folder: &Path, files: &BTreeMap<String, Vec<u8>>) -> io::Result<()> {
    let same = |(name, content): (&String, &Vec<u8>)| {
        fs_err::read(folder.join(name)).is_ok_and(|found| found == *content)
    };
    if files.iter().all(same) {
        return Ok(());
    }
    if folder.exists() {
        let mut places = (1_u32..).map(|number| folder.with_extension(number.to_string()));
        if let Some(place) = places.find(|place| !place.exists()) {
            fs_err::rename(folder, place)?;
        }
    }
    for (name, content) in files {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            fs_err::create_dir_all(parent)?;
        }
        fs_err::write(path, content)?;
    }
    Ok(())
}
