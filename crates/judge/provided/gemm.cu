// `warpsmith_gemm`, by cuBLASLt.
#include "provided.h"

#include <cublasLt.h>

namespace {

constexpr size_t MOST_WORKSPACE = size_t(32) << 20;
// Terms of one sum on tensor cores.
constexpr int64_t CHUNK = 384;

// ---- one product as the library plans it -----------------------------------------------------------------------------------

// Of the library's proposals.
constexpr int MOST_ALGORITHMS = 8;

struct Product {
    int64_t batch, m, n, k;
    int64_t lda, ldb, stride_a, stride_b;
    bool transpose_a, transpose_b, tf32, bias, relu;
    // Of the pointers, in bytes.
    int64_t alignment;
    int algorithm;

    std::array<int64_t, 15> key(int device) const {
        return {device, batch, m, n, k, lda, ldb, stride_a, stride_b, transpose_a | transpose_b << 1, tf32, bias, relu, alignment, algorithm};
    }
};

cublasLtHandle_t& handle(int device) {
    static cublasLtHandle_t handles[MOST_DEVICES];
    return handles[device];
}

// Row-major matrices are column-major ones transposed: out^T = b^T a^T.
struct Plan {
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
    cublasLtMatmulHeuristicResult_t best{};
    // Whether the library can do it at all.
    int error = 0;

    static int layout(cublasLtMatrixLayout_t* made, int64_t rows, int64_t columns, bool turned, int64_t ld, int64_t batch, int64_t stride) {
        TRY(cublasLtMatrixLayoutCreate(made, CUDA_R_32F, turned ? columns : rows, turned ? rows : columns, ld));
        const int32_t count = int32_t(batch);
        TRY(cublasLtMatrixLayoutSetAttribute(*made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
        return cublasLtMatrixLayoutSetAttribute(*made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
    }

    int make(const Product& p, int device) {
        TRY(cublasLtMatmulDescCreate(&product, p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
        const cublasOperation_t turn_first = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, turn_second = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
        TRY(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &turn_first, sizeof turn_first));
        TRY(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSB, &turn_second, sizeof turn_second));
        const cublasLtEpilogue_t epilogue = p.bias ? (p.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS)
                                                   : (p.relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT);
        TRY(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
        TRY(layout(&first, p.n, p.k, p.transpose_b, p.ldb, p.batch, p.stride_b));
        TRY(layout(&second, p.k, p.m, p.transpose_a, p.lda, p.batch, p.stride_a));
        TRY(layout(&result, p.n, p.m, false, p.n, p.batch, p.m * p.n));
        cublasLtMatmulPreference_t preference;
        TRY(cublasLtMatmulPreferenceCreate(&preference));
        const int chosen = choose(preference, uint32_t(p.alignment), p.algorithm, device);
        cublasLtMatmulPreferenceDestroy(preference);
        return chosen;
    }

    int choose(cublasLtMatmulPreference_t preference, uint32_t alignment, int algorithm, int device) {
        TRY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &MOST_WORKSPACE, sizeof MOST_WORKSPACE));
        for (const auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                 CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
            TRY(cublasLtMatmulPreferenceSetAttribute(preference, which, &alignment, sizeof alignment));
        }
        cublasLtMatmulHeuristicResult_t found[MOST_ALGORITHMS];
        const int wanted = std::clamp(algorithm + 1, 1, MOST_ALGORITHMS);
        int count = 0;
        TRY(cublasLtMatmulAlgoGetHeuristic(handle(device), product, first, second, result, result, preference, wanted, found, &count));
        if (!count) return CUBLAS_STATUS_NOT_SUPPORTED;
        best = found[count - 1];
        return CUBLAS_STATUS_SUCCESS;
    }
};

// With `add` the product is added to what `out` holds.
int run(Product p, float* out, const float* a, const float* b, const float* bias, bool add, cudaStream_t stream) {
    static auto* plans = new std::map<std::array<int64_t, 15>, Plan>();
    int device;
    TRY(cudaGetDevice(&device));
    if (device >= MOST_DEVICES) return cudaErrorInvalidDevice;
    if (!handle(device)) TRY(cublasLtCreate(&handle(device)));
    const uintptr_t places = reinterpret_cast<uintptr_t>(out) | reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b);
    p.alignment = std::min<int64_t>(256, places & ~(places - 1));
    auto found = plans->find(p.key(device));
    if (found == plans->end()) {
        Plan made;
        made.error = made.make(p, device);
        found = plans->emplace(p.key(device), made).first;
    }
    Plan& plan = found->second;
    TRY(plan.error);
    if (bias) TRY(cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    Scratch workspace(stream);
    TRY(workspace.take(plan.best.workspaceSize));
    const float one = 1.0f, before = add ? 1.0f : 0.0f;
    return cublasLtMatmul(handle(device), plan.product, &one, b, plan.first, a, plan.second, &before, out, plan.result, out, plan.result,
                          &plan.best.algo, workspace.at(), plan.best.workspaceSize, stream);
}

// ---- bias and activation where the library does not add them -----------------------------------------------------------------

__global__ void add_bias(float* out, const float* bias, int64_t rows, int64_t columns, bool relu) {
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        for (int64_t column = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; column < columns; column += int64_t(gridDim.x) * blockDim.x) {
            float* at = out + row * columns + column;
            *at = activated(*at + (bias ? bias[column] : 0.0f), relu);
        }
    }
}

int add_bias_afterwards(float* out, const float* bias, const WarpsmithGemm& g, cudaStream_t stream) {
    const int64_t rows = g.batch * g.m;
    add_bias<<<dim3(blocks(g.n, 256, 1024), blocks(rows, 1, MOST_GRID_YZ)), 256, 0, stream>>>(out, bias, rows, g.n, g.activation == WARPSMITH_RELU);
    return cudaGetLastError();
}

// A product, or the last part of one.
int finish(Product p, float* out, const float* a, const float* b, const float* bias, bool add, const WarpsmithGemm& g, cudaStream_t stream) {
    p.bias = bias, p.relu = g.activation == WARPSMITH_RELU;
    const int fused = run(p, out, a, b, bias, add, stream);
    if (fused != CUBLAS_STATUS_NOT_SUPPORTED || !(p.bias || p.relu)) return fused;
    p.bias = p.relu = false;
    TRY(run(p, out, a, b, nullptr, add, stream));
    return add_bias_afterwards(out, bias, g, stream);
}

// ---- products of operands in two parts ---------------------------------------------------------------------------------------

// Both operands get three times as many terms in a sum: [low high high] times [high low high]. They lie chunk by chunk, each
// filled up with zeros to a multiple of four terms.
template <bool FIRST, int VECTOR>
__device__ __forceinline__ void store_parts(float* to, int64_t step, const Vector<VECTOR>& v) {
    Vector<VECTOR> high, low;
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) {
        const Parts parts = split(v.at[i]);
        high.at[i] = parts.high, low.at[i] = parts.low;
    }
    store(to, FIRST ? low : high);
    store(to + step, FIRST ? high : low);
    store(to + 2 * step, high);
}

// The terms of a sum lie side by side.
template <bool FIRST, int VECTOR>
__global__ void split_columns(float* __restrict__ out, const float* __restrict__ in, int64_t rows, int64_t terms, int64_t filled) {
    const int64_t column = (blockIdx.x * int64_t(blockDim.x) + threadIdx.x) * VECTOR;
    if (column >= filled) return;
    const int64_t chunk = column / CHUNK, width = min(CHUNK, filled - chunk * CHUNK);
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        Vector<VECTOR> v{};
        if (column < terms) v = load<VECTOR>(in + row * terms + column);
        store_parts<FIRST>(out + row * 3 * filled + 3 * CHUNK * chunk + column % CHUNK, width, v);
    }
}

// The terms of a sum lie below one another.
template <bool FIRST, int VECTOR>
__global__ void split_rows(float* __restrict__ out, const float* __restrict__ in, int64_t batch, int64_t terms, int64_t filled, int64_t columns, int64_t ld) {
    const int64_t column = (blockIdx.x * int64_t(blockDim.x) + threadIdx.x) * VECTOR;
    if (column >= columns) return;
    for (int64_t image = blockIdx.z; image < batch; image += gridDim.z) {
        for (int64_t row = blockIdx.y; row < filled; row += gridDim.y) {
            const int64_t chunk = row / CHUNK, height = min(CHUNK, filled - chunk * CHUNK);
            Vector<VECTOR> v{};
            if (row < terms) v = load<VECTOR>(in + (image * terms + row) * columns + column);
            store_parts<FIRST>(out + (image * 3 * filled + 3 * CHUNK * chunk + row % CHUNK) * ld + column, height * ld, v);
        }
    }
}

// One operand: `count` matrices of `across` sums with `terms` each.
struct Operand {
    int64_t count, across, terms, filled;
    bool terms_are_columns;

    // Rows of a matrix begin where vectors can.
    int64_t ld() const { return terms_are_columns ? 3 * filled : (across + 3) / 4 * 4; }
    int64_t size() const { return terms_are_columns ? across * 3 * filled : 3 * filled * ld(); }
    // From one chunk to the next.
    int64_t step() const { return terms_are_columns ? 3 * CHUNK : 3 * CHUNK * ld(); }

    template <bool FIRST>
    void split(float* out, const float* in, cudaStream_t stream) const {
        const int64_t columns = terms_are_columns ? terms : across;
        if (columns % 4 == 0 && aligned({in})) launch<FIRST, 4>(out, in, stream);
        else launch<FIRST, 1>(out, in, stream);
    }

    template <bool FIRST, int VECTOR>
    void launch(float* out, const float* in, cudaStream_t stream) const {
        const unsigned wide = blocks(terms_are_columns ? filled : across, 256 * VECTOR, INT32_MAX);
        if (terms_are_columns) {
            const dim3 grid(wide, blocks(count * across, 1, MOST_GRID_YZ));
            split_columns<FIRST, VECTOR><<<grid, 256, 0, stream>>>(out, in, count * across, terms, filled);
        } else {
            const dim3 grid(wide, blocks(filled, 1, MOST_GRID_YZ), blocks(count, 1, MOST_GRID_YZ));
            split_rows<FIRST, VECTOR><<<grid, 256, 0, stream>>>(out, in, count, terms, filled, across, ld());
        }
    }
};

int gemm_by_parts(float* out, const float* a, const float* b, const float* bias, const WarpsmithGemm& g, cudaStream_t stream) {
    const int64_t filled = (g.k + 3) / 4 * 4;
    const Operand first{g.share_a ? 1 : g.batch, g.m, g.k, filled, !g.transpose_a}, second{g.share_b ? 1 : g.batch, g.n, g.k, filled, g.transpose_b};
    const size_t room = rounded_up(first.count * first.size());
    Scratch parts(stream);
    TRY(parts.take((room + second.count * second.size()) * sizeof(float)));
    float *a3 = parts.floats(), *b3 = parts.floats(room);
    first.split<true>(a3, a, stream);
    second.split<false>(b3, b, stream);
    TRY(cudaGetLastError());
    for (int64_t start = 0; start < filled; start += CHUNK) {
        Product p{};
        p.algorithm = g.algorithm;
        p.batch = g.batch, p.m = g.m, p.n = g.n, p.k = 3 * std::min(CHUNK, filled - start);
        p.lda = first.ld(), p.ldb = second.ld();
        p.stride_a = g.share_a ? 0 : first.size(), p.stride_b = g.share_b ? 0 : second.size();
        p.transpose_a = g.transpose_a, p.transpose_b = g.transpose_b, p.tf32 = true;
        const int64_t chunk = start / CHUNK;
        const float *at_a = a3 + chunk * first.step(), *at_b = b3 + chunk * second.step();
        if (start + CHUNK >= filled) return finish(p, out, at_a, at_b, bias, chunk > 0, g, stream);
        TRY(run(p, out, at_a, at_b, nullptr, chunk > 0, stream));
    }
    return 0;
}

// Whether that is faster, by what both took on an H200 over some fifty shapes, in microseconds.
bool parts_pay(const WarpsmithGemm& g) {
    if (g.n % 4 != 0) return false;
    const double chunks = double((g.k + CHUNK - 1) / CHUNK), operations = 2.0 * g.batch * g.m * g.n * g.k;
    const double tiles = double(g.batch) * ((g.m + 127) / 128) * ((g.n + 127) / 128), waves = tiles / 132;
    const double split_bytes = 16.0 * g.k * ((g.share_a ? 1 : g.batch) * double(g.m) + (g.share_b ? 1 : g.batch) * double(g.n));
    const double result_bytes = 4.0 * g.batch * g.m * g.n * (2 * chunks - 1);
    const double by_parts = 3 * operations / 330e6 * std::ceil(waves) / waves + split_bytes / 3e6 + result_bytes / 4e6 + 4 * (chunks + 2);
    return by_parts < 0.9 * (operations / 48e6 + 8);
}

std::mutex& one_at_a_time() {
    static auto* mutex = new std::mutex();
    return *mutex;
}

}  // namespace

int warpsmith_gemm(float* out, const float* a, const float* b, const float* bias, const WarpsmithGemm& g, cudaStream_t stream) {
    if (g.batch < 0 || g.m < 0 || g.n < 0 || g.k < 0 || g.batch > INT32_MAX) return cudaErrorInvalidValue;
    if (g.batch == 0 || g.m == 0 || g.n == 0) return cudaSuccess;
    if (g.k == 0) {
        TRY(cudaMemsetAsync(out, 0, size_t(g.batch) * g.m * g.n * sizeof(float), stream));
        return add_bias_afterwards(out, bias, g, stream);
    }
    const std::lock_guard<std::mutex> lock(one_at_a_time());
    if (g.precision == WARPSMITH_3XTF32 && parts_pay(g)) return gemm_by_parts(out, a, b, bias, g, stream);
    Product p{};
    p.batch = g.batch, p.m = g.m, p.n = g.n, p.k = g.k;
    p.lda = g.transpose_a ? g.m : g.k, p.ldb = g.transpose_b ? g.k : g.n;
    p.stride_a = g.share_a ? 0 : g.m * g.k, p.stride_b = g.share_b ? 0 : g.k * g.n;
    p.transpose_a = g.transpose_a, p.transpose_b = g.transpose_b;
    p.tf32 = g.precision == WARPSMITH_TF32, p.algorithm = g.algorithm;
    return finish(p, out, a, b, bias, false, g, stream);
}
