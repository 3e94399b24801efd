//! The result as a Python package that can be installed: it builds its kernels on first import, without this program.

use std::collections::BTreeMap;

use warpsmith_judge::ImportJob;
use warpsmith_schema::{Submission, Task};

const INIT: &str = include_str!("package/init.py");
const BUILD: &str = include_str!("package/build.py");
const DROP_IN: &str = include_str!("package/drop_in.py");
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

/// What a package does with inputs that its first kernels were not written for.
#[derive(Debug, Clone, Default)]
pub struct PackageOptions {
    /// The original takes all other shapes and types. Without it they are an error.
    pub guard: bool,
    /// For each further shape its kernels; none where the original is faster.
    pub shapes: Vec<Option<Submission>>,
}

impl PackageOptions {
    /// What it takes to import the package.
    pub(super) fn job(&self, task: &Task) -> ImportJob {
        let further = self.shapes.iter().enumerate();
        let further = further.map(|(place, one)| one.as_ref().map(|_| folder_of(place)));
        ImportJob {
            package: name(&task.name),
            folders: std::iter::once(Some(String::new()))
                .chain(further)
                .collect(),
            guard: self.guard,
        }
    }

    fn needs_original(&self) -> bool {
        self.guard || self.shapes.iter().any(Option::is_none)
    }
}

/// Where the kernels of a further shape lie.
fn folder_of(place: usize) -> String {
    format!("shape{}", place + 2)
}

/// Its files, by where they go in a result.
pub(super) fn files(
    task: &Task,
    submission: &Submission,
    options: &PackageOptions,
) -> BTreeMap<String, Vec<u8>> {
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
        ("_drop_in.py", DROP_IN.as_bytes().to_vec()),
        (
            "_calls.py",
            warpsmith_judge::KERNELS_MODULE.as_bytes().to_vec(),
        ),
    ];
    let own = own.map(|(path, content)| (path.to_owned(), content));
    let original = options.needs_original().then(|| {
        let source = task.source.clone().into_bytes();
        ("_original.py".to_owned(), source)
    });
    let further = options.shapes.iter().enumerate();
    let further = further.filter_map(|(place, one)| Some((folder_of(place), one.as_ref()?)));
    let further: Vec<(String, Vec<u8>)> = further
        .flat_map(|(folder, one)| {
            let files = one.files.iter();
            files.map(move |(path, content)| (format!("{folder}/{path}"), content.clone()))
        })
        .collect();
    let sources = submission.files.values().map(Vec::as_slice);
    let sources = sources.chain(further.iter().map(|(_, content)| content.as_slice()));
    let provided = warpsmith_judge::provided_sources(sources).into_iter();
    let provided =
        provided.map(|(path, text)| (format!("_provided/{path}"), text.as_bytes().to_vec()));
    let written = submission.files.clone().into_iter();
    let inside = written
        .chain(own)
        .chain(original)
        .chain(further.clone())
        .chain(provided);
    let mut files: BTreeMap<String, Vec<u8>> = inside
        .map(|(path, content)| (format!("{FOLDER}/{package}/{path}"), content))
        .collect();
    files.insert(format!("{FOLDER}/pyproject.toml"), fill(PROJECT));
    files
}

#[cfg(test)]
mod tests {
    use warpsmith_schema::SubmissionForm;

    use super::*;

    #[test]
    fn what_kernels_call_travels_with_them() {
        let task = Task {
            id: "1-product".to_owned(),
            name: "product".to_owned(),
            source: String::new(),
            level: None,
            problem_id: None,
            origin: "file".to_owned(),
            graph: None,
        };
        let provided = |kernel: &str| -> Vec<String> {
            let form = SubmissionForm::Plain;
            let kernel = ("kernels/run.cu".to_owned(), kernel.as_bytes().to_vec());
            let submission = Submission {
                form,
                files: BTreeMap::from([kernel]),
            };
            let paths = files(&task, &submission, &PackageOptions::default()).into_keys();
            let names = paths.filter_map(|path| Some(path.split_once("/_provided/")?.1.to_owned()));
            names.collect()
        };
        assert_eq!(provided("int run();"), [""; 0]);
        let kernel = "#include \"warpsmith.h\"\nint run() { return warpsmith_gemm(); }";
        assert_eq!(
            provided(kernel),
            ["gemm.cu", "provided.h", "warpsmith.h", "warpsmith_device.h"]
        );
    }

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
