//! Functions that `--use_fast_math` makes inexact, in single precision and exact.
//!
//! Polynomials are fits of our own; errors are the largest found over millions of arguments: sine and cosine 1.5 units in
//! the last place, the tangent 3.1, powers 1.1.

pub(super) const TANH: &str = "// tanhf becomes an approximation under --use_fast_math.
__device__ __forceinline__ float exact_tanh(float x) {
    const float a = fabsf(x);
    const float large = 1.0f - 2.0f / (expf(2.0f * a) + 1.0f);
    const float s = x * x;
    float small = fmaf(-5.70498872745e-3f, s, 2.06390887954e-2f);
    small = fmaf(small, s, -5.37397155531e-2f);
    small = fmaf(small, s, 1.33314422036e-1f);
    small = fmaf(small, s, -3.33332819422e-1f);
    small = fmaf(small * s, a, a);
    return copysignf(a < 0.625f ? small : large, x);
}";

pub(super) const LOG: &str = "// logf becomes an approximation under --use_fast_math.
__device__ __forceinline__ float exact_log(float x) {
    if (!(x > 0.0f) || x == INFINITY) return x == 0.0f ? -INFINITY : x < 0.0f ? NAN : x;
    const int e = (__float_as_int(x) - 0x3f2aaaab) & 0xff800000;
    const float f = __int_as_float(__float_as_int(x) - e) - 1.0f;
    const float s = f * f;
    float r = fmaf(-0.130310059f, s, -0.121484190f);
    float t = fmaf(0.140869141f, s, 0.139814854f);
    r = fmaf(r, s, -0.166846052f);
    t = fmaf(t, s, 0.200120345f);
    r = fmaf(r, s, -0.249996200f);
    r = fmaf(t, f, r);
    r = fmaf(r, f, 0.333331972f);
    r = fmaf(r, f, -0.5f);
    r = fmaf(r, s, f);
    return fmaf(float(e) * 1.1920929e-7f, 0.693147182f, r);
}";

/// Their logarithm where both are logarithms of what is to be added.
pub(super) const LOG_ADD: &str = "__device__ __forceinline__ float log_add(float a, float b) {
    const float top = fmaxf(a, b), low = fminf(a, b);
    return top == -INFINITY ? top : top + log1pf(expf(low - top));
}";

pub(super) const QUADRANT: &str = "// sinf and cosf become approximations under --use_fast_math.
struct Quadrant {
    float sin, cos;
    int turns;
};
// Sine and cosine of what is left after whole quarters of a turn are taken away.
__device__ __forceinline__ Quadrant quadrant(float x) {
    const float turns = rintf(x * 0.636619772f);
    float r = fmaf(-turns, 1.57079637f, x);
    r = fmaf(-turns, -4.37113883e-8f, r);
    r = fmaf(-turns, -1.71512451e-15f, r);
    const float s = r * r;
    float a = fmaf(2.71811427e-6f, s, -1.98393114e-4f);
    a = fmaf(a, s, 8.33332911e-3f);
    a = fmaf(a, s, -0.166666672f);
    float b = fmaf(-2.72056866e-7f, s, 2.47994594e-5f);
    b = fmaf(b, s, -1.38888834e-3f);
    b = fmaf(b, s, 0.0416666679f);
    b = fmaf(b, s, -0.5f);
    return {fmaf(a * s, r, r), fmaf(b, s, 1.0f), int(turns)};
}";

pub(super) const SIN: &str = "__device__ __forceinline__ float exact_sin(float x) {
    if (!(fabsf(x) < 1e5f)) return float(sin(double(x)));
    const Quadrant q = quadrant(x);
    const float v = q.turns & 1 ? q.cos : q.sin;
    return q.turns & 2 ? -v : v;
}";

pub(super) const COS: &str = "__device__ __forceinline__ float exact_cos(float x) {
    if (!(fabsf(x) < 1e5f)) return float(cos(double(x)));
    const Quadrant q = quadrant(x);
    const float v = q.turns & 1 ? q.sin : q.cos;
    return (q.turns + 1) & 2 ? -v : v;
}";

pub(super) const TAN: &str = "__device__ __forceinline__ float exact_tan(float x) {
    if (!(fabsf(x) < 1e5f)) return float(tan(double(x)));
    const Quadrant q = quadrant(x);
    return q.turns & 1 ? __fdiv_rn(-q.cos, q.sin) : __fdiv_rn(q.sin, q.cos);
}";

/// The logarithm in double, short: half of all digits of the product may stand before the point.
pub(super) const POW: &str = "// powf takes an approximate logarithm under --use_fast_math.
__device__ __forceinline__ float exact_pow(float x, float y) {
    const float size = fabsf(x);
    if (size == 0.0f && y > 0.0f) return 0.0f;
    if (!(size >= 1.17549435e-38f && size < INFINITY && fabsf(y) < 1e30f)) return float(pow(double(x), double(y)));
    if (x < 0.0f && truncf(y) != y) return NAN;
    const int e = (__float_as_int(size) - 0x3f3504f3) & 0xff800000;
    const float m = __int_as_float(__float_as_int(size) - e);
    const float inverse = 1.0f / (m + 1.0f);
    const double rough = (m - 1.0f) * inverse;
    const double s = fma(fma(-rough, m + 1.0, m - 1.0), double(inverse), rough);
    const double z = s * s;
    double p = fma(0.2829289453351704, z, 0.3199063955457914);
    p = fma(p, z, 0.4122091308719446);
    p = fma(p, z, 0.5770779453947209);
    p = fma(p, z, 0.9617966940890351);
    p = fma(p, z, 2.885390081777889);
    const double t = fmin(fmax(y * fma(p, s, double(e >> 23)), -252.0), 252.0);
    const double whole = rint(t);
    const float g = float(t - whole);
    float h = fmaf(1.54759051e-4f, g, 1.34002755e-3f);
    h = fmaf(h, g, 9.61800572e-3f);
    h = fmaf(h, g, 0.0555032790f);
    h = fmaf(h, g, 0.240226507f);
    h = fmaf(h, g, 0.693147182f);
    h = fmaf(h, g, 1.0f);
    // In two steps, each of them within the range of powers of two.
    const int n = int(whole), half = n / 2;
    h = h * __int_as_float((half + 127) << 23) * __int_as_float((n - half + 127) << 23);
    return x < 0.0f && fmodf(fabsf(y), 2.0f) == 1.0f ? -h : h;
}";
