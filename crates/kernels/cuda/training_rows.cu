// Work on single rows of a batch that is learnt from, forward and back. The residual stream and its slopes are float32, what
// matrices read is bfloat16. A warp has a row.
//
// What is cheap to make is not kept but made again on the way back, where slopes of it were: normed rows and gated rows.
#include "common.cuh"

namespace {

constexpr int warps = 8, threads = 32 * warps;

// Four neighbours.
struct alignas(8) Four {
    uint2 words;
};

__device__ inline float4 widen(const Four& from) {
    return make_float4(__uint_as_float(from.words.x << 16), __uint_as_float(from.words.x & 0xffff0000u),
                       __uint_as_float(from.words.y << 16), __uint_as_float(from.words.y & 0xffff0000u));
}

__device__ inline Four narrow(const float4& from) { return {make_uint2(::narrow(from.x, from.y), ::narrow(from.z, from.w))}; }

__device__ inline float4 operator+(const float4& one, const float4& two) {
    return make_float4(one.x + two.x, one.y + two.y, one.z + two.z, one.w + two.w);
}
__device__ inline float4 operator*(const float4& one, const float4& two) {
    return make_float4(one.x * two.x, one.y * two.y, one.z * two.z, one.w * two.w);
}
__device__ inline float4 operator*(const float4& one, float by) {
    return make_float4(one.x * by, one.y * by, one.z * by, one.w * by);
}
__device__ inline float sum(const float4& of) { return (of.x + of.y) + (of.z + of.w); }

__device__ inline const float4& four(const float* at) { return *reinterpret_cast<const float4*>(at); }
__device__ inline float4& four(float* at) { return *reinterpret_cast<float4*>(at); }
__device__ inline const Four& four(const bf16* at) { return *reinterpret_cast<const Four*>(at); }
__device__ inline Four& four(bf16* at) { return *reinterpret_cast<Four*>(at); }

}  // namespace

struct AddNorm {
    bf16* out;
    float* added;           // may be left out
    const float* residual;
    const bf16* delta;      // may be left out
    const float* weight;
    int rows, width;
    float epsilon;
};

// Fours that a lane keeps of a row: rows of up to 1024 numbers are read once, the rest of longer ones twice.
namespace {
constexpr int kept = 8;
}

// added = residual + delta; out = added / rms(added) * weight. Grid: rows / 8.
extern "C" __global__ __launch_bounds__(threads, 4) void training_add_norm(const AddNorm asked) {
    wait_for_previous();
    const int row = blockIdx.x * warps + threadIdx.x / 32, lane = threadIdx.x % 32, width = asked.width;
    if (row >= asked.rows) return;
    const size_t place = static_cast<size_t>(row) * width;
    float squares = 0.0f;
    const auto look = [&](int i) {
        const float4 one = four(asked.residual + place + i);
        return asked.delta ? one + widen(four(asked.delta + place + i)) : one;
    };
    const auto read = [&](int i) {
        const float4 one = look(i);
        if (asked.added) four(asked.added + place + i) = one;
        squares += sum(one * one);
        return one;
    };
    float4 mine[kept];
#pragma unroll
    for (int k = 0; k < kept; ++k)
        if (const int i = 4 * lane + 128 * k; i < width) mine[k] = read(i);
    for (int i = 4 * lane + 128 * kept; i < width; i += 128) read(i);
    const float scale = rsqrtf(warp_sum(squares) / width + asked.epsilon);
    const auto write = [&](int i, const float4& one) {
        four(asked.out + place + i) = narrow(one * scale * four(asked.weight + i));
    };
#pragma unroll
    for (int k = 0; k < kept; ++k)
        if (const int i = 4 * lane + 128 * k; i < width) write(i, mine[k]);
    for (int i = 4 * lane + 128 * kept; i < width; i += 128) write(i, look(i));
}

struct NormBack {
    bf16* normed;         // slopes of normed rows before, the normed rows after
    float* slopes;        // of the residual: added to
    bf16* narrow_slopes;  // the same once more
    float* parts;         // of the weight's slopes: [block][width]
    const float* residual;
    const float* weight;
    int rows, width;
    float epsilon;
    int fresh;  // there are no slopes of the residual yet
};

// Blocks have every so many rows, and add up slopes of the weight in shared memory: a warp in `width` numbers of its own.
extern "C" __global__ __launch_bounds__(threads, 2) void training_norm_back(const NormBack asked) {
    extern __shared__ __align__(16) unsigned char norm_room[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, width = asked.width;
    float* sums = reinterpret_cast<float*>(norm_room) + warp * width;
    for (int i = 4 * lane; i < width; i += 128) four(sums + i) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const auto slopes_above = [&](size_t place) {
        return asked.fresh ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : four(asked.slopes + place);
    };
    wait_for_previous();
    for (int row = blockIdx.x * warps + warp; row < asked.rows; row += gridDim.x * warps) {
        const size_t place = static_cast<size_t>(row) * width;
        float squares = 0.0f, along = 0.0f;
        const auto look = [&](int i, const float4& one, const Four& slope) {
            squares += sum(one * one);
            along += sum(one * widen(slope) * four(asked.weight + i));
        };
        // All that is read of a row is asked for at once.
        float4 mine[kept], above[kept];
        Four slopes[kept];
#pragma unroll
        for (int k = 0; k < kept; ++k)
            if (const int i = 4 * lane + 128 * k; i < width) {
                mine[k] = four(asked.residual + place + i);
                slopes[k] = four(asked.normed + place + i);
                above[k] = slopes_above(place + i);
            }
#pragma unroll
        for (int k = 0; k < kept; ++k)
            if (const int i = 4 * lane + 128 * k; i < width) look(i, mine[k], slopes[k]);
        for (int i = 4 * lane + 128 * kept; i < width; i += 128)
            look(i, four(asked.residual + place + i), four(asked.normed + place + i));
        squares = warp_sum(squares);
        along = warp_sum(along);
        const float scale = rsqrtf(squares / width + asked.epsilon);
        const float back = -along * scale * scale * scale / width;
        const auto give = [&](int i, const float4& one, const Four& narrow_slope, const float4& above) {
            const float4 weight = four(asked.weight + i), slope = widen(narrow_slope), unit = one * scale;
            four(sums + i) = four(sums + i) + slope * unit;
            four(asked.normed + place + i) = narrow(unit * weight);
            const float4 all = slope * weight * scale + one * back + above;
            four(asked.slopes + place + i) = all;
            four(asked.narrow_slopes + place + i) = narrow(all);
        };
#pragma unroll
        for (int k = 0; k < kept; ++k)
            if (const int i = 4 * lane + 128 * k; i < width) give(i, mine[k], slopes[k], above[k]);
        for (int i = 4 * lane + 128 * kept; i < width; i += 128)
            give(i, four(asked.residual + place + i), four(asked.normed + place + i), slopes_above(place + i));
    }
    __syncthreads();
    sums = reinterpret_cast<float*>(norm_room);
    for (int i = 4 * threadIdx.x; i < width; i += 4 * threads) {
        float4 total = four(sums + i);
        for (int other = 1; other < warps; ++other) total = total + four(sums + other * width + i);
        four(asked.parts + static_cast<size_t>(blockIdx.x) * width + i) = total;
    }
}

struct SwigluBack {
    bf16* both;   // eight gates, their eight factors, and so on; their slopes after
    bf16* gated;  // slopes of silu(gate) * factor before, that product after
    size_t eights;
};

extern "C" __global__ __launch_bounds__(threads) void training_swiglu_back(const SwigluBack asked) {
    wait_for_previous();
    const size_t i = static_cast<size_t>(blockIdx.x) * threads + threadIdx.x;
    if (i >= asked.eights) return;
    Eight* gates = reinterpret_cast<Eight*>(asked.both) + 2 * i;
    Eight* gated = reinterpret_cast<Eight*>(asked.gated) + i;
    float gate[8], up[8], slope[8];
    widen(gates[0], gate);
    widen(gates[1], up);
    widen(*gated, slope);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const float open = 1.0f / (1.0f + __expf(-gate[j])), silu = gate[j] * open, wanted = slope[j];
        slope[j] = silu * up[j];
        const float gate_slope = wanted * up[j] * open * (1.0f + gate[j] * (1.0f - open));
        up[j] = wanted * silu;
        gate[j] = gate_slope;
    }
    gates[0] = narrow(gate);
    gates[1] = narrow(up);
    *gated = narrow(slope);
}

// ---- heads ----

struct Turn {
    bf16* out;               // in place of what is read, or beside it
    float* parts;            // back, with norms: of their slopes, [block][query and key norm]
    const bf16* qkv;         // as the product left it; back, only with norms
    const float* bias;       // may be left out
    const float* norms;      // of queries, then of keys; may be left out
    const float2* turns;     // cosine and sine: [position][pair]
    const uint32_t* positions;
    int rows, heads, kv_heads, head_dim;
    int moved;  // heads of a row that are looked at
    float epsilon;
};

namespace {

// A few neighbouring lanes have a head, each four numbers of its first half and the four they turn with.
struct Place {
    int row, head, first, second;
    size_t start;
};

__device__ inline Place place_of(const Turn& asked, size_t item) {
    const int lanes = asked.head_dim / 8, i = threadIdx.x % lanes * 4;
    const int row = static_cast<int>(item / asked.moved), head = static_cast<int>(item % asked.moved);
    const size_t width = static_cast<size_t>(asked.heads + 2 * asked.kv_heads) * asked.head_dim;
    return {row, head, i, i + asked.head_dim / 2, row * width + static_cast<size_t>(head) * asked.head_dim};
}

__device__ inline float head_sum(float value, int lanes) {
    for (int step = lanes / 2; step; step >>= 1) value += __shfl_xor_sync(~0u, value, step);
    return value;
}

__device__ inline void read_head(const Turn& asked, const Place& at, float4& one, float4& two) {
    one = widen(four(asked.qkv + at.start + at.first));
    two = widen(four(asked.qkv + at.start + at.second));
    if (asked.bias) {
        one = one + four(asked.bias + at.head * asked.head_dim + at.first);
        two = two + four(asked.bias + at.head * asked.head_dim + at.second);
    }
}

// Turns by an angle, or back.
__device__ inline void turn(const Turn& asked, const Place& at, float4& one, float4& two, float way) {
    const float2* by = asked.turns + static_cast<size_t>(asked.positions[at.row]) * (asked.head_dim / 2) + at.first;
    const float4 low = four(reinterpret_cast<const float*>(by)), high = four(reinterpret_cast<const float*>(by + 2));
    const float4 cosine = make_float4(low.x, low.z, high.x, high.z), sine = make_float4(low.y, low.w, high.y, high.w) * way;
    const float4 turned = one * cosine + two * sine * -1.0f;
    two = two * cosine + one * sine;
    one = turned;
}

}  // namespace

// Bias, norm of each head, rotation. Blocks have every so many heads.
extern "C" __global__ __launch_bounds__(threads) void training_turn(const Turn asked) {
    wait_for_previous();
    const int lanes = asked.head_dim / 8, at_once = threads / lanes;
    const size_t items = static_cast<size_t>(asked.rows) * asked.moved, stride = static_cast<size_t>(gridDim.x) * at_once;
    // All lanes of a warp go round together, since they add up together.
    const size_t rounds = (items + stride - 1) / stride;
    for (size_t round = 0; round < rounds; ++round) {
        const size_t item = round * stride + static_cast<size_t>(blockIdx.x) * at_once + threadIdx.x / lanes;
        const bool there = item < items;
        const Place at = place_of(asked, there ? item : 0);
        float4 one, two;
        read_head(asked, at, one, two);
        const bool is_value = at.head >= asked.heads + asked.kv_heads;
        if (asked.norms) {
            const float scale = rsqrtf(head_sum(sum(one * one) + sum(two * two), lanes) / asked.head_dim + asked.epsilon);
            if (!is_value) {
                const float* norm = asked.norms + (at.head >= asked.heads ? asked.head_dim : 0);
                one = one * scale * four(norm + at.first);
                two = two * scale * four(norm + at.second);
            }
        }
        if (!is_value) turn(asked, at, one, two, 1.0f);
        if (there) {
            four(asked.out + at.start + at.first) = narrow(one);
            four(asked.out + at.start + at.second) = narrow(two);
        }
    }
}

// From slopes of turned queries and keys to slopes of what the product left, in place.
extern "C" __global__ __launch_bounds__(threads) void training_turn_back(const Turn asked) {
    __shared__ float room[threads * 8];
    wait_for_previous();
    const int lanes = asked.head_dim / 8, at_once = threads / lanes;
    const size_t items = static_cast<size_t>(asked.rows) * asked.moved, stride = static_cast<size_t>(gridDim.x) * at_once;
    const size_t rounds = (items + stride - 1) / stride;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 sums[2][2] = {{zero, zero}, {zero, zero}};
    for (size_t round = 0; round < rounds; ++round) {
        const size_t item = round * stride + static_cast<size_t>(blockIdx.x) * at_once + threadIdx.x / lanes;
        const bool there = item < items;
        const Place at = place_of(asked, there ? item : 0);
        float4 one = widen(four(asked.out + at.start + at.first)), two = widen(four(asked.out + at.start + at.second));
        turn(asked, at, one, two, -1.0f);
        if (asked.norms) {
            const bool is_key = at.head >= asked.heads;
            const float* norm = asked.norms + (is_key ? asked.head_dim : 0);
            const float4 by_one = four(norm + at.first), by_two = four(norm + at.second);
            float4 was_one, was_two;
            read_head(asked, at, was_one, was_two);
            const float squares = head_sum(sum(was_one * was_one) + sum(was_two * was_two), lanes);
            const float along = head_sum(sum(was_one * one * by_one) + sum(was_two * two * by_two), lanes);
            const float scale = rsqrtf(squares / asked.head_dim + asked.epsilon);
            const float back = -along * scale * scale * scale / asked.head_dim;
            if (there) {
                const float4 more_one = one * was_one * scale, more_two = two * was_two * scale;
                // By name and not by number: sums that are numbered would leave registers.
                if (is_key) {
                    sums[1][0] = sums[1][0] + more_one;
                    sums[1][1] = sums[1][1] + more_two;
                } else {
                    sums[0][0] = sums[0][0] + more_one;
                    sums[0][1] = sums[0][1] + more_two;
                }
            }
            one = one * by_one * scale + was_one * back;
            two = two * by_two * scale + was_two * back;
        }
        if (there) {
            four(asked.out + at.start + at.first) = narrow(one);
            four(asked.out + at.start + at.second) = narrow(two);
        }
    }
    if (!asked.norms) return;
    const int mine = threadIdx.x / lanes * asked.head_dim, i = threadIdx.x % lanes * 4;
    for (int kind = 0; kind < 2; ++kind) {
        __syncthreads();
        four(room + mine + i) = kind ? sums[1][0] : sums[0][0];
        four(room + mine + asked.head_dim / 2 + i) = kind ? sums[1][1] : sums[0][1];
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < asked.head_dim) {
            float total = 0.0f;
            for (int other = 0; other < at_once; ++other) total += room[other * asked.head_dim + threadIdx.x];
            asked.parts[(static_cast<size_t>(blockIdx.x) * 2 + kind) * asked.head_dim + threadIdx.x] = total;
        }
    }
}

// ---- sums over rows ----

struct ColumnParts {
    float* parts;  // [block][width]
    const bf16* rows_of;
    int rows, width;
};

// Sums of columns over every so many rows. Grid: width / 64, then parts.
extern "C" __global__ __launch_bounds__(threads) void training_column_parts(const ColumnParts asked) {
    __shared__ float2 room[warps][32];
    wait_for_previous();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.x * 64 + 2 * lane;
    float2 total = make_float2(0.0f, 0.0f);
    if (column < asked.width)
        for (int row = blockIdx.y * warps + warp; row < asked.rows; row += gridDim.y * warps) {
            const bf16* at = asked.rows_of + static_cast<size_t>(row) * asked.width + column;
            const float2 one = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(at));
            total = make_float2(total.x + one.x, total.y + one.y);
        }
    room[warp][lane] = total;
    __syncthreads();
    if (warp == 0 && column < asked.width) {
        for (int other = 1; other < warps; ++other)
            total = make_float2(total.x + room[other][lane].x, total.y + room[other][lane].y);
        *reinterpret_cast<float2*>(asked.parts + static_cast<size_t>(blockIdx.y) * asked.width + column) = total;
    }
}

struct AddParts {
    float* sums;         // [set][width]
    const float* parts;  // [set][part][width]
    int count, width;
    int fresh;  // there are no sums yet
};

// Grid: width / 32, then sets.
extern "C" __global__ __launch_bounds__(threads) void training_add_parts(const AddParts asked) {
    __shared__ float room[warps][32];
    wait_for_previous();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.x * 32 + lane;
    const float* parts = asked.parts + static_cast<size_t>(blockIdx.y) * asked.count * asked.width;
    float total = 0.0f;
    if (column < asked.width)
        for (int part = warp; part < asked.count; part += warps) total += parts[static_cast<size_t>(part) * asked.width + column];
    room[warp][lane] = total;
    __syncthreads();
    if (warp == 0 && column < asked.width) {
        for (int other = 1; other < warps; ++other) total += room[other][lane];
        float& to = asked.sums[static_cast<size_t>(blockIdx.y) * asked.width + column];
        to = asked.fresh ? total : to + total;
    }
}

// ---- rows by number ----

struct Clear {
    Eight* at;
    size_t eights;
};

// A kernel and not the driver's: what starts early can only follow a kernel.
extern "C" __global__ __launch_bounds__(threads) void training_clear(const Clear asked) {
    wait_for_previous();
    const size_t i = static_cast<size_t>(blockIdx.x) * threads + threadIdx.x;
    if (i < asked.eights) asked.at[i] = {};
}

struct Pick {
    bf16* out;
    const bf16* from;
    const uint32_t* picked;  // a number beyond `rows` is no row
    int rows, count, width;
};

// out[i] = from[picked[i]], zeros where there is no row. Grid: count / 8.
extern "C" __global__ __launch_bounds__(threads) void training_pick(const Pick asked) {
    wait_for_previous();
    const int i = blockIdx.x * warps + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (i >= asked.count) return;
    const uint32_t row = asked.picked[i];
    const bool there = row < static_cast<uint32_t>(asked.rows);
    for (int c = 8 * lane; c < asked.width; c += 256) {
        Eight eight = {};
        if (there) eight = *reinterpret_cast<const Eight*>(asked.from + static_cast<size_t>(row) * asked.width + c);
        *reinterpret_cast<Eight*>(asked.out + static_cast<size_t>(i) * asked.width + c) = eight;
    }
}

// out[picked[i]] = from[i]; no row is picked twice. Grid: count / 8.
extern "C" __global__ __launch_bounds__(threads) void training_put_back(const Pick asked) {
    wait_for_previous();
    const int i = blockIdx.x * warps + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (i >= asked.count) return;
    const uint32_t row = asked.picked[i];
    if (row >= static_cast<uint32_t>(asked.rows)) return;
    for (int c = 8 * lane; c < asked.width; c += 256)
        *reinterpret_cast<Eight*>(asked.out + static_cast<size_t>(row) * asked.width + c) =
            *reinterpret_cast<const Eight*>(asked.from + static_cast<size_t>(i) * asked.width + c);
}

// Places of one token in a batch: `order[first]` and so on.
struct Uses {
    uint32_t token, first, count;
};

struct EmbedBack {
    float* slopes;  // of the table: added to
    const float* row_slopes;
    const uint32_t* order;
    const Uses* uses;
    int width;
};

// Grid: tokens, then width / 128.
extern "C" __global__ __launch_bounds__(threads) void training_embed_back(const EmbedBack asked) {
    __shared__ float4 room[warps][32];
    wait_for_previous();
    const Uses uses = asked.uses[blockIdx.x];
    if (uses.count == 0) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.y * 128 + 4 * lane;
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (column < asked.width)
        for (uint32_t i = warp; i < uses.count; i += warps) {
            const size_t row = asked.order[uses.first + i];
            total = total + four(asked.row_slopes + row * asked.width + column);
        }
    room[warp][lane] = total;
    __syncthreads();
    if (warp == 0 && column < asked.width) {
        for (int other = 1; other < warps; ++other) total = total + room[other][lane];
        float4& to = four(asked.slopes + static_cast<size_t>(uses.token) * asked.width + column);
        to = to + total;
    }
}
