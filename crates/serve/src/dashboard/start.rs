//! The solution that an `optimize` run started from, which no episode holds: the compiler's, from its evidence.

use std::path::PathBuf;

use maud::{Markup, html};
use warpsmith_report::page::{code, count};
use warpsmith_report::{start_words, verdict};
use warpsmith_schema::{Attempt, EpisodeMode, PolicyVersion, Task, Trajectory};
use warpsmith_store::evidence::read;

use super::examination::Examiner;
use super::frame::{encoded, page as framed};
use super::shelf::Shelf;
use super::{evidence, kernels};

/// Attempts are counted from one, and this was before them.
pub(super) const NUMBER: usize = 0;

/// As an attempt of an episode that nobody played.
pub(super) fn find(shelf: &Shelf, run: &str) -> Option<(PathBuf, Trajectory, Attempt)> {
    let (place, author, verdict) = shelf.look(run, |run| {
        let (author, verdict) = run.index.start.as_ref()?;
        Some((
            run.folder().to_path_buf(),
            start_words(*author),
            verdict.clone(),
        ))
    })??;
    let recorded = read(&evidence::within(&place, verdict.evidence.as_deref()?)?).ok()?;
    let task = Task {
        id: recorded.task_name.clone(),
        name: recorded.task_name,
        source: recorded.task_source,
        level: None,
        problem_id: None,
        origin: String::new(),
        graph: None,
    };
    let policy = PolicyVersion {
        name: author.to_owned(),
        hash: None,
        step: None,
    };
    let files = recorded.submission.files.iter();
    let files =
        files.map(|(path, text)| (path.clone(), String::from_utf8_lossy(text).into_owned()));
    let attempt = Attempt {
        message: 0,
        files: files.collect(),
        verdict,
    };
    let trajectory = Trajectory::begin(
        &task,
        attempt.verdict.target,
        &policy,
        1,
        EpisodeMode::Single,
    );
    Some((place, trajectory, attempt))
}

pub(super) fn address(run: &str) -> String {
    format!("/runs/{}/start", encoded(run))
}

pub(super) fn page(shelf: &Shelf, examiner: &Examiner, run: &str) -> Option<Markup> {
    let (place, trajectory, attempt) = find(shelf, run)?;
    let standing = examiner.standing(&place, &attempt);
    let asked = format!("?task=start&attempt={NUMBER}");
    let body = html! {
        p { a href={ "/runs/" (encoded(run)) } { "← " (run) } }
        p { "Written by " (trajectory.policy.name) ", before a policy was asked." }
        (verdict(&attempt.verdict))
        @if let Some(plot) = evidence::strip(&place, &attempt.verdict) { (plot) }
        (kernels::part(&encoded(run), NUMBER, &attempt, &asked, &standing))
        h2 { "Files" }
        @for (name, content) in &attempt.files {
            details { summary { code { (name) } ", " (count(content.lines().count(), "line")) } (code(name, content)) }
        }
        h2 { "The original" }
        (code("model.py", &trajectory.task.source))
    };
    Some(framed(&format!("What {run} started from"), None, &body))
}
