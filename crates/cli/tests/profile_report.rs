//! Profiles a real task and real solutions on the CPU.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use warpsmith_agent::render_profile;
use warpsmith_judge::profile::{Bound, ProfileReport, ProfileRequest, profile};
use warpsmith_machine::{Caches, NoProgress, PythonChoice, ensure_python};
use warpsmith_sandbox::Isolation;
use warpsmith_schema::{Submission, SubmissionForm, Target, Task};

const TASK: &str = "
import torch

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(width))

    def forward(self, x):
        return torch.relu(x * self.scale)

def get_inputs():
    return [torch.randn(1024, 1024)]

def get_init_inputs():
    return [1024]
";

const MODEL_NEW: &str = "
import torch
from warpsmith_kernels import kernels

class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.empty(width))

    def forward(self, x):
        out = torch.empty_like(x)
        kernels.scaled_relu(out, x, self.scale, x.shape[0], x.shape[1])
        return out
";

const KERNEL: &str = r#"
#include <cstdint>
extern "C" int scaled_relu(float* out, const float* x, const float* scale, int64_t rows, int64_t columns, void*) {
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = 0; column < columns; ++column) {
            const float value = x[row * columns + column] * scale[column];
            out[row * columns + column] = value > 0.0f ? value : 0.0f;
        }
    return 0;
}
"#;

fn solution(model_new: &str, kernel: &str) -> Submission {
    let files = BTreeMap::from([
        ("model_new.py".to_owned(), model_new.as_bytes().to_vec()),
        (
            "kernels/scaled_relu.cpp".to_owned(),
            kernel.as_bytes().to_vec(),
        ),
    ]);
    Submission {
        form: SubmissionForm::Plain,
        files,
    }
}

/// Profiles one at a time: they measure, and they share caches.
static ALONE: Mutex<()> = Mutex::new(());

fn profiled(solution: Option<Submission>) -> ProfileReport {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let caches = Caches::locate().unwrap();
    let python = ensure_python(&PythonChoice::Auto, &caches, &NoProgress, false).unwrap();
    profile(&ProfileRequest {
        task: Task::of_source("scaled_relu", TASK),
        solution,
        target: Target::Cpu,
        device: 0,
        python,
        caches,
        sanitize: true,
        isolation: Isolation::Strict,
    })
    .unwrap()
}

#[test]
fn a_task_and_a_solution_are_profiled() {
    let report = profiled(Some(solution(MODEL_NEW, KERNEL)));
    let megabytes = 4 * 1024 * 1024;

    let reference = &report.reference;
    let names: Vec<&str> = reference
        .operators
        .iter()
        .map(|operator| operator.name.as_str())
        .collect();
    assert!(
        names.contains(&"aten::mul") && names.contains(&"aten::relu"),
        "{names:?}"
    );
    // Two operators, each reading and writing the tensor; the scale is read once.
    assert_eq!(reference.bytes, 4 * megabytes + 4096);
    assert_eq!(reference.min_bytes, 2 * megabytes + 4096);
    assert_eq!(reference.flops, 2 * 1024 * 1024);
    assert_ne!(reference.bound, Bound::Compute);
    assert!(reference.total_us > 0.0 && reference.floor_us > 0.0 && reference.headroom > 0.0);
    assert!(reference.roofline.bandwidth_gbps > 0.0 && reference.roofline.fp32_gflops > 0.0);
    let shares: f64 = reference
        .operators
        .iter()
        .map(|operator| operator.share)
        .sum();
    assert!((shares - 1.0).abs() < 1e-6);

    let found = report.solution.as_ref().unwrap();
    assert_eq!(found.failure, None, "{:?}", found.failure);
    assert!(found.untrusted && found.total_us.unwrap() > 0.0 && found.gbps.unwrap() > 0.0);
    let launcher = found
        .kernels
        .iter()
        .find(|kernel| kernel.name == "scaled_relu")
        .unwrap();
    assert!((launcher.calls - 1.0).abs() < 1e-9 && launcher.time_us > 0.0);
    assert!(found.ncu.is_none() && found.ncu_why.is_some());
    assert!(found.sanitizer.is_none() && found.sanitizer_why.is_some());

    let text = render_profile(&report);
    assert!(
        text.contains("scaled_relu") && text.contains("aten::mul") && text.contains("own account"),
        "{text}"
    );
    let wire = serde_json::to_value(&report).unwrap();
    assert_eq!(wire["format"], 1);
    assert_eq!(wire["solution"]["untrusted"], true);
    assert!(wire["reference"]["compile_kernels"].is_null());
    assert_eq!(
        serde_json::from_value::<ProfileReport>(wire).unwrap(),
        report
    );
}

#[test]
fn a_broken_solution_is_part_of_the_report() {
    let report = profiled(Some(solution(MODEL_NEW, "no C++ at all")));
    let failure = report.solution.unwrap().failure.unwrap();
    assert_eq!(failure.stage, "compile");

    let raising = MODEL_NEW.replace(
        "out = torch.empty_like(x)",
        "raise ValueError('on purpose')",
    );
    let report = profiled(Some(solution(&raising, KERNEL)));
    let text = render_profile(&report);
    let failure = report.solution.unwrap().failure.unwrap();
    assert!(
        failure.stage == "run" && failure.message.contains("on purpose"),
        "{failure:?}"
    );
    assert!(
        text.contains("no profile (run)") && text.contains("on purpose"),
        "{text}"
    );
}

#[test]
fn a_solution_cannot_answer_with_a_link() {
    let linking = format!(
        "{MODEL_NEW}\nimport os, sys\nos.symlink('/etc/passwd', sys.argv[-1] + '/result.json')\nos._exit(0)\n"
    );
    let failure = profiled(Some(solution(&linking, KERNEL)))
        .solution
        .unwrap()
        .failure
        .unwrap();
    assert!(failure.message.contains("without an answer"), "{failure:?}");
}
