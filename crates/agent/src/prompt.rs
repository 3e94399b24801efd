//! What a policy is told before it begins.

use warpsmith_schema::{Message, Target, Task};

use crate::StartingPoint;
use crate::settings::{AgentSettings, ModelSize, PromptStyle};
use crate::wire::WireFormat;

const SINGLE: &str = include_str!("prompts/single.md");
const SHORT: &str = include_str!("prompts/short.md");
const SKILL: &str = include_str!("prompts/skill.md");
const SKILL_SMALL: &str = include_str!("prompts/skill_small.md");
/// For a policy that nobody watches.
const UNATTENDED: &str = "\nSay shortly what you are about to do and why, then call tools. Never ask for permission: nobody answers.\n";
const WORKSPACE: &str = include_str!("prompts/workspace.md");
const FENCED: &str = include_str!("prompts/fenced.md");
const MODEL: &str = include_str!("prompts/example.py");
const CPU: &str = include_str!("prompts/example.cpp");
const CUDA: &str = include_str!("prompts/example.cu");

/// The messages that an episode of one reply and its repairs begins with.
pub fn for_single(
    task: &Task,
    target: Target,
    style: PromptStyle,
    start: Option<&StartingPoint>,
) -> Vec<Message> {
    let rules = match style {
        PromptStyle::Full => SINGLE,
        PromptStyle::Short => SHORT,
    };
    begin(
        task,
        fill(rules, target),
        start.map(StartingPoint::with_files),
    )
}

/// How a faster module is written, in full, for large models.
pub fn skill(target: Target) -> String {
    fill(SKILL, target)
}

/// The whole of what an agent of another program is told, whose solution is files in a folder.
pub(crate) fn workspace(target: Target) -> String {
    fill(WORKSPACE, target)
}

/// The messages that an episode of tool calls begins with.
pub(crate) fn for_agent(
    task: &Task,
    settings: &AgentSettings,
    start: Option<&StartingPoint>,
) -> Vec<Message> {
    let mut rules = match settings.size {
        ModelSize::Small => fill(SKILL_SMALL, settings.target),
        ModelSize::Large => skill(settings.target) + UNATTENDED,
    };
    if settings.wire == WireFormat::Fenced {
        rules.push('\n');
        rules.push_str(FENCED);
    }
    begin(task, rules, start.map(StartingPoint::in_workspace))
}

fn begin(task: &Task, rules: String, start: Option<String>) -> Vec<Message> {
    let mut text = format!(
        "Write `ModelNew` for this `model.py`.\n\n```python\n{}\n```",
        task.source.trim_end()
    );
    if let Some(start) = start {
        text.push_str("\n\n");
        text.push_str(&start);
    }
    vec![Message::System { text: rules }, Message::User { text }]
}

/// Puts what holds for a target into the places of a prompt.
fn fill(text: &str, target: Target) -> String {
    let words = target_words(target);
    let (path, fence, code) = words.kernel;
    let example =
        format!("write model_new.py\n```python\n{MODEL}```\n\nwrite {path}\n```{fence}\n{code}```");
    text.replace("{language}", words.language)
        .replace("{kernels}", words.kernels)
        .replace("{stream}", words.stream)
        .replace("{exactness}", words.exactness)
        .replace("{advice}", words.advice)
        .replace("{libraries}", words.libraries)
        .replace("{tuning}", words.tuning)
        .replace("{provided}", words.provided)
        .replace("{example}", &example)
}

struct TargetWords {
    language: &'static str,
    kernels: &'static str,
    stream: &'static str,
    /// What the compiler's flags mean for exactness.
    exactness: &'static str,
    /// In one line, for small models.
    advice: &'static str,
    libraries: &'static str,
    /// Items of a list.
    tuning: &'static str,
    /// What need not be written, in one line.
    provided: &'static str,
    /// Path, language of the fence, code.
    kernel: (&'static str, &'static str, &'static str),
}

fn target_words(target: Target) -> TargetWords {
    match target {
        Target::Cpu => TargetWords {
            language: "C++ with OpenMP",
            kernels: "kernels/NAME.cpp",
            stream: "void*",
            exactness: "",
            advice: "Use `#pragma omp parallel for`, and inner loops that the compiler can vectorise.",
            libraries: "the one library routine is `extern \"C\" void warpsmith_gemm(int transa, int transb, int64_t m, int64_t n, int64_t k, \
                        float alpha, const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc)`, \
                        row-major (declare it yourself)",
            tuning: "- Threads over rows or blocks that fit the cache; `#pragma omp simd` on inner loops over neighbouring addresses.\n   \
                     - Several independent sums, so that additions do not wait for one another. No `std::exp` a thousand times \
                     where a polynomial in vectors is exact enough.",
            provided: " `warpsmith_gemm` is provided.",
            kernel: ("kernels/scale_relu.cpp", "cpp", CPU),
        },
        Target::Cuda => TargetWords {
            language: "CUDA C++",
            kernels: "kernels/NAME.cu",
            stream: "cudaStream_t",
            exactness: " `--use_fast_math` is on: `sinf`, `cosf`, `tanf`, `tanhf`, `logf` and `powf` are not exact enough, `float(sin(double(x)))` is.",
            advice: "Neighbouring threads read neighbouring addresses, wide (`float4`) where aligned; launch on the given stream.",
            libraries: "cuBLAS or cuBLASLt with its epilogues, cuDNN's fused convolution; tensor cores, in TF32 where the baseline's class allows it",
            tuning: "- Neighbouring threads read neighbouring addresses, 16 bytes each (`float4`) where aligned.\n   \
                     - Enough blocks to fill every multiprocessor, enough independent loads in each thread; watch registers and \
                     spills in what `compile` says.\n   \
                     - Shared memory without bank conflicts; asynchronous copies where there is something to overlap.\n   \
                     - One launch instead of several: for short kernels the launch is the time.",
            provided: " `warpsmith.h` provides `warpsmith_gemm`, `warpsmith_conv` and reductions.",
            kernel: ("kernels/scale_relu.cu", "cuda", CUDA),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_files;

    const TARGETS: [(Target, &str); 2] = [
        (Target::Cpu, "kernels/scale_relu.cpp"),
        (Target::Cuda, "kernels/scale_relu.cu"),
    ];

    /// A small model learns the form from the example: it must be one that is read as meant.
    #[test]
    fn the_example_is_a_reply_that_can_be_read() {
        for (target, kernel) in TARGETS {
            for text in [SINGLE, SKILL_SMALL] {
                let rules = fill(text, target);
                let (_, example) = rules.split_once("An example").unwrap();
                let files = read_files(example).unwrap();
                assert_eq!(files.keys().collect::<Vec<_>>(), [kernel, "model_new.py"]);
            }
            let calls = crate::wire::calls(
                fill(SKILL_SMALL, target)
                    .split_once("An example")
                    .unwrap()
                    .1,
            );
            let names: Vec<String> = calls.unwrap().into_iter().map(|call| call.name).collect();
            assert_eq!(names, ["write", "write", "judge"]);
        }
    }

    #[test]
    fn no_place_is_left_empty() {
        for (target, _) in TARGETS {
            for text in [SINGLE, SHORT, SKILL, SKILL_SMALL] {
                let filled = fill(text, target);
                for place in [
                    "language",
                    "kernels",
                    "stream",
                    "exactness",
                    "advice",
                    "example",
                    "libraries",
                    "tuning",
                    "provided",
                ] {
                    assert!(!filled.contains(&format!("{{{place}}}")), "{place}");
                }
            }
        }
    }

    /// 1,200 tokens for the whole prompt of a small model; code is about three characters a token.
    #[test]
    fn the_rules_are_short() {
        for (target, _) in TARGETS {
            assert!(fill(SINGLE, target).len() < 3300);
            assert!(fill(SHORT, target).len() < 760);
            assert!(fill(SKILL_SMALL, target).len() + FENCED.len() < 4300);
        }
    }
}
