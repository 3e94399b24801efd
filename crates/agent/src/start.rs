//! A solution that passed before the policy is asked: it starts from there.

use std::fmt::Write;

use warpsmith_schema::Verdict;

use crate::FencedFiles;

/// The most characters of files in a prompt: about four thousand tokens, half the context of a small model.
const MAX_CHARACTERS: usize = 12_000;

/// The best solution so far.
#[derive(Debug, Clone, PartialEq)]
pub struct StartingPoint {
    pub files: FencedFiles,
    /// How long it takes, in microseconds.
    pub us: f64,
    pub eager_us: f64,
    pub compile_us: Option<f64>,
}

impl StartingPoint {
    /// Whether a solution with this verdict is no faster.
    pub(crate) fn beats(&self, verdict: &Verdict) -> bool {
        let times = verdict.times_us.as_ref();
        times.is_some_and(|times| times.candidate.0 >= self.us)
    }

    /// What a policy is told of it that replies with whole files.
    pub(crate) fn with_files(&self) -> String {
        let mut text = self.times();
        let characters: usize = self.files.values().map(|text| text.chars().count()).sum();
        if characters > MAX_CHARACTERS {
            let _ = write!(
                text,
                " Its {characters} characters are too long to show here."
            );
        } else {
            text.push_str(" Its files:");
            for (path, content) in self.files.iter().rev() {
                let content = content.trim_end();
                let _ = write!(
                    text,
                    "\n\nwrite {path}\n```{}\n{content}\n```",
                    language(path)
                );
            }
        }
        text + "\n\nReply with whole files that are faster. A file that you leave as it is need not be repeated."
    }

    /// What a policy is told of it that finds the files in its workspace.
    pub(crate) fn in_workspace(&self) -> String {
        let paths: Vec<String> = self.files.keys().map(|path| format!("`{path}`")).collect();
        format!(
            "{} Its files are in your workspace: {}. Make it faster, or write another that is.",
            self.times(),
            paths.join(", ")
        )
    }

    fn times(&self) -> String {
        let compile = self
            .compile_us
            .map(|us| format!(", `torch.compile` {us:.1} us"));
        format!(
            "The best solution so far passes and takes {:.1} us (eager {:.1} us{}).",
            self.us,
            self.eager_us,
            compile.unwrap_or_default()
        )
    }
}

fn language(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("py") => "python",
        Some("cu" | "cuh") => "cuda",
        _ => "cpp",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_files;

    fn start(kernel: &str) -> StartingPoint {
        let files = [
            ("model_new.py", "import torch\n"),
            ("kernels/a.cpp", kernel),
        ];
        let owned = |(path, text): (&str, &str)| (path.to_owned(), text.to_owned());
        StartingPoint {
            files: files.map(owned).into(),
            us: 12.34,
            eager_us: 20.0,
            compile_us: None,
        }
    }

    /// In the form that replies have: what is shown can be said again.
    #[test]
    fn files_are_shown_as_a_reply_would_write_them() {
        let start = start("int a;\n");
        let text = start.with_files();
        assert!(
            text.starts_with("The best solution so far passes and takes 12.3 us (eager 20.0 us).")
        );
        assert_eq!(read_files(&text).unwrap(), start.files);
    }

    #[test]
    fn files_that_fill_a_context_are_not_shown() {
        let text = start(&"x".repeat(MAX_CHARACTERS)).with_files();
        assert!(text.len() < 400, "{text}");
        assert!(text.contains("12013 characters"), "{text}");
    }
}
