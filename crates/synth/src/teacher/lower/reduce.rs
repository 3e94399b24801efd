//! Along dimensions: sums, extremes, norms, softmax, scans.

use std::rc::Rc;

use super::{Call, NotCovered, is};
use crate::teacher::plan::{Fold, Kernel, Origin, Plan, Scan, Scanning};
use crate::teacher::scalar::{Binary, Kind, Unary};
use crate::teacher::tensor::Tensor;

type Found = Result<Option<Tensor>, NotCovered>;

pub(super) fn rule(plan: &mut Plan, call: &Call<'_>) -> Found {
    let found = match call.op {
        "sum" | "nansum" | "mean" | "nanmean" | "prod" | "amax" | "amin" | "max" | "min"
        | "argmax" | "argmin" | "var" | "std" | "logsumexp" | "vector_norm" | "norm"
        | "trapezoid" => reduction(plan, call)?,
        "softmax" | "softmin" | "log_softmax" => softmax(plan, call)?,
        "normalize" => {
            let x = call.input(0)?;
            let dim = call.dim("dim", x.rank())?;
            if !is(call.number_or("p", 2.0)?, 2.0) {
                return Err(call.refuse("another norm than the second"));
            }
            let eps = call.number_or("eps", 1e-12)?;
            let norm = norm2(plan, call, x, &[dim])?;
            call.float_map(&[x.clone(), norm], "normalize", move |arena, x| {
                let eps = arena.constant(eps);
                let below = arena.max(x[1], eps);
                arena.div(x[0], below)
            })?
        }
        "layer_norm" | "rms_norm" => rows(plan, call)?,
        "group_norm" => {
            let x = call.input(0)?;
            let groups = call.integer("num_groups")?;
            channels(plan, call, x, groups, call.optional(1), call.optional(2))?
        }
        "instance_norm" => {
            let x = call.input(0)?;
            if !call.flag("use_input_stats", true)? {
                return Err(call.refuse("running statistics"));
            }
            let groups = *x.shape.get(1).ok_or_else(|| call.refuse("no channels"))?;
            channels(plan, call, x, groups, call.optional(3), call.optional(4))?
        }
        "batch_norm" => batch_norm(call)?,
        "cumsum" | "cumprod" => scan(plan, call)?,
        "cosine_similarity" => cosine(plan, call)?,
        "pairwise_distance" => {
            let (x, y) = (call.input(0)?, call.input(1)?);
            if !is(call.number_or("p", 2.0)?, 2.0) {
                return Err(call.refuse("another norm than the second"));
            }
            let eps = call.number_or("eps", 1e-6)?;
            let apart = call.float_map(&[x.clone(), y.clone()], "apart", move |arena, x| {
                let eps = arena.constant(eps);
                let apart = arena.sub(x[0], x[1]);
                arena.add(apart, eps)
            })?;
            let last = apart.rank() - 1;
            let norm = norm2(plan, call, &apart, &[last])?;
            keeping(call, &norm, &[last])?
        }
        _ => return Ok(None),
    };
    Ok(Some(found))
}

/// Drops the dimensions of one element unless they are to stay.
fn keeping(call: &Call<'_>, result: &Tensor, dims: &[usize]) -> Result<Tensor, NotCovered> {
    if call.flag("keepdim", false)? {
        return Ok(result.clone());
    }
    Ok(dropped(result, dims))
}

fn dropped(result: &Tensor, dims: &[usize]) -> Tensor {
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
                    crate::teacher::index::Index::default()
                } else {
                    given.next().cloned().unwrap_or_default()
                }
            })
            .collect()
    })
}

fn float_only(call: &Call<'_>, x: &Tensor) -> Result<(), NotCovered> {
    match x.kind {
        Kind::Float => Ok(()),
        _ => Err(call.refuse("elements that are no floats")),
    }
}

fn scaled(call: &Call<'_>, x: &Tensor, by: f64, name: &'static str) -> Result<Tensor, NotCovered> {
    call.float_map(std::slice::from_ref(x), name, move |arena, x| {
        let by = arena.constant(by);
        arena.mul(x[0], by)
    })
}

pub(super) fn mean(
    plan: &mut Plan,
    call: &Call<'_>,
    x: &Tensor,
    dims: &[usize],
) -> Result<Tensor, NotCovered> {
    let count: i64 = dims.iter().map(|dim| x.shape[*dim]).product();
    let sum = plan.reduce_dims(x, dims, Fold::Sum, "sum");
    call.float_map(&[sum], "mean", move |arena, x| {
        let count = arena.constant(count as f64);
        arena.binary(Binary::ExactDiv, x[0], count)
    })
}

/// Around the mean: the sum of squares, without cancellation.
fn spread(
    plan: &mut Plan,
    call: &Call<'_>,
    x: &Tensor,
    dims: &[usize],
) -> Result<(Tensor, Tensor), NotCovered> {
    let mean = mean(plan, call, x, dims)?;
    let squares = call.float_map(&[x.clone(), mean.clone()], "square", |arena, x| {
        let apart = arena.sub(x[0], x[1]);
        arena.mul(apart, apart)
    })?;
    let sum = plan.reduce_dims(&squares, dims, Fold::Sum, "squares");
    Ok((mean, sum))
}

fn norm2(
    plan: &mut Plan,
    call: &Call<'_>,
    x: &Tensor,
    dims: &[usize],
) -> Result<Tensor, NotCovered> {
    let squares = call.float_map(std::slice::from_ref(x), "square", |arena, x| {
        arena.mul(x[0], x[0])
    })?;
    let sum = plan.reduce_dims(&squares, dims, Fold::Sum, "squares");
    call.float_map(&[sum], "norm", |arena, x| arena.unary(Unary::Sqrt, x[0]))
}

fn reduction(plan: &mut Plan, call: &Call<'_>) -> Result<Tensor, NotCovered> {
    let x = call.input(0)?;
    float_only(call, x)?;
    if call.optional(1).is_some() || call.argument("dtype").is_some() {
        return Err(call.refuse("another operand or type"));
    }
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
        "sum" | "nansum" => plan.reduce_dims(x, &dims, Fold::Sum, "sum"),
        "mean" | "nanmean" => mean(plan, call, x, &dims)?,
        "prod" => plan.reduce_dims(x, &dims, Fold::Product, "product"),
        "amax" => plan.reduce_dims(x, &dims, Fold::Max, "top"),
        "amin" => plan.reduce_dims(x, &dims, Fold::Min, "bottom"),
        "logsumexp" => {
            let (top, sum) = exponentials(plan, call, x, &dims)?;
            call.float_map(&[top, sum], "logsumexp", |arena, x| {
                let log = arena.unary(Unary::Log, x[1]);
                arena.add(x[0], log)
            })?
        }
        "var" | "std" => {
            let correction = call.integer_or("correction", 1)?;
            let (_, squares) = spread(plan, call, x, &dims)?;
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
            if !is(order, 2.0) {
                return Err(call.refuse("another norm than the second"));
            }
            norm2(plan, call, x, &dims)?
        }
    };
    keeping(call, &found, &dims)
}

fn trapezoid(plan: &mut Plan, call: &Call<'_>, x: &Tensor) -> Result<Tensor, NotCovered> {
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
    let sum = plan.reduce_dims(&sums, &[dim], Fold::Sum, "sum");
    let found = scaled(call, &sum, step / 2.0, "trapezoid")?;
    Ok(dropped(&found, &[dim]))
}

/// The greatest or the least along a dimension, or where it is.
fn extreme(plan: &mut Plan, call: &Call<'_>, x: &Tensor, dim: usize) -> Result<Tensor, NotCovered> {
    let least = call.op.ends_with("min");
    let place = call.op.starts_with("arg") || call.result == 1;
    if !place {
        let fold = if least { Fold::Min } else { Fold::Max };
        return Ok(plan.reduce_dims(x, &[dim], fold, if least { "bottom" } else { "top" }));
    }
    let x = if least {
        call.float_map(std::slice::from_ref(x), "neg", |arena, x| {
            arena.unary(Unary::Neg, x[0])
        })?
    } else {
        x.clone()
    };
    Ok(plan.reduce_dims(&x, &[dim], Fold::ArgMax, "place"))
}

/// The greatest, and the sum of exponentials of what lies below it.
fn exponentials(
    plan: &mut Plan,
    call: &Call<'_>,
    x: &Tensor,
    dims: &[usize],
) -> Result<(Tensor, Tensor), NotCovered> {
    let top = plan.reduce_dims(x, dims, Fold::Max, "top");
    let below = call.float_map(&[x.clone(), top.clone()], "e", |arena, x| {
        let below = arena.sub(x[0], x[1]);
        arena.unary(Unary::Exp, below)
    })?;
    let sum = plan.reduce_dims(&below, dims, Fold::Sum, "sum");
    Ok((top, sum))
}

fn softmax(plan: &mut Plan, call: &Call<'_>) -> Result<Tensor, NotCovered> {
    let given = call.input(0)?;
    if call.argument("dtype").is_some() {
        return Err(call.refuse("another type"));
    }
    let dim = call.dim("dim", given.rank())?;
    let x = if call.op == "softmin" {
        call.float_map(std::slice::from_ref(given), "neg", |arena, x| {
            arena.unary(Unary::Neg, x[0])
        })?
    } else {
        given.clone()
    };
    let (top, sum) = exponentials(plan, call, &x, &[dim])?;
    if call.op == "log_softmax" {
        return call.float_map(&[x, top, sum], "log_softmax", |arena, x| {
            let below = arena.sub(x[0], x[1]);
            let log = arena.unary(Unary::Log, x[2]);
            arena.sub(below, log)
        });
    }
    call.float_map(&[x, top, sum], "softmax", |arena, x| {
        let below = arena.sub(x[0], x[1]);
        let e = arena.unary(Unary::Exp, below);
        arena.div(e, x[2])
    })
}

/// Attention's own, along the last dimension.
pub(super) fn softmax_of(
    plan: &mut Plan,
    call: &Call<'_>,
    x: &Tensor,
) -> Result<Tensor, NotCovered> {
    let (top, sum) = exponentials(plan, call, x, &[x.rank() - 1])?;
    call.float_map(&[x.clone(), top, sum], "softmax", |arena, x| {
        let below = arena.sub(x[0], x[1]);
        let e = arena.unary(Unary::Exp, below);
        arena.div(e, x[2])
    })
}

fn rows(plan: &mut Plan, call: &Call<'_>) -> Result<Tensor, NotCovered> {
    let x = call.input(0)?;
    let shape = call.integers("normalized_shape")?.unwrap_or_default();
    if shape.is_empty() || !x.shape.ends_with(&shape) {
        return Err(call.refuse("a shape that is not the last of the input"));
    }
    let dims: Vec<usize> = (x.rank() - shape.len()..x.rank()).collect();
    let count: i64 = shape.iter().product();
    let normal = if call.op == "layer_norm" {
        let eps = call.number_or("eps", 1e-5)?;
        let (mean, squares) = spread(plan, call, x, &dims)?;
        standardized(call, x, &mean, &squares, count, eps)?
    } else {
        let eps = call.number_or("eps", f64::from(f32::EPSILON))?;
        let squares = call.float_map(std::slice::from_ref(x), "square", |arena, x| {
            arena.mul(x[0], x[0])
        })?;
        let sum = plan.reduce_dims(&squares, &dims, Fold::Sum, "squares");
        call.float_map(&[x.clone(), sum], "rms_norm", move |arena, x| {
            let (part, eps) = (arena.constant(1.0 / count as f64), arena.constant(eps));
            let mean = arena.mul(x[1], part);
            let safe = arena.add(mean, eps);
            let inverse = arena.unary(Unary::Rsqrt, safe);
            arena.mul(x[0], inverse)
        })?
    };
    affine(
        call,
        &normal,
        call.optional(1).cloned(),
        call.optional(2).cloned(),
    )
}

fn standardized(
    call: &Call<'_>,
    x: &Tensor,
    mean: &Tensor,
    squares: &Tensor,
    count: i64,
    eps: f64,
) -> Result<Tensor, NotCovered> {
    let three = [x.clone(), mean.clone(), squares.clone()];
    call.float_map(&three, "normal", move |arena, x| {
        let (part, eps) = (arena.constant(1.0 / count as f64), arena.constant(eps));
        let var = arena.mul(x[2], part);
        let safe = arena.add(var, eps);
        let inverse = arena.unary(Unary::Rsqrt, safe);
        let apart = arena.sub(x[0], x[1]);
        arena.mul(apart, inverse)
    })
}

fn affine(
    call: &Call<'_>,
    x: &Tensor,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
) -> Result<Tensor, NotCovered> {
    let mut result = x.clone();
    if let Some(weight) = weight {
        result = call.float_map(&[result, weight], "scaled", |arena, x| {
            arena.mul(x[0], x[1])
        })?;
    }
    if let Some(bias) = bias {
        result = call.float_map(&[result, bias], "shifted", |arena, x| arena.add(x[0], x[1]))?;
    }
    Ok(result)
}

/// One value a channel, to be broadcast over the rest.
fn by_channel(
    call: &Call<'_>,
    value: Option<&Tensor>,
    x: &Tensor,
) -> Result<Option<Tensor>, NotCovered> {
    let Some(value) = value else { return Ok(None) };
    let mut shape = vec![1; x.rank()];
    *shape.get_mut(1).ok_or_else(|| call.refuse("no channels"))? = value.count();
    Ok(Some(value.reshaped(&shape)))
}

fn channels(
    plan: &mut Plan,
    call: &Call<'_>,
    x: &Tensor,
    groups: i64,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
) -> Result<Tensor, NotCovered> {
    if x.rank() < 2 || x.shape[1] % groups != 0 {
        return Err(call.refuse("channels that do not fit"));
    }
    let eps = call.number_or("eps", 1e-5)?;
    let mut shape = vec![x.shape[0], groups, x.shape[1] / groups];
    shape.extend(&x.shape[2..]);
    let grouped = x.reshaped(&shape);
    let dims: Vec<usize> = (2..shape.len()).collect();
    let count: i64 = shape[2..].iter().product();
    let (mean, squares) = spread(plan, call, &grouped, &dims)?;
    let normal = standardized(call, &grouped, &mean, &squares, count, eps)?.reshaped(&x.shape);
    affine(
        call,
        &normal,
        by_channel(call, weight, x)?,
        by_channel(call, bias, x)?,
    )
}

/// With running statistics it is a multiplication and an addition.
fn batch_norm(call: &Call<'_>) -> Result<Tensor, NotCovered> {
    call.without("training")?;
    let x = call.input(0)?;
    let eps = call.number_or("eps", 1e-5)?;
    let (Some(mean), Some(var)) = (
        by_channel(call, call.optional(1), x)?,
        by_channel(call, call.optional(2), x)?,
    ) else {
        return Err(call.refuse("no running statistics"));
    };
    let weight =
        by_channel(call, call.optional(3), x)?.unwrap_or_else(|| Tensor::constant(1.0, &[]));
    let bias = by_channel(call, call.optional(4), x)?.unwrap_or_else(|| Tensor::constant(0.0, &[]));
    let all = [x.clone(), mean, var, weight, bias];
    call.float_map(&all, "batch_norm", move |arena, x| {
        let eps = arena.constant(eps);
        let safe = arena.add(x[2], eps);
        let inverse = arena.unary(Unary::Rsqrt, safe);
        let scale = arena.mul(x[3], inverse);
        arena.name(scale, "scale");
        let apart = arena.sub(x[0], x[1]);
        let scaled = arena.mul(apart, scale);
        arena.add(scaled, x[4])
    })
}

fn scan(plan: &mut Plan, call: &Call<'_>) -> Result<Tensor, NotCovered> {
    let x = call.input(0)?;
    float_only(call, x)?;
    if call.argument("dtype").is_some() {
        return Err(call.refuse("another type"));
    }
    let dim = call.dim("dim", x.rank())?;
    let before: i64 = x.shape[..dim].iter().product();
    let after: i64 = x.shape[dim + 1..].iter().product();
    let shape = [before, x.shape[dim], after];
    let plain = without_reductions(plan, x);
    let value = plain.reshaped(&shape);
    let out = plan.room(Origin::Made, &x.shape, Kind::Float);
    plan.push(Kernel::Scan(Scan {
        shape,
        how: if call.op == "cumsum" {
            Scanning::Sum
        } else {
            Scanning::Product
        },
        value: Rc::clone(&value.at),
        out,
    }));
    Ok(Tensor::of_buffer(out, &x.shape, Kind::Float))
}

/// A tensor that needs no reduction to compute: made, if it did.
pub(super) fn without_reductions(plan: &mut Plan, x: &Tensor) -> Tensor {
    if x.work >= 100 {
        return plan.realize(x).1;
    }
    x.clone()
}

fn cosine(plan: &mut Plan, call: &Call<'_>) -> Result<Tensor, NotCovered> {
    let pair = [call.input(0)?.clone(), call.input(1)?.clone()];
    let shape = call.together(&pair)?;
    let (x, y) = (pair[0].broadcast(&shape), pair[1].broadcast(&shape));
    let dim = call.dim_of(call.integer_or("dim", 1)?, shape.len())?;
    let eps = call.number_or("eps", 1e-8)?;
    let product = call.float_map(&[x.clone(), y.clone()], "product", |arena, x| {
        arena.mul(x[0], x[1])
    })?;
    let dot = plan.reduce_dims(&product, &[dim], Fold::Sum, "dot");
    let (a, b) = (
        norm2(plan, call, &x, &[dim])?,
        norm2(plan, call, &y, &[dim])?,
    );
    let found = call.float_map(&[dot, a, b], "cosine", move |arena, x| {
        let eps = arena.constant(eps);
        let (a, b) = (arena.max(x[1], eps), arena.max(x[2], eps));
        let below = arena.mul(a, b);
        arena.div(x[0], below)
    })?;
    Ok(dropped(&found, &[dim]))
}
