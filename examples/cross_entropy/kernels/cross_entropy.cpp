// loss = mean over rows of log(sum_j exp(logits[r, j])) - logits[r, target[r]].
//
// PyTorch writes the whole log-softmax and then picks one element of each row. Here the logits are read from memory
// once (32 KiB a row: the second pass finds them in cache) and only one number a row is written.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

// exp(x) for x <= 0 to about 1 ulp, written so that the compiler turns a loop of it into vector code.
// x = n ln2 + r with |r| <= ln2/2; a polynomial gives exp(r), and n is added to its exponent bits.
static inline float exp_negative(float x) {
    x = x < -87.3f ? -87.3f : x;  // at most 1e-38 too much in a sum that is at least 1
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
    return p;
}

extern "C" int cross_entropy(float* loss, float* row_loss, const float* logits, const int64_t* target, int64_t rows,
                             int64_t classes, void*) {
    constexpr int64_t block = 1024;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        const float* in = logits + row * classes;
        // One read of the row, block by block (4 KiB: the second look at a block finds it in the first-level cache).
        // When a block brings a new maximum, the sum so far is rescaled to it.
        float top = -std::numeric_limits<float>::infinity();
        double sum = 0.0;  // a block is summed in float lanes, the blocks in double
        for (int64_t start = 0; start < classes; start += block) {
            const int64_t end = start + block < classes ? start + block : classes;
            float high = in[start];
#pragma omp simd simdlen(16) reduction(max : high)
            for (int64_t i = start; i < end; ++i) high = in[i] > high ? in[i] : high;
            if (high > top) {
                sum *= std::exp(static_cast<double>(top) - high);
                top = high;
            }
            // While this block is computed, the next one but one comes in (a prefetch past the end is harmless).
            for (int64_t i = start; i < end; i += 16) __builtin_prefetch(in + 2 * block + i);
            float part = 0.0f;
#pragma omp simd simdlen(16) reduction(+ : part)
            for (int64_t i = start; i < end; ++i) part += exp_negative(in[i] - top);
            sum += part;
        }
        const int64_t t = target[row];
        row_loss[row] = t >= 0 && t < classes
                            ? static_cast<float>(std::log(sum) + (static_cast<double>(top) - in[t]))
                            : std::numeric_limits<float>::quiet_NaN();  // an index out of range must not pass unseen
    }
    double total = 0.0;
    // In one order, whatever the number of threads: the same input gives the same bits.
    for (int64_t row = 0; row < rows; ++row) total += row_loss[row];
    *loss = static_cast<float>(total / rows);
    return 0;
}
