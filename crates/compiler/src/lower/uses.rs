//! Who uses a value of the graph, and how.

use std::collections::BTreeSet;

use warpsmith_schema::{GraphValue, OpGraph, ValueSource};

/// Values that a result depends on: what else is computed is not.
pub(super) fn needed(graph: &OpGraph) -> BTreeSet<usize> {
    let mut needed = BTreeSet::new();
    let mut open: Vec<usize> = graph.returns.clone();
    while let Some(place) = open.pop() {
        if !needed.insert(place) {
            continue;
        }
        if let Some(value) = graph.values.get(place)
            && let ValueSource::Applied { inputs, .. } = &value.from
        {
            open.extend(inputs.iter().flatten());
        }
    }
    needed
}

/// By how many operators it is read.
pub(super) fn uses(graph: &OpGraph, number: usize) -> usize {
    let reads = |value: &&GraphValue| match &value.from {
        ValueSource::Applied { inputs, .. } => inputs.contains(&Some(number)),
        _ => false,
    };
    graph.values.iter().filter(reads).count()
}

/// Whether its elements are put in order, which takes them from memory.
pub(super) fn is_ordered(graph: &OpGraph, number: usize) -> bool {
    graph.values.iter().any(|value| match &value.from {
        ValueSource::Applied { op, inputs, .. } => {
            let orders = matches!(op.as_str(), "sort" | "argsort" | "topk");
            orders && inputs.contains(&Some(number))
        }
        _ => false,
    })
}

/// Whether a library and something else want it: computed once, it is there for both.
pub(super) fn is_shared(graph: &OpGraph, number: usize) -> bool {
    let (mut uses, mut library) = (0, false);
    for value in &graph.values {
        if let ValueSource::Applied { op, inputs, .. } = &value.from {
            let here = inputs
                .iter()
                .filter(|input| **input == Some(number))
                .count();
            uses += here;
            library |= here > 0 && calls_library(op);
        }
    }
    uses > 1 && library
}

/// Whether something goes over it more than once, or in another order.
pub(super) fn is_read_often(graph: &OpGraph, number: usize) -> bool {
    const OFTEN: [&str; 13] = [
        "normalize",
        "layer_norm",
        "rms_norm",
        "group_norm",
        "instance_norm",
        "local_response_norm",
        "cosine_similarity",
        "softmax",
        "softmin",
        "log_softmax",
        "logsumexp",
        "std",
        "var",
    ];
    graph.values.iter().any(|value| match &value.from {
        ValueSource::Applied { op, inputs, .. } => {
            let scans = op.contains("cum");
            let windows = op.contains("pool") || op == "interpolate";
            inputs.contains(&Some(number)) && (OFTEN.contains(&op.as_str()) || scans || windows)
        }
        _ => false,
    })
}

fn calls_library(op: &str) -> bool {
    const OPS: [&str; 10] = [
        "linear",
        "matmul",
        "mm",
        "bmm",
        "inner",
        "addmm",
        "baddbmm",
        "bilinear",
        "cdist",
        "scaled_dot_product_attention",
    ];
    OPS.contains(&op) || op.starts_with("conv")
}
