//! What functions are called in C.

use crate::scalar::Unary;

/// Functions of libmvec.
pub(super) const VECTORISED: [&str; 8] = [
    "expf", "logf", "sinf", "cosf", "tanhf", "erff", "expm1f", "log1pf",
];

pub(super) fn function(op: Unary) -> &'static str {
    match op {
        Unary::Abs => "abs",
        Unary::Sqrt => "sqrt",
        Unary::Exp => "exp",
        Unary::Expm1 => "expm1",
        Unary::Log => "log",
        Unary::Log1p => "log1p",
        Unary::Log2 => "log2",
        Unary::Log10 => "log10",
        Unary::Exp2 => "exp2",
        Unary::Sin => "sin",
        Unary::Cos => "cos",
        Unary::Tan => "tan",
        Unary::Asin => "asin",
        Unary::Acos => "acos",
        Unary::Atan => "atan",
        Unary::Sinh => "sinh",
        Unary::Cosh => "cosh",
        Unary::Tanh => "tanh",
        Unary::Asinh => "asinh",
        Unary::Acosh => "acosh",
        Unary::Atanh => "atanh",
        Unary::Erf => "erf",
        Unary::Erfc => "erfc",
        Unary::Floor => "floor",
        Unary::Ceil => "ceil",
        Unary::Round => "rint",
        Unary::Trunc => "trunc",
        Unary::Neg | Unary::Not | Unary::ToFloat | Unary::Rsqrt => "",
    }
}

/// The single-precision one.
pub(super) fn float_function(name: &str) -> &'static str {
    const NAMES: [&str; 28] = [
        "fabsf", "sqrtf", "expf", "expm1f", "logf", "log1pf", "log2f", "log10f", "exp2f", "sinf",
        "cosf", "tanf", "asinf", "acosf", "atanf", "sinhf", "coshf", "tanhf", "asinhf", "acoshf",
        "atanhf", "erff", "erfcf", "floorf", "ceilf", "rintf", "truncf", "",
    ];
    let found = NAMES
        .into_iter()
        .find(|known| known.strip_suffix('f') == Some(name));
    found.unwrap_or_default()
}
