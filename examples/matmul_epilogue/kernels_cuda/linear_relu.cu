// out = relu(x @ weight^T + bias), x: m x k, weight: n x k, both row-major.
//
// The product is cuBLASLt's in strict float32 (CUBLAS_COMPUTE_32F; TF32 is never enabled), and bias and ReLU are its
// epilogue: they run on the accumulators, before the result is written for the first and only time.
// What is kept between calls depends on shapes alone: the handle, the chosen algorithm and a workspace.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <mutex>

namespace {

constexpr size_t workspace_bytes = size_t{32} << 20;

struct Plan {
    int device = -1;
    int64_t m = 0, n = 0, k = 0;
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
    void* workspace = nullptr;
};

Plan plan;
std::mutex guard;

#define TRY(call)                                             \
    do {                                                      \
        if (const int status = static_cast<int>(call)) return status; \
    } while (0)

// cuBLAS thinks in columns: a row-major m x n matrix is to it a column-major n x m one. So it computes
// out^T (n x m) = weight (n x k, seen as k x n and transposed back) times x^T (k x m), and the bias runs along its rows.
int prepare(int device, int64_t m, int64_t n, int64_t k) {
    if (plan.device == device && plan.m == m && plan.n == n && plan.k == k) return 0;
    if (plan.device != device) {  // a handle and a workspace belong to one device
        plan.handle = nullptr;
        plan.workspace = nullptr;
        TRY(cublasLtCreate(&plan.handle));
        TRY(cudaMalloc(&plan.workspace, workspace_bytes));
    }
    plan.device = -1;  // until the plan is complete
    if (plan.product) cublasLtMatmulDescDestroy(plan.product);
    if (plan.a) cublasLtMatrixLayoutDestroy(plan.a);
    if (plan.b) cublasLtMatrixLayoutDestroy(plan.b);
    if (plan.c) cublasLtMatrixLayoutDestroy(plan.c);
    plan.product = nullptr;
    plan.a = plan.b = plan.c = nullptr;

    TRY(cublasLtMatmulDescCreate(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_RELU_BIAS;
    TRY(cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    TRY(cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    TRY(cublasLtMatrixLayoutCreate(&plan.a, CUDA_R_32F, k, n, k));
    TRY(cublasLtMatrixLayoutCreate(&plan.b, CUDA_R_32F, k, m, k));
    TRY(cublasLtMatrixLayoutCreate(&plan.c, CUDA_R_32F, n, m, n));

    cublasLtMatmulPreference_t preference;
    TRY(cublasLtMatmulPreferenceCreate(&preference));
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    int status = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &workspace_bytes, sizeof workspace_bytes);
    if (!status)
        status = cublasLtMatmulAlgoGetHeuristic(plan.handle, plan.product, plan.a, plan.b, plan.c, plan.c, preference,
                                                1, &best, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status) return status;
    if (!found) return CUBLAS_STATUS_NOT_SUPPORTED;
    plan.algorithm = best.algo;
    plan.m = m;
    plan.n = n;
    plan.k = k;
    plan.device = device;
    return 0;
}

}  // namespace

extern "C" int linear_relu(float* out, const float* x, const float* weight, const float* bias, int64_t m, int64_t n,
                           int64_t k, void* stream) {
    if (m * n == 0) return 0;
    const std::lock_guard<std::mutex> lock(guard);
    int device;
    TRY(cudaGetDevice(&device));
    TRY(prepare(device, m, n, k));
    TRY(cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    const float one = 1.0f, zero = 0.0f;
    return cublasLtMatmul(plan.handle, plan.product, &one, weight, plan.a, x, plan.b, &zero, out, plan.c, out, plan.c,
                          &plan.algorithm, plan.workspace, workspace_bytes, static_cast<cudaStream_t>(stream));
}
