//! The right elements in the wrong places.

use serde_json::{Value, json};
use warpsmith_schema::MutantKind::{AxisSwapped, OperandsSwapped, Shifted, TailCut};
use warpsmith_schema::ValueSource;

use super::equivalence::{ORDER_ABSORBED, POSITIVE, TAIL_UNREAD};
use super::{Collector, cut_of, dims_of, from_front};
use crate::simplify::Application;

const ORDERED: [&str; 17] = [
    "sub",
    "rsub",
    "div",
    "pow",
    "atan2",
    "fmod",
    "remainder",
    "copysign",
    "xlogy",
    "lerp",
    "ldexp",
    "mm",
    "bmm",
    "matmul",
    "kl_div",
    "scaled_dot_product_attention",
    "floor_divide",
];

pub(super) fn collect(found: &mut Collector<'_>, place: usize) {
    let Some(application) = found.application(place) else {
        return;
    };
    other_dimension(found, place, &application);
    transposed(found, place, &application);
    swapped(found, place, &application);
    tails(found, place, &application);
    shifted(found, place, &application);
}

fn other_dimension(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    let Some(Some(of)) = application.inputs.first().copied() else {
        return;
    };
    let shape = found.shape(of).to_vec();
    let Some(dim) = application.arguments.get("dim") else {
        return;
    };
    let one = match dim {
        Value::Array(list) if list.len() == 1 => list[0].as_i64(),
        other => other.as_i64(),
    };
    let movable = matches!(
        application.op,
        "sum"
            | "mean"
            | "nansum"
            | "nanmean"
            | "amax"
            | "amin"
            | "max"
            | "min"
            | "argmax"
            | "argmin"
            | "logsumexp"
            | "std"
            | "var"
            | "softmax"
            | "log_softmax"
            | "softmin"
            | "cumsum"
            | "cumprod"
            | "cummax"
            | "cummin"
            | "logcumsumexp"
            | "normalize"
            | "sort"
            | "argsort"
            | "flip"
    );
    let Some(dim_now) = one
        .and_then(|one| from_front(one, shape.len()))
        .filter(|_| movable)
    else {
        return;
    };
    let keeps = found.shape(place) == shape.as_slice();
    let stays = application.arguments.get("keepdim") == Some(&Value::Bool(true));
    let fits = |other: usize| {
        other != dim_now
            && shape[other] > 1
            && (keeps || (!stays && shape[other] == shape[dim_now]))
    };
    // The nearest is the one that is taken for it.
    let near = (0..shape.len())
        .filter(|other| fits(*other))
        .min_by_key(|other| other.abs_diff(dim_now));
    if let Some(other) = near {
        let changed = if dim.is_array() {
            json!([other])
        } else {
            json!(other)
        };
        let what = format!("along dimension {other}");
        let sums = matches!(application.op, "sum" | "mean");
        let reason = (sums && found.order_is_lost(place)).then_some(ORDER_ABSORBED);
        found.add_with(reason, (AxisSwapped, place, &what), &[("dim", changed)]);
    }
}

/// A square matrix read by columns, and a transposition of equal extents that is left out.
fn transposed(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    let inputs = application.inputs;
    match application.op {
        "transpose" | "t" | "permute" => {
            if let Some(Some(of)) = inputs.first().copied()
                && found.same_form(of, place)
                && found.shape(of).iter().filter(|extent| **extent > 1).count() > 1
            {
                let idle = application
                    .arguments
                    .get("dims")
                    .and_then(Value::as_array)
                    .is_some_and(|dims| {
                        dims.iter()
                            .enumerate()
                            .all(|(at, dim)| dim.as_i64() == Some(at as i64))
                    });
                if !idle {
                    found.add(AxisSwapped, place, "not transposed", |_| Some(of));
                }
            }
        }
        "linear" | "mm" | "matmul" | "bmm" | "addmm" => {
            let operand = if application.op == "addmm" { 2 } else { 1 };
            let Some(Some(matrix)) = inputs.get(operand).copied() else {
                return;
            };
            let shape = found.shape(matrix);
            if shape.len() >= 2
                && shape[shape.len() - 1] == shape[shape.len() - 2]
                && shape[shape.len() - 1] > 1
            {
                found.add(AxisSwapped, place, "its matrix is transposed", |editor| {
                    let turned = editor.unary("transpose", matrix, json!({"dim0": -2, "dim1": -1}));
                    Some(editor.with_inputs(|inputs| inputs[operand] = Some(turned)))
                });
            }
        }
        _ => {}
    }
}

fn swapped(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    let inputs = application.inputs;
    if ORDERED.contains(&application.op)
        && let [Some(one), Some(other), ..] = *inputs
        && one != other
        && found.same_form(one, other)
    {
        found.add(
            OperandsSwapped,
            place,
            "the first two operands change places",
            |editor| Some(editor.with_inputs(|inputs| inputs.swap(0, 1))),
        );
    }
    if application.op == "where"
        && let [_, Some(one), Some(other)] = *inputs
        && one != other
        && found.same_form(one, other)
    {
        found.add(
            OperandsSwapped,
            place,
            "its branches change places",
            |editor| Some(editor.with_inputs(|inputs| inputs.swap(1, 2))),
        );
    }
    if matches!(application.op, "ge" | "gt" | "le" | "lt") {
        let op = match application.op {
            "ge" => "lt",
            "gt" => "le",
            "le" => "gt",
            _ => "ge",
        };
        found.add(
            OperandsSwapped,
            place,
            "compared the other way round",
            |editor| {
                let mut value = editor.original_value();
                if let ValueSource::Applied { op: applied, .. } = &mut value.from {
                    op.clone_into(applied);
                }
                Some(editor.push_value(value))
            },
        );
    }
}

fn tails(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    // Constants that are made in `forward` are no results that somebody stores.
    if !found.is_float(place) || application.inputs.is_empty() || application.op == "expand" {
        return;
    }
    let shape = found.shape(place).to_vec();
    let wide: Vec<usize> = (0..shape.len()).filter(|dim| shape[*dim] > 1).collect();
    let mut dims: Vec<usize> = wide.last().copied().into_iter().collect();
    dims.extend(wide.first().filter(|first| !dims.contains(first)));
    for dim in dims {
        let Some(cut) = cut_of(shape[dim]) else {
            continue;
        };
        let unread = !found.tail_is_read(place, dim);
        let what = format!("the last {cut} along dimension {dim} are zeros");
        let reason = unread.then_some(TAIL_UNREAD);
        found.add_unless(reason, (TailCut, place, &what), |editor| {
            let original = editor.original();
            Some(editor.tail_zeroed(original, dim, cut))
        });
    }
}

/// A vector of the state, or one operand of two, is read one place further on.
fn shifted(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    let binary = matches!(
        application.op,
        "add" | "sub" | "mul" | "div" | "addcmul" | "lerp" | "where"
    );
    for (number, operand) in application.inputs.iter().enumerate() {
        let Some(operand) = *operand else { continue };
        let shape = found.shape(operand);
        let vector = shape.len() == 1
            && matches!(found.graph.values[operand].from, ValueSource::State { .. });
        let second = binary && number == 1 && application.inputs[0] != Some(operand);
        if !(vector || second) || !found.is_float(operand) {
            continue;
        }
        let Some(dim) = (0..shape.len()).rev().find(|dim| shape[*dim] > 1) else {
            continue;
        };
        // Along a dimension that was only repeated all elements are the same.
        if found
            .application(operand)
            .is_some_and(|made| made.op == "expand")
        {
            continue;
        }
        let at = dim + found.shape(place).len().saturating_sub(shape.len());
        let linear = matches!(application.op, "add" | "sub");
        let lost = found.sums_over(place, at) || found.order_is_lost(place);
        let sign = application.op == "mul" && found.is_positive_sign(operand);
        let reason = (linear && lost)
            .then_some(ORDER_ABSORBED)
            .or(sign.then_some(POSITIVE));
        let what = format!("operand {number} is read one place further on");
        found.add_unless(reason, (Shifted, place, &what), |editor| {
            let rolled = editor.unary("roll", operand, json!({"shifts": [1], "dims": [dim]}));
            Some(editor.with_inputs(|inputs| inputs[number] = Some(rolled)))
        });
    }
    // A reduction or a normalisation reads a row that is another's.
    if let Some(Some(of)) = application.inputs.first().copied()
        && matches!(
            application.op,
            "softmax" | "layer_norm" | "rms_norm" | "sum" | "mean" | "amax" | "logsumexp"
        )
        && found.is_float(of)
    {
        let shape = found.shape(of);
        let reduced = dims_of(application, "dim", shape.len()).unwrap_or_default();
        let norm = matches!(application.op, "layer_norm" | "rms_norm");
        let kept = (0..shape.len()).find(|dim| {
            shape[*dim] > 1 && (norm && *dim + 1 < shape.len() || !norm && !reduced.contains(dim))
        });
        if let Some(dim) = kept.filter(|_| !norm || shape.len() > 1) {
            let what = format!("reads the row after, along dimension {dim}");
            let lost = matches!(application.op, "sum" | "mean") && found.order_is_lost(place);
            let reason = lost.then_some(ORDER_ABSORBED);
            found.add_unless(reason, (Shifted, place, &what), |editor| {
                let rolled = editor.unary("roll", of, json!({"shifts": [1], "dims": [dim]}));
                Some(editor.with_inputs(|inputs| inputs[0] = Some(rolled)))
            });
        }
    }
}
