// One token a row from its logits, as the processor's sampler does it: temperature, then top-p, then a draw that depends on
// seed and step alone. With it the token's log-probability under the model itself, before temperature and top-p.
//
// Many blocks read a row first and leave what each part of it comes to; then one block chooses, and where top-p leaves nothing
// out it reads a single part again.
#include "common.cuh"

struct Choice {
    float temperature;  // 0: the most probable token
    float top_p;
    uint64_t seed;
};

// Neighbouring tokens of a row: the most probable, and what all weigh beside it, without and with temperature.
struct Part {
    float best;
    uint32_t token;
    float plain, tempered;
};

// What the processor is told, in one piece.
struct Chosen {
    uint32_t token;
    float log_probability;
};

struct Sampling {
    uint32_t* tokens;
    Chosen* chosen;
    const float* logits;
    Part* parts;
    const Choice* choices;
    uint64_t* steps;
    uint32_t* positions;
    int vocabulary, parts_a_row;
};

namespace {

constexpr int threads = 1024, warps = threads / 32;
constexpr int part_threads = 256, part_each = 16, part_tokens = part_threads * part_each;
constexpr int most_parts = 256;
constexpr int most_kept = 2048;  // tokens that top-p may leave and that still fit into shared memory

__device__ uint64_t mixed(uint64_t state) {
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9ull;
    state = (state ^ (state >> 27)) * 0x94d049bb133111ebull;
    return state ^ (state >> 31);
}

// A number in [0, 1): SplitMix64, the same as the processor's.
__device__ double unit(uint64_t seed, uint64_t step) {
    const uint64_t bits = mixed(mixed(seed) + (step + 1) * 0x9e3779b97f4a7c15ull);
    return static_cast<double>(bits >> 11) * (1.0 / 9007199254740992.0);
}

__device__ double block_sum_double(double value, double* room) {
#pragma unroll
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(~0u, value, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0;
    for (int warp = 0; warp < warps; ++warp) value += room[warp];
    return value;
}

// More probable first; of equals the lower number.
__device__ bool before(float weight, uint32_t token, float other_weight, uint32_t other) {
    return weight > other_weight || (weight == other_weight && token < other);
}

// What a token weighs beside the most probable one.
struct Weights {
    const float* logits;
    int count;
    float highest, temperature;

    __device__ float operator[](int token) const { return expf((logits[token] - highest) / temperature); }
};

// A place among tokens that lie one after the other, heavier first: the weight found there, and what all heavier ones come to.
struct Found {
    float weight;
    double heavier;
    bool few;
};

// The greatest weight at which those of at least that weight come to more than `place`; or, if `reached`, to no less.
// Those from `floor` on must. Ends early where no more than `enough` tokens are left that weigh as much as what is found.
__device__ Found find(const Weights& weights, float floor, double place, bool reached, int enough, double* room) {
    // Floats above zero are in the order of their bits.
    uint32_t low = __float_as_uint(floor), high = __float_as_uint(1.0f) + 1;
    double heavier = 0.0;
    bool few = false;
    while (high - low > 1 && !few) {
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
        mass = block_sum_double(mass, room);
        if (mass > place || (reached && mass == place)) {
            low = middle;
            few = enough && block_sum_double(count, room) <= enough;
        } else {
            high = middle;
            heavier = mass;
        }
    }
    return {__uint_as_float(low), heavier, few};
}

// Of the tokens from `from` to `until` the one at `place` where those that weigh from `lightest` to `heaviest` lie in the order
// of their numbers; the last of them where rounding leaves the place beyond, none (all bits) where there is none.
__device__ uint32_t pick_in_order(const Weights& weights, int from, int until, float lightest, float heaviest, double place,
                                  double* room, uint32_t* answer) {
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
    if (lane == 0) room[warp] = sum;
    if (threadIdx.x == 0) *answer = ~0u;
    __syncthreads();
    double below = 0.0;
    for (int w = 0; w < warp; ++w) below += room[w];
    double rest = place - below;
    // The last warp with any weight takes what rounding leaves beyond the end.
    bool last = room[warp] > 0.0;
    for (int w = warp + 1; w < warps; ++w) last = last && room[w] == 0.0;
    if (room[warp] > 0.0 && rest >= 0.0 && (rest < room[warp] || last)) {
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
        if (lane == 0) atomicMin(answer, found == ~0u ? latest : found);
    }
    __syncthreads();
    return *answer;
}

}  // namespace

// Grid: parts x rows.
extern "C" __global__ __launch_bounds__(part_threads) void sample_parts(const Sampling asked) {
    __shared__ float best_room[part_threads / 32], room[part_threads / 32];
    __shared__ uint32_t token_room[part_threads / 32];
    let_next_start();
    wait_for_previous();
    const int vocabulary = asked.vocabulary;
    const float* logits = asked.logits + static_cast<size_t>(blockIdx.y) * vocabulary;
    const float temperature = asked.choices[blockIdx.y].temperature;
    const int first = blockIdx.x * part_tokens + threadIdx.x;
    float logit[part_each];
#pragma unroll
    for (int i = 0; i < part_each; ++i) {
        const int at = first + i * part_threads;
        logit[i] = at < vocabulary ? logits[at] : -INFINITY;
    }
    float best = logit[0];
    uint32_t token = first < vocabulary ? first : ~0u;
#pragma unroll
    for (int i = 1; i < part_each; ++i)
        if (logit[i] > best) {
            best = logit[i];
            token = first + i * part_threads;
        }
#pragma unroll
    for (int step = 16; step; step >>= 1) {
        const float other = __shfl_xor_sync(~0u, best, step);
        const uint32_t other_token = __shfl_xor_sync(~0u, token, step);
        if (other_token != ~0u && (token == ~0u || before(other, other_token, best, token))) {
            best = other;
            token = other_token;
        }
    }
    if (threadIdx.x % 32 == 0) {
        best_room[threadIdx.x / 32] = best;
        token_room[threadIdx.x / 32] = token;
    }
    __syncthreads();
    for (int warp = 0; warp < part_threads / 32; ++warp)
        if (token_room[warp] != ~0u && (token == ~0u || before(best_room[warp], token_room[warp], best, token))) {
            best = best_room[warp];
            token = token_room[warp];
        }

    // Powers of two, and faster than what a single token weighs is computed below: only sums come of it.
    const float scale = 1.44269504f, tempered_scale = temperature > 0.0f ? scale / temperature : 0.0f;
    float plain = 0.0f, tempered = 0.0f;
    if (best > -INFINITY) {
#pragma unroll
        for (int i = 0; i < part_each; ++i) plain += exp2f((logit[i] - best) * scale);
        if (temperature > 0.0f && temperature != 1.0f)
#pragma unroll
            for (int i = 0; i < part_each; ++i) tempered += exp2f((logit[i] - best) * tempered_scale);
    }
    plain = block_sum(plain, room);
    tempered = temperature == 1.0f ? plain : block_sum(tempered, room);
    if (threadIdx.x == 0) asked.parts[blockIdx.y * gridDim.x + blockIdx.x] = {best, token, plain, tempered};
}

// Grid: rows. `steps` and `positions` are moved on, so that a captured graph goes on by itself.
extern "C" __global__ __launch_bounds__(threads) void sample(const Sampling asked) {
    __shared__ double room[warps], plain_share[most_parts], tempered_share[most_parts];
    __shared__ Part parts[most_parts];
    __shared__ float heaviest[most_parts];
    __shared__ uint32_t answer;
    __shared__ int kept_count;
    __shared__ float kept_weight[most_kept];
    __shared__ uint32_t kept_token[most_kept];
    wait_for_previous();
    const int vocabulary = asked.vocabulary, part_count = asked.parts_a_row, own = threadIdx.x;
    const float* logits = asked.logits + static_cast<size_t>(blockIdx.x) * vocabulary;
    const Choice choice = asked.choices[blockIdx.x];
    if (own < part_count) parts[own] = asked.parts[blockIdx.x * part_count + own];
    __syncthreads();
    float best = parts[0].best;
    uint32_t token = parts[0].token;
    for (int part = 1; part < part_count; ++part)
        if (parts[part].best > best) {
            best = parts[part].best;
            token = parts[part].token;
        }
    if (own < part_count) {
        const float lower = parts[own].best - best;
        plain_share[own] = static_cast<double>(parts[own].plain) * expf(lower);
        heaviest[own] = choice.temperature > 0.0f ? expf(lower / choice.temperature) : 0.0f;
        tempered_share[own] = static_cast<double>(parts[own].tempered) * heaviest[own];
    }
    __syncthreads();
    double plain = 0.0, tempered = 0.0;
    for (int part = 0; part < part_count; ++part) {
        plain += plain_share[part];
        tempered += tempered_share[part];
    }

    const uint32_t likeliest = token;
    if (choice.temperature > 0.0f) {
        const double place = unit(choice.seed, asked.steps[blockIdx.x]);
        const double left_out = (1.0 - static_cast<double>(choice.top_p)) * tempered;
        const Weights weights{logits, vocabulary, best, choice.temperature};
        if (left_out <= 0.0) {
            double rest = place * tempered;
            int part = 0, last = 0;
            for (int i = 0; i < part_count; ++i)
                if (tempered_share[i] > 0.0) last = i;
            while (part < last && rest >= tempered_share[part]) rest -= tempered_share[part++];
            const int from = part * part_tokens;
            token = pick_in_order(weights, from, min(vocabulary, from + part_tokens), 0.0f, 1.0f, rest, room, &answer);
        } else {
            // If all tokens lighter than this were left out that would not be too many: the rest is what matters.
            float floor = static_cast<float>(left_out / vocabulary);
            auto keep = [&] {
                __syncthreads();
                if (threadIdx.x == 0) kept_count = 0;
                __syncthreads();
                for (int i = threadIdx.x; i < vocabulary; i += threads) {
                    if (heaviest[i / part_tokens] < floor) continue;
                    const float weight = weights[i];
                    if (weight >= floor) {
                        const int at = atomicAdd(&kept_count, 1);
                        if (at < most_kept) {
                            kept_weight[at] = weight;
                            kept_token[at] = i;
                        }
                    }
                }
                __syncthreads();
            };
            keep();
            const double wanted = tempered - left_out;
            Found found{};
            if (kept_count > most_kept) {
                found = find(weights, floor, wanted, true, most_kept, room);
                floor = found.weight;
                if (found.few) keep();
            }
            const int count = kept_count;
            if (count <= most_kept) {
                int padded = 2;
                while (padded < count) padded <<= 1;
                for (int i = count + threadIdx.x; i < padded; i += threads) {
                    kept_weight[i] = -1.0f;
                    kept_token[i] = ~0u;
                }
                for (int size = 2; size <= padded; size <<= 1)
                    for (int stride = size >> 1; stride; stride >>= 1) {
                        __syncthreads();
                        for (int i = threadIdx.x; i < padded; i += threads) {
                            const int j = i ^ stride;
                            if (j <= i) continue;
                            const bool forwards = (i & size) == 0;
                            const bool ordered = before(kept_weight[i], kept_token[i], kept_weight[j], kept_token[j]);
                            if (ordered != forwards) {
                                const float weight = kept_weight[i];
                                kept_weight[i] = kept_weight[j];
                                kept_weight[j] = weight;
                                const uint32_t other = kept_token[i];
                                kept_token[i] = kept_token[j];
                                kept_token[j] = other;
                            }
                        }
                    }
                __syncthreads();
                if (threadIdx.x == 0) {
                    double sum = 0.0;
                    int used = 0;
                    while (used < count && (used == 0 || sum < wanted)) sum += kept_weight[used++];
                    double rest = place * sum;
                    answer = kept_token[0];
                    for (int i = 0; i < used && kept_weight[i] > 0.0f; ++i) {
                        answer = kept_token[i];
                        rest -= kept_weight[i];
                        if (rest < 0.0) break;
                    }
                }
                __syncthreads();
                token = answer;
            } else {
                // A flat distribution: the lightest weight that may stay, how many of that weight may, then the weight at the
                // place drawn. Of equals the lower numbers come first, as if all had been sorted.
                const double equals = fmax(1.0, ceil((wanted - found.heavier) / found.weight));
                const double drawn = place * (found.heavier + equals * found.weight);
                if (drawn < found.heavier) found = find(weights, floor, drawn, false, 0, room);
                token = pick_in_order(weights, 0, vocabulary, found.weight, found.weight, drawn - found.heavier, room, &answer);
            }
        }
    }
    if (threadIdx.x == 0) {
        if (token >= static_cast<uint32_t>(vocabulary)) token = likeliest;  // logits that are no numbers
        asked.tokens[blockIdx.x] = token;
        asked.chosen[blockIdx.x] = {token, logits[token] - best - static_cast<float>(log(plain))};
        asked.steps[blockIdx.x] += 1;
        asked.positions[blockIdx.x] += 1;
    }
}
