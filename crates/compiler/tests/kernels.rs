//! What tuned CUDA kernels look like: how many there are, what they read, and in what order.

use std::path::Path;
use std::process::Command;

use warpsmith_compiler::solutions;
use warpsmith_schema::{Dtype, Target, Task};

use super::task;

/// One value after the other: inputs first, then operators on those before them.
pub(crate) fn chain(
    inputs: &[&[u64]],
    ops: &[(&str, &[usize], serde_json::Value, &[u64])],
) -> Task {
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
pub(crate) fn tuned(task: &Task) -> String {
    let (name, files) = solutions(task, Target::Cuda).unwrap().pop().unwrap();
    assert_eq!(name, "tuned");
    let mut kernels = files.into_iter().filter(|(path, _)| path.ends_with(".cu"));
    kernels.next().unwrap().1
}

/// JSON has no infinities: a captured graph names them.
#[test]
fn a_number_may_be_infinite() {
    let shape: &[u64] = &[1024];
    let infinite = serde_json::json!({ "other": { "non_finite": "-inf" }, "alpha": 1 });
    let kernel = tuned(&chain(&[shape], &[("add", &[0], infinite, shape)]));
    assert!(kernel.contains("(-INFINITY)"), "{kernel}");
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
    assert!(
        kernel.contains("<<<(4096 + 7) / 8, dim3(32, 8)"),
        "{kernel}"
    );
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
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = package.join("../judge/provided/warpsmith_device.h");
    let functions = fs_err::read_to_string(header).unwrap();
    let functions = functions.replace("#include <cuda_runtime.h>", "");
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
        assert!(text.contains(&format!("warpsmith::{op}(")), "{text}");
        let arguments = ["a", "b"][..inputs].join(", ");
        let doubles = ["double(a)", "double(b)"][..inputs].join(", ");
        let program = format!(
            "#include <random>
#include \"emulated_cuda.h\"
{functions}
int main() {{
    std::mt19937 random(1);
    auto draw = {draws};
    for (int i = 0; i < 300000; ++i) {{
        const float a = draw(random), b = draw(random) - 4.0f;
        (void)b;
        const double exact = std::{op}({doubles});
        const float own = warpsmith::{op}({arguments});
        if (std::fabs(exact) > 1e39 && !std::isinf(own)) return 3;
        if (std::fabs(exact) < 1e-46 && own != 0) return 4;
        if (!(std::fabs(exact) > 1e-30 && std::fabs(exact) < 1e30)) continue;
        const float size = std::fabs(float(exact));
        const double unit = std::nextafter(size, INFINITY) - size;
        if (!(std::fabs(own - exact) <= {most} * unit)) return 1;
    }}
    return std::isnan(warpsmith::{op}({nans})) ? 0 : 2;
}}
",
            nans = ["NAN", "NAN"][..inputs].join(", "),
        );
        let (source, built) = (folder.path().join("exact.cpp"), folder.path().join("exact"));
        fs_err::write(&source, program).unwrap();
        let compiler = Command::new("g++")
            .args(["-std=c++17", "-O2", "-w", "-I"])
            .arg(package.join("python"))
            .arg("-o")
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

#[test]
fn functions_of_many_kernels_are_included() {
    let nothing = || serde_json::json!({});
    let shape: &[u64] = &[512, 4096];
    let kernel = tuned(&chain(&[shape], &[("relu", &[0], nothing(), shape)]));
    let alone = "#include <cuda_runtime.h>\n#include <cstdint>\n\n__global__";
    assert!(kernel.starts_with(alone), "{kernel}");

    let cases: [(&str, serde_json::Value, &[u64], &[&str]); 4] = [
        (
            "softmax",
            serde_json::json!({ "dim": 1 }),
            shape,
            &[
                "top = warpsmith::block_max<128>(top);",
                "sum = warpsmith::block_sum<128>(sum);",
            ],
        ),
        (
            "argmax",
            serde_json::json!({ "dim": 1 }),
            &[512],
            &[
                "warpsmith::ArgMax place = {-INFINITY, 0};",
                "place.take(",
                "place = warpsmith::block_arg_max<128>(place);",
                "out[row] = place.index;",
            ],
        ),
        ("tanh", nothing(), shape, &["warpsmith::tanh("]),
        (
            "logcumsumexp",
            serde_json::json!({ "dim": 1 }),
            shape,
            &["warpsmith::logaddexp("],
        ),
    ];
    for (op, arguments, result, calls) in cases {
        let mut task = chain(&[shape], &[(op, &[0], arguments, result)]);
        if op == "argmax" {
            task.graph.as_mut().unwrap().values[1].dtype = Dtype::Int64;
        }
        let kernel = tuned(&task);
        let includes = "#include \"warpsmith.h\"\n\n__global__";
        assert!(kernel.starts_with(includes), "{kernel}");
        for call in calls {
            assert!(kernel.contains(call), "{call}: {kernel}");
        }
    }
}
