//! What functions are called in C.

use crate::scalar::Unary;

/// Functions of libmvec, and what they are called here. A compiler that knows the name takes a sine and a cosine of the same
/// number together, which is no vector any more.
pub(crate) const VECTORISED: [(&str, &str); 3] = [
    ("sinf", "vector_sin"),
    ("cosf", "vector_cos"),
    ("powf", "vector_pow"),
];

/// Their declaration, for a file that calls one.
pub(crate) fn vectorised_declaration(name: &str) -> Option<String> {
    let (name, called) = VECTORISED.iter().find(|(known, _)| *known == name)?;
    let parameters = if *name == "powf" {
        "float, float"
    } else {
        "float"
    };
    Some(format!(
        "extern \"C\" __attribute__((simd(\"notinbranch\"), const)) float {called}({parameters}) noexcept __asm__(\"{name}\");"
    ))
}

pub(super) fn function(op: Unary) -> &'static str {
    match op {
        Unary::Abs => "abs",
        Unary::Sqrt => "sqrt",
        Unary::Exp | Unary::ExpNegative => "exp",
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
        Unary::Neg | Unary::Not | Unary::ToFloat | Unary::ToInt | Unary::Rsqrt => "",
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
