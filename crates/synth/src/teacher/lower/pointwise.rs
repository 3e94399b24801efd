//! Element by element.

use super::{Call, NotCovered};
use crate::teacher::plan::Plan;
use crate::teacher::scalar::{Arena, Binary, Kind, Scalar, Unary};
use crate::teacher::tensor::Tensor;

type Found = Result<Option<Tensor>, NotCovered>;
type OfOne = Box<dyn Fn(&mut Arena, Scalar) -> Scalar>;

pub(super) fn rule(_: &mut Plan, call: &Call<'_>) -> Found {
    if let Some(found) = function(call)? {
        return Ok(Some(found));
    }
    if let Some(found) = activation(call)? {
        return Ok(Some(found));
    }
    if let Some(found) = arithmetic(call)? {
        return Ok(Some(found));
    }
    comparison(call)
}

/// Functions of mathematics.
fn function(call: &Call<'_>) -> Found {
    let op = match call.op {
        "abs" => Unary::Abs,
        "neg" => Unary::Neg,
        "sqrt" => Unary::Sqrt,
        "rsqrt" => Unary::Rsqrt,
        "exp" => Unary::Exp,
        "exp2" => Unary::Exp2,
        "expm1" => Unary::Expm1,
        "log" => Unary::Log,
        "log1p" => Unary::Log1p,
        "log2" => Unary::Log2,
        "log10" => Unary::Log10,
        "sin" => Unary::Sin,
        "cos" => Unary::Cos,
        "tan" => Unary::Tan,
        "asin" => Unary::Asin,
        "acos" => Unary::Acos,
        "atan" => Unary::Atan,
        "sinh" => Unary::Sinh,
        "cosh" => Unary::Cosh,
        "tanh" => Unary::Tanh,
        "asinh" => Unary::Asinh,
        "acosh" => Unary::Acosh,
        "atanh" => Unary::Atanh,
        "erf" => Unary::Erf,
        "erfc" => Unary::Erfc,
        "floor" => Unary::Floor,
        "ceil" => Unary::Ceil,
        "round" => Unary::Round,
        "trunc" => Unary::Trunc,
        _ => return Ok(None),
    };
    // Longer than any of them: a name of its own is wanted only where something was computed.
    let name = named(call.op);
    call.float_map(&[call.input(0)?.clone()], name, move |arena, x| {
        arena.unary(op, x[0])
    })
    .map(Some)
}

/// The operator's name for as long as the program runs; known ones only.
fn named(op: &str) -> &'static str {
    const NAMES: [&str; 79] = [
        "abs",
        "neg",
        "sqrt",
        "rsqrt",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "log2",
        "log10",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "erfc",
        "floor",
        "ceil",
        "round",
        "trunc",
        "relu",
        "relu6",
        "sigmoid",
        "silu",
        "gelu",
        "mish",
        "elu",
        "selu",
        "celu",
        "leaky_relu",
        "softplus",
        "softsign",
        "hardtanh",
        "hardswish",
        "hardsigmoid",
        "hardshrink",
        "softshrink",
        "tanhshrink",
        "logsigmoid",
        "threshold",
        "square",
        "reciprocal",
        "sign",
        "clamp",
        "frac",
        "add",
        "sub",
        "mul",
        "div",
        "maximum",
        "minimum",
        "pow",
        "lerp",
        "addcmul",
        "addcdiv",
        "fmod",
        "remainder",
        "hypot",
        "logaddexp",
        "prelu",
        "where",
        "masked_fill",
        "atan2",
        "copysign",
        "xlogy",
        "logit",
        "sinc",
        "entr",
        "ndtr",
        "rrelu",
    ];
    NAMES.into_iter().find(|known| *known == op).unwrap_or("v")
}

fn sigmoid(arena: &mut Arena, x: Scalar) -> Scalar {
    let one = arena.constant(1.0);
    let minus = arena.unary(Unary::Neg, x);
    let e = arena.unary(Unary::Exp, minus);
    let below = arena.add(one, e);
    arena.div(one, below)
}

/// `log(1 + exp(x))` without overflow.
pub(super) fn softplus(arena: &mut Arena, x: Scalar) -> Scalar {
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

pub(super) fn relu(arena: &mut Arena, x: Scalar) -> Scalar {
    let zero = arena.constant(0.0);
    above(arena, x, zero)
}

fn activation(call: &Call<'_>) -> Found {
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

fn prelu(call: &Call<'_>, x: &Tensor) -> Result<Tensor, NotCovered> {
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

fn arithmetic(call: &Call<'_>) -> Found {
    let name = named(call.op);
    match call.op {
        "add" | "sub" | "rsub" => {
            let alpha = call.number_or("alpha", 1.0)?;
            let pair = [call.input(0)?.clone(), call.operand(1, "other")?];
            let op = call.op.to_owned();
            call.float_map(&pair, name, move |arena, x| {
                let alpha = arena.constant(alpha);
                if op == "rsub" {
                    let first = arena.mul(x[0], alpha);
                    return arena.sub(x[1], first);
                }
                let second = arena.mul(x[1], alpha);
                if op == "add" {
                    arena.add(x[0], second)
                } else {
                    arena.sub(x[0], second)
                }
            })
            .map(Some)
        }
        "mul" | "maximum" | "minimum" | "fmax" | "fmin" | "atan2" | "hypot" | "fmod" => {
            let op = match call.op {
                "mul" => Binary::Mul,
                "maximum" | "fmax" => Binary::Max,
                "minimum" | "fmin" => Binary::Min,
                "atan2" => Binary::Atan2,
                "hypot" => Binary::Hypot,
                _ => Binary::Fmod,
            };
            let pair = [call.input(0)?.clone(), call.operand(1, "other")?];
            call.float_map(&pair, name, move |arena, x| arena.binary(op, x[0], x[1]))
                .map(Some)
        }
        "div" | "floor_divide" => {
            let rounding = if call.op == "div" {
                call.text("rounding_mode", "")?
            } else {
                "floor".to_owned()
            };
            let pair = [call.input(0)?.clone(), call.operand(1, "other")?];
            let rounded = match rounding.as_str() {
                "" => None,
                "floor" => Some(Unary::Floor),
                "trunc" => Some(Unary::Trunc),
                _ => return Err(call.refuse("an unknown rounding")),
            };
            call.float_map(&pair, name, move |arena, x| {
                let quotient = arena.div(x[0], x[1]);
                rounded.map_or(quotient, |how| arena.unary(how, quotient))
            })
            .map(Some)
        }
        "remainder" => {
            let pair = [call.input(0)?.clone(), call.operand(1, "other")?];
            call.float_map(&pair, name, |arena, x| {
                // The sign of the divisor.
                let rest = arena.binary(Binary::Fmod, x[0], x[1]);
                let zero = arena.constant(0.0);
                let (a, b) = (arena.less(rest, zero), arena.less(x[1], zero));
                let apart = arena.binary(Binary::NotEqual, a, b);
                let some = arena.binary(Binary::NotEqual, rest, zero);
                let wrong = arena.binary(Binary::And, some, apart);
                let moved = arena.add(rest, x[1]);
                arena.select(wrong, moved, rest)
            })
            .map(Some)
        }
        "pow" => {
            let base = call.operand(0, "input")?;
            let exponent = call.operand(1, "exponent")?;
            call.float_map(&[base, exponent], name, |arena, x| power(arena, x[0], x[1]))
                .map(Some)
        }
        "lerp" => {
            let weight = call.operand(2, "weight")?;
            let three = [call.input(0)?.clone(), call.input(1)?.clone(), weight];
            call.float_map(&three, name, |arena, x| {
                let apart = arena.sub(x[1], x[0]);
                let step = arena.mul(apart, x[2]);
                arena.add(x[0], step)
            })
            .map(Some)
        }
        "addcmul" | "addcdiv" => {
            let (value, divides) = (call.number_or("value", 1.0)?, call.op == "addcdiv");
            let three = [
                call.input(0)?.clone(),
                call.input(1)?.clone(),
                call.input(2)?.clone(),
            ];
            call.float_map(&three, name, move |arena, x| {
                let value = arena.constant(value);
                let scaled = arena.mul(x[1], value);
                let step = if divides {
                    arena.div(scaled, x[2])
                } else {
                    arena.mul(scaled, x[2])
                };
                arena.add(x[0], step)
            })
            .map(Some)
        }
        "logaddexp" | "logaddexp2" => {
            let base2 = call.op == "logaddexp2";
            let pair = [call.input(0)?.clone(), call.operand(1, "other")?];
            call.float_map(&pair, name, move |arena, x| {
                let top = arena.max(x[0], x[1]);
                let apart = arena.sub(x[0], x[1]);
                let size = arena.unary(Unary::Abs, apart);
                let minus = arena.unary(Unary::Neg, size);
                if base2 {
                    let e = arena.unary(Unary::Exp2, minus);
                    let log = arena.unary(Unary::Log1p, e);
                    let factor = arena.constant(std::f64::consts::LOG2_E);
                    let log = arena.mul(log, factor);
                    return arena.add(top, log);
                }
                let e = arena.unary(Unary::Exp, minus);
                let log = arena.unary(Unary::Log1p, e);
                arena.add(top, log)
            })
            .map(Some)
        }
        "xlogy" | "xlog1py" => {
            let function = if call.op == "xlogy" {
                Unary::Log
            } else {
                Unary::Log1p
            };
            let pair = [call.input(0)?.clone(), call.operand(1, "other")?];
            call.float_map(&pair, name, move |arena, x| {
                let zero = arena.constant(0.0);
                let none = arena.binary(Binary::Equal, x[0], zero);
                let log = arena.unary(function, x[1]);
                let product = arena.mul(x[0], log);
                arena.select(none, zero, product)
            })
            .map(Some)
        }
        "copysign" => {
            let pair = [call.input(0)?.clone(), call.operand(1, "other")?];
            call.float_map(&pair, name, |arena, x| {
                let zero = arena.constant(0.0);
                let size = arena.unary(Unary::Abs, x[0]);
                let minus = arena.unary(Unary::Neg, size);
                let negative = arena.less(x[1], zero);
                arena.select(negative, minus, size)
            })
            .map(Some)
        }
        "ldexp" => {
            let pair = [call.input(0)?.clone(), call.operand(1, "other")?];
            call.float_map(&pair, name, |arena, x| {
                let power = arena.unary(Unary::Exp2, x[1]);
                arena.mul(x[0], power)
            })
            .map(Some)
        }
        "heaviside" => {
            let pair = [call.input(0)?.clone(), call.operand(1, "values")?];
            call.float_map(&pair, name, |arena, x| {
                let (zero, one) = (arena.constant(0.0), arena.constant(1.0));
                let (over, under) = (arena.less(zero, x[0]), arena.less(x[0], zero));
                let rest = arena.select(under, zero, x[1]);
                arena.select(over, one, rest)
            })
            .map(Some)
        }
        _ => Ok(None),
    }
}

fn power(arena: &mut Arena, x: Scalar, exponent: Scalar) -> Scalar {
    match arena.as_constant(exponent) {
        Some(2.0) => arena.mul(x, x),
        Some(3.0) => {
            let square = arena.mul(x, x);
            arena.mul(square, x)
        }
        Some(0.5) => arena.unary(Unary::Sqrt, x),
        Some(-0.5) => arena.unary(Unary::Rsqrt, x),
        Some(1.5) => {
            let root = arena.unary(Unary::Sqrt, x);
            arena.mul(x, root)
        }
        Some(-1.0) => {
            let one = arena.constant(1.0);
            arena.div(one, x)
        }
        _ => arena.binary(Binary::Pow, x, exponent),
    }
}

fn comparison(call: &Call<'_>) -> Found {
    let (op, swapped) = match call.op {
        "lt" => (Binary::Less, false),
        "gt" => (Binary::Less, true),
        "le" => (Binary::LessEqual, false),
        "ge" => (Binary::LessEqual, true),
        "eq" => (Binary::Equal, false),
        "ne" => (Binary::NotEqual, false),
        "logical_and" => (Binary::And, false),
        "logical_or" => (Binary::Or, false),
        "logical_not" => {
            return call
                .map(&[call.input(0)?.clone()], "none", Kind::Bool, |arena, x| {
                    arena.unary(Unary::Not, x[0])
                })
                .map(Some);
        }
        "where" => {
            let three = [
                call.input(0)?.clone(),
                call.operand(1, "input")?,
                call.operand(2, "other")?,
            ];
            if three[0].kind != Kind::Bool || three[1].kind != three[2].kind {
                return Err(call.refuse("a condition that is none"));
            }
            let kind = three[1].kind;
            return call
                .map(&three, "where", kind, |arena, x| {
                    arena.select(x[0], x[1], x[2])
                })
                .map(Some);
        }
        "masked_fill" => {
            let value = call.operand(2, "value")?;
            let three = [call.input(0)?.clone(), call.input(1)?.clone(), value];
            if three[1].kind != Kind::Bool {
                return Err(call.refuse("a mask that is none"));
            }
            return call
                .map(&three, "masked_fill", Kind::Float, |arena, x| {
                    arena.select(x[1], x[2], x[0])
                })
                .map(Some);
        }
        _ => return Ok(None),
    };
    let pair = [call.input(0)?.clone(), call.operand(1, "other")?];
    call.map(&pair, "mask", Kind::Bool, move |arena, x| {
        let (a, b) = if swapped { (x[1], x[0]) } else { (x[0], x[1]) };
        arena.binary(op, a, b)
    })
    .map(Some)
}
