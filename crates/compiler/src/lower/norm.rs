//! Normalisations and distances: rows divided by what they come to.

use super::reduce::{Spread, dropped, keeping, norm, norm2, spread};
use super::{NotCovered, OperatorCall};
use crate::plan::{Plan, ReduceOp};
use crate::scalar::Unary;
use crate::tensor::Tensor;

type Found = Result<Option<Tensor>, NotCovered>;

pub(super) fn rule(plan: &mut Plan, call: &OperatorCall<'_>) -> Found {
    let found = match call.op {
        "normalize" => {
            let x = &plan.settled(call.input(0)?);
            let dim = call.dim("dim", x.rank())?;
            let order = call.number_or("p", 2.0)?;
            let eps = call.number_or("eps", 1e-12)?;
            let norm = norm(plan, call, x, &[dim], order)?;
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
        "cosine_similarity" => cosine(plan, call)?,
        "pairwise_distance" => {
            let (x, y) = (call.input(0)?, call.input(1)?);
            let order = call.number_or("p", 2.0)?;
            let eps = call.number_or("eps", 1e-6)?;
            let apart = call.float_map(&[x.clone(), y.clone()], "apart", move |arena, x| {
                let eps = arena.constant(eps);
                let apart = arena.sub(x[0], x[1]);
                arena.add(apart, eps)
            })?;
            let last = apart.rank() - 1;
            let norm = norm(plan, call, &apart, &[last], order)?;
            keeping(call, &norm, &[last])?
        }
        _ => return Ok(None),
    };
    Ok(Some(found))
}

fn rows(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let x = &plan.settled(call.input(0)?);
    let shape = call.integers("normalized_shape")?.unwrap_or_default();
    if shape.is_empty() || !x.shape.ends_with(&shape) {
        return Err(call.refuse("a shape that is not the last of the input"));
    }
    let dims: Vec<usize> = (x.rank() - shape.len()..x.rank()).collect();
    let count: i64 = shape.iter().product();
    let normal = if call.op == "layer_norm" {
        let eps = call.number_or("eps", 1e-5)?;
        let spread = spread(plan, call, x, &dims)?;
        standardized(call, &spread, count, eps)?
    } else {
        let eps = call.number_or("eps", f64::from(f32::EPSILON))?;
        let squares = call.float_map(std::slice::from_ref(x), "square", |arena, x| {
            arena.mul(x[0], x[0])
        })?;
        let sum = plan.reduce_dims(&squares, &dims, ReduceOp::Sum, "squares");
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
    call: &OperatorCall<'_>,
    spread: &Spread,
    count: i64,
    eps: f64,
) -> Result<Tensor, NotCovered> {
    let Spread {
        above,
        mean,
        squares,
    } = spread;
    let three = [above.clone(), mean.clone(), squares.clone()];
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
    call: &OperatorCall<'_>,
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
    call: &OperatorCall<'_>,
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
    call: &OperatorCall<'_>,
    x: &Tensor,
    groups: i64,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
) -> Result<Tensor, NotCovered> {
    if x.rank() < 2 || x.shape[1] % groups != 0 {
        return Err(call.refuse("channels that do not fit"));
    }
    let x = &plan.settled(x);
    let eps = call.number_or("eps", 1e-5)?;
    let mut shape = vec![x.shape[0], groups, x.shape[1] / groups];
    shape.extend(&x.shape[2..]);
    let grouped = x.reshaped(&shape);
    let dims: Vec<usize> = (2..shape.len()).collect();
    let count: i64 = shape[2..].iter().product();
    let spread = spread(plan, call, &grouped, &dims)?;
    let normal = standardized(call, &spread, count, eps)?.reshaped(&x.shape);
    affine(
        call,
        &normal,
        by_channel(call, weight, x)?,
        by_channel(call, bias, x)?,
    )
}

/// With running statistics it is a multiplication and an addition.
fn batch_norm(call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
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

fn cosine(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let pair = [call.input(0)?.clone(), call.input(1)?.clone()];
    let shape = call.broadcast_shape(&pair)?;
    let (x, y) = (pair[0].broadcast(&shape), pair[1].broadcast(&shape));
    let dim = call.dim_of(call.integer_or("dim", 1)?, shape.len())?;
    let eps = call.number_or("eps", 1e-8)?;
    let product = call.float_map(&[x.clone(), y.clone()], "product", |arena, x| {
        arena.mul(x[0], x[1])
    })?;
    let dot = plan.reduce_dims(&product, &[dim], ReduceOp::Sum, "dot");
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
