//! What is judged: examples and `KernelBench` tasks with solutions of our own, edited so that nothing is answered from a
//! cache that a user's next edit would not find either.

use warpsmith_schema::{MODEL_NEW, Submission, SubmissionForm, Target, Task};

use super::{BenchSource, SolvedTask};
use crate::JudgeError;

/// The ten tasks of our own that throughput is measured on.
const EXAMPLES: [&str; 10] = [
    "pointwise_chain",
    "softmax",
    "layernorm",
    "matmul_epilogue",
    "row_reduction",
    "two_outputs",
    "cross_entropy",
    "argmax",
    "conv_block",
    "batchnorm_eval",
];

/// Right shapes, wrong values: a fill is all that `forward` may do without a kernel.
const WRONG: &str = r"

_right = ModelNew.forward

def _wrong(self, *inputs):
    outputs = _right(self, *inputs)
    (outputs[0] if isinstance(outputs, (tuple, list)) else outputs).fill_(3)
    return outputs

ModelNew.forward = _wrong
";

/// A task and a solution of it.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) name: String,
    pub(super) task: Task,
    pub(super) submission: Submission,
}

impl From<SolvedTask> for Work {
    fn from((name, task, submission): SolvedTask) -> Self {
        Self {
            name,
            task,
            submission,
        }
    }
}

impl Work {
    pub(super) fn example(
        name: &str,
        target: Target,
        source: &dyn BenchSource,
    ) -> Result<Self, JudgeError> {
        let (task, submission) = source.example(name, target).map_err(JudgeError::Around)?;
        Ok(Self {
            name: name.to_owned(),
            task,
            submission,
        })
    }

    pub(super) fn examples(
        target: Target,
        source: &dyn BenchSource,
    ) -> Result<Vec<Self>, JudgeError> {
        EXAMPLES
            .iter()
            .map(|name| Self::example(name, target, source))
            .collect()
    }

    /// Kernels that take some 20 us, some 60 us and more than a millisecond on a large GPU: the shorter, the harder to time.
    pub(super) fn of_several_sizes(
        target: Target,
        source: &dyn BenchSource,
    ) -> Result<Vec<Self>, JudgeError> {
        let mut large = Self::example("matmul_epilogue", target, source)?;
        large.task.source = large
            .task
            .source
            .replace("4096, 256, 1024", "4096, 2048, 4096");
        "matmul_epilogue, 4096 x 2048 x 4096".clone_into(&mut large.name);
        let small = ["softmax", "conv_block"].map(|name| Self::example(name, target, source));
        let mut all: Vec<Self> = small.into_iter().collect::<Result<_, _>>()?;
        if target == Target::Cuda {
            all.push(large);
        }
        Ok(all)
    }

    /// The same with a comment in a kernel: it must be compiled again.
    pub(super) fn edited(&self, number: u32) -> Self {
        let mut edited = self.clone();
        let files = &mut edited.submission.files;
        if self.submission.form == SubmissionForm::Inline {
            if let Some(model) = files.get_mut(MODEL_NEW) {
                let text = String::from_utf8_lossy(model);
                let inside = format!("r\"\"\"\n// {number}\n");
                *model = text.replacen("r\"\"\"\n", &inside, 1).into_bytes();
            }
        } else if let Some((_, kernel)) = files
            .iter_mut()
            .find(|(path, _)| *path != MODEL_NEW && !path.contains("binding"))
        {
            kernel.extend(format!("\n// {number}\n").as_bytes());
        }
        edited
    }

    pub(super) fn wrong(&self) -> Self {
        let mut wrong = self.clone();
        if let Some(model) = wrong.submission.files.get_mut(MODEL_NEW) {
            model.extend(WRONG.as_bytes());
        }
        wrong
    }
}
