//! What the dashboard's pages of attempts ask of this machine: a profile, the module's graph, machine code.

use std::sync::Arc;

use warpsmith_compiler::{explain, kernels_of};
use warpsmith_judge::profile::{ProfileRequest, disassemble, profile};
use warpsmith_schema::{Failure, Submission, Target, Task};
use warpsmith_serve::{Assembly, AttemptExamination, Examine, ExaminedKernel};
use warpsmith_tasks::capture;

use crate::args::JudgingArgs;
use crate::engine::Engine;
use crate::printer::Printer;

pub(super) fn examiner(judging: &JudgingArgs, printer: &Printer) -> Examine {
    let (judging, printer) = (judging.clone(), printer.clone());
    Arc::new(move |task, submission, target| {
        let engine = Engine::prepare(&judging.machine, &printer).map_err(|stop| stop.0)?;
        examine(task, submission, target, &judging, &engine)
    })
}

fn examine(
    task: &Task,
    submission: &Submission,
    target: Target,
    judging: &JudgingArgs,
    engine: &Engine,
) -> Result<AttemptExamination, Failure> {
    let request = ProfileRequest {
        task: task.clone(),
        solution: Some(submission.clone()),
        target,
        device: judging.machine.device,
        python: engine.python.clone(),
        caches: engine.caches.clone(),
        sanitize: false,
        isolation: judging.isolation.into(),
    };
    let profile = profile(&request).map_err(|error| error.failure())?;
    let code = disassemble(&request).map_err(|error| error.failure())?;
    let assembly = code.into_iter().map(|one| Assembly {
        kind: one.kind.to_owned(),
        text: one.text.as_ref().ok().cloned(),
        why: one.text.err(),
    });
    let mut task = task.clone();
    // A module without a graph is measured all the same.
    if task.graph.is_none() {
        task.graph = capture(&task, &engine.python, &engine.caches).ok();
    }
    Ok(AttemptExamination {
        profile,
        kernels: kernels(&task, submission, target),
        graph: task.graph,
        assembly: assembly.collect(),
    })
}

/// Of a solution that the compiler wrote; of others nobody knows which operators a kernel stands for.
fn kernels(task: &Task, submission: &Submission, target: Target) -> Vec<ExaminedKernel> {
    let files = submission.files.iter();
    let files = files
        .map(|(path, content)| (path.clone(), String::from_utf8_lossy(content).into_owned()))
        .collect();
    let written = kernels_of(task, target, &files).ok().flatten();
    let explained = explain(task, target).map_or_else(|_| Vec::new(), |found| found.kernels);
    let bytes = |name: &str| {
        explained
            .iter()
            .find(|one| one.name == name)
            .map(|one| one.bytes)
    };
    let written = written.unwrap_or_default().into_iter();
    written
        .map(|kernel| ExaminedKernel {
            bytes: bytes(&kernel.name),
            name: kernel.name,
            what: kernel.what,
            operators: kernel
                .operators
                .into_iter()
                .map(|one| (one.op, one.line))
                .collect(),
        })
        .collect()
}
