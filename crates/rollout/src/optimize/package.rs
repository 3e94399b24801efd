//! The result as a Python package that can be installed: it builds its kernels on first import, without this program.

use std::collections::BTreeMap;

use warpsmith_schema::{Submission, Task};

const INIT: &str = include_str!("package/init.py");
const BUILD: &str = include_str!("package/build.py");
const PROJECT: &str = include_str!("package/pyproject.toml");

/// Where in a result the package lies.
pub const FOLDER: &str = "package";

/// A task's name as Python can import it.
pub fn name(task: &str) -> String {
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

/// Its files, by where they go in a result.
pub(super) fn files(task: &Task, submission: &Submission) -> BTreeMap<String, Vec<u8>> {
    let package = name(&task.name);
    let about = package.trim_end_matches("_fast");
    let about = format!("A faster drop-in for the module {about}.");
    let fill = |text: &str| {
        text.replace("{package}", &package)
            .replace("{project}", &package.replace('_', "-"))
            .replace("{about}", &about)
            .into_bytes()
    };
    let own = [
        ("__init__.py", fill(INIT)),
        ("_build.py", BUILD.as_bytes().to_vec()),
        (
            "_calls.py",
            warpsmith_judge::KERNELS_MODULE.as_bytes().to_vec(),
        ),
    ];
    let own = own.map(|(path, content)| (path.to_owned(), content));
    let written = submission.files.clone().into_iter();
    let inside = written.chain(own);
    let mut files: BTreeMap<String, Vec<u8>> = inside
        .map(|(path, content)| (format!("{FOLDER}/{package}/{path}"), content))
        .collect();
    files.insert(format!("{FOLDER}/pyproject.toml"), fill(PROJECT));
    files
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
