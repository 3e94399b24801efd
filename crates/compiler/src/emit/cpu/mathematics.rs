//! Functions of mathematics without branches, so that a loop over them becomes vector code wherever they stand.
//!
//! The C library has vectors of some, but not where a call depends on a condition, and not in every version. Polynomials
//! are fits of our own. The largest error found over 40 million arguments, with and without fused multiplication, is 1.7
//! units in the last place.

use crate::scalar::Unary;

/// In the order in which a file needs them: the hyperbolic tangent and the error function take exponentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SimdFunction {
    Exp,
    ExpNegative,
    Expm1,
    Log,
    Log1p,
    Tanh,
    Erf,
    Sqrt,
}

impl SimdFunction {
    pub(crate) fn of(op: Unary) -> Option<Self> {
        let found = match op {
            Unary::Exp => Self::Exp,
            Unary::ExpNegative => Self::ExpNegative,
            Unary::Expm1 => Self::Expm1,
            Unary::Log => Self::Log,
            Unary::Log1p => Self::Log1p,
            Unary::Tanh => Self::Tanh,
            Unary::Erf => Self::Erf,
            Unary::Sqrt | Unary::Rsqrt => Self::Sqrt,
            _ => return None,
        };
        Some(found)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Exp => "simd_exp",
            Self::ExpNegative => "simd_exp_negative",
            Self::Expm1 => "simd_expm1",
            Self::Log => "simd_log",
            Self::Log1p => "simd_log1p",
            Self::Tanh => "simd_tanh",
            Self::Erf => "simd_erf",
            Self::Sqrt => "simd_sqrt",
        }
    }

    /// The other one it calls.
    pub(crate) fn calls(self) -> Option<Self> {
        matches!(self, Self::Tanh | Self::Erf).then_some(Self::ExpNegative)
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Exp => EXP,
            Self::ExpNegative => EXP_NEGATIVE,
            Self::Expm1 => EXPM1,
            Self::Log => LOG,
            Self::Log1p => LOG1P,
            Self::Tanh => TANH,
            Self::Erf => ERF,
            Self::Sqrt => SQRT,
        }
    }
}

/// Arithmetic that may trap is not moved out of a condition, and a loop with a condition in it is no vector code.
pub(crate) const NO_TRAPS: &str =
    "// Without it conditions stay branches.\n#pragma GCC optimize(\"no-trapping-math\")";

/// What all of them use.
pub(crate) const BITS: &str = "// Functions without branches: loops over them become vector code.
static inline int32_t bits_of(float f) { int32_t i; std::memcpy(&i, &f, 4); return i; }
static inline float float_of(int32_t i) { float f; std::memcpy(&f, &i, 4); return f; }";

/// `c = n ln 2 + r`. The large number rounds to a whole one, which is then in the low bits of `shifted`.
macro_rules! split_exponent {
    () => {
        "    const float shifted = c * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    const float r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
"
    };
}

/// `p = exp(r)`.
macro_rules! exp_polynomial {
    () => {
        "    float p = 1.381422314e-3f;
    p = p * r + 8.368898989e-3f;
    p = p * r + 4.166840571e-2f;
    p = p * r + 1.666651913e-1f;
    p = p * r + 4.999999335e-1f;
    p = p * (r * r) + r + 1.0f;
"
    };
}

/// `r = log(1 + f)`.
macro_rules! log_polynomial {
    () => {
        "    const float s = f * f;
    float r = -0.130310059f * s + -0.121484190f;
    float t = 0.140869141f * s + 0.139814854f;
    r = r * s + -0.166846052f;
    t = t * s + 0.200120345f;
    r = r * s + -0.249996200f;
    r = t * f + r;
    r = r * f + 0.333331972f;
    r = r * f + -0.5f;
    r = r * s + f;
"
    };
}

const EXP: &str = concat!(
    "static inline float simd_exp(float x) {
    // Beyond these the result is 0 or infinite. What is no number stays so.
    const float low = -104.0f > x ? -104.0f : x, c = 89.0f < low ? 89.0f : low;
    // c = n ln 2 + r; the large number rounds to a whole one, which is then in the low bits.
",
    split_exponent!(),
    exp_polynomial!(),
    "    // 2^n in two steps, each of them within the range of powers of two.
    const int32_t part = x < 0.0f ? 24 << 23 : -(24 << 23);
    return p * float_of((bits_of(shifted) << 23) + 0x3f800000 + part) * float_of(0x3f800000 - part);
}"
);

const EXP_NEGATIVE: &str = concat!(
    "// The exponential of what is never positive. Below the normal numbers it is 0.
static inline float simd_exp_negative(float x) {
    const float c = -87.0f > x ? -87.0f : x;
",
    split_exponent!(),
    exp_polynomial!(),
    "    p = p * float_of((bits_of(shifted) << 23) + 0x3f800000);
    return x < -87.0f ? 0.0f : p;
}"
);

const EXPM1: &str = concat!(
    "static inline float simd_expm1(float x) {
    const float low = -20.0f > x ? -20.0f : x, c = 89.0f < low ? 89.0f : low;
",
    split_exponent!(),
    "    float p = 1.984589503e-4f;
    p = p * r + 1.394089336e-3f;
    p = p * r + 8.333389961e-3f;
    p = p * r + 4.166635777e-2f;
    p = p * r + 1.666666637e-1f;
    p = p * r + 5.000000045e-1f;
    p = p * (r * r) + r;
    // 2^n (p + 1) - 1 with 2^n in two factors: where n is 0, nothing is added to p and all its digits stay.
    const int32_t whole = bits_of(shifted) - 0x4b400000, half = whole >> 1, rest = whole - half;
    const float scale = float_of((half + 127) << 23);
    return (p * scale + (scale - float_of((127 - rest) << 23))) * float_of((rest + 127) << 23);
}"
);

const LOG: &str = concat!(
    "static inline float simd_log(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const float scaled = tiny ? x * 8388608.0f : x;
    const int32_t e = (bits_of(scaled) - 0x3f2aaaab) & int32_t(0xff800000);
    const float f = float_of(bits_of(scaled) - e) - 1.0f;
",
    log_polynomial!(),
    "    const float n = float(e) * 1.1920929e-7f - (tiny ? 23.0f : 0.0f);
    const float inside = n * 0.693147182f + r;
    const float outside = x == 0.0f ? -INFINITY : x < 0.0f ? NAN : x;
    return x > 0.0f && x < INFINITY ? inside : outside;
}"
);

const LOG1P: &str = concat!(
    "static inline float simd_log1p(float x) {
    const float u = 1.0f + x;
    const int32_t e = (bits_of(u) - 0x3f2aaaab) & int32_t(0xff800000);
    // u / 2^n - 1, from x and not from u, which has lost digits of it.
    const float scale = float_of(0x3f800000 - e);
    const float f = x > 1e9f ? float_of(bits_of(u) - e) - 1.0f : x * scale + (scale - 1.0f);
",
    log_polynomial!(),
    "    const float inside = float(e) * 1.1920929e-7f * 0.693147182f + r;
    const float outside = x == -1.0f ? -INFINITY : x < -1.0f ? NAN : x;
    return x > -1.0f && x < INFINITY ? inside : outside;
}"
);

const TANH: &str = "static inline float simd_tanh(float x) {
    const float a = std::fabs(x);
    const float e = simd_exp_negative(-2.0f * a);
    const float large = 1.0f - 2.0f * e / (1.0f + e);
    const float s = x * x;
    float small = -5.70498872745e-3f * s + 2.06390887954e-2f;
    small = small * s + -5.37397155531e-2f;
    small = small * s + 1.33314422036e-1f;
    small = small * s + -3.33332819422e-1f;
    small = small * s * a + a;
    return std::copysign(a < 0.625f ? small : large, x);
}";

const ERF: &str = "static inline float simd_erf(float x) {
    const float a = std::fabs(x), t = 4.0f < a ? 4.0f : a;
    float large = 2.139863625e-4f;
    large = large * t + -3.214966462e-3f;
    large = large * t + 2.288999661e-2f;
    large = large * t + -1.052618901e-1f;
    large = large * t + -6.357182821e-1f;
    large = large * t + -1.128514370f;
    large = 1.0f - simd_exp_negative(large * t);
    const float s = t * t;
    float small = -5.953737955e-4f;
    small = small * s + 4.985939785e-3f;
    small = small * s + -2.676171925e-2f;
    small = small * s + 1.128168252e-1f;
    small = small * s + -3.761248110e-1f;
    small = small * s + 1.283791477e-1f;
    small = small * t + t;
    return std::copysign(t < 0.9277f ? small : large, x);
}";

/// A call of `sqrtf` may set `errno`, which no vector does.
const SQRT: &str = "static inline float simd_sqrt(float x) {
    const bool tiny = x < 1e-30f;
    const float scaled = tiny ? x * 16777216.0f : x;
    const float half = 0.5f * scaled;
    float y = float_of(0x5f3759df - (bits_of(scaled) >> 1));
    y = y * (1.5f - half * y * y);
    y = y * (1.5f - half * y * y);
    y = y * (1.5f - half * y * y);
    float root = scaled * y;
    root = root + 0.5f * y * (scaled - root * root);
    root = tiny ? root * (1.0f / 4096.0f) : root;
    const float outside = x < 0.0f ? NAN : x;
    return x > 0.0f && x < INFINITY ? root : outside;
}";
