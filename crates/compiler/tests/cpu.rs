//! What tuned kernels for a CPU compute and how: they are built as the judge builds them, and run.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;
use warpsmith_compiler::{SolutionFiles, solutions};
use warpsmith_schema::{Target, Task};

use super::kernels::chain;

/// The judge's.
const FLAGS: [&str; 6] = [
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-fopenmp",
    "-w",
    "-march=native",
];

/// The tuned C++ file.
fn tuned(task: &Task) -> String {
    let (name, files) = solutions(task, Target::Cpu).unwrap().pop().unwrap();
    assert_eq!(name, "tuned");
    let mut kernels = files.into_iter().filter(|(path, _)| path.ends_with(".cpp"));
    kernels.next().unwrap().1
}

/// One operator on one input.
fn single(op: &str, arguments: Value, shape: &[u64]) -> Task {
    chain(&[shape], &[(op, &[0], arguments, shape)])
}

fn compiler(folder: &Path, text: &str, more: &[&str]) -> Output {
    let source = folder.join("source.cpp");
    fs_err::write(&source, text).unwrap();
    let built = Command::new("g++")
        .args(FLAGS)
        .args(more)
        .arg("-o")
        .args([&folder.join("built"), &source])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}\n{text}");
    built
}

/// What a program returns.
fn ran(text: &str, more: &[&str]) -> Option<i32> {
    let folder = TempDir::new().unwrap();
    compiler(folder.path(), text, more);
    let status = Command::new(folder.path().join("built")).status().unwrap();
    status.code()
}

/// In place of the provided product.
const PRODUCT: &str = "
extern \"C\" void warpsmith_gemm(int transa, int transb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                               const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
    for (int64_t i = 0; i < m; ++i) for (int64_t j = 0; j < n; ++j) {
        double sum = 0.0;
        for (int64_t l = 0; l < k; ++l) sum += double(transa ? a[l * lda + i] : a[i * lda + l]) * (transb ? b[j * ldb + l] : b[l * ldb + j]);
        c[i * ldc + j] = alpha * float(sum) + (beta == 0.0f ? 0.0f : beta * c[i * ldc + j]);
    }
}
";

/// What a solution of a chain with one result makes of fixed inputs.
pub(crate) fn outputs(task: &Task, files: &SolutionFiles) -> Vec<f32> {
    let kernels = files.iter().find(|(path, _)| path.ends_with(".cpp"));
    let (text, module) = (kernels.unwrap().1, &files["model_new.py"]);
    let (_, launcher) = text.split_once("extern \"C\" int ").unwrap();
    let (name, parameters) = launcher.split_once('(').unwrap();
    let (parameters, _) = parameters.split_once(')').unwrap();
    let names: Vec<&str> = parameters
        .split(',')
        .filter_map(|one| one.rsplit([' ', '*']).next())
        .filter(|one| !one.is_empty() && *one != "stream")
        .collect();
    let graph = task.graph.as_ref().unwrap();
    let count = |name: &str| -> u64 {
        let input = name
            .strip_prefix('x')
            .and_then(|number| number.parse::<usize>().ok());
        if let Some(input) = input {
            return graph.values[input].shape.iter().product();
        }
        let made = format!("        {name} = torch.empty((");
        let (_, shape) = module.split_once(&made).unwrap();
        let (shape, _) = shape.split_once(')').unwrap();
        let extents = shape
            .split(',')
            .filter_map(|one| one.trim().parse::<u64>().ok());
        extents.product()
    };
    let mut main = String::new();
    for name in &names {
        let count = count(name);
        let _ = writeln!(main, "    std::vector<float> {name}({count});");
        if name.starts_with('x') {
            let _ = writeln!(
                main,
                "    for (size_t i = 0; i < {count}; ++i) {name}[i] = float(i * 7919 % 1009) * 0.004f - 2.0f;"
            );
        }
    }
    let argument = |name: &&str| {
        if name.starts_with("workspace") {
            format!("reinterpret_cast<char*>({name}.data())")
        } else {
            format!("{name}.data()")
        }
    };
    let arguments: Vec<String> = names.iter().map(argument).collect();
    let program = format!(
        "{text}\n#include <cstdio>\n#include <vector>\n{PRODUCT}int main() {{\n{main}    if ({name}({}, nullptr)) return 1;\n    \
            fwrite(out.data(), 4, out.size(), stdout);\n    return 0;\n}}\n",
        arguments.join(", ")
    );
    let folder = TempDir::new().unwrap();
    compiler(folder.path(), &program, &["-O1"]);
    let ran = Command::new(folder.path().join("built")).output().unwrap();
    assert!(ran.status.success(), "{program}");
    let numbers = ran.stdout.chunks_exact(4);
    numbers
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect()
}

#[test]
fn functions_for_vectors_are_exact() {
    let most = 1.8;
    for (op, low, high) in [
        ("exp", -103.0, 88.7),
        ("expm1", -30.0, 88.7),
        ("log", 1e-44, 3e38),
        ("log1p", -0.999_999, 3e38),
        ("tanh", -20.0, 20.0),
        ("erf", -6.0, 6.0),
        ("sqrt", 1e-44, 3e38),
    ] {
        let text = tuned(&single(op, json!({}), &[1024]));
        let (functions, _) = text.split_once("static void").unwrap();
        let program = format!(
            "{functions}
#include <initializer_list>
int main() {{
    for (int64_t bits = INT32_MIN; bits <= INT32_MAX; bits += 997) {{
        const float x = float_of(int32_t(bits));
        if (!(x >= {low:e}f && x <= {high:e}f)) continue;
        const double exact = std::{op}(double(x));
        const float own = simd_{op}(x), size = std::fabs(float(exact));
        const double unit = std::nextafter(size, INFINITY) - size;
        if (!(std::fabs(own - exact) <= {most} * unit)) return 1;
    }}
    for (const float x : {{-INFINITY, -1e30f, -2.0f, -1.0f, -0.0f, 0.0f, 1e30f, INFINITY, NAN}}) {{
        const float own = simd_{op}(x), exact = {op}f(x);
        if (std::isnan(own) != std::isnan(exact) || std::isinf(own) != std::isinf(exact)) return 2;
        if (!std::isnan(exact) && !(std::fabs(own - exact) <= 1e-6f * std::fabs(exact)) && own != exact) return 3;
    }}
    return 0;
}}
"
        );
        // With and without fused multiplication.
        for more in [&[][..], &["-ffp-contract=off"]] {
            assert_eq!(ran(&program, more), Some(0), "{op}");
        }
    }
}

/// A loop that is no vector code takes ten times as long.
#[test]
fn loops_over_functions_become_vectors() {
    let shape: &[u64] = &[64, 1024];
    let ops = [
        ("softplus", json!({ "beta": 1, "threshold": 20 })),
        ("mish", json!({})),
        ("gelu", json!({ "approximate": "none" })),
        ("elu", json!({ "alpha": 1.0 })),
        ("logsigmoid", json!({})),
        ("rsqrt", json!({})),
        ("pow", json!({ "exponent": 1.7 })),
        ("softmax", json!({ "dim": -1 })),
    ];
    for (op, arguments) in ops {
        let text = tuned(&single(op, arguments, shape));
        let folder = TempDir::new().unwrap();
        let more = ["-shared", "-fopt-info-vec"];
        let built = compiler(folder.path(), &text, &more);
        let said = String::from_utf8_lossy(&built.stderr).into_owned()
            + &String::from_utf8_lossy(&built.stdout);
        let pragmas = text.lines().filter(|line| line.contains("#pragma omp"));
        let loops = pragmas.filter(|line| line.contains(" simd")).count();
        let vectors = said.lines().filter(|line| line.contains("loop vectorized"));
        let places: BTreeSet<&str> = vectors.filter_map(|line| line.split(' ').next()).collect();
        assert!(loops > 0 && places.len() >= loops, "{op}: {said}\n{text}");
    }
    // A sine and a cosine of one number are two vectors and not one call.
    let both = chain(
        &[shape],
        &[
            ("sin", &[0], json!({}), shape),
            ("cos", &[0], json!({}), shape),
            ("mul", &[1, 2], json!({}), shape),
        ],
    );
    let text = tuned(&both);
    let folder = TempDir::new().unwrap();
    let built = compiler(folder.path(), &text, &["-shared", "-fopt-info-vec"]);
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(said.contains("loop vectorized"), "{said}\n{text}");
}

#[test]
fn softmax_takes_each_exponential_once() {
    let text = tuned(&single("softmax", json!({ "dim": -1 }), &[96, 3000]));
    let (_, kernel) = text.split_once("static void").unwrap();
    assert_eq!(kernel.matches("simd_exp_negative(").count(), 1, "{kernel}");
    assert!(!kernel.contains("] / "), "{kernel}");
    let program = format!(
        "{text}
#include <vector>
int main() {{
    const int64_t rows = 96, columns = 3000;
    std::vector<float> x(rows * columns), out(rows * columns);
    for (size_t i = 0; i < x.size(); ++i) x[i] = float(i * 7919 % 10007) * 0.004f - 20.0f;
    for (int64_t i = 0; i < columns; i += 2) x[i] = -INFINITY;
    x[columns] = 1e30f;
    if (run_softmax(out.data(), x.data(), nullptr)) return 1;
    for (int64_t row = 0; row < rows; ++row) {{
        const float* in = &x[row * columns];
        double top = -INFINITY, sum = 0.0;
        for (int64_t i = 0; i < columns; ++i) top = std::fmax(top, in[i]);
        for (int64_t i = 0; i < columns; ++i) sum += std::exp(in[i] - top);
        for (int64_t i = 0; i < columns; ++i) {{
            const double exact = std::exp(in[i] - top) / sum;
            if (!(std::fabs(out[row * columns + i] - exact) <= 5e-6 * exact + 1e-37)) return 2;
        }}
    }}
    x[5] = NAN;
    run_softmax(out.data(), x.data(), nullptr);
    return std::isnan(out[0]) && !std::isnan(out[columns]) ? 0 : 3;
}}
"
    );
    assert_eq!(ran(&program, &[]), Some(0));
}

/// The weights change from channel to channel, so the inner loop is over one of them.
#[test]
fn a_group_is_normalised_channel_by_channel() {
    let shape: &[u64] = &[2, 12, 5, 8];
    let arguments = json!({ "num_groups": 3, "eps": 1e-5 });
    let task = chain(
        &[shape, &[12], &[12]],
        &[("group_norm", &[0, 1, 2], arguments, shape)],
    );
    let text = tuned(&task);
    assert!(!text.contains("i / "), "{text}");
    let program = format!(
        "{text}
#include <vector>
int main() {{
    std::vector<float> x(2 * 12 * 40), scale(12), shift(12), out(x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = float(i * 7919 % 1009) * 0.01f;
    for (int c = 0; c < 12; ++c) scale[c] = 0.5f + float(c), shift[c] = float(c) - 3.0f;
    if (run_group_norm(out.data(), x.data(), scale.data(), shift.data(), nullptr)) return 1;
    for (int group = 0; group < 6; ++group) {{
        double mean = 0.0, squares = 0.0;
        for (int i = 0; i < 160; ++i) mean += x[group * 160 + i] / 160.0;
        for (int i = 0; i < 160; ++i) squares += std::pow(x[group * 160 + i] - mean, 2) / 160.0;
        for (int i = 0; i < 160; ++i) {{
            const int c = group % 3 * 4 + i / 40;
            const double exact = (x[group * 160 + i] - mean) / std::sqrt(squares + 1e-5) * scale[c] + shift[c];
            if (!(std::fabs(out[group * 160 + i] - exact) <= 1e-5 * (1.0 + std::fabs(exact)))) return 2;
        }}
    }}
    return 0;
}}
"
    );
    assert_eq!(ran(&program, &[]), Some(0));
}

/// A quotient that is rounded to a whole number is not computed otherwise than the module computes it.
#[test]
fn what_is_rounded_afterwards_is_divided() {
    let shape: &[u64] = &[64, 1024];
    let ops = |rounded: bool| {
        let dim = json!({ "dim": [-1], "keepdim": true });
        let mut ops: Vec<(&str, &[usize], Value, &[u64])> = vec![
            ("amax", &[0], dim, &[64, 1]),
            ("div", &[0, 1], json!({}), shape),
        ];
        if rounded {
            ops.push(("round", &[2], json!({}), shape));
        }
        tuned(&chain(&[shape], &ops))
    };
    assert!(ops(false).contains("1.0f / top"), "{}", ops(false));
    assert!(ops(true).contains(" / top"), "{}", ops(true));
    assert!(!ops(true).contains("1.0f / top"), "{}", ops(true));
}

/// What `outputs` fills inputs with.
fn given(place: usize) -> f64 {
    f64::from((place * 7919 % 1009) as f32 * 0.004 - 2.0)
}

#[test]
fn what_is_summed_or_scaled_instead_of_multiplied_is_the_same() {
    let agree = |task: &Task, exact: &dyn Fn(usize) -> f64| {
        let (_, files) = solutions(task, Target::Cpu).unwrap().pop().unwrap();
        for (place, found) in outputs(task, &files).into_iter().enumerate() {
            let exact = exact(place);
            let apart = (f64::from(found) - exact).abs();
            assert!(
                apart <= 1e-4 * (1.0 + exact.abs()),
                "{place}: {found} instead of {exact}"
            );
        }
        files
            .into_iter()
            .find(|(path, _)| path.ends_with(".cpp"))
            .unwrap()
            .1
    };
    // (3, 5, 8) rows times (16, 8), and of the five of each the sum or mean.
    for op in ["sum", "mean"] {
        let task = chain(
            &[&[3, 5, 8], &[16, 8], &[16]],
            &[
                ("linear", &[0, 1, 2], json!({}), &[3, 5, 16]),
                (op, &[3], json!({ "dim": [1] }), &[3, 16]),
            ],
        );
        let text = agree(&task, &|place| {
            let (item, column) = (place / 16, place % 16);
            let row = |row: usize| -> f64 {
                let product = |k: usize| given((item * 5 + row) * 8 + k) * given(column * 8 + k);
                (0..8).map(product).sum::<f64>() + given(column)
            };
            let all: f64 = (0..5).map(row).sum();
            if op == "sum" { all } else { all / 5.0 }
        });
        assert!(text.contains("3, 16, 8, 1.0f"), "{text}");
    }
    for (inputs, is_row) in [([2, 1], true), ([1, 2], false)] {
        let task = chain(
            &[&[12], &[12, 12]],
            &[
                ("diag", &[0], json!({ "diagonal": 0 }), &[12, 12]),
                ("matmul", &inputs, json!({}), &[12, 12]),
            ],
        );
        let text = agree(&task, &|place| {
            let factor = if is_row { place / 12 } else { place % 12 };
            given(factor) * given(place)
        });
        assert!(!text.contains("warpsmith_gemm"), "{text}");
    }
}
