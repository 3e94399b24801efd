//! `explain` by the real binary, on a module of which the compiler covers a part.

use crate::common::{Context, code, json};
use serde_json::{Value, json};

const TASK: &str = "import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 32)

    def forward(self, x):
        x = torch.tanh(x) * 2.0
        x = torch.softmax(x, dim=-1)
        x = torch.erfinv(x)
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return []
";

#[test]
fn kernels_are_shown_around_what_is_not_covered() {
    let context = Context::new();
    context.write("task.py", TASK);
    let arguments = ["explain", "task.py", "--target", "cpu"];
    let output = context.command(&arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(code(&output), 0, "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let line = "tanh (line 11), mul (line 11), softmax (line 12)";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("linear (gemm)"), "{text}");
    let gap = "not covered: line 13: there is no rule for the operator `erfinv`";
    assert!(text.contains(gap), "{text}");

    let output = context
        .command(&[&arguments[..], &["--json"]].concat())
        .output()
        .unwrap();
    let found = json(&output);
    assert_eq!(found["target"], "cpu");
    assert_eq!(found["not_covered"][0]["operator"], "erfinv");
    assert_eq!(found["not_covered"][0]["line"], 13);
    let kinds: Vec<&Value> = found["kernels"].as_array().unwrap().iter().collect();
    let kinds: Vec<Value> = kinds.iter().map(|kernel| kernel["kind"].clone()).collect();
    assert_eq!(kinds, [json!("kernel"), json!("gemm"), json!("kernel")]);
    assert_eq!(found["kernels"][0]["bytes"], 2 * 64 * 256 * 4);
    assert!(found["bytes_moved"].as_u64() > found["bytes_minimum"].as_u64());
}
