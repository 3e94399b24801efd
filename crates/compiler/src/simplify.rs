//! Less work for the same result, where a graph allows it.
//!
//! Rules replace an operator by one that is only known here (their names begin with `warpsmith_`) and leave what it was
//! made of without a use; what no result needs is not computed.

use std::collections::BTreeMap;

use serde_json::Value;
use warpsmith_schema::{OpGraph, Target, ValueSource};

use crate::knob::Knobs;

/// A sum along the columns of a product: columns are summed before, and a vector is left of the matrix.
pub(super) const SUM_OF_PRODUCT: &str = "warpsmith_sum_of_product";
/// A convolution with a normalisation of its channels in weights and bias.
pub(super) const FOLDED: &str = "warpsmith_folded_";

pub(super) fn simplify(graph: &OpGraph, target: Target, knobs: &mut Knobs) -> OpGraph {
    let mut simple = graph.clone();
    for number in 0..graph.values.len() {
        let found = sum_of_product(&simple, number).or_else(|| {
            let found = folded(&simple, number, target)?;
            let elements = simple.values[number].shape.iter().product::<u64>();
            knobs.about("batch_norm", elements as i64);
            knobs
                .whether("folded into the convolution", true)
                .then_some(found)
        });
        if let Some(source) = found {
            simple.values[number].from = source;
        }
    }
    simple
}

/// An applied operator.
pub(crate) struct Application<'g> {
    pub(crate) op: &'g str,
    pub(crate) inputs: &'g [Option<usize>],
    pub(crate) arguments: &'g BTreeMap<String, Value>,
}

pub(crate) fn application(graph: &OpGraph, number: usize) -> Option<Application<'_>> {
    match &graph.values.get(number)?.from {
        ValueSource::Applied {
            op,
            inputs,
            arguments,
            ..
        } => Some(Application {
            op,
            inputs,
            arguments,
        }),
        _ => None,
    }
}

/// Where a value is used: places in the graph, once for each use. A result is used by whoever called.
pub(crate) fn users(graph: &OpGraph, number: usize) -> Vec<usize> {
    let mut users = Vec::new();
    for place in 0..graph.values.len() {
        if let Some(user) = application(graph, place) {
            let here = user.inputs.iter().filter(|input| **input == Some(number));
            users.extend(here.map(|_| place));
        }
    }
    let returned = graph.returns.iter().filter(|place| **place == number);
    users.extend(returned.map(|_| usize::MAX));
    users
}

fn source(op: &str, inputs: Vec<Option<usize>>, arguments: BTreeMap<String, Value>) -> ValueSource {
    ValueSource::Applied {
        op: op.to_owned(),
        inputs,
        arguments,
        result: 0,
    }
}

fn sum_of_product(graph: &OpGraph, number: usize) -> Option<ValueSource> {
    let sum = application(graph, number)?;
    if !matches!(sum.op, "sum" | "mean")
        || sum
            .arguments
            .get("dtype")
            .is_some_and(|dtype| !dtype.is_null())
    {
        return None;
    }
    let from = (*sum.inputs.first()?)?;
    let product = application(graph, from)?;
    let shape = &graph.values[from].shape;
    let last = shape.len() as i64 - 1;
    let dims = match sum.arguments.get("dim")? {
        Value::Array(dims) => dims.iter().map(Value::as_i64).collect::<Option<Vec<_>>>()?,
        one => vec![one.as_i64()?],
    };
    let along_columns = matches!(dims.as_slice(), [dim] if *dim == -1 || *dim == last);
    if product.op != "linear" || !along_columns || users(graph, from).len() != 1 {
        return None;
    }
    let mut arguments = sum.arguments.clone();
    arguments.insert("mean".to_owned(), Value::Bool(sum.op == "mean"));
    arguments.remove("dim");
    Some(source(SUM_OF_PRODUCT, product.inputs.to_vec(), arguments))
}

/// Only where a rectifier follows: it and the bias are then part of the convolution, and the whole pass is saved.
fn folded(graph: &OpGraph, number: usize, target: Target) -> Option<ValueSource> {
    let norm = application(graph, number)?;
    if norm.op != "batch_norm" || target != Target::Cuda {
        return None;
    }
    let followers = users(graph, number);
    let [follower] = followers.as_slice() else {
        return None;
    };
    if application(graph, *follower)?.op != "relu" {
        return None;
    }
    let from = (*norm.inputs.first()?)?;
    let conv = application(graph, from)?;
    let plain = matches!(conv.op, "conv1d" | "conv2d" | "conv3d")
        && conv.arguments.get("groups").and_then(Value::as_i64) == Some(1)
        && norm.arguments.get("training") == Some(&Value::Bool(false));
    if !plain || users(graph, from).len() != 1 {
        return None;
    }
    let mut inputs = conv.inputs.to_vec();
    inputs.resize(3, None);
    inputs.extend(norm.inputs.get(1..)?);
    let mut arguments = conv.arguments.clone();
    arguments.insert("eps".to_owned(), norm.arguments.get("eps")?.clone());
    Some(source(&format!("{FOLDED}{}", conv.op), inputs, arguments))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use warpsmith_schema::{Dtype, GraphValue};

    use super::*;

    fn value(shape: &[u64], from: ValueSource) -> GraphValue {
        GraphValue {
            shape: shape.to_vec(),
            dtype: Dtype::Float32,
            from,
            line: None,
        }
    }

    fn given(pairs: Value) -> BTreeMap<String, Value> {
        serde_json::from_value(pairs).unwrap()
    }

    #[test]
    fn a_sum_of_a_product_needs_no_product() {
        let mut graph = OpGraph {
            values: vec![
                value(&[4, 8], ValueSource::Input { position: 0 }),
                value(
                    &[16, 8],
                    ValueSource::State {
                        name: "weight".into(),
                    },
                ),
                value(
                    &[4, 16],
                    source("linear", vec![Some(0), Some(1), None], BTreeMap::new()),
                ),
                value(
                    &[4],
                    source(
                        "sum",
                        vec![Some(2)],
                        given(json!({"dim": -1, "keepdim": false, "dtype": null})),
                    ),
                ),
            ],
            returns: vec![3],
            nesting: None,
        };
        let op = |graph: &OpGraph| application(graph, 3).unwrap().op.to_owned();
        assert_eq!(
            op(&simplify(&graph, Target::Cpu, &mut Knobs::default())),
            SUM_OF_PRODUCT
        );
        // The product is wanted by itself too.
        graph.returns = vec![3, 2];
        assert_eq!(
            op(&simplify(&graph, Target::Cpu, &mut Knobs::default())),
            "sum"
        );
    }

    #[test]
    fn a_normalisation_is_folded_before_a_rectifier() {
        let state = |name: &str| ValueSource::State { name: name.into() };
        let conv =
            given(json!({"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}));
        let norm = given(json!({"training": false, "momentum": 0.1, "eps": 1e-5}));
        let graph = OpGraph {
            values: vec![
                value(&[1, 3, 8, 8], ValueSource::Input { position: 0 }),
                value(&[4, 3, 1, 1], state("conv.weight")),
                value(&[4], state("norm.mean")),
                value(&[4], state("norm.var")),
                value(
                    &[1, 4, 8, 8],
                    source("conv2d", vec![Some(0), Some(1), None], conv),
                ),
                value(
                    &[1, 4, 8, 8],
                    source(
                        "batch_norm",
                        vec![Some(4), Some(2), Some(3), None, None],
                        norm,
                    ),
                ),
                value(
                    &[1, 4, 8, 8],
                    source("relu", vec![Some(5)], BTreeMap::new()),
                ),
            ],
            returns: vec![6],
            nesting: None,
        };
        let op = |target| {
            application(&simplify(&graph, target, &mut Knobs::default()), 5)
                .unwrap()
                .op
                .to_owned()
        };
        assert_eq!(op(Target::Cuda), "warpsmith_folded_conv2d");
        assert_eq!(op(Target::Cpu), "batch_norm");
    }
}
