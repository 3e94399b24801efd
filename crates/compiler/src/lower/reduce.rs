//! Along dimensions: sums, extremes, norms, softmax.

use super::{NotCovered, OperatorCall, is};
use crate::index::Index;
use crate::plan::{PairedReduction, Plan, REDUCTION_WORK, ReduceOp};
use crate::scalar::{Binary, ScalarType, Unary};
use crate::tensor::Tensor;

type Found = Result<Option<Tensor>, NotCovered>;

pub(super) fn rule(plan: &mut Plan, call: &OperatorCall<'_>) -> Found {
    let found = match call.op {
        "sum" | "nansum" | "mean" | "nanmean" | "prod" | "amax" | "amin" | "max" | "min"
        | "argmax" | "argmin" | "var" | "std" | "logsumexp" | "vector_norm" | "norm"
        | "trapezoid" => reduction(plan, call)?,
        "any" | "all" => masked(plan, call)?,
        "softmax" | "softmin" | "log_softmax" => softmax(plan, call)?,
        _ => return Ok(None),
    };
    Ok(Some(found))
}

/// Drops the dimensions of one element unless they are to stay.
pub(super) fn keeping(
    call: &OperatorCall<'_>,
    result: &Tensor,
    dims: &[usize],
) -> Result<Tensor, NotCovered> {
    if call.flag("keepdim", false)? {
        return Ok(result.clone());
    }
    Ok(dropped(result, dims))
}

pub(super) fn dropped(result: &Tensor, dims: &[usize]) -> Tensor {
    let kept = result
        .shape
        .iter()
        .enumerate()
        .filter(|(dim, _)| !dims.contains(dim));
    let shape: Vec<i64> = kept.map(|(_, extent)| *extent).collect();
    let dims = dims.to_vec();
    let rank = result.rank();
    result.view(&shape, move |at| {
        let mut given = at.iter();
        (0..rank)
            .map(|dim| {
                if dims.contains(&dim) {
                    crate::index::Index::default()
                } else {
                    given.next().cloned().unwrap_or_default()
                }
            })
            .collect()
    })
}

pub(super) fn float_only(call: &OperatorCall<'_>, x: &Tensor) -> Result<(), NotCovered> {
    match x.kind {
        ScalarType::Float => Ok(()),
        _ => Err(call.refuse("elements that are no floats")),
    }
}

fn scaled(
    call: &OperatorCall<'_>,
    x: &Tensor,
    by: f64,
    name: &'static str,
) -> Result<Tensor, NotCovered> {
    call.float_map(std::slice::from_ref(x), name, move |arena, x| {
        let by = arena.constant(by);
        arena.mul(x[0], by)
    })
}

pub(super) fn mean(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    x: &Tensor,
    dims: &[usize],
) -> Result<Tensor, NotCovered> {
    let count: i64 = dims.iter().map(|dim| x.shape[*dim]).product();
    let sum = plan.reduce_dims(x, dims, ReduceOp::Sum, "sum");
    divided(call, &sum, count)
}

pub(super) fn divided(
    call: &OperatorCall<'_>,
    sum: &Tensor,
    count: i64,
) -> Result<Tensor, NotCovered> {
    call.float_map(std::slice::from_ref(sum), "mean", move |arena, x| {
        let count = arena.constant(count as f64);
        arena.binary(Binary::ExactDiv, x[0], count)
    })
}

/// What elements are above the first of their row (as they are, where that would take a reduction of its own), the mean of that,
/// and the sum of squares around it. Nothing cancels, and in a row of nearly equal numbers no digit is lost to how large they are.
pub(super) struct Spread {
    pub(super) above: Tensor,
    pub(super) mean: Tensor,
    pub(super) squares: Tensor,
}

pub(super) fn spread(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    x: &Tensor,
    dims: &[usize],
) -> Result<Spread, NotCovered> {
    let x = &plan.settled(x);
    let above = if x.work >= REDUCTION_WORK {
        x.clone()
    } else {
        above_first(call, x, dims)?
    };
    let (sum, squares) = plan.pair_dims(&above, dims, PairedReduction::Spread);
    let count: i64 = dims.iter().map(|dim| x.shape[*dim]).product();
    Ok(Spread {
        mean: divided(call, &sum, count)?,
        above,
        squares,
    })
}

fn above_first(call: &OperatorCall<'_>, x: &Tensor, dims: &[usize]) -> Result<Tensor, NotCovered> {
    let reduced = dims.to_vec();
    let first = x.view(&x.shape, move |at| {
        let place = at.iter().enumerate();
        place
            .map(|(dim, index)| {
                if reduced.contains(&dim) {
                    Index::default()
                } else {
                    index.clone()
                }
            })
            .collect()
    });
    call.float_map(&[x.clone(), first], "above", |arena, x| {
        arena.sub(x[0], x[1])
    })
}

pub(super) fn norm2(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    x: &Tensor,
    dims: &[usize],
) -> Result<Tensor, NotCovered> {
    let squares = call.float_map(std::slice::from_ref(x), "square", |arena, x| {
        arena.mul(x[0], x[0])
    })?;
    let sum = plan.reduce_dims(&squares, dims, ReduceOp::Sum, "squares");
    call.float_map(&[sum], "norm", |arena, x| arena.unary(Unary::Sqrt, x[0]))
}

/// The norm of any order.
pub(super) fn norm(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    x: &Tensor,
    dims: &[usize],
    order: f64,
) -> Result<Tensor, NotCovered> {
    if is(order, 2.0) {
        return norm2(plan, call, x, dims);
    }
    if order <= 0.0 {
        return Err(call.refuse("a norm of no positive order"));
    }
    let sizes = call.float_map(std::slice::from_ref(x), "size", |arena, x| {
        arena.unary(Unary::Abs, x[0])
    })?;
    if order.is_infinite() {
        return Ok(plan.reduce_dims(&sizes, dims, ReduceOp::Max, "norm"));
    }
    if is(order, 1.0) {
        return Ok(plan.reduce_dims(&sizes, dims, ReduceOp::Sum, "norm"));
    }
    let powers = call.float_map(&[sizes], "power", move |arena, x| {
        let order = arena.constant(order);
        arena.binary(Binary::Pow, x[0], order)
    })?;
    let sum = plan.reduce_dims(&powers, dims, ReduceOp::Sum, "powers");
    call.float_map(&[sum], "norm", move |arena, x| {
        let root = arena.constant(1.0 / order);
        arena.binary(Binary::Pow, x[0], root)
    })
}

/// How many elements of a mask hold. A sum of more would not be exact in single precision.
fn counted(plan: &mut Plan, call: &OperatorCall<'_>, x: &Tensor) -> Result<Tensor, NotCovered> {
    let dims = call.dims("dim", x.rank())?;
    let count: i64 = dims.iter().map(|dim| x.shape[*dim]).product();
    if count >= 1 << 24 {
        let sum = plan.reduce_dims(&x.to_whole(), &dims, ReduceOp::Sum, "count");
        return keeping(call, &sum, &dims);
    }
    let sum = plan.reduce_dims(&x.to_float(), &dims, ReduceOp::Sum, "count");
    let sum = call.map(&[sum], "count", ScalarType::Int, |arena, x| {
        arena.unary(Unary::ToInt, x[0])
    })?;
    keeping(call, &sum, &dims)
}

/// Whether a mask holds somewhere, or everywhere.
fn masked(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let x = call.input(0)?;
    let dims = call.dims("dim", x.rank())?;
    if x.kind != ScalarType::Bool || call.kind != ScalarType::Bool {
        return Err(call.refuse("elements that are no mask"));
    }
    let fold = match call.op {
        "any" => ReduceOp::Max,
        _ => ReduceOp::Min,
    };
    let found = plan.reduce_dims(&x.to_float(), &dims, fold, "mask");
    let found = call.map(&[found], "mask", ScalarType::Bool, |arena, x| {
        let zero = arena.constant(0.0);
        arena.binary(Binary::NotEqual, x[0], zero)
    })?;
    keeping(call, &found, &dims)
}

fn reduction(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let given = call.input(0)?;
    call.argument("dtype");
    let is_plain = matches!(call.op, "sum" | "mean" | "prod" | "amax" | "amin");
    if is_plain && given.kind == ScalarType::Float {
        let dims = call.dims("dim", given.rank())?;
        // Of one element there is nothing to add up.
        if dims.iter().all(|dim| given.shape[*dim] == 1) {
            return keeping(call, given, &dims);
        }
    }
    let given = &plan.without_reductions(given);
    let counts = call.op == "sum" && call.kind == ScalarType::Int;
    match (given.kind, call.op) {
        (ScalarType::Bool, "sum") if counts => return counted(plan, call, given),
        (ScalarType::Int, "sum" | "prod" | "amax" | "amin") if call.kind == ScalarType::Int => {}
        _ => float_only(call, given)?,
    }
    if call.optional(1).is_some() {
        return Err(call.refuse("another operand"));
    }
    let x = given;
    let ranked = matches!(call.op, "max" | "min" | "argmax" | "argmin");
    if matches!(call.op, "max" | "min" | "argmax" | "argmin") && call.argument("dim").is_none() {
        let flat = x.reshaped(&[x.count()]);
        let found = extreme(plan, call, &flat, 0)?;
        return Ok(found.reshaped(&[]));
    }
    if ranked {
        let dim = call.dim("dim", x.rank())?;
        let found = extreme(plan, call, x, dim)?;
        return keeping(call, &found, &[dim]);
    }
    if call.op == "trapezoid" {
        return trapezoid(plan, call, x);
    }
    let dims = call.dims("dim", x.rank())?;
    let count: i64 = dims.iter().map(|dim| x.shape[*dim]).product();
    let found = match call.op {
        // No input has what is no number.
        "sum" | "nansum" => plan.reduce_dims(x, &dims, ReduceOp::Sum, "sum"),
        "mean" | "nanmean" => mean(plan, call, x, &dims)?,
        "prod" => plan.reduce_dims(x, &dims, ReduceOp::Product, "product"),
        "amax" => plan.reduce_dims(x, &dims, ReduceOp::Max, "top"),
        "amin" => plan.reduce_dims(x, &dims, ReduceOp::Min, "bottom"),
        "logsumexp" => {
            let x = plan.settled(x);
            let (top, sum) = plan.pair_dims(&x, &dims, PairedReduction::Exponentials);
            call.float_map(&[top, sum], "logsumexp", |arena, x| {
                let log = arena.unary(Unary::Log, x[1]);
                arena.add(x[0], log)
            })?
        }
        "var" | "std" => {
            // Two spellings of one thing: captured graphs have PyTorch's older one.
            let unbiased = i64::from(call.flag("unbiased", true)?);
            let correction = call.integer_or("correction", unbiased)?;
            let Spread { squares, .. } = spread(plan, call, x, &dims)?;
            let by = (count - correction).max(0) as f64;
            let root = call.op == "std";
            let name = if root { "std" } else { "var" };
            call.float_map(&[squares], name, move |arena, x| {
                let by = arena.constant(by);
                let var = arena.div(x[0], by);
                if root {
                    arena.unary(Unary::Sqrt, var)
                } else {
                    var
                }
            })?
        }
        _ => {
            let order = call.number_or(if call.op == "norm" { "p" } else { "ord" }, 2.0)?;
            norm(plan, call, x, &dims, order)?
        }
    };
    keeping(call, &found, &dims)
}

fn trapezoid(plan: &mut Plan, call: &OperatorCall<'_>, x: &Tensor) -> Result<Tensor, NotCovered> {
    let dim = call.dim("dim", x.rank())?;
    let step = call.number_or("dx", 1.0)?;
    let length = x.shape[dim];
    if length < 2 {
        return Err(call.refuse("a single point"));
    }
    let pairs = [
        x.sliced(dim, 0, length - 1, 1),
        x.sliced(dim, 1, length - 1, 1),
    ];
    let sums = call.float_map(&pairs, "pair", |arena, x| arena.add(x[0], x[1]))?;
    let sum = plan.reduce_dims(&sums, &[dim], ReduceOp::Sum, "sum");
    let found = scaled(call, &sum, step / 2.0, "trapezoid")?;
    Ok(dropped(&found, &[dim]))
}

/// The greatest or the least along a dimension, or where it is.
fn extreme(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    x: &Tensor,
    dim: usize,
) -> Result<Tensor, NotCovered> {
    let least = call.op.ends_with("min");
    let place = call.op.starts_with("arg") || call.result == 1;
    if !place {
        let fold = if least { ReduceOp::Min } else { ReduceOp::Max };
        return Ok(plan.reduce_dims(x, &[dim], fold, if least { "bottom" } else { "top" }));
    }
    let x = if least {
        call.float_map(std::slice::from_ref(x), "neg", |arena, x| {
            arena.unary(Unary::Neg, x[0])
        })?
    } else {
        x.clone()
    };
    Ok(plan.reduce_dims(&x, &[dim], ReduceOp::ArgMax, "place"))
}

fn softmax(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let given = call.input(0)?;
    call.argument("dtype");
    let dim = call.dim("dim", given.rank())?;
    let x = if call.op == "softmin" {
        call.float_map(std::slice::from_ref(given), "neg", |arena, x| {
            arena.unary(Unary::Neg, x[0])
        })?
    } else {
        given.clone()
    };
    let x = plan.settled(&x);
    let (top, sum) = plan.pair_dims(&x, &[dim], PairedReduction::Exponentials);
    if call.op == "log_softmax" {
        return call.float_map(&[x, top, sum], "log_softmax", |arena, x| {
            let below = arena.sub(x[0], x[1]);
            let log = arena.unary(Unary::Log, x[2]);
            arena.sub(below, log)
        });
    }
    call.float_map(&[x, top, sum], "softmax", |arena, x| {
        let below = arena.sub(x[0], x[1]);
        let e = arena.unary(Unary::ExpNegative, below);
        arena.div(e, x[2])
    })
}

/// Attention's own, along the last dimension.
pub(super) fn softmax_of(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    x: &Tensor,
) -> Result<Tensor, NotCovered> {
    let (top, sum) = plan.pair_dims(x, &[x.rank() - 1], PairedReduction::Exponentials);
    call.float_map(&[x.clone(), top, sum], "softmax", |arena, x| {
        let below = arena.sub(x[0], x[1]);
        let e = arena.unary(Unary::ExpNegative, below);
        arena.div(e, x[2])
    })
}
