//! Activations.

use super::{Found, named};
use crate::lower::{NotCovered, OperatorCall};
use crate::scalar::{Arena, Binary, Scalar, ScalarType, Unary};
use crate::tensor::Tensor;

type OfOne = Box<dyn Fn(&mut Arena, Scalar) -> Scalar>;

fn sigmoid(arena: &mut Arena, x: Scalar) -> Scalar {
    let one = arena.constant(1.0);
    let minus = arena.unary(Unary::Neg, x);
    let e = arena.unary(Unary::Exp, minus);
    let below = arena.add(one, e);
    arena.div(one, below)
}

/// `log(1 + exp(x))` without overflow.
pub(in crate::lower) fn softplus(arena: &mut Arena, x: Scalar) -> Scalar {
    let zero = arena.constant(0.0);
    let size = arena.unary(Unary::Abs, x);
    let minus = arena.unary(Unary::Neg, size);
    let e = arena.unary(Unary::Exp, minus);
    let small = arena.unary(Unary::Log1p, e);
    let large = arena.max(x, zero);
    arena.add(large, small)
}

fn clamped(arena: &mut Arena, x: Scalar, low: f64, high: f64) -> Scalar {
    let (low, high) = (arena.constant(low), arena.constant(high));
    let x = above(arena, x, low);
    let is_high = arena.less(high, x);
    arena.select(is_high, high, x)
}

/// The greater of both, written so that what is no number stays none.
fn above(arena: &mut Arena, x: Scalar, low: Scalar) -> Scalar {
    let is_low = arena.less(x, low);
    arena.select(is_low, low, x)
}

fn relu(arena: &mut Arena, x: Scalar) -> Scalar {
    let zero = arena.constant(0.0);
    above(arena, x, zero)
}

pub(super) fn activation(call: &OperatorCall<'_>) -> Found {
    let name = named(call.op);
    let x = match call.inputs.first() {
        Some(Some(x)) => x.clone(),
        _ => return Ok(None),
    };
    let map = |compute: OfOne| {
        call.float_map(std::slice::from_ref(&x), name, move |arena, x| {
            compute(arena, x[0])
        })
        .map(Some)
    };
    match call.op {
        "relu" => map(Box::new(relu)),
        "relu6" => map(Box::new(|arena, x| clamped(arena, x, 0.0, 6.0))),
        "sigmoid" => map(Box::new(sigmoid)),
        "silu" => map(Box::new(|arena, x| {
            let s = sigmoid(arena, x);
            arena.mul(x, s)
        })),
        "mish" => map(Box::new(|arena, x| {
            let s = softplus(arena, x);
            let t = arena.unary(Unary::Tanh, s);
            arena.mul(x, t)
        })),
        "gelu" => {
            let tanh = match call.text("approximate", "none")?.as_str() {
                "none" => false,
                "tanh" => true,
                _ => return Err(call.refuse("an unknown approximation")),
            };
            map(Box::new(move |arena, x| gelu(arena, x, tanh)))
        }
        "elu" | "celu" => {
            let alpha = call.number_or("alpha", 1.0)?;
            let inner = if call.op == "celu" { alpha } else { 1.0 };
            map(Box::new(move |arena, x| elu(arena, x, alpha, inner, 1.0)))
        }
        "selu" => map(Box::new(|arena, x| {
            elu(
                arena,
                x,
                1.673_263_242_354_377_2,
                1.0,
                1.050_700_987_355_480_5,
            )
        })),
        "leaky_relu" | "rrelu" => {
            let slope = if call.op == "rrelu" {
                call.without("training")?;
                f64::midpoint(call.number("lower")?, call.number("upper")?)
            } else {
                call.number_or("negative_slope", 0.01)?
            };
            map(Box::new(move |arena, x| {
                let (zero, slope) = (arena.constant(0.0), arena.constant(slope));
                let positive = arena.less(zero, x);
                let below = arena.mul(x, slope);
                arena.select(positive, x, below)
            }))
        }
        "softplus" => {
            let (beta, threshold) = (
                call.number_or("beta", 1.0)?,
                call.number_or("threshold", 20.0)?,
            );
            map(Box::new(move |arena, x| {
                let (b, limit) = (arena.constant(beta), arena.constant(threshold));
                let scaled = arena.mul(x, b);
                let soft = softplus(arena, scaled);
                let soft = arena.div(soft, b);
                let linear = arena.less(limit, scaled);
                arena.select(linear, x, soft)
            }))
        }
        "softsign" => map(Box::new(|arena, x| {
            let one = arena.constant(1.0);
            let size = arena.unary(Unary::Abs, x);
            let below = arena.add(one, size);
            arena.div(x, below)
        })),
        "hardtanh" => {
            let (low, high) = (
                call.number_or("min_val", -1.0)?,
                call.number_or("max_val", 1.0)?,
            );
            map(Box::new(move |arena, x| clamped(arena, x, low, high)))
        }
        "clamp" | "clamp_min" | "clamp_max" => {
            let low = call.number_or("min", f64::NEG_INFINITY)?;
            let high = call.number_or("max", f64::INFINITY)?;
            if call.kind == ScalarType::Int {
                let whole = |limit: f64| limit.is_finite().then_some(limit as i64);
                let (low, high) = (whole(low), whole(high));
                let clamped = call.number_map(&[x], name, move |arena, x| {
                    let above = low.map_or(x[0], |low| {
                        let low = arena.int(low);
                        arena.max(x[0], low)
                    });
                    high.map_or(above, |high| {
                        let high = arena.int(high);
                        arena.binary(Binary::Min, above, high)
                    })
                });
                return clamped.map(Some);
            }
            map(Box::new(move |arena, x| {
                match (low.is_finite(), high.is_finite()) {
                    (true, true) => clamped(arena, x, low, high),
                    (true, false) => {
                        let low = arena.constant(low);
                        above(arena, x, low)
                    }
                    _ => {
                        let high = arena.constant(high);
                        let is_high = arena.less(high, x);
                        arena.select(is_high, high, x)
                    }
                }
            }))
        }
        "hardswish" | "hardsigmoid" => {
            let times_x = call.op == "hardswish";
            map(Box::new(move |arena, x| {
                let (three, six) = (arena.constant(3.0), arena.constant(6.0));
                let shifted = arena.add(x, three);
                let gate = clamped(arena, shifted, 0.0, 6.0);
                let top = if times_x { arena.mul(x, gate) } else { gate };
                arena.div(top, six)
            }))
        }
        "hardshrink" | "softshrink" => {
            let (limit, soft) = (call.number_or("lambd", 0.5)?, call.op == "softshrink");
            map(Box::new(move |arena, x| {
                let (zero, high, low) = (
                    arena.constant(0.0),
                    arena.constant(limit),
                    arena.constant(-limit),
                );
                let (over, under) = (arena.less(high, x), arena.less(x, low));
                let (top, bottom) = if soft {
                    (arena.sub(x, high), arena.add(x, high))
                } else {
                    (x, x)
                };
                let rest = arena.select(under, bottom, zero);
                arena.select(over, top, rest)
            }))
        }
        "tanhshrink" => map(Box::new(|arena, x| {
            let t = arena.unary(Unary::Tanh, x);
            arena.sub(x, t)
        })),
        "logsigmoid" => map(Box::new(|arena, x| {
            let minus = arena.unary(Unary::Neg, x);
            let soft = softplus(arena, minus);
            arena.unary(Unary::Neg, soft)
        })),
        "threshold" => {
            let (limit, value) = (call.number("threshold")?, call.number("value")?);
            map(Box::new(move |arena, x| {
                let (limit, value) = (arena.constant(limit), arena.constant(value));
                let over = arena.less(limit, x);
                arena.select(over, x, value)
            }))
        }
        "square" => map(Box::new(|arena, x| arena.mul(x, x))),
        "reciprocal" => map(Box::new(|arena, x| {
            let one = arena.constant(1.0);
            arena.div(one, x)
        })),
        "sign" => map(Box::new(|arena, x| {
            let (zero, one, minus) = (
                arena.constant(0.0),
                arena.constant(1.0),
                arena.constant(-1.0),
            );
            let (over, under) = (arena.less(zero, x), arena.less(x, zero));
            let rest = arena.select(under, minus, zero);
            arena.select(over, one, rest)
        })),
        "frac" => map(Box::new(|arena, x| {
            let whole = arena.unary(Unary::Trunc, x);
            arena.sub(x, whole)
        })),
        "deg2rad" | "rad2deg" => {
            let factor = if call.op == "deg2rad" {
                1f64.to_radians()
            } else {
                1f64.to_degrees()
            };
            map(Box::new(move |arena, x| {
                let factor = arena.constant(factor);
                arena.mul(x, factor)
            }))
        }
        "sinc" => map(Box::new(|arena, x| {
            let (zero, one) = (arena.constant(0.0), arena.constant(1.0));
            let pi = arena.constant(std::f64::consts::PI);
            let angle = arena.mul(x, pi);
            let sin = arena.unary(Unary::Sin, angle);
            let quotient = arena.div(sin, angle);
            let none = arena.binary(Binary::Equal, x, zero);
            arena.select(none, one, quotient)
        })),
        "logit" => {
            let eps = call.argument("eps").and_then(serde_json::Value::as_f64);
            map(Box::new(move |arena, x| {
                let x = eps.map_or(x, |eps| clamped(arena, x, eps, 1.0 - eps));
                let one = arena.constant(1.0);
                let rest = arena.sub(one, x);
                let odds = arena.div(x, rest);
                arena.unary(Unary::Log, odds)
            }))
        }
        "ndtr" => map(Box::new(|arena, x| {
            let (minus, half) = (
                arena.constant(-std::f64::consts::FRAC_1_SQRT_2),
                arena.constant(0.5),
            );
            let scaled = arena.mul(x, minus);
            let e = arena.unary(Unary::Erfc, scaled);
            arena.mul(e, half)
        })),
        "entr" => map(Box::new(|arena, x| {
            let (zero, nothing) = (arena.constant(0.0), arena.constant(f64::NEG_INFINITY));
            let log = arena.unary(Unary::Log, x);
            let product = arena.mul(x, log);
            let value = arena.unary(Unary::Neg, product);
            let (over, under) = (arena.less(zero, x), arena.less(x, zero));
            let rest = arena.select(under, nothing, zero);
            arena.select(over, value, rest)
        })),
        "dropout"
        | "alpha_dropout"
        | "feature_alpha_dropout"
        | "dropout1d"
        | "dropout2d"
        | "dropout3d" => {
            call.without("training")?;
            call.argument("p");
            Ok(Some(x.clone()))
        }
        "clone" | "contiguous" | "positive" => {
            call.argument("memory_format");
            Ok(Some(x.clone()))
        }
        "prelu" => prelu(call, &x).map(Some),
        _ => Ok(None),
    }
}

fn prelu(call: &OperatorCall<'_>, x: &Tensor) -> Result<Tensor, NotCovered> {
    let weight = call.input(1)?;
    let weight = if weight.count() > 1 {
        let mut shape = vec![1; x.rank()];
        *shape
            .get_mut(1)
            .ok_or_else(|| call.refuse("slopes for no channels"))? = weight.count();
        weight.reshaped(&shape)
    } else {
        weight.reshaped(&[])
    };
    call.float_map(&[x.clone(), weight], "prelu", |arena, x| {
        let zero = arena.constant(0.0);
        let positive = arena.less(zero, x[0]);
        let below = arena.mul(x[0], x[1]);
        arena.select(positive, x[0], below)
    })
}

fn gelu(arena: &mut Arena, x: Scalar, tanh: bool) -> Scalar {
    let (half, one) = (arena.constant(0.5), arena.constant(1.0));
    let gate = if tanh {
        let (cubic, root) = (
            arena.constant(0.044_715),
            arena.constant(0.797_884_560_802_865_4),
        );
        let square = arena.mul(x, x);
        let cube = arena.mul(square, x);
        let bent = arena.mul(cube, cubic);
        let inner = arena.add(x, bent);
        let inner = arena.mul(inner, root);
        arena.unary(Unary::Tanh, inner)
    } else {
        let root = arena.constant(std::f64::consts::FRAC_1_SQRT_2);
        let inner = arena.mul(x, root);
        arena.unary(Unary::Erf, inner)
    };
    let halved = arena.mul(x, half);
    let gate = arena.add(one, gate);
    arena.mul(halved, gate)
}

fn elu(arena: &mut Arena, x: Scalar, alpha: f64, inner: f64, scale: f64) -> Scalar {
    let (zero, outer) = (arena.constant(0.0), arena.constant(alpha * scale));
    let (inner, scale) = (arena.constant(inner), arena.constant(scale));
    let positive = arena.less(zero, x);
    let scaled = arena.div(x, inner);
    let e = arena.unary(Unary::Expm1, scaled);
    let below = arena.mul(e, outer);
    let over = arena.mul(x, scale);
    arena.select(positive, over, below)
}
