//! What is judged: examples and `KernelBench` tasks with solutions of our own, edited so that nothing is answered from a
//! cache that a user's next edit would not find either.

use std::collections::BTreeMap;
use std::path::Path;

use warpsmith_schema::{MODEL_NEW, Submission, SubmissionForm, Target, Task};
use warpsmith_tasks::{load_all, load_solution};

use crate::failure::Stop;
use crate::source::Source;

/// The ten tasks of our own that throughput is measured on.
pub(crate) const EXAMPLES: [&str; 10] = [
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
pub(crate) struct Work {
    pub(crate) name: String,
    pub(crate) task: Task,
    pub(crate) submission: Submission,
}

impl Work {
    pub(crate) fn example(name: &str, target: Target) -> Result<Self, Stop> {
        let source = Source::example(name)?;
        Ok(Self {
            name: name.to_owned(),
            task: source.task()?,
            submission: source.solution(target)?,
        })
    }

    pub(crate) fn examples(target: Target) -> Result<Vec<Self>, Stop> {
        EXAMPLES
            .iter()
            .map(|name| Self::example(name, target))
            .collect()
    }

    /// Kernels that take some 20 us, some 60 us and more than a millisecond on a large GPU: the shorter, the harder to time.
    pub(crate) fn of_several_sizes(target: Target) -> Result<Vec<Self>, Stop> {
        let mut large = Self::example("matmul_epilogue", target)?;
        large.task.source = large
            .task
            .source
            .replace("4096, 256, 1024", "4096, 2048, 4096");
        "matmul_epilogue, 4096 x 2048 x 4096".clone_into(&mut large.name);
        let small = ["softmax", "conv_block"].map(|name| Self::example(name, target));
        let mut all: Vec<Self> = small.into_iter().collect::<Result<_, _>>()?;
        if target == Target::Cuda {
            all.push(large);
        }
        Ok(all)
    }

    /// The tasks of `file` that `folder/solutions.json` names a solution for.
    pub(crate) fn kernelbench(file: &Path, folder: &Path) -> Result<Vec<Self>, Stop> {
        let text = fs_err::read_to_string(folder.join("solutions.json"))?;
        let solutions: BTreeMap<String, String> = serde_json::from_str(&text)?;
        let tasks = load_all(file)?;
        let mut work = Vec::new();
        for (id, solution) in &solutions {
            let Some(task) = tasks.iter().find(|task| task.id == *id) else {
                return Err(Stop::config(
                    "no_task",
                    format!("`{}` has no task `{id}`", file.display()),
                    None,
                ));
            };
            work.push(Self {
                name: id.clone(),
                task: task.clone(),
                submission: load_solution(&folder.join(solution), true)?,
            });
        }
        Ok(work)
    }

    /// The same with a comment in a kernel: it must be compiled again.
    pub(crate) fn edited(&self, number: u32) -> Self {
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

    pub(crate) fn wrong(&self) -> Self {
        let mut wrong = self.clone();
        if let Some(model) = wrong.submission.files.get_mut(MODEL_NEW) {
            model.extend(WRONG.as_bytes());
        }
        wrong
    }
}
