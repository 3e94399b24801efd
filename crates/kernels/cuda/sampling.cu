// Samples one token a row from its logits, as the CPU sampler does: temperature, then top-p, then a draw that depends on the seed
// and the number of the draw alone. Also gives the token's log-probability under the model itself, before temperature and top-p.
//
// First many blocks read a row and write statistics of its parts. Then one block a row samples; where top-p excludes nothing, it
// reads only a single part again.
#include "primitives.cuh"

struct RowSampling {
    float temperature;  // 0: the most probable token
    float top_p;
    uint64_t seed;
};

// Statistics of consecutive tokens of a row: the most probable one, and the sum of all relative to it, without and with
// temperature.
struct PartialStats {
    float best;
    uint32_t token;
    float plain, tempered;
};

// What the host reads back.
struct RowSample {
    uint32_t token;
    float log_probability;
};

struct SampleParams {
    uint32_t* tokens;
    RowSample* sampled;
    const float* logits;
    PartialStats* partials;
    const RowSampling* sampling;
    uint64_t* draws;
    uint32_t* positions;
    int vocabulary, partials_per_row;
};

namespace {

constexpr int threads = 1024, warps = threads / 32;
constexpr int partial_threads = 256, tokens_per_thread = 16, partial_tokens = partial_threads * tokens_per_thread;
constexpr int max_partials = 256;
constexpr int max_sorted = 2048;  // most tokens of a nucleus that are sorted in shared memory

__device__ uint64_t splitmix64(uint64_t state) {
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9ull;
    state = (state ^ (state >> 27)) * 0x94d049bb133111ebull;
    return state ^ (state >> 31);
}

// A number in [0, 1) from SplitMix64, the same as the CPU sampler's.
__device__ double uniform(uint64_t seed, uint64_t draw) {
    const uint64_t bits = splitmix64(splitmix64(seed) + (draw + 1) * 0x9e3779b97f4a7c15ull);
    return static_cast<double>(bits >> 11) * (1.0 / 9007199254740992.0);
}

__device__ double block_sum_double(double value, double* scratch) {
#pragma unroll
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(~0u, value, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0;
    for (int warp = 0; warp < warps; ++warp) value += scratch[warp];
    return value;
}

// More probable first; among equals the lower token id.
__device__ bool comes_first(float weight, uint32_t token, float other_weight, uint32_t other) {
    return weight > other_weight || (weight == other_weight && token < other);
}

// Each token's probability relative to the most probable one.
struct TokenWeights {
    const float* logits;
    int count;
    float highest, temperature;

    __device__ float operator[](int token) const { return expf((logits[token] - highest) / temperature); }
};

// A weight, the mass of all tokens that are heavier, and whether few enough are left to be sorted.
struct Threshold {
    float weight;
    double heavier;
    bool fits;
};

// The greatest weight such that tokens of at least that weight have more mass than `target`, or, if `inclusive`, no less. The mass
// of tokens from `floor` on must reach it. Ends early once no more than `max_count` tokens weigh at least as much.
__device__ Threshold find_threshold(const TokenWeights& weights, float floor, double target, bool inclusive, int max_count,
                                    double* scratch) {
    // Positive floats sort like their bits, so this is a binary search over bit patterns.
    uint32_t low = __float_as_uint(floor), high = __float_as_uint(1.0f) + 1;
    double heavier = 0.0;
    bool fits = false;
    while (high - low > 1 && !fits) {
        const uint32_t middle = low + (high - low) / 2;
        double mass = 0.0;
        int count = 0;
        for (int i = threadIdx.x; i < weights.count; i += threads) {
            const float weight = weights[i];
            if (__float_as_uint(weight) >= middle) {
                mass += weight;
                ++count;
            }
        }
        mass = block_sum_double(mass, scratch);
        if (mass > target || (inclusive && mass == target)) {
            low = middle;
            fits = max_count && block_sum_double(count, scratch) <= max_count;
        } else {
            high = middle;
            heavier = mass;
        }
    }
    return {__uint_as_float(low), heavier, fits};
}

// Inverse transform sampling in the order of token ids: among tokens `from` to `until` that weigh from `lightest` to `heaviest`,
// the one at which the running sum passes `target`. The last of them where rounding leaves the target beyond the sum; ~0 where
// there is none.
__device__ uint32_t pick_token(const TokenWeights& weights, int from, int until, float lightest, float heaviest, double target,
                               double* scratch, uint32_t* result) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int span = ((until - from + warps - 1) / warps + 31) / 32 * 32;
    const int begin = from + warp * span, end = min(until, begin + span);
    auto weight_of = [&](int token) {
        if (token >= end) return 0.0f;
        const float weight = weights[token];
        return weight >= lightest && weight <= heaviest ? weight : 0.0f;
    };
    double sum = 0.0;
    for (int token = begin + lane; token < end; token += 32) sum += weight_of(token);
#pragma unroll
    for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    __syncthreads();
    if (lane == 0) scratch[warp] = sum;
    if (threadIdx.x == 0) *result = ~0u;
    __syncthreads();
    double below = 0.0;
    for (int w = 0; w < warp; ++w) below += scratch[w];
    double rest = target - below;
    // The last warp with any weight takes what rounding leaves beyond the end.
    bool last = scratch[warp] > 0.0;
    for (int w = warp + 1; w < warps; ++w) last = last && scratch[w] == 0.0;
    if (scratch[warp] > 0.0 && rest >= 0.0 && (rest < scratch[warp] || last)) {
        uint32_t found = ~0u, latest = ~0u;
        for (int first = begin; first < end && found == ~0u; first += 32) {
            const float weight = weight_of(first + lane);
            double running = weight;
#pragma unroll
            for (int step = 1; step < 32; step <<= 1) {
                const double other = __shfl_up_sync(~0u, running, step);
                if (lane >= step) running += other;
            }
            const unsigned some = __ballot_sync(~0u, weight > 0.0f);
            const unsigned beyond = __ballot_sync(~0u, weight > 0.0f && running > rest);
            if (beyond) found = first + __ffs(beyond) - 1;
            if (some) latest = first + 31 - __clz(some);
            rest -= __shfl_sync(~0u, running, 31);
        }
        if (lane == 0) atomicMin(result, found == ~0u ? latest : found);
    }
    __syncthreads();
    return *result;
}

}  // namespace

// Grid: parts of a row x rows.
extern "C" __global__ __launch_bounds__(partial_threads) void sample_partials(const SampleParams params) {
    __shared__ float best_scratch[partial_threads / 32], scratch[partial_threads / 32];
    __shared__ uint32_t token_scratch[partial_threads / 32];
    pdl_launch_dependents();
    pdl_wait();
    const int vocabulary = params.vocabulary;
    const float* logits = params.logits + static_cast<size_t>(blockIdx.y) * vocabulary;
    const float temperature = params.sampling[blockIdx.y].temperature;
    const int first = blockIdx.x * partial_tokens + threadIdx.x;
    float logit[tokens_per_thread];
#pragma unroll
    for (int i = 0; i < tokens_per_thread; ++i) {
        const int at = first + i * partial_threads;
        logit[i] = at < vocabulary ? logits[at] : -INFINITY;
    }
    float best = logit[0];
    uint32_t token = first < vocabulary ? first : ~0u;
#pragma unroll
    for (int i = 1; i < tokens_per_thread; ++i)
        if (logit[i] > best) {
            best = logit[i];
            token = first + i * partial_threads;
        }
#pragma unroll
    for (int step = 16; step; step >>= 1) {
        const float other = __shfl_xor_sync(~0u, best, step);
        const uint32_t other_token = __shfl_xor_sync(~0u, token, step);
        if (other_token != ~0u && (token == ~0u || comes_first(other, other_token, best, token))) {
            best = other;
            token = other_token;
        }
    }
    if (threadIdx.x % 32 == 0) {
        best_scratch[threadIdx.x / 32] = best;
        token_scratch[threadIdx.x / 32] = token;
    }
    __syncthreads();
    for (int warp = 0; warp < partial_threads / 32; ++warp)
        if (token_scratch[warp] != ~0u && (token == ~0u || comes_first(best_scratch[warp], token_scratch[warp], best, token))) {
            best = best_scratch[warp];
            token = token_scratch[warp];
        }

    // exp2f is faster than the expf of TokenWeights, and these are only sums.
    const float scale = 1.44269504f, tempered_scale = temperature > 0.0f ? scale / temperature : 0.0f;
    float plain = 0.0f, tempered = 0.0f;
    if (best > -INFINITY) {
#pragma unroll
        for (int i = 0; i < tokens_per_thread; ++i) plain += exp2f((logit[i] - best) * scale);
        if (temperature > 0.0f && temperature != 1.0f)
#pragma unroll
            for (int i = 0; i < tokens_per_thread; ++i) tempered += exp2f((logit[i] - best) * tempered_scale);
    }
    plain = block_sum(plain, scratch);
    tempered = temperature == 1.0f ? plain : block_sum(tempered, scratch);
    if (threadIdx.x == 0) params.partials[blockIdx.y * gridDim.x + blockIdx.x] = {best, token, plain, tempered};
}

// Grid: rows. Advances `draws` and `positions`, so that a captured CUDA graph can be launched again.
extern "C" __global__ __launch_bounds__(threads) void sample_tokens(const SampleParams params) {
    __shared__ double scratch[warps], plain_mass[max_partials], tempered_mass[max_partials];
    __shared__ PartialStats partials[max_partials];
    __shared__ float heaviest[max_partials];
    __shared__ uint32_t result;
    __shared__ int sorted_count;
    __shared__ float sorted_weight[max_sorted];
    __shared__ uint32_t sorted_token[max_sorted];
    pdl_wait();
    const int vocabulary = params.vocabulary, partial_count = params.partials_per_row, thread = threadIdx.x;
    const float* logits = params.logits + static_cast<size_t>(blockIdx.x) * vocabulary;
    const RowSampling row_sampling = params.sampling[blockIdx.x];
    if (thread < partial_count) partials[thread] = params.partials[blockIdx.x * partial_count + thread];
    __syncthreads();
    float best = partials[0].best;
    uint32_t token = partials[0].token;
    for (int part = 1; part < partial_count; ++part)
        if (partials[part].best > best) {
            best = partials[part].best;
            token = partials[part].token;
        }
    if (thread < partial_count) {
        const float lower = partials[thread].best - best;
        plain_mass[thread] = static_cast<double>(partials[thread].plain) * expf(lower);
        heaviest[thread] = row_sampling.temperature > 0.0f ? expf(lower / row_sampling.temperature) : 0.0f;
        tempered_mass[thread] = static_cast<double>(partials[thread].tempered) * heaviest[thread];
    }
    __syncthreads();
    double plain = 0.0, tempered = 0.0;
    for (int part = 0; part < partial_count; ++part) {
        plain += plain_mass[part];
        tempered += tempered_mass[part];
    }

    const uint32_t argmax = token;
    if (row_sampling.temperature > 0.0f) {
        const double target = uniform(row_sampling.seed, params.draws[blockIdx.x]);
        const double excluded_mass = (1.0 - static_cast<double>(row_sampling.top_p)) * tempered;
        const TokenWeights weights{logits, vocabulary, best, row_sampling.temperature};
        if (excluded_mass <= 0.0) {
            double rest = target * tempered;
            int part = 0, last = 0;
            for (int i = 0; i < partial_count; ++i)
                if (tempered_mass[i] > 0.0) last = i;
            while (part < last && rest >= tempered_mass[part]) rest -= tempered_mass[part++];
            const int from = part * partial_tokens;
            token = pick_token(weights, from, min(vocabulary, from + partial_tokens), 0.0f, 1.0f, rest, scratch, &result);
        } else {
            // All tokens lighter than this together have less than the excluded mass: they can be left out.
            float floor = static_cast<float>(excluded_mass / vocabulary);
            auto collect = [&] {
                __syncthreads();
                if (threadIdx.x == 0) sorted_count = 0;
                __syncthreads();
                for (int i = threadIdx.x; i < vocabulary; i += threads) {
                    if (heaviest[i / partial_tokens] < floor) continue;
                    const float weight = weights[i];
                    if (weight >= floor) {
                        const int at = atomicAdd(&sorted_count, 1);
                        if (at < max_sorted) {
                            sorted_weight[at] = weight;
                            sorted_token[at] = i;
                        }
                    }
                }
                __syncthreads();
            };
            collect();
            const double nucleus_mass = tempered - excluded_mass;
            Threshold found{};
            if (sorted_count > max_sorted) {
                found = find_threshold(weights, floor, nucleus_mass, true, max_sorted, scratch);
                floor = found.weight;
                if (found.fits) collect();
            }
            const int count = sorted_count;
            if (count <= max_sorted) {
                int padded = 2;
                while (padded < count) padded <<= 1;
                for (int i = count + threadIdx.x; i < padded; i += threads) {
                    sorted_weight[i] = -1.0f;
                    sorted_token[i] = ~0u;
                }
                for (int size = 2; size <= padded; size <<= 1)
                    for (int stride = size >> 1; stride; stride >>= 1) {
                        __syncthreads();
                        for (int i = threadIdx.x; i < padded; i += threads) {
                            const int j = i ^ stride;
                            if (j <= i) continue;
                            const bool forwards = (i & size) == 0;
                            const bool ordered = comes_first(sorted_weight[i], sorted_token[i], sorted_weight[j], sorted_token[j]);
                            if (ordered != forwards) {
                                const float weight = sorted_weight[i];
                                sorted_weight[i] = sorted_weight[j];
                                sorted_weight[j] = weight;
                                const uint32_t other = sorted_token[i];
                                sorted_token[i] = sorted_token[j];
                                sorted_token[j] = other;
                            }
                        }
                    }
                __syncthreads();
                if (threadIdx.x == 0) {
                    double sum = 0.0;
                    int used = 0;
                    while (used < count && (used == 0 || sum < nucleus_mass)) sum += sorted_weight[used++];
                    double rest = target * sum;
                    result = sorted_token[0];
                    for (int i = 0; i < used && sorted_weight[i] > 0.0f; ++i) {
                        result = sorted_token[i];
                        rest -= sorted_weight[i];
                        if (rest < 0.0) break;
                    }
                }
                __syncthreads();
                token = result;
            } else {
                // A flat distribution: find the lightest weight in the nucleus, row_sampling many tokens of that weight belong to
                // it, then the weight at the draw. Among equals lower ids come first, as if all had been sorted.
                const double equals = fmax(1.0, ceil((nucleus_mass - found.heavier) / found.weight));
                const double drawn = target * (found.heavier + equals * found.weight);
                if (drawn < found.heavier) found = find_threshold(weights, floor, drawn, false, 0, scratch);
                token = pick_token(weights, 0, vocabulary, found.weight, found.weight, drawn - found.heavier, scratch, &result);
            }
        }
    }
    if (threadIdx.x == 0) {
        if (token >= static_cast<uint32_t>(vocabulary)) token = argmax;  // logits with NaN
        params.tokens[blockIdx.x] = token;
        params.sampled[blockIdx.x] = {token, logits[token] - best - static_cast<float>(log(plain))};
        params.draws[blockIdx.x] += 1;
        params.positions[blockIdx.x] += 1;
    }
}
