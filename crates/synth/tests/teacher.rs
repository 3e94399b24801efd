//! The teacher on composed tasks: what it covers, what it says, and that a compiler takes it.

use std::path::Path;
use std::process::Command;

use warpsmith_model::policy::{Policy, PolicyError, Request, Sampling, SharedPolicy};
use warpsmith_schema::{Dtype, EpisodeId, Message, Mode, OpGraph, Target, Task, ValueSource};
use warpsmith_synth::teacher::{Files, Teacher, solutions};
use warpsmith_synth::{Composition, Seeds, Size};

use super::python;

fn composed(count: usize) -> Vec<Task> {
    let seeds = Seeds::torch().unwrap();
    let compositions = (0..).filter_map(|index| {
        let ops = 1 + index as usize % 3;
        let made = Composition::new(&seeds, 11, index, ops)?;
        Some(task(
            &made.ops().join("-"),
            index,
            &made.code(Size::REDUCED),
            Some(made.graph(Size::REDUCED)),
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

fn compiles(files: &Files, folder: &Path) {
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
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/check_solutions.py");
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
        kernel.contains("mul_relu_kernel<<<64 * 32 / 1024, 256, 0, stream>>>(out, x, scale);"),
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

/// One value after the other: inputs first, then operators on those before them.
fn chain(inputs: &[&[u64]], ops: &[(&str, &[usize], serde_json::Value, &[u64])]) -> Task {
    let mut values: Vec<serde_json::Value> = Vec::new();
    for (position, shape) in inputs.iter().enumerate() {
        let from = serde_json::json!({ "kind": "input", "position": position });
        values.push(serde_json::json!({ "shape": shape, "dtype": "float32", "from": from }));
    }
    for (op, given, arguments, shape) in ops {
        let from = serde_json::json!({
            "kind": "applied", "op": op, "inputs": given, "arguments": arguments, "result": 0,
        });
        values.push(serde_json::json!({ "shape": shape, "dtype": "float32", "from": from }));
    }
    let graph = serde_json::json!({ "returns": [values.len() - 1], "values": values });
    let names: Vec<String> = (0..inputs.len()).map(|input| format!("x{input}")).collect();
    let source = format!(
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n\n    def forward(self, {}):\n        return x0\n",
        names.join(", "),
    );
    let graph = Some(serde_json::from_value(graph).unwrap());
    task("chain", 1, &source, graph)
}

/// The tuned CUDA file.
fn tuned(task: &Task) -> String {
    let (name, files) = solutions(task, Target::Cuda).unwrap().pop().unwrap();
    assert_eq!(name, "tuned");
    let mut kernels = files.into_iter().filter(|(path, _)| path.ends_with(".cu"));
    kernels.next().unwrap().1
}

#[test]
fn a_window_takes_in_what_it_is_laid_over() {
    let window = serde_json::json!({ "kernel_size": 3, "stride": 1, "padding": 1 });
    let shape: &[u64] = &[8, 16, 1024];
    let kernel = tuned(&chain(
        &[shape, shape],
        &[
            ("mul", &[0, 1], serde_json::json!({}), shape),
            ("avg_pool1d", &[2], window, shape),
        ],
    ));
    assert_eq!(kernel.matches("__global__").count(), 1, "{kernel}");
    assert!(!kernel.contains("hidden"), "{kernel}");
    assert!(
        kernel.contains("reinterpret_cast<float4*>(out)"),
        "{kernel}"
    );
}

#[test]
fn a_window_over_what_was_made_on_the_way_reads_nothing_beside_it() {
    let window = serde_json::json!({ "kernel_size": 3, "stride": 1, "padding": 1 });
    let mean = serde_json::json!({ "dim": 2 });
    let kernel = tuned(&chain(
        &[&[8, 16, 64, 1024]],
        &[
            ("mean", &[0], mean, &[8, 16, 1024]),
            ("max_pool1d", &[1], window, &[8, 16, 1024]),
        ],
    ));
    let beside = |line: &&str| line.contains("= hidden[") && line.contains(" - 1]");
    assert_eq!(kernel.lines().find(beside), None, "{kernel}");
    assert!(kernel.contains("? hidden["), "{kernel}");
}

#[test]
fn a_long_row_is_read_once_for_both_of_its_sums() {
    let shape: &[u64] = &[1024, 131_072];
    let normal = serde_json::json!({ "normalized_shape": [131_072] });
    let kernel = tuned(&chain(
        &[shape],
        &[
            ("layer_norm", &[0], normal, shape),
            ("cumsum", &[1], serde_json::json!({ "dim": -1 }), shape),
        ],
    ));
    // Parts of rows, rows, and the scan with all else in it.
    assert_eq!(kernel.matches("__global__").count(), 3, "{kernel}");
    let loads = kernel
        .matches("reinterpret_cast<const float4*>(x0)")
        .count();
    assert_eq!(loads, 2, "{kernel}");
}

#[test]
fn what_follows_a_scan_is_done_before_it_is_stored() {
    let shape: &[u64] = &[64, 256, 512];
    for dim in [1, 2] {
        let scan = serde_json::json!({ "dim": dim });
        let nothing = serde_json::json!({});
        let kernel = tuned(&chain(
            &[shape, &[512]],
            &[
                ("cumsum", &[0], scan.clone(), shape),
                ("mul", &[2, 1], nothing.clone(), shape),
                ("relu", &[3], nothing.clone(), shape),
            ],
        ));
        assert_eq!(kernel.matches("__global__").count(), 1, "{kernel}");
        assert!(!kernel.contains("hidden"), "{kernel}");
        // Of the running sums one element alone is needed by the one that is stored, or it is not done there.
        let kernel = tuned(&chain(
            &[shape],
            &[
                ("cumsum", &[0], scan, shape),
                ("flip", &[1], serde_json::json!({ "dims": [dim] }), shape),
                ("relu", &[2], nothing, shape),
            ],
        ));
        assert_eq!(kernel.matches("__global__").count(), 2, "{kernel}");
    }
}

#[test]
fn what_is_computed_for_a_row_is_kept() {
    let shape: &[u64] = &[4096, 2048];
    let normal = serde_json::json!({ "normalized_shape": [2048] });
    let kernel = tuned(&chain(
        &[shape],
        &[
            ("selu", &[0], serde_json::json!({}), shape),
            ("layer_norm", &[1], normal, shape),
        ],
    ));
    // Once for every element, and once for the first of the row, which the others are compared with.
    assert_eq!(kernel.matches("expm1f(").count(), 2, "{kernel}");
    assert_eq!(kernel.matches("__global__").count(), 1, "{kernel}");
}

#[test]
fn what_a_triangle_throws_away_is_not_read() {
    for (op, read) in [
        (
            "tril",
            "(i % 16 * 4 - (i / 16) % 64) < 1 ? reinterpret_cast",
        ),
        (
            "triu",
            "(i % 16 * 4 - (i / 16) % 64 + 3) >= 0 ? reinterpret_cast",
        ),
    ] {
        let kernel = tuned(&chain(
            &[&[32, 64, 64]],
            &[
                (op, &[0], serde_json::json!({}), &[32, 64, 64]),
                ("relu", &[1], serde_json::json!({}), &[32, 64, 64]),
            ],
        ));
        assert!(kernel.contains(read), "{kernel}");
    }
}

#[test]
fn what_is_looked_up_is_computed_on_the_way() {
    let nothing = serde_json::json!({});
    let gather = serde_json::json!({ "dim": 1 });
    let mut task = chain(
        &[&[256, 128], &[128], &[256, 64]],
        &[
            ("mul", &[0, 1], nothing.clone(), &[256, 128]),
            ("gather", &[3, 2], gather, &[256, 64]),
        ],
    );
    task.graph.as_mut().unwrap().values[2].dtype = Dtype::Int64;
    let kernel = tuned(&task);
    assert_eq!(kernel.matches("__global__").count(), 1, "{kernel}");
    assert!(!kernel.contains("hidden"), "{kernel}");
    let mirrored = serde_json::json!({ "pad": [2, 2], "mode": "reflect" });
    let kernel = tuned(&chain(
        &[&[16, 32, 128]],
        &[
            ("relu", &[0], nothing, &[16, 32, 128]),
            ("pad", &[1], mirrored, &[16, 32, 132]),
        ],
    ));
    assert_eq!(kernel.matches("__global__").count(), 1, "{kernel}");
}

#[test]
fn few_results_are_stored_before_they_are_normalised() {
    let sum = serde_json::json!({ "dim": [2, 3], "keepdim": true });
    let normal = serde_json::json!({ "num_groups": 2, "eps": 1e-5 });
    let kernel = tuned(&chain(
        &[&[128, 96, 64, 64]],
        &[
            ("sum", &[0], sum, &[128, 96, 1, 1]),
            ("group_norm", &[1], normal, &[128, 96, 1, 1]),
        ],
    ));
    // What is large is read once.
    let loads = kernel.matches("<const float4*>(x0)").count();
    assert_eq!(loads, 1, "{kernel}");
    assert_eq!(kernel.matches("__global__").count(), 2, "{kernel}");
}

#[test]
fn rows_are_those_of_any_reduction_that_fits() {
    let shape: &[u64] = &[128, 192, 64, 64];
    let kernel = tuned(&chain(
        &[shape],
        &[
            (
                "group_norm",
                &[0],
                serde_json::json!({ "num_groups": 8 }),
                shape,
            ),
            (
                "layer_norm",
                &[1],
                serde_json::json!({ "normalized_shape": [64] }),
                shape,
            ),
        ],
    ));
    // Parts of groups, groups, and all else row by row.
    assert_eq!(kernel.matches("__global__").count(), 3, "{kernel}");
}

#[test]
fn what_is_large_decides_which_threads_are_neighbours() {
    // The slopes lie side by side along what is summed, the elements across it.
    let kernel = tuned(&chain(
        &[&[64, 320, 96, 96], &[320, 1, 1]],
        &[
            ("mul", &[0, 1], serde_json::json!({}), &[64, 320, 96, 96]),
            ("sum", &[2], serde_json::json!({ "dim": 1 }), &[64, 96, 96]),
        ],
    ));
    assert!(!kernel.contains("warp_sum"), "{kernel}");
}

#[test]
fn a_result_whose_dimensions_change_places_is_handed_over_as_a_view() {
    let graph = chain(
        &[&[64, 512, 1024]],
        &[
            (
                "softmax",
                &[0],
                serde_json::json!({ "dim": 2 }),
                &[64, 512, 1024],
            ),
            (
                "permute",
                &[1],
                serde_json::json!({ "dims": [0, 2, 1] }),
                &[64, 1024, 512],
            ),
        ],
    );
    let (_, files) = solutions(&graph, Target::Cuda).unwrap().pop().unwrap();
    let model = &files["model_new.py"];
    assert!(model.contains("torch.empty((64, 512, 1024)"), "{model}");
    assert!(model.contains("return out.permute(0, 2, 1)"), "{model}");
}

#[test]
fn what_lies_in_memory_under_another_shape_is_handed_over_under_its_own() {
    let graph = chain(
        &[&[64, 512]],
        &[
            ("cumsum", &[0], serde_json::json!({ "dim": 1 }), &[64, 512]),
            (
                "unsqueeze",
                &[1],
                serde_json::json!({ "dim": 1 }),
                &[64, 1, 512],
            ),
        ],
    );
    for (strategy, files) in solutions(&graph, Target::Cuda).unwrap() {
        let model = &files["model_new.py"];
        let right = model.contains("return out.view([64, 1, 512])")
            || model.contains("out = torch.empty((64, 1, 512)");
        assert!(right, "{strategy}: {model}");
    }
}

#[test]
fn a_block_has_several_short_scans() {
    let shape: &[u64] = &[4096, 128];
    let scan = serde_json::json!({ "dim": 1 });
    let kernel = tuned(&chain(&[shape], &[("cumsum", &[0], scan, shape)]));
    assert!(kernel.contains("<<<4096 / 8, dim3(32, 8)"), "{kernel}");
    assert!(!kernel.contains("__syncthreads"), "{kernel}");
}

#[test]
fn a_transposed_copy_is_tiled() {
    let kernel = tuned(&chain(
        &[&[512, 1024]],
        &[
            (
                "transpose",
                &[0],
                serde_json::json!({ "dim0": 0, "dim1": 1 }),
                &[1024, 512],
            ),
            ("relu", &[1], serde_json::json!({}), &[1024, 512]),
        ],
    ));
    // Four threads along what is written, eight along what is read.
    assert!(kernel.contains("(i / 4) % 8"), "{kernel}");
}

/// The functions that fast mathematics makes inexact, against the C library's double precision.
#[test]
fn functions_of_our_own_are_exact() {
    let folder = tempfile::tempdir().unwrap();
    let range = "std::uniform_real_distribution<float>";
    for (op, inputs, most, draws) in [
        ("sin", 1, 2.0, format!("{range}(-90000, 90000)")),
        ("cos", 1, 2.0, format!("{range}(-100, 100)")),
        ("tan", 1, 3.5, format!("{range}(-1000, 1000)")),
        ("pow", 2, 1.5, format!("{range}(0.01f, 90)")),
    ] {
        let shape: &[u64] = &[1024];
        let given: Vec<usize> = (0..inputs).collect();
        let ops: &[(&str, &[usize], serde_json::Value, &[u64])] =
            &[(op, &given, serde_json::json!({}), shape)];
        let text = tuned(&chain(&vec![shape; inputs], ops));
        let (functions, _) = text.split_once("__global__").unwrap();
        let functions = functions.replace("#include <cuda_runtime.h>", "");
        let arguments = ["a", "b"][..inputs].join(", ");
        let doubles = ["double(a)", "double(b)"][..inputs].join(", ");
        let program = format!(
            "#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#define __device__
#define __forceinline__ inline
static int __float_as_int(float f) {{ int i; memcpy(&i, &f, 4); return i; }}
static float __int_as_float(int i) {{ float f; memcpy(&f, &i, 4); return f; }}
static float __fdiv_rn(float a, float b) {{ return a / b; }}
{functions}
int main() {{
    std::mt19937 random(1);
    auto draw = {draws};
    for (int i = 0; i < 300000; ++i) {{
        const float a = draw(random), b = draw(random) - 4.0f;
        (void)b;
        const double exact = {op}({doubles});
        const float own = exact_{op}({arguments});
        if (std::fabs(exact) > 1e39 && !std::isinf(own)) return 3;
        if (std::fabs(exact) < 1e-46 && own != 0) return 4;
        if (!(std::fabs(exact) > 1e-30 && std::fabs(exact) < 1e30)) continue;
        const float size = std::fabs(float(exact));
        const double unit = std::nextafter(size, INFINITY) - size;
        if (!(std::fabs(own - exact) <= {most} * unit)) return 1;
    }}
    return std::isnan(exact_{op}({nans})) ? 0 : 2;
}}
",
            nans = ["NAN", "NAN"][..inputs].join(", "),
        );
        let (source, built) = (folder.path().join("exact.cpp"), folder.path().join("exact"));
        fs_err::write(&source, program).unwrap();
        let compiler = Command::new("g++")
            .args(["-std=c++17", "-O2", "-o"])
            .args([&built, &source])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&compiler.stderr);
        assert!(compiler.status.success(), "{said}");
        assert_eq!(
            Command::new(&built).status().unwrap().code(),
            Some(0),
            "{op}"
        );
    }
}

struct Talk {
    policy: Box<dyn Policy>,
    messages: Vec<Message>,
}

impl Talk {
    fn new(task: &Task, mode: Mode, sample: u32) -> Self {
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
        let request = Request {
            messages: &self.messages,
            tools: &[],
            sampling: Sampling::default(),
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
    let error = Talk::new(&bare, Mode::Single, 1).reply().unwrap_err();
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
        let text = Talk::new(&task, Mode::Single, *sample).reply().unwrap();
        right.values().any(|file| !text.contains(file.as_str()))
    });
    let mut talk = Talk::new(&task, Mode::Single, planted.unwrap());
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
    // Vectorised mathematics sets the third draft apart from the second.
    if let ValueSource::Applied { op, arguments, .. } =
        &mut task.graph.as_mut().unwrap().values[3].from
    {
        *op = "exp".to_owned();
        arguments.clear();
    }
    // Not every lesson has all three.
    let mut told = Vec::new();
    for sample in 1..60 {
        let mut talk = Talk::new(&task, Mode::Agent, sample);
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
