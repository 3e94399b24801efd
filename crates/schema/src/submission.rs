use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A frozen solution: exactly these bytes are judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Submission {
    pub form: SubmissionForm,
    /// Relative path to content: `model_new.py` and `kernels/**`.
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Submission {
    /// One hash over the form, the names and the contents: identical submissions are judged once.
    pub fn content_hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        // Lengths first, so that no two sets of files read the same.
        let mut add = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        add(self.form.name().as_bytes());
        for (path, content) in &self.files {
            add(path.as_bytes());
            add(content);
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// How a solution is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SubmissionForm {
    /// The CUDA Agent workspace: `cuda_extension` with bindings in C++.
    CudaAgent,
    /// Our own: `extern "C"` launchers called through `warpsmith_kernels`, no torch headers.
    Plain,
    /// One KernelBench-style file with `load_inline`.
    Inline,
    /// One file with `@triton.jit` kernels.
    Triton,
}

impl SubmissionForm {
    pub fn name(self) -> &'static str {
        match self {
            Self::CudaAgent => "cuda_agent",
            Self::Plain => "plain",
            Self::Inline => "inline",
            Self::Triton => "triton",
        }
    }
}

/// The one file every solution has.
pub const MODEL_NEW: &str = "model_new.py";

/// Whether a solution may contain this path: `model_new.py`, or a plain name below `kernels/`.
pub fn is_solution_path(path: &str) -> bool {
    let part = |part: &str| {
        let first = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let later = |letter: char| first(letter) || ".-".contains(letter);
        part.starts_with(first) && part.chars().all(later)
    };
    let below = |rest: &str| rest.split('/').count() <= 8 && rest.split('/').all(part);
    path.len() <= 200 && (path == MODEL_NEW || path.strip_prefix("kernels/").is_some_and(below))
}

/// A path that would have to be a file and a folder at once, if there is one.
pub fn clashing_path<'a>(paths: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let all: std::collections::BTreeSet<&str> = paths.collect();
    let folders = |path: &'a str| path.match_indices('/').map(move |(end, _)| &path[..end]);
    let mut folders = all.iter().flat_map(|path| folders(path));
    folders.find(|folder| all.contains(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_a_solution_are_taken() {
        for (path, taken) in [
            ("model_new.py", true),
            ("kernels/softmax.cu", true),
            ("kernels/a/b-c.d/e_f.cuh", true),
            ("kernels/", false),
            ("kernels", false),
            ("kernels/../x", false),
            ("kernels/./x", false),
            ("kernels//x", false),
            ("kernels/.hidden", false),
            ("/kernels/x", false),
            ("../model_new.py", false),
            ("model_new.py/x", false),
            ("kernels/ä", false),
            ("", false),
        ] {
            assert_eq!(is_solution_path(path), taken, "{path}");
        }
        assert!(!is_solution_path(&format!("kernels/{}", "x".repeat(200))));
    }

    #[test]
    fn a_hash_tells_forms_names_and_contents_apart() {
        let submission = |form: SubmissionForm, files: &[(&str, &str)]| {
            let owned =
                |(path, text): &(&str, &str)| ((*path).to_owned(), text.as_bytes().to_vec());
            let files = files.iter().map(owned).collect();
            Submission { form, files }.content_hash()
        };
        let one = submission(
            SubmissionForm::Plain,
            &[(MODEL_NEW, "x"), ("kernels/a.cu", "y")],
        );
        assert_eq!(
            one,
            submission(
                SubmissionForm::Plain,
                &[("kernels/a.cu", "y"), (MODEL_NEW, "x")]
            )
        );
        for other in [
            submission(
                SubmissionForm::CudaAgent,
                &[(MODEL_NEW, "x"), ("kernels/a.cu", "y")],
            ),
            submission(
                SubmissionForm::Plain,
                &[(MODEL_NEW, "x"), ("kernels/a.c", "uy")],
            ),
            submission(
                SubmissionForm::Plain,
                &[(MODEL_NEW, "x"), ("kernels/a.cu", "")],
            ),
            submission(SubmissionForm::Plain, &[(MODEL_NEW, "x")]),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn nothing_is_a_file_and_a_folder() {
        let clash = |paths: &[&'static str]| clashing_path(paths.iter().copied());
        assert_eq!(
            clash(&["model_new.py", "kernels/a.cu", "kernels/b/a.cu"]),
            None
        );
        assert_eq!(
            clash(&["kernels/a.cu/b.cu", "kernels/a.cu"]),
            Some("kernels/a.cu")
        );
    }
}
