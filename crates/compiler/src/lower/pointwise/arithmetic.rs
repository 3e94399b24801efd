//! Arithmetic of two operands and more.

use super::{Found, named};
use crate::lower::{OperatorCall, is};
use crate::scalar::{Arena, Binary, Scalar, ScalarType, Unary};

pub(super) fn arithmetic(call: &OperatorCall<'_>) -> Found {
    let name = named(call.op);
    match call.op {
        "add" | "sub" | "rsub" => {
            let alpha = call.number_or("alpha", 1.0)?;
            let pair = [call.input(0)?.clone(), call.operand(1, "other")?];
            let op = call.op.to_owned();
            if call.kind == ScalarType::Int && !is(alpha, 1.0) {
                return Err(call.refuse("a factor of whole numbers"));
            }
            call.number_map(&pair, name, move |arena, x| {
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
            let numbers = matches!(op, Binary::Mul | Binary::Max | Binary::Min);
            if call.kind == ScalarType::Int && !numbers {
                return Err(call.refuse("whole numbers"));
            }
            call.number_map(&pair, name, move |arena, x| arena.binary(op, x[0], x[1]))
                .map(Some)
        }
        "div" | "div_trunc" | "floor_divide" => {
            let rounding = if call.op == "div" {
                call.text("rounding_mode", "")?
            } else if call.op == "div_trunc" {
                "trunc".to_owned()
            } else {
                "floor".to_owned()
            };
            if call.kind != ScalarType::Float {
                return Err(call.refuse("whole numbers"));
            }
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
