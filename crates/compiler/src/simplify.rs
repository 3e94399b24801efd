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
/// A sum over rows of a product: the rows are summed before, and one of them is left.
pub(super) const PRODUCT_OF_SUM: &str = "warpsmith_product_of_sum";
/// A product with a diagonal matrix: rows or columns times a number each.
pub(super) const SCALED_ROWS: &str = "warpsmith_scaled_rows";
pub(super) const SCALED_COLUMNS: &str = "warpsmith_scaled_columns";
/// A convolution with a normalisation of its channels in weights and bias.
pub(super) const FOLDED: &str = "warpsmith_folded_";

pub(super) fn simplify(graph: &OpGraph, target: Target, knobs: &mut Knobs) -> OpGraph {
    let mut simple = graph.clone();
    for number in 0..graph.values.len() {
        let found = sum_of_product(&simple, number);
        let found = found.or_else(|| by_diagonal(&simple, number));
        let found = found.or_else(|| {
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
    let is_columns = |dim: &i64| *dim == -1 || *dim == last;
    if product.op != "linear" || dims.is_empty() || users(graph, from).len() != 1 {
        return None;
    }
    let mut arguments = sum.arguments.clone();
    arguments.insert("mean".to_owned(), Value::Bool(sum.op == "mean"));
    if matches!(dims.as_slice(), [dim] if is_columns(dim)) {
        arguments.remove("dim");
        return Some(source(SUM_OF_PRODUCT, product.inputs.to_vec(), arguments));
    }
    // Rows alone: of columns too, each row would still have to be made.
    let is_rows = !dims.iter().any(is_columns);
    is_rows.then(|| source(PRODUCT_OF_SUM, product.inputs.to_vec(), arguments))
}

fn by_diagonal(graph: &OpGraph, number: usize) -> Option<ValueSource> {
    let product = application(graph, number)?;
    let [Some(a), Some(b)] = product.inputs else {
        return None;
    };
    if !matches!(product.op, "matmul" | "mm") || graph.values[number].shape.len() != 2 {
        return None;
    }
    let diagonal = |number: usize| {
        let made = application(graph, number).filter(|made| made.op == "diag")?;
        let from = (*made.inputs.first()?)?;
        let is_main = match made.arguments.get("diagonal") {
            None => true,
            Some(which) => which.as_i64() == Some(0),
        };
        (is_main && graph.values[from].shape.len() == 1).then_some(from)
    };
    match (diagonal(*a), diagonal(*b)) {
        (Some(factors), _) => Some((SCALED_ROWS, factors, *b)),
        (None, Some(factors)) => Some((SCALED_COLUMNS, factors, *a)),
        (None, None) => None,
    }
    .map(|(op, factors, of)| source(op, vec![Some(factors), Some(of)], BTreeMap::new()))
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
    fn rows_are_summed_before_a_product_and_columns_with_them_are_not() {
        let op = |dim: Value| {
            let sum = given(json!({"dim": dim, "keepdim": false, "dtype": null}));
            let graph = OpGraph {
                values: vec![
                    value(&[4, 6, 8], ValueSource::Input { position: 0 }),
                    value(&[16, 8], ValueSource::Input { position: 1 }),
                    value(
                        &[4, 6, 16],
                        source("linear", vec![Some(0), Some(1), None], BTreeMap::new()),
                    ),
                    value(&[4, 16], source("mean", vec![Some(2)], sum)),
                ],
                returns: vec![3],
                nesting: None,
            };
            let simple = simplify(&graph, Target::Cpu, &mut Knobs::default());
            application(&simple, 3).unwrap().op.to_owned()
        };
        assert_eq!(op(json!([1])), PRODUCT_OF_SUM);
        assert_eq!(op(json!([0, 1])), PRODUCT_OF_SUM);
        assert_eq!(op(json!([-1])), SUM_OF_PRODUCT);
        assert_eq!(op(json!([1, 2])), "mean");
    }

    #[test]
    fn a_product_with_a_diagonal_matrix_is_none() {
        let op = |inputs: [usize; 2], diagonal: i64| {
            let diagonal = given(json!({ "diagonal": diagonal }));
            let graph = OpGraph {
                values: vec![
                    value(&[8], ValueSource::Input { position: 0 }),
                    value(&[8, 8], ValueSource::Input { position: 1 }),
                    value(&[8, 8], source("diag", vec![Some(0)], diagonal)),
                    value(
                        &[8, 8],
                        source("matmul", inputs.map(Some).to_vec(), BTreeMap::new()),
                    ),
                ],
                returns: vec![3],
                nesting: None,
            };
            let simple = simplify(&graph, Target::Cpu, &mut Knobs::default());
            application(&simple, 3).unwrap().op.to_owned()
        };
        assert_eq!(op([2, 1], 0), SCALED_ROWS);
        assert_eq!(op([1, 2], 0), SCALED_COLUMNS);
        assert_eq!(op([2, 1], 1), "matmul");
        assert_eq!(op([1, 1], 0), "matmul");
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
