//! The page that `--html` writes.

use std::path::Path;

use warpsmith_compiler::{SolutionFiles, WrittenKernel, kernels_of};
use warpsmith_judge::ImportCheck;
use warpsmith_report::{Story, StoryKernel};
use warpsmith_rollout::optimize::{Author, PACKAGE_FOLDER, package_name};
use warpsmith_schema::{Submission, Target, Task};
use warpsmith_tasks::capture;

use super::result::OptimizeReport;
use super::words::describe_author;
use crate::engine::Engine;
use crate::failure::Stop;

pub(super) fn write(path: &Path, report: &OptimizeReport<'_>, engine: &Engine) -> Result<(), Stop> {
    let (task, outcome) = (report.task, report.outcome);
    let winner = outcome.winner.as_ref();
    let author = winner.map(|winner| describe_author(winner.author));
    let files = winner
        .map(|winner| texts(&winner.submission))
        .unwrap_or_default();
    let tuned = report.start.solution.as_ref();
    let tuned =
        tuned.filter(|start| winner.is_some_and(|winner| winner.submission == start.submission));
    let tuned = tuned.and_then(|start| start.tuned.as_ref());
    let is_ours = winner.is_some_and(|winner| matches!(winner.author, Author::Start(_)));
    let story = Story {
        task: &task.name,
        source: &task.source,
        written_by: author.as_deref().unwrap_or("nobody"),
        verdict: outcome.verdict(),
        improved: outcome.improved(),
        kernels: if is_ours {
            match tuned {
                Some(tuned) => tuned.kernels.iter().cloned().map(shown).collect(),
                None => kernels(task, &files, engine),
            }
        } else {
            Vec::new()
        },
        files: files.into_iter().collect(),
        usage: usage(report),
    };
    fs_err::write(path, story.html())?;
    Ok(())
}

fn texts(submission: &Submission) -> SolutionFiles {
    let files = submission.files.iter();
    files
        .map(|(path, content)| (path.clone(), String::from_utf8_lossy(content).into_owned()))
        .collect()
}

/// Which kernel stands for what, where the compiler wrote them. The graph was captured before and is kept.
fn kernels(task: &Task, files: &SolutionFiles, engine: &Engine) -> Vec<StoryKernel> {
    let mut task = task.clone();
    if task.graph.is_none() {
        task.graph = capture(&task, &engine.python, &engine.caches).ok();
    }
    let target: Target = engine.target;
    let found = kernels_of(&task, target, files).ok().flatten();
    let kernels = found.unwrap_or_default().into_iter();
    kernels.map(shown).collect()
}

fn shown(kernel: WrittenKernel) -> StoryKernel {
    let operators = kernel.operators.into_iter();
    StoryKernel {
        name: kernel.name,
        what: kernel.what,
        operators: operators.map(|one| (one.op, one.line)).collect(),
        code: kernel.code,
    }
}

fn usage(report: &OptimizeReport<'_>) -> Vec<String> {
    if !report.outcome.improved() {
        return Vec::new();
    }
    let package = report.outcome.result.join(PACKAGE_FOLDER);
    let mut lines = vec![
        format!("pip install {}", package.display()),
        format!("from {} import ModelNew", package_name(&report.task.name)),
    ];
    if let Some(ImportCheck::Works { .. }) = report.imported {
        lines.push("# imported in a fresh process: it gives what the original gives".to_owned());
    }
    lines
}
