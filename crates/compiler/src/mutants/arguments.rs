//! Numbers and options are others than the module's text says.

use serde_json::{Value, json};
use warpsmith_schema::MutantKind::{ConstantChanged, EpsilonChanged, OptionChanged};

use super::equivalence::{BELOW_ROUNDING, CUT_OFF, ORDER_ABSORBED, OUT_OF_RANGE};
use super::range::number;
use super::{Collector, dims_of, from_front};
use crate::simplify::{Application, application as application_at, users};

const CHANGE: f64 = 0.01;
/// Numbers that say how something is computed, not what, or that other kinds of mistake are about.
const NO_CONSTANTS: [&str; 14] = [
    "eps",
    "momentum",
    "dropout_p",
    "p",
    "ord",
    "norm_type",
    "scale_factor",
    "recompute_scale_factor",
    "dim",
    "correction",
    "lower",
    "upper",
    "start",
    "step",
];
/// A number in a tensor's place counts even if it is whole.
const OPERANDS: [&str; 8] = [
    "other",
    "input",
    "exponent",
    "value",
    "min",
    "max",
    "fill_value",
    "weight",
];
/// Beyond this a number stands for infinity: a hundredth of it is as far away.
const LARGE: f64 = 1e4;
/// A smaller addend keeps a divisor from zero.
const SMALL: f64 = 1e-3;
/// PyTorch's own where a module names none.
const RMS_NORM_EPS: f64 = 1.192_092_895_507_812_5e-7;

pub(super) fn collect(found: &mut Collector<'_>, place: usize) {
    let Some(application) = found.application(place) else {
        return;
    };
    epsilons(found, place, &application);
    constants(found, place, &application);
    options(found, place, &application);
}

/// The name of the argument that keeps a divisor from zero, its value, and whether it is added (else it is a least value).
fn epsilon(application: &Application<'_>) -> Option<(&'static str, f64, bool)> {
    let given = |name: &str| number(application, name).filter(|value| *value > 0.0);
    match application.op {
        "logit" => None,
        "rms_norm" => Some(("eps", given("eps").unwrap_or(RMS_NORM_EPS), true)),
        "normalize" | "cosine_similarity" => Some(("eps", given("eps")?, false)),
        "poisson_nll_loss"
            if application.arguments.get("log_input") == Some(&Value::Bool(true)) =>
        {
            None
        }
        "add" => given("other")
            .filter(|value| *value <= SMALL)
            .map(|value| ("other", value, true)),
        "clamp_min" | "clamp" => given("min")
            .filter(|value| *value <= SMALL)
            .map(|value| ("min", value, false)),
        _ => given("eps").map(|value| ("eps", value, true)),
    }
}

fn epsilons(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    let Some((name, value, added)) = epsilon(application) else {
        return;
    };
    let about = |what| (EpsilonChanged, place, what);
    let reason = (application.op == "pairwise_distance").then_some(BELOW_ROUNDING);
    // Batch norms refuse none at all.
    let zero = if matches!(application.op, "batch_norm" | "instance_norm") {
        1e-30
    } else {
        0.0
    };
    found.add_with(reason, about("its epsilon is zero"), &[(name, json!(zero))]);
    if added {
        found.add_with(
            reason,
            about("its epsilon is ten times as large"),
            &[(name, json!(value * 10.0))],
        );
    }
}

fn constants(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    if !found.is_float(place) && application.op != "full" {
        return;
    }
    let eps = epsilon(application).map(|(name, _, _)| name);
    for (name, given) in application.arguments {
        let skipped = NO_CONSTANTS.contains(&name.as_str()) || eps == Some(name.as_str());
        let Some(value) = given.as_f64().filter(|_| !skipped && !given.is_boolean()) else {
            continue;
        };
        let whole = given.is_i64() && !OPERANDS.contains(&name.as_str());
        // Where it is not one, a factor of alpha is a constant too.
        let alpha =
            name == "alpha" && given.as_i64() != Some(1) && value.to_bits() != 1f64.to_bits();
        if (whole && !alpha)
            || value.abs() >= LARGE
            || (application.op == "softplus" && name == "threshold")
        {
            continue;
        }
        if matches!(application.op, "chebyshev_polynomial_t" | "ldexp" | "pad") && given.is_i64() {
            continue;
        }
        let changed = if value == 0.0 {
            CHANGE
        } else {
            value * (1.0 + CHANGE)
        };
        let reason = beyond(
            found,
            place,
            application,
            name,
            value.min(changed),
            value.max(changed),
        );
        let what = format!("`{name}` is {changed}");
        found.add_with(
            reason,
            (ConstantChanged, place, &what),
            &[(name, json!(changed))],
        );
    }
}

/// Whether the operand stays on one side of a bound, which then may lie anywhere.
fn beyond(
    found: &Collector<'_>,
    place: usize,
    application: &Application<'_>,
    name: &str,
    low: f64,
    high: f64,
) -> Option<&'static str> {
    let readers = users(found.graph, place);
    let cut_off = high <= 0.0
        && readers.iter().all(|reader| {
            application_at(found.graph, *reader)
                .is_some_and(|user| matches!(user.op, "relu" | "relu6"))
        });
    if cut_off && application.op.starts_with("clamp") {
        return Some(CUT_OFF);
    }
    let given = found.ranges[application.inputs.first().copied().flatten()?];
    let idle = match (application.op, name) {
        ("clamp" | "clamp_min", "min") | ("hardtanh", "min_val") => given.low >= high,
        ("clamp" | "clamp_max", "max") | ("hardtanh", "max_val") => given.high <= low,
        ("leaky_relu", "negative_slope") | ("elu" | "celu", "alpha") => given.low >= 0.0,
        _ => false,
    };
    idle.then_some(OUT_OF_RANGE)
}

/// The other of two words.
fn other_word(name: &str, given: &str) -> Option<&'static str> {
    Some(match (name, given) {
        ("approximate", "none") => "tanh",
        ("approximate", "tanh") => "none",
        ("reduction", "mean") => "sum",
        ("reduction", "sum") => "mean",
        ("mode", "reflect") => "replicate",
        ("mode", "replicate" | "circular") => "reflect",
        _ => return None,
    })
}

/// The operator that is easily taken for another.
fn neighbour(op: &str) -> Option<&'static str> {
    Some(match op {
        "amax" => "amin",
        "amin" => "amax",
        "argmax" => "argmin",
        "argmin" => "argmax",
        "max" => "min",
        "min" => "max",
        "maximum" => "minimum",
        "minimum" => "maximum",
        "softmax" => "softmin",
        "sum" => "mean",
        "mean" => "sum",
        "std" => "var",
        "tril" => "triu",
        "triu" => "tril",
        "relu" => "relu6",
        "silu" => "hardswish",
        "sigmoid" => "hardsigmoid",
        _ => return None,
    })
}

fn options(found: &mut Collector<'_>, place: usize, application: &Application<'_>) {
    if let Some(op) = neighbour(application.op) {
        let of = application.inputs.first().copied().flatten();
        let high = of.map_or(f64::INFINITY, |of| found.ranges[of].high);
        let reason = (application.op == "relu" && high <= 6.0).then_some(OUT_OF_RANGE);
        let one = of.is_some_and(|of| reduces_one(found, application, of));
        let what = format!("`{op}` instead");
        if !one {
            found.add_unless(reason, (OptionChanged, place, &what), |editor| {
                let mut value = editor.original_value();
                if let warpsmith_schema::ValueSource::Applied { op: applied, .. } = &mut value.from
                {
                    op.clone_into(applied);
                }
                Some(editor.push_value(value))
            });
        }
    }
    for (name, given) in application.arguments {
        let changed = match (name.as_str(), given) {
            (
                "count_include_pad" | "is_causal" | "largest" | "descending" | "align_corners",
                Value::Bool(flag),
            ) => {
                let padded = application.arguments.get("padding").is_some_and(|padding| {
                    padding
                        .as_array()
                        .map_or(padding.as_i64() != Some(0), |list| {
                            list.iter().any(|one| one.as_i64() != Some(0))
                        })
                });
                let idle = (name == "count_include_pad" && !padded)
                    || (name == "is_causal" && !causal_matters(found, application));
                if idle {
                    continue;
                }
                json!(!flag)
            }
            ("align_corners", Value::Null) => {
                let mode = application.arguments.get("mode").and_then(Value::as_str);
                if !mode.is_some_and(|mode| mode.contains("linear") || mode == "bicubic") {
                    continue;
                }
                json!(true)
            }
            ("correction", Value::Number(_)) => json!(1 - given.as_i64().unwrap_or(1).min(1)),
            ("diagonal", Value::Number(_)) => json!(given.as_i64().unwrap_or(0) - 1),
            ("p" | "ord" | "norm_type", Value::Number(_)) if given.as_f64() == Some(2.0) => {
                json!(1.0)
            }
            ("p" | "ord" | "norm_type", Value::Number(_)) if given.as_f64() == Some(1.0) => {
                json!(2.0)
            }
            ("index", Value::Number(_)) if application.op == "select" => match given.as_i64() {
                Some(index) if index > 0 => json!(index - 1),
                Some(0) if selectable(found, application) => json!(1),
                _ => continue,
            },
            ("start", Value::Number(_)) if application.op == "narrow" => {
                let Some(start) = moved_start(found, application) else {
                    continue;
                };
                json!(start)
            }
            (_, Value::String(word)) => match other_word(name, word) {
                Some(other) if name != "reduction" || returns_more(found, application) => {
                    json!(other)
                }
                _ => continue,
            },
            _ => continue,
        };
        let what = format!("`{name}` is {changed}");
        let dims = dims_of(application, "dim", found.shape(place).len()).unwrap_or_default();
        let summed =
            name == "descending" && dims.first().is_some_and(|dim| found.sums_over(place, *dim));
        let reason = summed.then_some(ORDER_ABSORBED);
        found.add_with(reason, (OptionChanged, place, &what), &[(name, changed)]);
    }
}

/// A reduction of one element is the same whatever reduces it.
fn reduces_one(found: &Collector<'_>, application: &Application<'_>, of: usize) -> bool {
    let reduces = matches!(
        application.op,
        "amax" | "amin" | "argmax" | "argmin" | "max" | "min" | "sum" | "mean" | "softmax"
    );
    let shape = found.shape(of);
    reduces
        && dims_of(application, "dim", shape.len())
            .is_some_and(|dims| dims.iter().all(|dim| shape[*dim] == 1))
}

fn causal_matters(found: &Collector<'_>, application: &Application<'_>) -> bool {
    let masked = application.inputs.get(3).copied().flatten().is_some();
    let keys = application.inputs.get(1).copied().flatten();
    !masked
        && keys.is_some_and(|keys| {
            found
                .shape(keys)
                .iter()
                .rev()
                .nth(1)
                .is_some_and(|length| *length > 1)
        })
}

fn selectable(found: &Collector<'_>, application: &Application<'_>) -> bool {
    extent(found, application).is_some_and(|extent| extent > 1)
}

fn extent(found: &Collector<'_>, application: &Application<'_>) -> Option<u64> {
    let shape = found.shape(application.inputs.first().copied().flatten()?);
    let dim = application.arguments.get("dim").and_then(Value::as_i64)?;
    shape.get(from_front(dim, shape.len())?).copied()
}

fn moved_start(found: &Collector<'_>, application: &Application<'_>) -> Option<i64> {
    let whole = |name: &str| application.arguments.get(name).and_then(Value::as_i64);
    let (start, length) = (whole("start")?, whole("length")?);
    let extent = extent(found, application)? as i64;
    if start > 0 {
        Some(start - 1)
    } else {
        (start + length < extent).then_some(start + 1)
    }
}

/// Whether a loss has more than one term.
fn returns_more(found: &Collector<'_>, application: &Application<'_>) -> bool {
    let of = application.inputs.first().copied().flatten();
    of.is_some_and(|of| found.shape(of).first().is_some_and(|extent| *extent > 1))
}
