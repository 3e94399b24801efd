//! What the compiler says about what it would do.

use serde_json::json;
use warpsmith_compiler::{Explanation, FusedOperator, explain};
use warpsmith_schema::{Target, Task};

use super::kernels::chain;

const SHAPE: &[u64] = &[64, 256];
const TENSOR: u64 = 64 * 256 * 4;

/// With a line for each operator, as captured graphs have it: the first is on line 10.
fn explained(mut task: Task, target: Target) -> Explanation {
    let values = &mut task.graph.as_mut().unwrap().values;
    let applied = values.iter_mut().filter(|value| {
        let from = serde_json::to_value(&value.from).unwrap();
        from["kind"] == "applied"
    });
    for (line, value) in (10..).zip(applied) {
        value.line = Some(line);
    }
    explain(&task, target).unwrap()
}

fn fused(op: &str, line: u32) -> FusedOperator {
    FusedOperator {
        op: op.to_owned(),
        line: Some(line),
    }
}

#[test]
fn a_chain_is_one_kernel_that_moves_no_more_than_it_must() {
    let task = chain(
        &[SHAPE, SHAPE],
        &[
            ("mul", &[0, 1], json!({}), SHAPE),
            ("tanh", &[2], json!({}), SHAPE),
            ("softmax", &[3], json!({ "dim": -1 }), SHAPE),
        ],
    );
    for target in [Target::Cpu, Target::Cuda] {
        let found = explained(task.clone(), target);
        let [kernel] = &found.kernels[..] else {
            panic!("{found:#?}");
        };
        let all = [fused("mul", 10), fused("tanh", 11), fused("softmax", 12)];
        assert_eq!(kernel.fused, all);
        assert_eq!((kernel.kind, kernel.writes.as_str()), ("kernel", "out"));
        assert_eq!(kernel.reads, ["x0", "x1"]);
        assert!(kernel.what.contains("64 rows of 256"), "{}", kernel.what);
        assert_eq!((kernel.bytes, found.bytes_moved), (3 * TENSOR, 3 * TENSOR));
        assert_eq!(found.bytes_minimum, 3 * TENSOR);
        assert_eq!(found.not_covered, []);
    }
}

#[test]
fn provided_calls_are_named_and_what_lies_between_is_counted() {
    let task = chain(
        &[SHAPE, &[128, 256]],
        &[
            ("linear", &[0, 1], json!({}), &[64, 128]),
            ("tanh", &[2], json!({}), &[64, 128]),
        ],
    );
    let found = explained(task, Target::Cpu);
    let kinds: Vec<&str> = found.kernels.iter().map(|kernel| kernel.kind).collect();
    assert_eq!(kinds, ["gemm", "kernel"]);
    assert_eq!(found.kernels[0].fused, [fused("linear", 10)]);
    assert_eq!(found.kernels[1].fused, [fused("tanh", 11)]);
    // The product is written and read again.
    let between = 64 * 128 * 4;
    assert_eq!(found.bytes_moved - found.bytes_minimum, 2 * between);
    let arguments = json!({ "stride": [1], "padding": [1], "dilation": [1], "groups": 1 });
    let task = chain(
        &[&[2, 8, 64], &[12, 8, 3]],
        &[
            ("conv1d", &[0, 1], arguments, &[2, 12, 64]),
            ("relu", &[2], json!({}), &[2, 12, 64]),
        ],
    );
    // On a GPU the activation is in the call.
    let found = explained(task, Target::Cuda);
    assert_eq!(found.kernels.len(), 1, "{found:#?}");
    assert_eq!(found.kernels[0].kind, "conv");
    assert_eq!(
        found.kernels[0].fused,
        [fused("conv1d", 10), fused("relu", 11)]
    );
    assert_eq!(found.bytes_moved, found.bytes_minimum);
}

#[test]
fn what_is_around_an_operator_without_a_rule_is_shown() {
    let task = chain(
        &[SHAPE],
        &[
            ("exp", &[0], json!({}), SHAPE),
            ("no_such_operator", &[1], json!({}), SHAPE),
            ("mul", &[2, 0], json!({}), SHAPE),
            ("sum", &[3], json!({ "dim": [-1] }), &[64]),
        ],
    );
    let found = explained(task, Target::Cpu);
    let [gap] = &found.not_covered[..] else {
        panic!("{found:#?}");
    };
    assert_eq!(gap.operator.as_deref(), Some("no_such_operator"));
    assert_eq!(gap.line, Some(11));
    assert!(gap.reason.starts_with("line 11: "), "{}", gap.reason);
    let all: Vec<&[FusedOperator]> = found.kernels.iter().map(|one| &one.fused[..]).collect();
    assert_eq!(
        all,
        [
            &[fused("exp", 10)][..],
            &[fused("mul", 12), fused("sum", 13)]
        ]
    );
}
