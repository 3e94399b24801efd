// out = relu(conv2d(x, weight, bias)), 3x3, stride 1, padding 1, NCHW.
//
// A direct convolution that never changes the layout of its tensors (the library behind PyTorch converts them to
// blocked layouts and back) and applies bias and ReLU while the results are still in registers.
//   * A task is one image and a band of output rows. Its input rows are copied once into a zero-padded buffer
//     of the thread, so that the inner loops need no border tests.
//   * The innermost tile is `tile_oc` output channels times `tile_w` vectors along the width, held in registers: each
//     input vector loaded is used tile_oc times, each weight tile_w times.
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__AVX512F__)
constexpr int lanes = 16, tile_oc = 6;  // 6 * 4 accumulators + 4 inputs of 32 registers
#elif defined(__AVX__)
constexpr int lanes = 8, tile_oc = 2;  // 2 * 4 accumulators + 4 inputs of 16 registers
#else
constexpr int lanes = 4, tile_oc = 2;
#endif
constexpr int tile_w = 4, band = 4;
typedef float vec __attribute__((vector_size(lanes * sizeof(float))));

static inline vec load(const float* p) {
    vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// `OC` output channels times `tile_w` vectors of one output row. `in` is the padded buffer at the tile's upper left
// corner; channels are `plane` apart in it and rows `pitch`. Only the first `width` columns of the tile are stored.
template <int OC>
static void tile(float* out, int64_t out_plane, const float* in, int64_t plane, int64_t pitch, const float* weight,
                 const float* bias, int64_t in_channels, int64_t width) {
    vec acc[OC][tile_w];
    for (int o = 0; o < OC; ++o)
        for (int w = 0; w < tile_w; ++w) acc[o][w] = vec{};

    for (int64_t c = 0; c < in_channels; ++c) {
        const float* filter = weight + c * 9;
        for (int ky = 0; ky < 3; ++ky)
            for (int kx = 0; kx < 3; ++kx) {
                const float* from = in + c * plane + ky * pitch + kx;
                vec row[tile_w];
#pragma GCC unroll 8
                for (int w = 0; w < tile_w; ++w) row[w] = load(from + w * lanes);
#pragma GCC unroll 8
                for (int o = 0; o < OC; ++o) {
                    const float f = filter[o * in_channels * 9 + ky * 3 + kx];
#pragma GCC unroll 8
                    for (int w = 0; w < tile_w; ++w) acc[o][w] += row[w] * f;
                }
            }
    }

    for (int o = 0; o < OC; ++o) {
        float* to = out + o * out_plane;
#pragma GCC unroll 8
        for (int w = 0; w < tile_w; ++w) {
            // The bias comes last: in front, every product would be rounded to its magnitude.
            vec v = acc[o][w] + bias[o];
            v = v < 0.0f ? vec{} : v;  // in this order NaN stays NaN
            const int64_t left = width - w * lanes;
            if (left >= lanes)
                std::memcpy(to + w * lanes, &v, sizeof v);
            else if (left > 0)
                std::memcpy(to + w * lanes, &v, left * sizeof(float));
        }
    }
}

extern "C" int conv3x3_relu(float* out, const float* x, const float* weight, const float* bias, int64_t batch,
                            int64_t in_channels, int64_t out_channels, int64_t height, int64_t width, void*) {
    const int64_t step = tile_w * lanes;
    const int64_t tiles = (width + step - 1) / step;
    const int64_t pitch = tiles * step + 2;         // one column of padding on either side, the tail filled up
    const int64_t plane = pitch * (band + 2);       // one row of padding above and below
    const int64_t bands = (height + band - 1) / band;

#pragma omp parallel
    {
        std::vector<float> padded(plane * in_channels, 0.0f);
#pragma omp for schedule(static)
        for (int64_t task = 0; task < batch * bands; ++task) {
            const int64_t n = task / bands, top = task % bands * band;
            const int64_t rows = top + band < height ? band : height - top;

            for (int64_t c = 0; c < in_channels; ++c)
                for (int64_t r = 0; r < rows + 2; ++r) {
                    const int64_t y = top + r - 1;
                    float* to = padded.data() + c * plane + r * pitch + 1;
                    if (y < 0 || y >= height)
                        std::memset(to, 0, width * sizeof(float));
                    else
                        std::memcpy(to, x + ((n * in_channels + c) * height + y) * width, width * sizeof(float));
                }

            for (int64_t o = 0; o < out_channels;) {
                const int64_t left = out_channels - o;
                const int count = left >= tile_oc ? tile_oc : left >= 4 ? 4 : left >= 2 ? 2 : 1;
                const auto run = count == tile_oc ? tile<tile_oc> : count == 4 ? tile<4> : count == 2 ? tile<2> : tile<1>;
                for (int64_t r = 0; r < rows; ++r)
                    for (int64_t t = 0; t < tiles; ++t)
                        run(out + ((n * out_channels + o) * height + top + r) * width + t * step, height * width,
                            padded.data() + r * pitch + t * step, plane, pitch, weight + o * in_channels * 9, bias + o,
                            in_channels, width - t * step);
                o += count;
            }
        }
    }
    return 0;
}
