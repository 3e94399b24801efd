//! The teacher on composed tasks: what it covers, what it says, and that a compiler takes it.

use std::path::Path;
use std::process::Command;

use warpsmith_compiler::{SolutionFiles, solutions};
use warpsmith_model::policy::{Policy, PolicyError, PolicyRequest, SamplingParams, SharedPolicy};
use warpsmith_schema::{EpisodeId, EpisodeMode, Message, OpGraph, Target, Task, ValueSource};
use warpsmith_synth::teacher::Teacher;
use warpsmith_synth::{Composition, SeedCatalogue, TaskSize};

use super::python;

fn composed(count: usize) -> Vec<Task> {
    let seeds = SeedCatalogue::torch().unwrap();
    let compositions = (0..).filter_map(|index| {
        let ops = 1 + index as usize % 3;
        let made = Composition::new(&seeds, 11, index, ops)?;
        Some(task(
            &made.ops().join("-"),
            index,
            &made.code(TaskSize::REDUCED),
            Some(made.graph(TaskSize::REDUCED)),
        ))
    });
    compositions.take(count).collect()
}

fn task(name: &str, number: u64, source: &str, graph: Option<OpGraph>) -> Task {
    Task {
        id: format!("{number}-{name}"),
        name: name.to_owned(),
        source: source.to_owned(),
        level: None,
        problem_id: None,
        origin: "composed".to_owned(),
        graph,
    }
}

#[test]
fn most_compositions_are_covered_on_both_targets() {
    let tasks = composed(200);
    for target in [Target::Cpu, Target::Cuda] {
        let covered = tasks
            .iter()
            .filter(|task| solutions(task, target).is_ok())
            .count();
        assert!(covered >= 160, "{covered} of 200 on {target:?}");
    }
}

#[test]
fn the_same_task_has_the_same_solutions() {
    for task in composed(20) {
        assert_eq!(
            solutions(&task, Target::Cuda),
            solutions(&task, Target::Cuda)
        );
    }
}

fn compiles(files: &SolutionFiles, folder: &Path) {
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".cpp")) {
        let file = folder.join(Path::new(path).file_name().unwrap());
        fs_err::write(&file, text).unwrap();
        let output = Command::new("g++")
            .args(["-std=c++17", "-fopenmp", "-fsyntax-only"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn a_compiler_takes_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut tried = 0;
    for task in composed(15) {
        if let Ok(written) = solutions(&task, Target::Cpu) {
            for (_, files) in written {
                compiles(&files, folder.path());
                tried += 1;
            }
        }
    }
    assert!(tried > 25, "only {tried}");
}

/// Kernels run thread by thread on the processor and are compared with PyTorch in float64.
#[test]
fn kernels_compute_what_modules_do() {
    let python = python();
    let folder = tempfile::tempdir().unwrap();
    let mut written = 0;
    for task in composed(18) {
        let place = folder.path().join(&task.id);
        for (strategy, files) in solutions(&task, Target::Cuda).unwrap_or_default() {
            for (path, text) in files {
                let path = place.join(strategy).join(path);
                fs_err::create_dir_all(path.parent().unwrap()).unwrap();
                fs_err::write(path, text).unwrap();
            }
            fs_err::write(place.join("model.py"), &task.source).unwrap();
            written += 1;
        }
    }
    let check = |limit: &str, expected: i32| {
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../compiler/python/check_solutions.py");
        let output = Command::new(&python.executable)
            .arg(script)
            .arg(folder.path())
            .args(["--only", "fused,tuned", "--limit", limit])
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let failed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(expected), "{told}\n{failed}");
        told
    };
    let told = check("18", 0);
    let right: u32 = told.trim().split(' ').next().unwrap().parse().unwrap();
    assert!(right >= 20 && written > right, "{told}");

    let mut tasks: Vec<_> = fs_err::read_dir(folder.path()).unwrap().collect();
    tasks.retain(|one| one.as_ref().unwrap().path().is_dir());
    let first = tasks
        .into_iter()
        .map(|one| one.unwrap().path())
        .min()
        .unwrap();
    let module = first.join("fused/model_new.py");
    let text = fs_err::read_to_string(&module).unwrap();
    fs_err::write(&module, text.replace("return out", "return out + 1")).unwrap();
    assert!(check("1", 1).contains("1 wrong"));
}

/// A task that everything is known of: `relu(x * scale)`.
fn scale_relu() -> Task {
    let graph = serde_json::json!({
        "values": [
            { "shape": [64, 32], "dtype": "float32", "from": { "kind": "input", "position": 0 } },
            { "shape": [32], "dtype": "float32", "from": { "kind": "state", "name": "scale" } },
            { "shape": [64, 32], "dtype": "float32", "from":
                { "kind": "applied", "op": "mul", "inputs": [0, 1], "arguments": {}, "result": 0 } },
            { "shape": [64, 32], "dtype": "float32", "from":
                { "kind": "applied", "op": "relu", "inputs": [2], "arguments": { "inplace": false }, "result": 0 } },
        ],
        "returns": [3],
    });
    let source = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def __init__(self, features):\n        super().__init__()\n        self.scale = nn.Parameter(torch.randn(features))\n\n    def forward(self, x):\n        return torch.relu(x * self.scale)\n";
    task(
        "scale_relu",
        1,
        source,
        Some(serde_json::from_value(graph).unwrap()),
    )
}

#[test]
fn a_chain_is_one_kernel_with_wide_loads() {
    let written = solutions(&scale_relu(), Target::Cuda).unwrap();
    let (name, files) = written.last().unwrap();
    assert_eq!(*name, "tuned");
    let kernel = &files["kernels/run_mul_relu.cu"];
    assert_eq!(kernel.matches("__global__").count(), 1);
    assert!(
        kernel.contains("reinterpret_cast<const float4*>(x)[i]"),
        "{kernel}"
    );
    assert!(
        kernel.contains("reinterpret_cast<const float4*>(scale)[i % 8]"),
        "{kernel}"
    );
    assert!(
        kernel.contains(
            "mul_relu_kernel<<<(64 * 32 + 1023) / 1024, 256, 0, stream>>>(out, x, scale);"
        ),
        "{kernel}"
    );
    let module = &files["model_new.py"];
    assert!(
        module.contains("    def __init__(self, features):\n"),
        "{module}"
    );
    assert!(
        module.contains("kernels.run_mul_relu(out, x, self.scale)"),
        "{module}"
    );
}

struct Talk {
    policy: Box<dyn Policy>,
    messages: Vec<Message>,
}

impl Talk {
    fn new(task: &Task, mode: EpisodeMode, sample: u32) -> Self {
        let teacher = Teacher::new([task], Target::Cpu, mode);
        let episode = EpisodeId {
            task: task.id.clone(),
            sample,
        };
        Self {
            policy: teacher.for_episode(&episode, 0),
            messages: vec![Message::User {
                text: "Write `ModelNew`.".to_owned(),
            }],
        }
    }

    fn reply(&mut self) -> Result<String, PolicyError> {
        let request = PolicyRequest {
            messages: &self.messages,
            tools: &[],
            sampling: SamplingParams::default(),
        };
        let reply = self.policy.reply(&request, &mut |_| {})?;
        let text = reply.text.clone();
        self.messages.push(Message::Assistant {
            text: reply.text,
            calls: Vec::new(),
        });
        Ok(text)
    }

    fn told(&mut self, text: &str) {
        self.messages.push(Message::User {
            text: text.to_owned(),
        });
    }
}

#[test]
fn a_task_without_a_graph_is_not_covered() {
    let bare = Task {
        graph: None,
        ..scale_relu()
    };
    let error = Talk::new(&bare, EpisodeMode::Single, 1)
        .reply()
        .unwrap_err();
    assert!(matches!(error, PolicyError::NotCovered { .. }), "{error}");
}

#[test]
fn an_unknown_operator_is_named() {
    let mut task = scale_relu();
    let graph = task.graph.as_mut().unwrap();
    if let ValueSource::Applied { op, .. } = &mut graph.values[3].from {
        *op = "svdvals".to_owned();
    }
    let error = solutions(&task, Target::Cpu).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no rule for the operator `svdvals`"
    );
}

/// What is planted is found by the compiler or the judge, and the next reply is the mended whole.
#[test]
fn a_planted_mistake_is_mended_after_the_message() {
    let task = scale_relu();
    let right = solutions(&task, Target::Cpu).unwrap().pop().unwrap().1;
    let planted = (1..40).find(|sample| {
        let text = Talk::new(&task, EpisodeMode::Single, *sample)
            .reply()
            .unwrap();
        right.values().any(|file| !text.contains(file.as_str()))
    });
    let mut talk = Talk::new(&task, EpisodeMode::Single, planted.unwrap());
    talk.reply().unwrap();
    talk.told(
        "It does not compile:\n\nkernels/run_mul_relu.cpp:9:5: error: expected ';' before 'x'\n",
    );
    let text = talk.reply().unwrap();
    assert!(text.contains("expected ';' before 'x'"), "{text}");
    assert!(
        right.values().all(|file| text.contains(file.as_str())),
        "{text}"
    );
}

/// The fastest of those that passed is handed in, not the last.
#[test]
fn a_loop_goes_from_looking_to_handing_in_the_fastest() {
    let mut task = scale_relu();
    // Vectorised mathematics makes the third attempt differ from the second.
    if let ValueSource::Applied { op, arguments, .. } =
        &mut task.graph.as_mut().unwrap().values[3].from
    {
        *op = "exp".to_owned();
        arguments.clear();
    }
    // Not every episode has all three.
    let mut told = Vec::new();
    for sample in 1..60 {
        let mut talk = Talk::new(&task, EpisodeMode::Agent, sample);
        assert!(talk.reply().unwrap().ends_with("profile"));
        talk.told("profile:\n100 us");
        talk.reply().unwrap();
        talk.told(
            "write:\nwrote\n\nwrite:\nwrote\n\nverify:\nIt compiles and its results are right.",
        );
        assert!(talk.reply().unwrap().contains("\n\njudge"));
        talk.told("judge:\nIt passes: 90.0 us; eager 100.0 us, 1.11x");
        told = vec![talk.reply().unwrap()];
        for time in ["30.0", "50.0"] {
            if told.last().unwrap().ends_with("submit") {
                break;
            }
            talk.told(&format!(
                "write:\nwrote\n\nwrite:\nwrote\n\njudge:\nIt passes: {time} us; eager 100.0 us"
            ));
            told.push(talk.reply().unwrap());
        }
        if told.len() == 3 {
            break;
        }
    }
    assert_eq!(told.len(), 3);
    let last = told.last().unwrap();
    assert!(
        last.contains("at 30 us") && last.ends_with("submit"),
        "{last}"
    );
    let written = solutions(&task, Target::Cpu).unwrap();
    let (_, fused) = &written[1];
    assert!(
        fused.values().all(|file| last.contains(file.as_str())),
        "{last}"
    );
}

/// What the compiler writes is measured as it is; the teacher's first attempts are broken on purpose now and then.
#[test]
fn the_policy_compiler_never_injects_a_bug() {
    let tasks = composed(40);
    let firsts = |teacher: &Teacher| -> Vec<String> {
        let covered = tasks
            .iter()
            .filter(|task| solutions(task, Target::Cuda).is_ok());
        covered
            .map(|task| {
                let episode = EpisodeId {
                    task: task.id.clone(),
                    sample: 1,
                };
                let mut policy = teacher.for_episode(&episode, 0);
                let request = PolicyRequest {
                    messages: &[],
                    tools: &[],
                    sampling: SamplingParams::default(),
                };
                policy.reply(&request, &mut |_| {}).unwrap().text
            })
            .collect()
    };
    let teacher = Teacher::new(&tasks, Target::Cuda, EpisodeMode::Single);
    let with_bugs = firsts(&teacher);
    let compiler = teacher.without_bugs();
    assert_eq!(compiler.version().name, "compiler");
    let written = firsts(&compiler);
    let differing = written.iter().zip(&with_bugs).filter(|(a, b)| a != b);
    assert!(differing.count() > 0);
    let mut number = 0;
    for task in &tasks {
        let Ok(all) = solutions(task, Target::Cuda) else {
            continue;
        };
        let (_, best) = all.last().unwrap();
        for text in best.values() {
            assert!(written[number].contains(text.trim_end()), "{}", task.id);
        }
        number += 1;
    }
}
