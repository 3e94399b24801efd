// Row softmax. A row (16 KiB here) stays in the first-level cache for its three passes, so memory sees one read and
// one write; the rows are shared out among the cores.
#include <cstdint>
#include <cstring>

// exp(x) for x <= 0 to about 1 ulp, written so that the compiler turns a loop of it into vector code.
// x = n ln2 + r with |r| <= ln2/2; a polynomial gives exp(r), and n is added to its exponent bits.
static inline float exp_negative(float x) {
    const bool vanishes = x < -87.3f;  // below the normal numbers, and -inf: exactly 0
    x = vanishes ? -87.3f : x;
    const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer held in the low bits
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    uint32_t bits, exponent;
    std::memcpy(&bits, &p, 4);
    std::memcpy(&exponent, &shifted, 4);
    bits += exponent << 23;
    std::memcpy(&p, &bits, 4);
    return vanishes ? 0.0f : p;
}

extern "C" int softmax(float* out, const float* x, int64_t rows, int64_t cols, void*) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        const float* in = x + row * cols;
        float* to = out + row * cols;

        float top = in[0];
#pragma omp simd simdlen(16) reduction(max : top)
        for (int64_t i = 0; i < cols; ++i) top = in[i] > top ? in[i] : top;

        // The sum is taken in short runs that are added in double: exact enough for rows of any length.
        double sum = 0.0;
        for (int64_t start = 0; start < cols; start += 1024) {
            const int64_t end = start + 1024 < cols ? start + 1024 : cols;
            // The arithmetic of this row hides the memory time of the next one (a prefetch past the end is harmless).
            for (int64_t i = start; i < end; i += 16) __builtin_prefetch(in + cols + i);
            float part = 0.0f;
#pragma omp simd simdlen(16) reduction(+ : part)
            for (int64_t i = start; i < end; ++i) {
                const float e = exp_negative(in[i] - top);
                to[i] = e;
                part += e;
            }
            sum += part;
        }

        const float inverse = static_cast<float>(1.0 / sum);
#pragma omp simd simdlen(16)
        for (int64_t i = 0; i < cols; ++i) to[i] *= inverse;
    }
    return 0;
}
