//! What a policy is told before it begins.

use warpsmith_schema::{Message, Target, Task};

const SINGLE: &str = include_str!("prompts/single.md");
const MODEL: &str = include_str!("prompts/example.py");
const CPU: &str = include_str!("prompts/example.cpp");
const CUDA: &str = include_str!("prompts/example.cu");

/// The conversation that a single turn begins with.
pub(crate) fn opening(task: &Task, target: Target) -> Vec<Message> {
    vec![
        Message::System {
            text: rules(target),
        },
        Message::User {
            text: format!(
                "Write `ModelNew` for this `model.py`.\n\n```python\n{}\n```",
                task.source.trim_end()
            ),
        },
    ]
}

fn rules(target: Target) -> String {
    let words = match target {
        Target::Cpu => Words {
            language: "C++ with OpenMP",
            kernels: "kernels/NAME.cpp",
            stream: "void*",
            advice: "Use `#pragma omp parallel for`, and inner loops that the compiler can vectorise.",
            kernel: ("kernels/scale_relu.cpp", "cpp", CPU),
        },
        Target::Cuda => Words {
            language: "CUDA C++",
            kernels: "kernels/NAME.cu",
            stream: "cudaStream_t",
            advice: "Neighbouring threads read neighbouring addresses, wide (`float4`) where aligned; launch on the given stream.",
            kernel: ("kernels/scale_relu.cu", "cuda", CUDA),
        },
    };
    let (path, fence, code) = words.kernel;
    let example =
        format!("write model_new.py\n```python\n{MODEL}```\n\nwrite {path}\n```{fence}\n{code}```");
    SINGLE
        .replace("{language}", words.language)
        .replace("{kernels}", words.kernels)
        .replace("{stream}", words.stream)
        .replace("{advice}", words.advice)
        .replace("{example}", &example)
}

struct Words {
    language: &'static str,
    kernels: &'static str,
    stream: &'static str,
    advice: &'static str,
    /// Path, language of the fence, code.
    kernel: (&'static str, &'static str, &'static str),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_files;

    /// A small model learns the form from the example: it must be one that is read as meant.
    #[test]
    fn the_example_is_a_reply_that_can_be_read() {
        for (target, kernel) in [
            (Target::Cpu, "kernels/scale_relu.cpp"),
            (Target::Cuda, "kernels/scale_relu.cu"),
        ] {
            let rules = rules(target);
            let (_, example) = rules.split_once("An example").unwrap();
            let files = read_files(example).unwrap();
            assert_eq!(files.keys().collect::<Vec<_>>(), [kernel, "model_new.py"]);
            for place in ["language", "kernels", "stream", "advice", "example"] {
                assert!(!rules.contains(&format!("{{{place}}}")), "{place}");
            }
        }
    }

    /// 1,200 tokens for the whole prompt of a small model; code is about three characters a token.
    #[test]
    fn the_rules_are_short() {
        for target in [Target::Cpu, Target::Cuda] {
            assert!(rules(target).len() < 3300, "{}", rules(target).len());
        }
    }
}
