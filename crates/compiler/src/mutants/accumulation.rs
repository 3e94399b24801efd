//! A sum, product or maximum that ends before its last elements, and formulas that overflow.

use serde_json::{Value, json};
use warpsmith_schema::MutantKind::{AccumulationCut, Unstable};

use super::edit::Editor;
use super::{Collector, cut_of, dims_of, from_front};
use crate::simplify::Application;

/// An exponential of more than this overflows; the judge's draws reach several hundred.
const OVERFLOWS: f64 = 88.0;
const NEVER_OVERFLOWS: &str = "the operand is bounded, so that nothing overflows";

pub(super) fn collect(found: &mut Collector<'_>, place: usize) {
    let Some(application) = found.application(place) else {
        return;
    };
    cut(found, place, &application);
    unstable(found, place, &application);
}

fn cut(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    let Some(Some(of)) = application.inputs.first().copied() else {
        return;
    };
    let shape = found.shape(of).to_vec();
    let rank = shape.len();
    match application.op {
        "sum" | "mean" | "nansum" | "nanmean" | "amax" | "amin" | "max" | "min" | "argmax"
        | "argmin" | "logsumexp" | "std" | "var" | "vector_norm" | "prod" => {
            let dims = dims_of(application, "dim", rank).unwrap_or_default();
            let Some((dim, cut)) = last_wide(&dims, &shape) else {
                return;
            };
            let zeros = matches!(application.op, "sum" | "mean" | "nansum" | "nanmean");
            let spread = matches!(application.op, "std" | "var");
            if spread && dims.iter().map(|dim| shape[*dim]).product::<u64>() - cut < 2 {
                return;
            }
            found.add(AccumulationCut, place, &without(cut, dim), |editor| {
                let kept = if zeros {
                    editor.tail_zeroed(of, dim, cut)
                } else {
                    editor.narrowed(of, dim, shape[dim] - cut)
                };
                Some(editor.with_inputs(|inputs| inputs[0] = Some(kept)))
            });
        }
        "cosine_similarity" | "pairwise_distance" => {
            let dim = application
                .arguments
                .get("dim")
                .and_then(Value::as_i64)
                .unwrap_or(-1);
            let dims: Vec<usize> = from_front(dim, rank).into_iter().collect();
            both(found, place, application, (&dims, &dims));
        }
        "linear" | "inner" | "cdist" => both(
            found,
            place,
            application,
            (&[rank.wrapping_sub(1)], &[last_of(found, application, 1)]),
        ),
        "mm" | "bmm" | "matmul" | "mv" => {
            let other = last_of(found, application, 1);
            let along = if other == 0 { 0 } else { other - 1 };
            both(
                found,
                place,
                application,
                (&[rank.wrapping_sub(1)], &[along]),
            );
        }
        "conv1d" | "conv2d" | "conv3d" | "conv_transpose1d" | "conv_transpose2d"
        | "conv_transpose3d" => {
            let dense = application.arguments.get("groups").and_then(Value::as_i64) == Some(1);
            let along = usize::from(!application.op.contains("transpose"));
            if dense && Some(found.shape(place).len()) == Some(rank) {
                both(found, place, application, (&[1], &[along]));
            }
        }
        "softmax" | "log_softmax" => softmax(found, place, application),
        "layer_norm" | "rms_norm" => normalisation(found, place, application),
        "l1_loss"
        | "mse_loss"
        | "smooth_l1_loss"
        | "huber_loss"
        | "kl_div"
        | "binary_cross_entropy"
        | "soft_margin_loss"
        | "hinge_embedding_loss"
        | "cross_entropy"
        | "poisson_nll_loss" => loss(found, place, application),
        _ => {}
    }
}

fn without(cut: u64, dim: usize) -> String {
    format!("without the last {cut} along dimension {dim}")
}

fn last_wide(dims: &[usize], shape: &[u64]) -> Option<(usize, u64)> {
    let dim = dims
        .iter()
        .copied()
        .filter(|dim| shape.get(*dim).is_some_and(|extent| *extent > 1))
        .max()?;
    Some((dim, cut_of(shape[dim])?))
}

fn last_of(found: &Collector<'_>, application: &Application<'_>, operand: usize) -> usize {
    let input = application.inputs.get(operand).copied().flatten();
    input.map_or(0, |input| found.shape(input).len().saturating_sub(1))
}

/// Both operands of a product lose their last elements.
fn both(
    found: &mut Collector<'_>,
    place: usize,
    application: &Application<'_>,
    along: (&[usize], &[usize]),
) {
    let [Some(one), Some(other), ..] = *application.inputs else {
        return;
    };
    let (Some(first), Some(second)) = (along.0.first().copied(), along.1.first().copied()) else {
        return;
    };
    let (Some(extent), Some(same)) = (
        found.shape(one).get(first).copied(),
        found.shape(other).get(second).copied(),
    ) else {
        return;
    };
    let Some(cut) = cut_of(extent).filter(|_| extent == same) else {
        return;
    };
    found.add(AccumulationCut, place, &without(cut, first), |editor| {
        let shorter = editor.narrowed(one, first, extent - cut);
        let other = editor.narrowed(other, second, extent - cut);
        Some(editor.with_inputs(|inputs| (inputs[0], inputs[1]) = (Some(shorter), Some(other))))
    });
}

/// The exponentials that are summed up, less their greatest's.
fn exponentials(editor: &mut Editor<'_>, of: usize, dim: usize) -> (usize, usize) {
    let largest = editor.reduced("amax", of, dim);
    let less = editor.binary("sub", of, largest);
    (less, editor.unary("exp", less, json!({})))
}

fn along(found: &Collector<'_>, application: &Application<'_>) -> Option<(usize, usize)> {
    let of = application.inputs.first().copied().flatten()?;
    let dim = application.arguments.get("dim").and_then(Value::as_i64)?;
    let dim = from_front(dim, found.shape(of).len())?;
    (application
        .arguments
        .get("dtype")
        .is_none_or(Value::is_null)
        && found.is_float(of))
    .then_some((of, dim))
}

fn softmax(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    let Some((of, dim)) = along(found, application) else {
        return;
    };
    let extent = found.shape(of)[dim];
    let Some(cut) = cut_of(extent) else { return };
    let logarithm = application.op == "log_softmax";
    found.add(AccumulationCut, place, &without(cut, dim), |editor| {
        let (less, raised) = exponentials(editor, of, dim);
        let kept = editor.narrowed(raised, dim, extent - cut);
        let sum = editor.reduced("sum", kept, dim);
        Some(if logarithm {
            let sum = editor.unary("log", sum, json!({}));
            editor.binary("sub", less, sum)
        } else {
            editor.binary("div", raised, sum)
        })
    });
}

fn normalisation(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    let Some(Some(of)) = application.inputs.first().copied() else {
        return;
    };
    let shape = found.shape(of).to_vec();
    let one_dim = application
        .arguments
        .get("normalized_shape")
        .and_then(Value::as_array)
        .map(Vec::len)
        == Some(1);
    let Some(eps) = application
        .arguments
        .get("eps")
        .and_then(Value::as_f64)
        .filter(|_| one_dim)
    else {
        return;
    };
    let dim = shape.len() - 1;
    let Some(cut) = cut_of(shape[dim]).filter(|cut| shape[dim] - cut > 1) else {
        return;
    };
    let centred = application.op == "layer_norm";
    let (weight, bias) = (
        application.inputs.get(1).copied().flatten(),
        application.inputs.get(2).copied().flatten(),
    );
    found.add(AccumulationCut, place, &without(cut, dim), |editor| {
        let mut less = of;
        if centred {
            let kept = editor.narrowed(of, dim, shape[dim] - cut);
            let mean = editor.reduced("mean", kept, dim);
            less = editor.binary("sub", of, mean);
        }
        let kept = editor.narrowed(less, dim, shape[dim] - cut);
        let squares = editor.unary("square", kept, json!({}));
        let variance = editor.reduced("mean", squares, dim);
        let safe = editor.unary("add", variance, json!({"other": eps, "alpha": 1}));
        let factor = editor.unary("rsqrt", safe, json!({}));
        let mut made = editor.binary("mul", less, factor);
        if let Some(weight) = weight {
            made = editor.binary("mul", made, weight);
        }
        if let Some(bias) = bias {
            made = editor.binary("add", made, bias);
        }
        Some(made)
    });
}

/// A loss over fewer samples.
fn loss(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    let reduced = application
        .arguments
        .get("reduction")
        .and_then(Value::as_str)
        .is_some_and(|word| word != "none");
    let inputs: Vec<usize> = application
        .inputs
        .iter()
        .take(2)
        .flatten()
        .copied()
        .collect();
    let Some(&of) = inputs.first().filter(|_| reduced && inputs.len() == 2) else {
        return;
    };
    let Some(extent) = found.shape(of).first().copied() else {
        return;
    };
    let Some(cut) = cut_of(extent).filter(|_| found.shape(inputs[1]).first() == Some(&extent))
    else {
        return;
    };
    found.add(AccumulationCut, place, &without(cut, 0), |editor| {
        let kept: Vec<usize> = inputs
            .iter()
            .map(|input| editor.narrowed(*input, 0, extent - cut))
            .collect();
        Some(editor.with_inputs(|inputs| (inputs[0], inputs[1]) = (Some(kept[0]), Some(kept[1]))))
    });
}

fn unstable(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    let Some(Some(of)) = application.inputs.first().copied() else {
        return;
    };
    if !found.same_form(of, place) && application.op != "logsumexp" || !found.is_float(of) {
        return;
    }
    let high = found.ranges[of].high;
    let reason = (high < OVERFLOWS).then_some(NEVER_OVERFLOWS);
    match application.op {
        "softmax" | "log_softmax" => {
            let Some((of, dim)) = along(found, application) else {
                return;
            };
            let logarithm = application.op == "log_softmax";
            found.add_unless(
                reason,
                (Unstable, place, "without subtracting the largest"),
                |editor| {
                    let raised = editor.unary("exp", of, json!({}));
                    let sum = editor.reduced("sum", raised, dim);
                    Some(if logarithm {
                        let sum = editor.unary("log", sum, json!({}));
                        editor.binary("sub", of, sum)
                    } else {
                        editor.binary("div", raised, sum)
                    })
                },
            );
        }
        "logsumexp" => {
            let arguments = (
                application.arguments.get("dim").cloned(),
                application.arguments.get("keepdim").cloned(),
            );
            found.add_unless(
                reason,
                (Unstable, place, "without subtracting the largest"),
                |editor| {
                    let value = editor.original_value();
                    let raised = editor.unary("exp", of, json!({}));
                    let given = json!({"dim": arguments.0, "keepdim": arguments.1, "dtype": null});
                    let sum = editor.push("sum", &[raised], given, (value.shape, value.dtype));
                    Some(editor.unary("log", sum, json!({})))
                },
            );
        }
        "softplus" if application.arguments.get("beta").and_then(Value::as_f64) == Some(1.0) => {
            found.add_unless(
                reason,
                (Unstable, place, "the logarithm of one and an exponential"),
                |editor| {
                    let raised = editor.unary("exp", of, json!({}));
                    Some(editor.unary("log1p", raised, json!({})))
                },
            );
        }
        "tanh" => {
            let reason = (high.max(-found.ranges[of].low) < OVERFLOWS).then_some(NEVER_OVERFLOWS);
            found.add_unless(
                reason,
                (Unstable, place, "a quotient of exponentials"),
                |editor| {
                    let (up, less) = (
                        editor.unary("exp", of, json!({})),
                        editor.unary("neg", of, json!({})),
                    );
                    let down = editor.unary("exp", less, json!({}));
                    let (over, under) = (
                        editor.binary("sub", up, down),
                        editor.binary("add", up, down),
                    );
                    Some(editor.binary("div", over, under))
                },
            );
        }
        "logsigmoid" => {
            let reason = (found.ranges[of].low > -OVERFLOWS).then_some(NEVER_OVERFLOWS);
            found.add_unless(
                reason,
                (Unstable, place, "the logarithm of a sigmoid"),
                |editor| {
                    let sigmoid = editor.unary("sigmoid", of, json!({}));
                    Some(editor.unary("log", sigmoid, json!({})))
                },
            );
        }
        _ => {}
    }
}
