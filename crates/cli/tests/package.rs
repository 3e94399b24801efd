//! What `optimize` hands over, as its user has it: built, imported and called without this program. The compiler and PyTorch are real.

use crate::common::Context;
use warpsmith_compiler::solutions;
use warpsmith_judge::{ImportCheck, JudgeConfig};
use warpsmith_machine::{Caches, Python, PythonChoice, find_python};
use warpsmith_rollout::optimize::{PackageOptions, import, write_result};
use warpsmith_sandbox::Isolation;
use warpsmith_schema::{Profile, Rules, Submission, Target, Task};
use warpsmith_tasks::{capture, load, submission_from_text, variants, with_inputs};

const MODULE: &str = "import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.norm = nn.LayerNorm(size)

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        return self.norm(y).transpose(-1, -2), y.sum(dim=-1)


def get_inputs():
    return [torch.randn(16, 64)]


def get_init_inputs():
    return [64]
";

const SHAPES: &str = "import torch


def get_inputs_variants():
    return [[torch.randn(3, 5, 64)], [torch.randn(7, 64)]]
";

/// What a user's program begins with.
const BEGIN: &str = "
import sys
sys.path[:0] = ['result/package', 'result']
import copy, torch
import model
from task_fast import ModelNew
assert not any(name.startswith('warpsmith') for name in sys.modules)
original, faster = model.Model(64).eval(), ModelNew(64).eval()
faster.load_state_dict(original.state_dict())
def check(made, x, right=original):
    for one, other in zip(made(x), right(x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
";

const GUARDED: &str = "
with torch.no_grad():
    for shape in [(16, 64), (3, 5, 64), (7, 64), (9, 64), (2, 2, 2, 64)]:
        check(faster, torch.randn(shape))
    check(faster, torch.randn(64, 16).T)
    # Another type, and a copy with weights of its own.
    other = copy.deepcopy(faster)
    other.linear.weight.mul_(2)
    double = copy.deepcopy(other).double()
    changed = model.Model(64).eval()
    changed.load_state_dict(other.state_dict())
    x = torch.randn(16, 64)
    check(other, x, changed)
    check(faster, x)
    for one, right in zip(double(x.double()), changed(x), strict=True):
        assert one.dtype == torch.float64
        torch.testing.assert_close(one.float(), right, rtol=1e-4, atol=1e-5)
";

/// Inside a larger model, between operators that are compiled; no graph ends at the kernels.
const COMPILED: &str = "
class Outer(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x):
        first, second = self.inner(x * 2)
        return torch.relu(first) * 2, second.sin()
with torch.no_grad():
    x = torch.randn(16, 64)
    compiled = torch.compile(Outer(faster), fullgraph=False)
    for one, other in zip(compiled(x), Outer(original)(x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    found = torch._dynamo.explain(Outer(faster))(torch.randn(16, 64))
    assert found.graph_break_count == 0, found.break_reasons
    # Another shape is not the kernels': the graph ends there, and the numbers are right.
    other = torch.randn(9, 64)
    compiled = torch.compile(Outer(faster))
    torch.testing.assert_close(compiled(other)[1], Outer(original)(other)[1], rtol=1e-4, atol=1e-5)
";

const UNGUARDED: &str = "
with torch.no_grad():
    check(faster, torch.randn(16, 64))
    for x in [torch.randn(9, 64), torch.randn(16, 64, dtype=torch.float64)]:
        try:
            faster(x)
        except ValueError as error:
            assert '--guard' in str(error), error
        else:
            raise AssertionError('kernels ran on what they were not written for')
";

fn compiled(task: &Task, python: &Python, caches: &Caches) -> Submission {
    let task = Task {
        graph: Some(capture(task, python, caches).unwrap()),
        ..task.clone()
    };
    let solutions = solutions(&task, Target::Cpu).unwrap();
    submission_from_text(&solutions.last().unwrap().1)
}

fn config(python: &Python, caches: &Caches) -> JudgeConfig {
    JudgeConfig {
        target: Target::Cpu,
        device: 0,
        profile: Profile::Rl,
        isolation: Isolation::Strict,
        compile_mode: None,
        seed: None,
        rules: Rules::Own,
        pool: None,
        caches: caches.clone(),
        python: python.clone(),
    }
}

#[test]
fn a_package_serves_its_shapes_and_guards_the_others() {
    let context = Context::new();
    context.write("task.py", MODULE);
    context.write("shapes.py", SHAPES);
    let caches = Caches::locate().unwrap();
    let python = find_python(&PythonChoice::Auto, &caches).unwrap().unwrap();
    let config = config(&python, &caches);
    let executable = python.executable.display().to_string();
    let task = load(&context.path("task.py").display().to_string()).unwrap();
    let given = with_inputs(&task, &context.path("shapes.py")).unwrap();
    let shapes = variants(given, &python).unwrap();
    assert_eq!(shapes.len(), 3);
    let submissions = shapes.iter().map(|one| compiled(one, &python, &caches));
    let submissions: Vec<Submission> = submissions.collect();
    let options = PackageOptions {
        guard: true,
        // The last is the original's.
        shapes: vec![Some(submissions[1].clone()), None],
    };
    let result = context.path("result");
    write_result(&result, &shapes[0], Some(&submissions[0]), &options).unwrap();
    let found = import(&result, &shapes[0], &options, &config).unwrap();
    assert!(matches!(found, ImportCheck::Works { .. }), "{found:?}");
    context.run_as_a_user(&executable, &format!("{BEGIN}{GUARDED}"));
    context.run_as_a_user(&executable, &format!("{BEGIN}{COMPILED}"));

    let options = PackageOptions::default();
    fs_err::remove_dir_all(&result).unwrap();
    write_result(&result, &task, Some(&submissions[0]), &options).unwrap();
    let found = import(&result, &task, &options, &config).unwrap();
    assert!(matches!(found, ImportCheck::Works { .. }), "{found:?}");
    context.run_as_a_user(&executable, &format!("{BEGIN}{UNGUARDED}"));

    // Kernels that do not compile elsewhere are told, not handed over in silence.
    let mut broken = submissions[0].clone();
    for (path, text) in &mut broken.files {
        if path.starts_with("kernels/") {
            *text = b"#include <no_such_header.h>".to_vec();
        }
    }
    write_result(&result, &task, Some(&broken), &options).unwrap();
    let found = import(&result, &task, &options, &config).unwrap();
    let ImportCheck::Fails { message } = found else {
        panic!("{found:?}");
    };
    assert!(!message.is_empty());
}

#[test]
fn inputs_that_are_none_are_told() {
    let context = Context::new();
    context.write("task.py", MODULE);
    context.write("none.py", "X = 3\n");
    let arguments = ["optimize", "task.py", "--inputs", "none.py", "--json"];
    let output = context.command(&arguments).output().unwrap();
    assert_eq!(crate::common::code(&output), 2);
    let failure = &crate::common::json(&output)["failure"];
    let message = failure["message"].as_str().unwrap();
    assert!(message.contains("neither `get_inputs`"), "{failure}");
}
