//! Between which numbers a value lies, whatever the inputs are.

use serde_json::Value;
use warpsmith_schema::OpGraph;

use crate::simplify::{Application, application};

/// Closed at both ends; infinite where nothing is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Range {
    pub(super) low: f64,
    pub(super) high: f64,
}

const ANY: Range = Range {
    low: f64::NEG_INFINITY,
    high: f64::INFINITY,
};

/// Rows of up to so many elements are bounded by a normalisation: each is at most the square root of their number.
const NORMALISED: u64 = 1 << 12;

fn within(low: f64, high: f64) -> Range {
    Range { low, high }
}

pub(super) fn ranges(graph: &OpGraph) -> Vec<Range> {
    let mut found: Vec<Range> = Vec::with_capacity(graph.values.len());
    for place in 0..graph.values.len() {
        let range = application(graph, place).map_or(ANY, |application| {
            let first = application.inputs.first().copied().flatten();
            let given = first.map_or(ANY, |input| found[input]);
            let shape = first.map_or(&[][..], |input| &graph.values[input].shape);
            of_application(&application, given, row_length(&application, shape)).unwrap_or(ANY)
        });
        found.push(range);
    }
    found
}

pub(super) fn number(application: &Application<'_>, name: &str) -> Option<f64> {
    application.arguments.get(name).and_then(Value::as_f64)
}

/// How many elements are normalised together.
fn row_length(application: &Application<'_>, shape: &[u64]) -> u64 {
    let elements: u64 = shape.iter().product();
    let apart = match application.op {
        "layer_norm" | "rms_norm" => {
            let normalised = application.arguments.get("normalized_shape");
            let rank = normalised.and_then(Value::as_array).map_or(0, Vec::len);
            shape[..shape.len().saturating_sub(rank)].iter().product()
        }
        "group_norm" => {
            let groups = application
                .arguments
                .get("num_groups")
                .and_then(Value::as_u64);
            groups.unwrap_or(1) * shape.first().copied().unwrap_or(1)
        }
        "instance_norm" => shape.iter().take(2).product(),
        _ => 1,
    };
    elements / u64::max(apart, 1)
}

fn of_application(application: &Application<'_>, given: Range, row: u64) -> Option<Range> {
    let argument = |name: &str| number(application, name);
    let infinite = f64::INFINITY;
    Some(match application.op {
        "relu" => within(given.low.max(0.0), given.high.max(0.0)),
        "relu6" => within(0.0, 6.0),
        "sigmoid" | "softmax" | "softmin" | "hardsigmoid" | "ndtr" => within(0.0, 1.0),
        "sign" if given.low >= 0.0 => within(0.0, 1.0),
        "tanh" | "erf" | "sin" | "cos" | "softsign" | "cosine_similarity" | "sign" => {
            within(-1.0, 1.0)
        }
        "exp" | "exp2" | "abs" | "square" | "sqrt" | "softplus" | "cosh" | "vector_norm"
        | "cdist" | "pairwise_distance" | "var" | "std" | "hypot" => within(0.0, infinite),
        "log_softmax" | "logsigmoid" | "log_ndtr" => within(-infinite, 0.0),
        "frac" | "normalize" => within(-1.0, 1.0),
        "atan" | "atan2" => within(-3.2, 3.2),
        "erfc" => within(0.0, 2.0),
        "hardtanh" => within(argument("min_val")?, argument("max_val")?),
        "clamp" => within(
            argument("min").unwrap_or(given.low).max(given.low),
            argument("max").unwrap_or(given.high).min(given.high),
        ),
        "clamp_min" => within(argument("min")?.max(given.low), given.high),
        "clamp_max" => within(given.low, argument("max")?.min(given.high)),
        // Weight and bias are small numbers.
        "layer_norm" | "rms_norm" | "group_norm" | "instance_norm" if row <= NORMALISED => {
            within(-64.0, 64.0)
        }
        "neg" => within(-given.high, -given.low),
        "pow"
            if argument("exponent")
                .is_some_and(|exponent| exponent > 0.0 && exponent % 2.0 == 0.0) =>
        {
            within(0.0, infinite)
        }
        "avg_pool1d" | "avg_pool2d" | "avg_pool3d" => {
            within(given.low.min(0.0), given.high.max(0.0))
        }
        "max_pool1d"
        | "max_pool2d"
        | "max_pool3d"
        | "adaptive_avg_pool1d"
        | "adaptive_avg_pool2d"
        | "adaptive_avg_pool3d"
        | "reshape"
        | "flatten"
        | "permute"
        | "transpose"
        | "t"
        | "movedim"
        | "narrow"
        | "select"
        | "slice"
        | "expand"
        | "mean"
        | "amax"
        | "amin"
        | "max"
        | "min"
        | "unsqueeze"
        | "channel_shuffle"
        | "gather"
        | "index_select" => given,
        "sum" | "cumsum" if given.low >= 0.0 => within(0.0, infinite),
        _ => return None,
    })
}
