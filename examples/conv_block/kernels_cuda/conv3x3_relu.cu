// out = relu(conv2d(x, weight, bias)), 3x3, stride 1, padding 1, NCHW.
//
// cuDNN's fused convolution, bias and ReLU: the result is written once, where PyTorch writes the convolution, then
// reads and writes it again for the bias and for the ReLU. Strict float32 (CUDNN_FMA_MATH; TF32 is never enabled).
// What is kept between calls depends on shapes alone: the handle, the descriptors and a workspace.
#include <cuda_runtime.h>
#include <cudnn.h>
#include <cstdint>
#include <mutex>

namespace {

constexpr cudnnConvolutionFwdAlgo_t algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;

struct Plan {
    int device = -1;
    int64_t shape[5] = {};
    cudnnHandle_t handle = nullptr;
    cudnnTensorDescriptor_t in = nullptr, out = nullptr, bias = nullptr;
    cudnnFilterDescriptor_t filter = nullptr;
    cudnnConvolutionDescriptor_t convolution = nullptr;
    cudnnActivationDescriptor_t relu = nullptr;
    void* workspace = nullptr;
    size_t capacity = 0, needed = 0;
};

Plan plan;
std::mutex guard;

#define TRY(call)                                             \
    do {                                                      \
        if (const int status = static_cast<int>(call)) return status; \
    } while (0)

int prepare(int device, const int64_t (&shape)[5]) {
    bool same = plan.device == device;
    for (int i = 0; i < 5; ++i) same = same && plan.shape[i] == shape[i];
    if (same) return 0;
    if (plan.device != device) {  // a handle and a workspace belong to one device
        plan = Plan{};
        TRY(cudnnCreate(&plan.handle));
        TRY(cudnnCreateTensorDescriptor(&plan.in));
        TRY(cudnnCreateTensorDescriptor(&plan.out));
        TRY(cudnnCreateTensorDescriptor(&plan.bias));
        TRY(cudnnCreateFilterDescriptor(&plan.filter));
        TRY(cudnnCreateConvolutionDescriptor(&plan.convolution));
        TRY(cudnnCreateActivationDescriptor(&plan.relu));
    }
    plan.device = -1;  // until the plan is complete
    const int n = static_cast<int>(shape[0]), c = static_cast<int>(shape[1]), o = static_cast<int>(shape[2]),
              h = static_cast<int>(shape[3]), w = static_cast<int>(shape[4]);
    TRY(cudnnSetTensor4dDescriptor(plan.in, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, c, h, w));
    TRY(cudnnSetTensor4dDescriptor(plan.out, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, o, h, w));
    TRY(cudnnSetTensor4dDescriptor(plan.bias, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, o, 1, 1));
    TRY(cudnnSetFilter4dDescriptor(plan.filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, o, c, 3, 3));
    TRY(cudnnSetConvolution2dDescriptor(plan.convolution, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    TRY(cudnnSetConvolutionMathType(plan.convolution, CUDNN_FMA_MATH));
    TRY(cudnnSetActivationDescriptor(plan.relu, CUDNN_ACTIVATION_RELU, CUDNN_PROPAGATE_NAN, 0.0));
    TRY(cudnnGetConvolutionForwardWorkspaceSize(plan.handle, plan.in, plan.filter, plan.convolution, plan.out,
                                                algorithm, &plan.needed));
    if (plan.needed > plan.capacity) {
        if (plan.workspace) TRY(cudaFree(plan.workspace));
        plan.workspace = nullptr;
        plan.capacity = 0;
        TRY(cudaMalloc(&plan.workspace, plan.needed));
        plan.capacity = plan.needed;
    }
    for (int i = 0; i < 5; ++i) plan.shape[i] = shape[i];
    plan.device = device;
    return 0;
}

}  // namespace

extern "C" int conv3x3_relu(float* out, const float* x, const float* weight, const float* bias, int64_t batch,
                            int64_t in_channels, int64_t out_channels, int64_t height, int64_t width, void* stream) {
    if (batch * out_channels * height * width == 0) return 0;
    const std::lock_guard<std::mutex> lock(guard);
    int device;
    TRY(cudaGetDevice(&device));
    TRY(prepare(device, {batch, in_channels, out_channels, height, width}));
    TRY(cudnnSetStream(plan.handle, static_cast<cudaStream_t>(stream)));
    const float one = 1.0f, zero = 0.0f;
    // The fourth operand (a tensor to add) is switched off by its factor 0; cuDNN still wants a valid one.
    return cudnnConvolutionBiasActivationForward(plan.handle, &one, plan.in, x, plan.filter, weight, plan.convolution,
                                                 algorithm, plan.workspace, plan.needed, &zero, plan.out, out,
                                                 plan.bias, bias, plan.relu, plan.out, out);
}
