//! What a policy starts from: the compiler's solution of the module, or one of the user's.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use warpsmith_agent::StartingPoint;
use warpsmith_compiler::{CompileOptions, NotCovered, Strategy, WrittenKernel, solutions_in};
use warpsmith_judge::Judge;
use warpsmith_schema::{
    EventKind, OpGraph, Precision, StartAuthor, Submission, Target, Task, Verdict,
};
use warpsmith_store::RunFolder;
use warpsmith_tasks::{CaptureError, submission_from_text};

use crate::RolloutError;
use crate::history::History;
use crate::recorder::EventRecorder;
use crate::tuning::{
    ComparedTimes, TuningEvent, TuningKey, TuningLog, TuningRequest, tune_by_judge,
};

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
    /// What measuring changed in it.
    pub tuned: Option<TunedStart>,
}

/// How a solution came to be another than the usual one.
#[derive(Debug, Clone)]
pub struct TunedStart {
    pub changes: Vec<String>,
    /// Variants that were measured, those that failed among them.
    pub tried: usize,
    pub failed: usize,
    pub exhausted: bool,
    /// Of both, measured in turn.
    pub times: ComparedTimes,
    pub kernels: Vec<WrittenKernel>,
}

/// How long and where measuring may choose between variants of the compiler's solution.
pub struct StartTuning<'a> {
    /// Of every log.
    pub folder: &'a Path,
    pub device: &'a str,
    pub torch: &'a str,
    /// Without it only what was measured before is used.
    pub budget: Option<Duration>,
    pub stop: &'a dyn Fn() -> bool,
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
    Tuning(&'a TuningEvent<'a>),
    /// Measuring ended; with what it changed, where that is faster.
    Tuned(Option<&'a TunedStart>),
}

/// What it takes to have something to start from, before any policy is there.
pub struct StartContext<'a> {
    pub folder: &'a RunFolder,
    pub task: &'a Task,
    pub target: Target,
    /// Reads the graph of a task that came without one.
    pub capture: &'a dyn Fn(&Task) -> Result<OpGraph, CaptureError>,
    pub judge: &'a mut dyn Judge,
    /// Of products by a library.
    pub precision: Precision,
    pub tuning: StartTuning<'a>,
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
        let (author, candidates, graph) = match request {
            StartRequest::Nothing => return Ok(Start::default()),
            StartRequest::Solution(submission) => (StartAuthor::User, vec![submission], None),
            StartRequest::Compiler => match self.compiled(on_progress) {
                Ok((graph, candidates)) => (StartAuthor::Compiler, candidates, Some(graph)),
                Err(absent) => {
                    on_progress(StartProgress::Absent(&absent));
                    return Ok(Start {
                        solution: None,
                        absent: Some(absent),
                    });
                }
            },
        };
        let mut start = Start::default();
        for submission in candidates {
            start.solution = Some(self.judged(author, submission, on_progress)?);
            if start.passed().is_some() {
                break;
            }
        }
        if let Some(graph) = graph
            && start.passed().is_some()
            && let Some(tuned) = self.tuned(graph, on_progress)?
        {
            start.solution = Some(tuned);
        }
        Ok(start)
    }

    fn judged(
        &mut self,
        author: StartAuthor,
        submission: Submission,
        on_progress: &mut dyn FnMut(StartProgress<'_>),
    ) -> Result<StartSolution, RolloutError> {
        let known = History::read(self.folder.path())?.verdicts;
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
            let recorder = EventRecorder::new(self.folder.events()?, None);
            recorder.write(event).map_err(RolloutError::Log)?;
            verdict
        };
        on_progress(StartProgress::Judged(&verdict));
        Ok(StartSolution {
            author,
            submission,
            verdict,
            tuned: None,
        })
    }

    /// The solution that measuring chose, where that is another than the usual one and passes.
    fn tuned(
        &mut self,
        graph: OpGraph,
        on_progress: &mut dyn FnMut(StartProgress<'_>),
    ) -> Result<Option<StartSolution>, RolloutError> {
        let StartTuning {
            folder,
            device,
            torch,
            budget,
            stop,
        } = self.tuning;
        let key = TuningKey {
            graph: &graph,
            target: self.target,
            device,
            torch,
        };
        let log = TuningLog::open(folder, key)?;
        if budget.is_none() && !log.is_known() {
            return Ok(None);
        }
        let mut task = self.task.clone();
        task.graph = Some(graph);
        let outcome = tune_by_judge(TuningRequest {
            task: &task,
            target: self.target,
            options: CompileOptions {
                precision: self.precision,
                ..Strategy::Tuned.into()
            },
            budget,
            log,
            judge: &mut *self.judge,
            stop,
            watch: &mut |event| on_progress(StartProgress::Tuning(&event)),
        })?;
        let faster = outcome.and_then(|outcome| {
            let submission = submission_from_text(outcome.faster()?);
            let found = outcome.found;
            let tuned = TunedStart {
                changes: found.best.changes,
                tried: found.tried,
                failed: found.failed,
                exhausted: found.exhausted,
                times: outcome.compared?,
                kernels: found.best.kernels,
            };
            Some((submission, tuned))
        });
        on_progress(StartProgress::Tuned(
            faster.as_ref().map(|(_, tuned)| tuned),
        ));
        let Some((submission, tuned)) = faster else {
            return Ok(None);
        };
        let solution = self.judged(StartAuthor::Compiler, submission, on_progress)?;
        Ok(solution.verdict.passed().then_some(StartSolution {
            tuned: Some(tuned),
            ..solution
        }))
    }

    /// The graph of the module, and the compiler's solutions, from fast to simple, each once.
    fn compiled(
        &self,
        on_progress: &mut dyn FnMut(StartProgress<'_>),
    ) -> Result<(OpGraph, Vec<Submission>), NoSolution> {
        let mut task = self.task.clone();
        let graph = if let Some(graph) = task.graph.take() {
            graph
        } else {
            on_progress(StartProgress::Capturing);
            (self.capture)(&task).map_err(NoSolution::Graph)?
        };
        task.graph = Some(graph.clone());
        let written = solutions_in(&task, self.target, self.precision).map_err(NoSolution::Rule)?;
        let mut submissions: Vec<Submission> = Vec::new();
        for (_, files) in written.iter().rev() {
            let submission = submission_from_text(files);
            if !submissions.contains(&submission) {
                submissions.push(submission);
            }
        }
        Ok((graph, submissions))
    }
}
