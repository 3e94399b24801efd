//! The judge measured by wrong variants of tasks. These need torch.

use serde_json::{Value, json};

use crate::common::{Context, code, json};

const SMALL: &str = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        \
    self.norm = nn.LayerNorm(32)\n\n    def forward(self, x):\n        return torch.relu(self.norm(x))\n\n\ndef get_inputs():\n    \
    return [torch.randn(24, 32)]\n\n\ndef get_init_inputs():\n    return []\n";

/// Whoever asks once has it in every later verdict.
#[test]
fn a_verdict_carries_the_rate_once_it_was_measured() {
    let context = Context::new();
    assert_eq!(
        code(&context.command(&["new", "gate"]).output().unwrap()),
        0
    );
    let verify = [
        "judge",
        "gate",
        "--target",
        "cpu",
        "--profile",
        "verify",
        "--no-compile",
        "--json",
    ];
    let verdict = |more: &[&str]| -> Value {
        let output = context.command(&[&verify[..], more].concat()).output();
        json(&output.unwrap())
    };
    let measured = verdict(&["--kill-rate"]);
    assert_eq!(measured["status"], "passed", "{measured:#}");
    let rate = measured["trust"]["kill_rate"].as_f64().unwrap();
    assert!(rate > 0.9, "{rate}");
    assert_eq!(verdict(&[])["trust"]["kill_rate"], rate);
}

#[test]
fn a_set_has_a_table() {
    let context = Context::new();
    let line = json!({ "id": "small", "code": SMALL });
    context.write("set.jsonl", &format!("{line}\n"));
    let arguments = [
        "bench-judge",
        "--mutants",
        "--tasks",
        "set.jsonl",
        "--target",
        "cpu",
        "-q",
    ];
    let output = context
        .command(&[&arguments[..], &["--json"]].concat())
        .output()
        .unwrap();
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    assert_eq!(found["tasks"], 1, "{found:#}");
    assert_eq!(found["broken"], json!([]), "{found:#}");
    let killed = |kind: &str| found["kinds"][kind]["counts"]["killed"].as_u64().unwrap();
    // Weight and bias; zero and ten times; the tail of each side for each operator.
    assert_eq!(
        (
            killed("bias_dropped"),
            killed("epsilon_changed"),
            killed("tail_cut")
        ),
        (2, 2, 4),
        "{found:#}"
    );
    let all = &found["all"]["counts"];
    // Where a draw has no value above six, `relu6` is `relu`.
    assert!(all["survived"].as_u64().unwrap() <= 1, "{found:#}");

    let table = context.command(&arguments).output().unwrap();
    let text = String::from_utf8(table.stdout).unwrap();
    assert!(
        text.contains("| bias_dropped | 2 | 2 | 100.0 % | 0 |"),
        "{text}"
    );
}

#[test]
fn tasks_need_something_to_be_done_with_them() {
    let context = Context::new();
    context.write("set.jsonl", "");
    let output = context
        .command(&["bench-judge", "--tasks", "set.jsonl", "--target", "cpu"])
        .output()
        .unwrap();
    assert_eq!(code(&output), 2);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("`--tasks` needs `--solutions` or `--mutants`"),
        "{stderr}"
    );
}
