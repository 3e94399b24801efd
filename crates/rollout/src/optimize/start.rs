//! What a policy starts from: the compiler's solution of the module, or one of the user's.

use std::collections::BTreeMap;
use std::sync::Arc;

use warpsmith_agent::StartingPoint;
use warpsmith_compiler::{NotCovered, solutions};
use warpsmith_judge::Judge;
use warpsmith_schema::{EventKind, OpGraph, StartAuthor, Submission, Target, Task, Verdict};
use warpsmith_store::RunFolder;
use warpsmith_tasks::{CaptureError, submission_from_text};

use crate::RolloutError;
use crate::history::History;
use crate::recorder::EventRecorder;

/// What an `optimize` is to start from.
#[derive(Debug, Clone, PartialEq)]
pub enum StartRequest {
    Nothing,
    Compiler,
    /// A solution of the user's own.
    Solution(Submission),
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Start {
    /// The solution that was judged last: one that passed, else the simplest.
    pub solution: Option<StartSolution>,
    /// Why the compiler has none.
    pub absent: Option<NoSolution>,
}

/// A solution that no policy wrote.
#[derive(Debug, Clone)]
pub struct StartSolution {
    pub author: StartAuthor,
    pub submission: Submission,
    pub verdict: Verdict,
}

/// Why the compiler has no solution of a module.
#[derive(Debug, thiserror::Error)]
pub enum NoSolution {
    #[error("its graph cannot be captured: {0}")]
    Graph(CaptureError),
    #[error(transparent)]
    Rule(NotCovered),
}

impl NoSolution {
    /// The operator that stands in the way.
    pub fn operator(&self) -> Option<&str> {
        match self {
            Self::Graph(CaptureError::NotCaptured(reason)) => reason.operator.as_deref(),
            Self::Graph(_) => None,
            Self::Rule(reason) => reason.operator(),
        }
    }

    /// Its line in `model.py`.
    pub fn line(&self) -> Option<u32> {
        match self {
            Self::Graph(CaptureError::NotCaptured(reason)) => reason.line,
            Self::Graph(_) => None,
            Self::Rule(reason) => reason.line(),
        }
    }
}

impl Start {
    /// The solution, if it passed.
    pub fn passed(&self) -> Option<&StartSolution> {
        self.solution
            .as_ref()
            .filter(|solution| solution.verdict.passed())
    }

    /// The solution, if it passed and is faster than the original.
    pub fn faster(&self) -> Option<Submission> {
        let solution = self.passed()?;
        let matched = solution.verdict.matched_precision?;
        (matched.speedup.eager.0 > 1.0).then(|| solution.submission.clone())
    }

    /// What policies are told of it. A solution that did not pass, or that is not text, is nothing to start from.
    pub fn starting_point(&self) -> Option<Arc<StartingPoint>> {
        let solution = self.passed()?;
        let times = solution.verdict.times_us.as_ref()?;
        let files = solution.submission.files.iter().map(|(path, content)| {
            let text = std::str::from_utf8(content).ok()?;
            Some((path.clone(), text.to_owned()))
        });
        Some(Arc::new(StartingPoint {
            files: files.collect::<Option<BTreeMap<_, _>>>()?,
            us: times.candidate.0,
            eager_us: times.eager.0,
            compile_us: times.compile.as_ref().map(|us| us.0),
        }))
    }
}

/// What happens before the policy is asked, for a person who waits.
#[derive(Debug)]
pub enum StartProgress<'a> {
    Capturing,
    Absent(&'a NoSolution),
    Judging(StartAuthor),
    Judged(&'a Verdict),
}

/// What it takes to have something to start from, before any policy is there.
pub struct StartContext<'a> {
    pub folder: &'a RunFolder,
    pub task: &'a Task,
    pub target: Target,
    /// Reads the graph of a task that came without one.
    pub capture: &'a dyn Fn(&Task) -> Result<OpGraph, CaptureError>,
    pub judge: &'a mut dyn Judge,
}

impl StartContext<'_> {
    /// Has what is asked for judged. A verdict of an earlier process is not asked for again.
    ///
    /// The compiler writes several solutions, from fast to simple: the first that passes is taken.
    pub fn start(
        &mut self,
        request: StartRequest,
        on_progress: &mut dyn FnMut(StartProgress<'_>),
    ) -> Result<Start, RolloutError> {
        let (author, candidates) = match request {
            StartRequest::Nothing => return Ok(Start::default()),
            StartRequest::Solution(submission) => (StartAuthor::User, vec![submission]),
            StartRequest::Compiler => match self.compiled(on_progress) {
                Ok(candidates) => (StartAuthor::Compiler, candidates),
                Err(absent) => {
                    on_progress(StartProgress::Absent(&absent));
                    return Ok(Start {
                        solution: None,
                        absent: Some(absent),
                    });
                }
            },
        };
        let known = History::read(self.folder.path())?.verdicts;
        let recorder = EventRecorder::new(self.folder.events()?, None);
        let mut start = Start::default();
        for submission in candidates {
            let (task, hash) = (self.task.id.clone(), submission.content_hash());
            let verdict = if let Some(verdict) = known.get(&(task.clone(), hash.clone())) {
                verdict.clone()
            } else {
                on_progress(StartProgress::Judging(author));
                let verdict = self.judge.judge(self.task, &submission)?;
                let event = EventKind::StartJudged {
                    task,
                    author,
                    submission: hash,
                    verdict: Box::new(verdict.clone()),
                };
                recorder.write(event).map_err(RolloutError::Log)?;
                verdict
            };
            on_progress(StartProgress::Judged(&verdict));
            start.solution = Some(StartSolution {
                author,
                submission,
                verdict,
            });
            if start.passed().is_some() {
                break;
            }
        }
        Ok(start)
    }

    /// The compiler's solutions of the module, from fast to simple, each once.
    fn compiled(
        &self,
        on_progress: &mut dyn FnMut(StartProgress<'_>),
    ) -> Result<Vec<Submission>, NoSolution> {
        let mut task = self.task.clone();
        if task.graph.is_none() {
            on_progress(StartProgress::Capturing);
            task.graph = Some((self.capture)(&task).map_err(NoSolution::Graph)?);
        }
        let written = solutions(&task, self.target).map_err(NoSolution::Rule)?;
        let mut submissions: Vec<Submission> = Vec::new();
        for (_, files) in written.iter().rev() {
            let submission = submission_from_text(files);
            if !submissions.contains(&submission) {
                submissions.push(submission);
            }
        }
        Ok(submissions)
    }
}
