//! What a search starts from.

use warpsmith_agent::FencedFiles;
use warpsmith_compiler::{NotCovered, solutions};
use warpsmith_schema::{StartAuthor, Submission, Target, Task};

use crate::SearchError;

/// The candidates that are there before the first move, fastest first as far as that is known.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SearchStart {
    pub author: Option<StartAuthor>,
    /// Each with what it is called.
    pub solutions: Vec<(String, FencedFiles)>,
}

impl SearchStart {
    /// Starts from a solution of the user's.
    pub fn from_submission(submission: &Submission) -> Result<Self, SearchError> {
        let files = submission.files.iter().map(|(path, content)| {
            let text = std::str::from_utf8(content);
            let text = text.map_err(|_| SearchError::NotText { path: path.clone() })?;
            Ok((path.clone(), text.to_owned()))
        });
        let files = files.collect::<Result<FencedFiles, SearchError>>()?;
        Ok(Self {
            author: Some(StartAuthor::User),
            solutions: vec![("yours".to_owned(), files)],
        })
    }
}

/// The compiler's solutions of a task with a graph, by all its strategies, from fast to simple, each once.
pub fn compiled_candidates(task: &Task, target: Target) -> Result<SearchStart, NotCovered> {
    let mut found: Vec<(String, FencedFiles)> = Vec::new();
    for (name, files) in solutions(task, target)?.into_iter().rev() {
        if found.iter().all(|(_, known)| *known != files) {
            found.push((name.to_owned(), files));
        }
    }
    Ok(SearchStart {
        author: Some(StartAuthor::Compiler),
        solutions: found,
    })
}
