//! The result as a Python package that can be installed: it builds its kernels on first import, without this program.

use std::path::Path;

use warpsmith_schema::{MODEL_NEW, Submission, Task};

use super::result::write;
use crate::failure::Stop;

const INIT: &str = include_str!("package/init.py");
const BUILD: &str = include_str!("package/build.py");
const PROJECT: &str = include_str!("package/pyproject.toml");

/// Where in a result the package lies.
pub(super) const FOLDER: &str = "package";

/// A task's name as Python can import it.
pub(super) fn name(task: &str) -> String {
    let plain: String = task
        .chars()
        .map(|letter| match letter.to_ascii_lowercase() {
            letter if letter.is_ascii_alphanumeric() => letter,
            _ => '_',
        })
        .collect();
    let plain = plain.trim_matches('_');
    if plain.is_empty() || plain.starts_with(|letter: char| letter.is_ascii_digit()) {
        format!("module_{plain}_fast")
    } else {
        format!("{plain}_fast")
    }
}

pub(super) fn lay_out(result: &Path, task: &Task, submission: &Submission) -> Result<(), Stop> {
    let (root, package) = (result.join(FOLDER), name(&task.name));
    let fill = |text: &str| {
        text.replace("{package}", &package)
            .replace("{project}", &package.replace('_', "-"))
            .replace(
                "{about}",
                &format!(
                    "A faster drop-in for the module {}.",
                    package.trim_end_matches("_fast")
                ),
            )
    };
    write(&root.join("pyproject.toml"), fill(PROJECT).as_bytes())?;
    let folder = root.join(&package);
    for (path, content) in &submission.files {
        write(&folder.join(path), content)?;
    }
    debug_assert!(submission.files.contains_key(MODEL_NEW));
    write(&folder.join("__init__.py"), fill(INIT).as_bytes())?;
    write(&folder.join("_build.py"), BUILD.as_bytes())?;
    write(
        &folder.join("_calls.py"),
        warpsmith_judge::KERNELS_MODULE.as_bytes(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_imported() {
        for (task, expected) in [
            ("softmax", "softmax_fast"),
            ("level1/19_ReLU", "level1_19_relu_fast"),
            ("1x1-conv", "module_1x1_conv_fast"),
            ("…", "module__fast"),
        ] {
            assert_eq!(name(task), expected);
        }
    }
}
