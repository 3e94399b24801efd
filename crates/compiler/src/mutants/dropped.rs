//! Something is left out: an operand, an operator, a bias.

use serde_json::{Value, json};
use warpsmith_schema::MutantKind::{BiasDropped, OperatorDropped, TermDropped};

use super::equivalence::{OUT_OF_RANGE, POSITIVE, SHIFT_ABSORBED};
use super::range::number;
use super::{Collector, from_front};
use crate::simplify::Application;

/// Each operand is a term of its own.
const TERMS: [&str; 20] = [
    "add",
    "sub",
    "rsub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "logaddexp",
    "logaddexp2",
    "hypot",
    "copysign",
    "lerp",
    "ldexp",
    "where",
    "masked_fill",
    "addcmul",
    "addcdiv",
    "atan2",
];

/// They move elements, or change nothing; to leave them out is another kind of mistake.
const MOVES: [&str; 16] = [
    "reshape",
    "flatten",
    "expand",
    "permute",
    "transpose",
    "t",
    "movedim",
    "unsqueeze",
    "narrow",
    "select",
    "slice",
    "to",
    "repeat",
    "index_select",
    "gather",
    "pad",
];

pub(super) fn collect(found: &mut Collector<'_>, place: usize) {
    let Some(application) = found.application(place) else {
        return;
    };
    terms(found, place, &application);
    operator(found, place, &application);
    biases(found, place, &application);
}

fn terms(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    let (op, inputs) = (application.op, application.inputs);
    match op {
        "addmm" | "baddbmm" => {
            let product = if op == "addmm" { "mm" } else { "bmm" };
            if let [_, Some(one), Some(other)] = *inputs {
                found.add(
                    TermDropped,
                    place,
                    "without what is added to the product",
                    |editor| {
                        let value = editor.original_value();
                        let form = (value.shape, value.dtype);
                        Some(editor.push(product, &[one, other], json!({}), form))
                    },
                );
            }
        }
        "scaled_dot_product_attention" if inputs.get(3).copied().flatten().is_some() => {
            found.add(TermDropped, place, "without its mask", |editor| {
                Some(editor.with_inputs(|inputs| inputs[3] = None))
            });
        }
        "glu" => gate(found, place, application),
        _ => {}
    }
    if !TERMS.contains(&op) || !found.is_float(place) {
        return;
    }
    let first = usize::from(op == "where");
    for kept in inputs.iter().skip(first).flatten().copied() {
        // An operand that is used twice is no term that could be dropped, and a mask is none.
        let only = inputs
            .iter()
            .flatten()
            .filter(|input| **input == kept)
            .count();
        if only > 1 || !found.is_float(kept) {
            continue;
        }
        let reason = redundant(found, place, application, kept);
        let what = "one operand stands for the result";
        found.add_unless(reason, (TermDropped, place, what), |editor| {
            editor.fitted(kept)
        });
    }
}

/// Why an operand alone is as good as the whole.
fn redundant(
    found: &Collector<'_>,
    place: usize,
    application: &Application<'_>,
    kept: usize,
) -> Option<&'static str> {
    let others: Vec<usize> = application
        .inputs
        .iter()
        .flatten()
        .copied()
        .filter(|input| *input != kept)
        .collect();
    match application.op {
        "add" | "sub" | "rsub" => {
            let shape = found.shape(place);
            let varies: Vec<bool> = match others.as_slice() {
                [] => vec![false; shape.len()],
                [other] => {
                    let theirs = found.shape(*other);
                    let missing = shape.len() - theirs.len();
                    (0..shape.len())
                        .map(|dim| dim >= missing && theirs[dim - missing] > 1)
                        .collect()
                }
                _ => return None,
            };
            // The operand that is kept must be the one that is shifted, on its side of zero.
            let shifted =
                application.inputs.first() == Some(&Some(kept)) && application.op != "rsub";
            (shifted && found.absorbs_shift(place, &varies)).then_some(SHIFT_ABSORBED)
        }
        "mul"
            if others.iter().all(|other| found.is_positive_sign(*other)) && !others.is_empty() =>
        {
            Some(POSITIVE)
        }
        "maximum" | "fmax" => {
            let low = found.ranges[kept].low;
            let beaten = others.iter().all(|other| found.ranges[*other].high <= low);
            beaten.then_some(OUT_OF_RANGE)
        }
        "minimum" | "fmin" => {
            let high = found.ranges[kept].high;
            let beaten = others.iter().all(|other| found.ranges[*other].low >= high);
            beaten.then_some(OUT_OF_RANGE)
        }
        _ => None,
    }
}

fn gate(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    let Some(Some(of)) = application.inputs.first().copied() else {
        return;
    };
    let dim = application.arguments.get("dim").and_then(Value::as_i64);
    let rank = found.shape(of).len();
    if let Some(dim) = dim.and_then(|dim| from_front(dim, rank)) {
        let half = found.shape(place)[dim];
        found.add(TermDropped, place, "without its gate", |editor| {
            Some(editor.narrowed(of, dim, half))
        });
    }
}

fn operator(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    let op = application.op;
    let Some(Some(of)) = application.inputs.first().copied() else {
        return;
    };
    let other_kind = MOVES.contains(&op) || TERMS.contains(&op);
    if other_kind || !found.same_form(place, of) || !found.is_float(place) {
        return;
    }
    let reason = changes_nothing(found, application, of, place);
    found.add_unless(reason, (OperatorDropped, place, "left out"), |editor| {
        editor.fitted(of)
    });
}

fn changes_nothing(
    found: &Collector<'_>,
    application: &Application<'_>,
    of: usize,
    place: usize,
) -> Option<&'static str> {
    let given = found.ranges[of];
    let argument = |name: &str| number(application, name);
    let idle = match application.op {
        "relu" | "abs" | "leaky_relu" | "elu" | "celu" | "prelu" | "rrelu" => given.low >= 0.0,
        "relu6" => given.low >= 0.0 && given.high <= 6.0,
        "hardtanh" => argument("min_val")? <= given.low && argument("max_val")? >= given.high,
        "clamp" | "clamp_min" | "clamp_max" => {
            argument("min").is_none_or(|low| low <= given.low)
                && argument("max").is_none_or(|high| high >= given.high)
        }
        "cumsum" | "cumprod" | "cummax" | "cummin" | "logcumsumexp" | "sort" => {
            let dim = application.arguments.get("dim").and_then(Value::as_i64)?;
            let shape = found.shape(place);
            return (shape[from_front(dim, shape.len())?] == 1)
                .then_some("there is one element along that dimension");
        }
        _ => false,
    };
    idle.then_some(OUT_OF_RANGE)
}

fn biases(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    let optional: &[usize] = match application.op {
        "linear"
        | "conv1d"
        | "conv2d"
        | "conv3d"
        | "conv_transpose1d"
        | "conv_transpose2d"
        | "conv_transpose3d"
        | "cross_entropy"
        | "binary_cross_entropy"
        | "nll_loss"
        | "multi_margin_loss" => &[2],
        "layer_norm" | "group_norm" => &[1, 2],
        "rms_norm" => &[1],
        "batch_norm" | "instance_norm" => &[3, 4],
        "bilinear" => &[3],
        "binary_cross_entropy_with_logits" => &[2, 3],
        _ => return,
    };
    for &operand in optional {
        if application.inputs.get(operand).copied().flatten().is_none() {
            continue;
        }
        let rank = found.shape(place).len();
        let channel = if application.op == "linear" {
            rank.saturating_sub(1)
        } else {
            1
        };
        let varies: Vec<bool> = (0..rank).map(|dim| dim == channel).collect();
        let is_bias = operand
            == match application.op {
                "batch_norm" | "instance_norm" => 4,
                "bilinear" => 3,
                _ => 2,
            };
        let norm = matches!(application.op, "layer_norm" | "rms_norm");
        let reason =
            (is_bias && !norm && found.absorbs_shift(place, &varies)).then_some(SHIFT_ABSORBED);
        let what = if is_bias {
            "without its bias"
        } else {
            "without its weight"
        };
        found.add_unless(reason, (BiasDropped, place, what), |editor| {
            Some(editor.with_inputs(|inputs| inputs[operand] = None))
        });
    }
}
