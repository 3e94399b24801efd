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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use warpsmith_schema::{
        EVENT_FORMAT, EventKind, Failure, Profile, StartAuthor, Status, Submission, SubmissionForm,
        Target, Verdict,
    };
    use warpsmith_store::evidence::{Evidence, write};

    use super::*;

    #[test]
    fn what_a_run_started_from_is_shown_from_its_evidence() {
        let runs = tempfile::tempdir().unwrap();
        let run = runs.path().join("optimize-t");
        let (target, profile) = (Target::Cpu, Profile::Rl);
        let mut judged = Verdict::unreached(Status::Passed, target, profile, String::new());
        judged.compiled = true;
        let evidence = Evidence {
            task_name: "t".into(),
            task_source: "class Model: # the original\n    pass\n".into(),
            submission: Submission {
                form: SubmissionForm::Plain,
                files: [("kernels/f.cpp".to_owned(), b"int f();\n".to_vec())].into(),
            },
            seed: 1,
            target,
            profile,
            environment: [].into(),
            samples: json!({}),
            compile_log: String::new(),
            printed: String::new(),
        };
        let verdict = write(&run.join("evidence/t/1"), judged, evidence, None).unwrap();
        let event = EventKind::StartJudged {
            task: "t".into(),
            author: StartAuthor::Compiler,
            submission: "s".into(),
            verdict: Box::new(verdict),
        };
        let line = json!({ "format": EVENT_FORMAT, "at": "2026-01-02T03:04:05Z", "event": event });
        fs_err::write(run.join("config.json"), "{}").unwrap();
        fs_err::write(run.join("events.jsonl"), line.to_string() + "\n").unwrap();
        let shelf = Shelf::new(runs.path().to_path_buf());
        let examiner = Examiner::new(Arc::new(|_, _, _| Err(Failure::panicked())));
        let page = page(&shelf, &examiner, "optimize-t").unwrap().into_string();
        for text in [
            "<code>kernels/f.cpp</code>, 1 line",
            "# the original",
            "action=\"/runs/optimize-t/examine?task=start&amp;attempt=0\"",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        assert_eq!(address("a b"), "/runs/a%20b/start");
    }
}
