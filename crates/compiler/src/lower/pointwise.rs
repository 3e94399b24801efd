//! Element by element.

mod activation;
mod arithmetic;

pub(super) use activation::softplus;

use activation::activation;
use arithmetic::arithmetic;

use super::{NotCovered, OperatorCall};
use crate::plan::Plan;
use crate::scalar::{Binary, ScalarType, Unary};
use crate::tensor::Tensor;

type Found = Result<Option<Tensor>, NotCovered>;

pub(super) fn rule(_: &mut Plan, call: &OperatorCall<'_>) -> Found {
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
fn function(call: &OperatorCall<'_>) -> Found {
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

fn comparison(call: &OperatorCall<'_>) -> Found {
    let (op, swapped) = match call.op {
        "lt" => (Binary::Less, false),
        "gt" => (Binary::Less, true),
        "le" => (Binary::LessEqual, false),
        "ge" => (Binary::LessEqual, true),
        "eq" => (Binary::Equal, false),
        "ne" | "logical_xor" => (Binary::NotEqual, false),
        "logical_and" => (Binary::And, false),
        "logical_or" => (Binary::Or, false),
        "logical_not" => {
            return call
                .map(
                    &[call.input(0)?.clone()],
                    "none",
                    ScalarType::Bool,
                    |arena, x| arena.unary(Unary::Not, x[0]),
                )
                .map(Some);
        }
        "where" => {
            let three = [
                call.input(0)?.clone(),
                call.operand(1, "input")?,
                call.operand(2, "other")?,
            ];
            let [condition, then, otherwise] = three;
            if condition.kind != ScalarType::Bool {
                return Err(call.refuse("a condition that is none"));
            }
            let kind = call.kind;
            let three = if kind == ScalarType::Float {
                [condition, then.to_float(), otherwise.to_float()]
            } else {
                [condition, then, otherwise]
            };
            if three[1..].iter().any(|one| one.kind != kind) {
                return Err(call.refuse("choices of several types"));
            }
            return call
                .map(&three, "where", kind, |arena, x| {
                    arena.select(x[0], x[1], x[2])
                })
                .map(Some);
        }
        "masked_fill" => {
            let value = call.operand(2, "value")?;
            let (x, mask) = (call.input(0)?.clone(), call.input(1)?.clone());
            let value = match call.kind {
                ScalarType::Float => value.to_float(),
                _ => value,
            };
            if x.kind != call.kind || value.kind != call.kind {
                return Err(call.refuse("a value of another type"));
            }
            let three = [x, mask, value];
            if three[1].kind != ScalarType::Bool {
                return Err(call.refuse("a mask that is none"));
            }
            return call
                .map(&three, "masked_fill", call.kind, |arena, x| {
                    arena.select(x[1], x[2], x[0])
                })
                .map(Some);
        }
        _ => return Ok(None),
    };
    let pair = [call.input(0)?.clone(), call.operand(1, "other")?];
    call.map(&pair, "mask", ScalarType::Bool, move |arena, x| {
        let (a, b) = if swapped { (x[1], x[0]) } else { (x[0], x[1]) };
        arena.binary(op, a, b)
    })
    .map(Some)
}
