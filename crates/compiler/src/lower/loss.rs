//! Losses: element by element, then a mean or a sum.

use super::pointwise::softplus;
use super::reduce::{divided, dropped, norm};
use super::{NotCovered, OperatorCall, is};
use crate::plan::{PairedReduction, Plan, ReduceOp};
use crate::scalar::{Arena, Binary, Scalar, ScalarType, Unary};
use crate::tensor::Tensor;

type Found = Result<Option<Tensor>, NotCovered>;
/// The loss of an element and its target.
type OfPair = Box<dyn Fn(&mut Arena, Scalar, Scalar) -> Scalar>;

pub(super) fn rule(plan: &mut Plan, call: &OperatorCall<'_>) -> Found {
    let found = match call.op {
        "cross_entropy" | "nll_loss" => classes(plan, call)?,
        "triplet_margin_loss" => triplet(plan, call)?,
        "margin_ranking_loss" => ranking(plan, call)?,
        "cosine_embedding_loss" => cosine_embedding(plan, call)?,
        "mse_loss"
        | "l1_loss"
        | "smooth_l1_loss"
        | "huber_loss"
        | "binary_cross_entropy"
        | "binary_cross_entropy_with_logits"
        | "kl_div"
        | "soft_margin_loss"
        | "hinge_embedding_loss"
        | "poisson_nll_loss"
        | "multilabel_soft_margin_loss" => pairs(plan, call)?,
        _ => return Ok(None),
    };
    Ok(Some(found))
}

/// All losses as one, as it is wanted.
fn reduced(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    losses: &Tensor,
) -> Result<Tensor, NotCovered> {
    let how = call.text("reduction", "mean")?;
    if how == "none" {
        return Ok(losses.clone());
    }
    let dims: Vec<usize> = (0..losses.rank()).collect();
    let sum = plan
        .reduce_dims(losses, &dims, ReduceOp::Sum, "sum")
        .reshaped(&[]);
    let by = match how.as_str() {
        "sum" => return Ok(sum),
        "mean" => losses.count(),
        "batchmean" => losses.shape[0],
        _ => return Err(call.refuse("an unknown reduction")),
    };
    divided(call, &sum, by)
}

fn pairs(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let (x, y) = (call.input(0)?.clone(), call.input(1)?.clone());
    if x.shape != y.shape || (2..4).any(|place| call.optional(place).is_some()) {
        return Err(call.refuse("weights, or shapes that differ"));
    }
    let number = match call.op {
        "smooth_l1_loss" => call.number_or("beta", 1.0)?,
        "huber_loss" => call.number_or("delta", 1.0)?,
        "hinge_embedding_loss" => call.number_or("margin", 1.0)?,
        _ => 0.0,
    };
    let compute: OfPair = match call.op {
        "mse_loss" => Box::new(|arena, x, y| {
            let apart = arena.sub(x, y);
            arena.mul(apart, apart)
        }),
        "l1_loss" => Box::new(|arena, x, y| {
            let apart = arena.sub(x, y);
            arena.unary(Unary::Abs, apart)
        }),
        "smooth_l1_loss" => Box::new(move |arena, x, y| bent(arena, x, y, number, 1.0 / number)),
        "huber_loss" => Box::new(move |arena, x, y| bent(arena, x, y, number, 1.0)),
        "binary_cross_entropy" => Box::new(|arena, x, y| {
            let (one, low) = (arena.constant(1.0), arena.constant(-100.0));
            let (rest_x, rest_y) = (arena.sub(one, x), arena.sub(one, y));
            let (a, b) = (arena.unary(Unary::Log, x), arena.unary(Unary::Log, rest_x));
            let (a, b) = (arena.max(a, low), arena.max(b, low));
            let (a, b) = (arena.mul(y, a), arena.mul(rest_y, b));
            let sum = arena.add(a, b);
            arena.unary(Unary::Neg, sum)
        }),
        "binary_cross_entropy_with_logits" => Box::new(|arena, x, y| {
            let soft = softplus(arena, x);
            let product = arena.mul(x, y);
            arena.sub(soft, product)
        }),
        "multilabel_soft_margin_loss" => Box::new(|arena, x, y| {
            let soft = softplus(arena, x);
            let product = arena.mul(x, y);
            arena.sub(soft, product)
        }),
        "kl_div" => {
            let log = call.flag("log_target", false)?;
            Box::new(move |arena, x, y| {
                if log {
                    let e = arena.unary(Unary::Exp, y);
                    let apart = arena.sub(y, x);
                    return arena.mul(e, apart);
                }
                let zero = arena.constant(0.0);
                let log = arena.unary(Unary::Log, y);
                let apart = arena.sub(log, x);
                let value = arena.mul(y, apart);
                let some = arena.less(zero, y);
                arena.select(some, value, zero)
            })
        }
        "soft_margin_loss" => Box::new(|arena, x, y| {
            let product = arena.mul(x, y);
            let minus = arena.unary(Unary::Neg, product);
            softplus(arena, minus)
        }),
        "hinge_embedding_loss" => Box::new(move |arena, x, y| {
            let (zero, margin) = (arena.constant(0.0), arena.constant(number));
            let apart = arena.sub(margin, x);
            let hinge = arena.max(apart, zero);
            let same = arena.less(zero, y);
            arena.select(same, x, hinge)
        }),
        _ => {
            if !call.flag("log_input", true)? || call.flag("full", false)? {
                return Err(call.refuse("another form of it"));
            }
            call.argument("eps");
            Box::new(|arena, x, y| {
                let e = arena.unary(Unary::Exp, x);
                let product = arena.mul(y, x);
                arena.sub(e, product)
            })
        }
    };
    let losses = call.float_map(&[x, y], "loss", move |arena, x| compute(arena, x[0], x[1]))?;
    reduced(plan, call, &losses)
}

/// Quadratic near zero, linear beyond a limit.
fn bent(arena: &mut Arena, x: Scalar, y: Scalar, limit: f64, scale: f64) -> Scalar {
    let (half, edge) = (arena.constant(0.5 * scale), arena.constant(limit));
    let (slope, shift) = (arena.constant(limit * scale), arena.constant(0.5 * limit));
    let apart = arena.sub(x, y);
    let size = arena.unary(Unary::Abs, apart);
    let square = arena.mul(size, size);
    let inner = arena.mul(square, half);
    let beyond = arena.sub(size, shift);
    let outer = arena.mul(beyond, slope);
    let near = arena.less(size, edge);
    arena.select(near, inner, outer)
}

fn classes(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let (x, target) = (call.input(0)?.clone(), call.input(1)?.clone());
    if x.rank() != 2 || target.kind != ScalarType::Int || call.optional(2).is_some() {
        return Err(call.refuse("weights, or targets that are no classes"));
    }
    if !is(call.number_or("label_smoothing", 0.0)?, 0.0) {
        return Err(call.refuse("smoothed labels"));
    }
    // No target is left out: all are classes.
    call.argument("ignore_index");
    let classes = x.shape[1];
    let (buffer, x) = plan.realize(&x);
    let inner = target.at.clone();
    let picked = Tensor::computed(&target.shape, ScalarType::Float, 1, move |arena, at| {
        let class = inner(arena, at);
        arena.look_up(buffer, at[0].times(classes), vec![(class, 1)])
    });
    let losses = if call.op == "nll_loss" {
        call.float_map(&[picked], "loss", |arena, x| arena.unary(Unary::Neg, x[0]))?
    } else {
        let (top, sum) = plan.pair_dims(&x, &[1], PairedReduction::Exponentials);
        let flat = target.shape.clone();
        let (top, sum) = (top.reshaped(&flat), sum.reshaped(&flat));
        call.float_map(&[picked, top, sum], "loss", |arena, x| {
            let log = arena.unary(Unary::Log, x[2]);
            let all = arena.add(x[1], log);
            arena.sub(all, x[0])
        })?
    };
    reduced_rows(plan, call, &losses)
}

/// How much nearer an anchor is to its own kind than to others.
fn triplet(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let (order, eps) = (call.number_or("p", 2.0)?, call.number_or("eps", 1e-6)?);
    let margin = call.number_or("margin", 1.0)?;
    let three = [call.input(0)?, call.input(1)?, call.input(2)?].map(Tensor::clone);
    let mut distance = |x: &Tensor, y: &Tensor| {
        let apart = call.float_map(&[x.clone(), y.clone()], "apart", move |arena, x| {
            let (eps, apart) = (arena.constant(eps), arena.sub(x[0], x[1]));
            arena.add(apart, eps)
        })?;
        let last = apart.rank() - 1;
        let found = norm(plan, call, &apart, &[last], order)?;
        Ok::<Tensor, NotCovered>(dropped(&found, &[last]))
    };
    let [anchor, positive, negative] = &three;
    let (near, mut far) = (distance(anchor, positive)?, distance(anchor, negative)?);
    if call.flag("swap", false)? {
        let other = distance(positive, negative)?;
        far = call.float_map(&[far, other], "far", |arena, x| {
            arena.binary(Binary::Min, x[0], x[1])
        })?;
    }
    let losses = call.float_map(&[near, far], "loss", move |arena, x| {
        let (zero, margin) = (arena.constant(0.0), arena.constant(margin));
        let apart = arena.sub(x[0], x[1]);
        let hinge = arena.add(apart, margin);
        arena.max(hinge, zero)
    })?;
    reduced_rows(plan, call, &losses)
}

fn ranking(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let margin = call.number_or("margin", 0.0)?;
    let three = [call.input(0)?, call.input(1)?, call.input(2)?].map(Tensor::clone);
    let losses = call.float_map(&three, "loss", move |arena, x| {
        let (zero, margin) = (arena.constant(0.0), arena.constant(margin));
        let apart = arena.sub(x[1], x[0]);
        let product = arena.mul(x[2], apart);
        let hinge = arena.add(product, margin);
        arena.max(hinge, zero)
    })?;
    reduced(plan, call, &losses)
}

fn cosine_embedding(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let margin = call.number_or("margin", 0.0)?;
    let (x, y) = (call.input(0)?.clone(), call.input(1)?.clone());
    let target = call.input(2)?.clone();
    if x.rank() != 2 || y.rank() != 2 {
        return Err(call.refuse("a single pair"));
    }
    let mut dot = |a: &Tensor, b: &Tensor| {
        let products = call.float_map(&[a.clone(), b.clone()], "product", |arena, x| {
            arena.mul(x[0], x[1])
        })?;
        let sum = plan.reduce_dims(&products, &[1], ReduceOp::Sum, "dot");
        Ok::<Tensor, NotCovered>(dropped(&sum, &[1]))
    };
    let dots = [dot(&x, &y)?, dot(&x, &x)?, dot(&y, &y)?];
    let [all, first, second] = dots;
    let losses = call.float_map(&[all, first, second, target], "loss", move |arena, x| {
        // As PyTorch keeps it from dividing by zero.
        let (zero, one, eps) = (
            arena.constant(0.0),
            arena.constant(1.0),
            arena.constant(1e-12),
        );
        let (a, b) = (arena.add(x[1], eps), arena.add(x[2], eps));
        let product = arena.mul(a, b);
        let below = arena.unary(Unary::Sqrt, product);
        let cosine = arena.div(x[0], below);
        let margin = arena.constant(margin);
        let (apart, over) = (arena.sub(one, cosine), arena.sub(cosine, margin));
        let hinge = arena.max(over, zero);
        let same = arena.less(zero, x[3]);
        arena.select(same, apart, hinge)
    })?;
    reduced_rows(plan, call, &losses)
}

/// A row each first, then all rows together.
fn reduced_rows(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    losses: &Tensor,
) -> Result<Tensor, NotCovered> {
    let losses = plan.realize(losses).1;
    reduced(plan, call, &losses)
}
