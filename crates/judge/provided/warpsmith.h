// Provided to CUDA solutions in the plain form: matrix products and convolutions by NVIDIA's libraries, without descriptors, and
// functions for kernels (warpsmith_device.h).
//
//     WarpsmithGemm gemm{rows, columns, inner};
//     gemm.transpose_b = true;
//     gemm.activation = WARPSMITH_RELU;
//     return warpsmith_gemm(out, x, weight, bias, gemm, stream);
//
// Tensors are float32, contiguous and row-major, (N, C, ...) for convolutions. A call returns 0, or an error of CUDA or of the
// library. Handles, plans and scratch memory are kept inside; they depend on shapes alone, never on what tensors hold.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>

// A file that g++ compiles has no kernels.
#ifdef __CUDACC__
#include "warpsmith_device.h"
#endif

enum WarpsmithActivation { WARPSMITH_NO_ACTIVATION, WARPSMITH_RELU };

enum WarpsmithPrecision {
    // The library's float32, TF32 off.
    WARPSMITH_FP32,
    // Operands rounded to TF32 (10 bits), for tensor cores.
    WARPSMITH_TF32,
    // Each operand as the sum of two TF32 numbers, for tensor cores: about as exact as float32, for finite operands. Only for
    // shapes that are then faster (as measured on an H200); others are computed as with WARPSMITH_FP32.
    WARPSMITH_3XTF32,
};

// out = activation(a b + bias): a is m x k, b is k x n, out is m x n.
struct WarpsmithGemm {
    int64_t m, n, k;
    // Whether a lies in memory as k x m, b as n x k.
    bool transpose_a = false, transpose_b = false;
    // Products one after the other. `share_a`, `share_b`: all of them with the same matrix.
    int64_t batch = 1;
    bool share_a = false, share_b = false;
    WarpsmithActivation activation = WARPSMITH_NO_ACTIVATION;
    WarpsmithPrecision precision = WARPSMITH_FP32;
    // Which of the library's proposals, from 0, which it takes for the fastest; the last where there are fewer.
    int algorithm = 0;
};

// As `conv1d` to `conv3d` of PyTorch, `transposed` as `conv_transpose1d` to `conv_transpose3d`: by how many extents `input` has.
struct WarpsmithConv {
    // `channels` of the input, `filters` of the output.
    int64_t batch, channels, filters;
    std::array<int64_t, 3> input, kernel;
    std::array<int64_t, 3> stride{1, 1, 1}, padding{0, 0, 0}, dilation{1, 1, 1};
    // Of a transposed convolution alone.
    std::array<int64_t, 3> output_padding{0, 0, 0};
    int64_t groups = 1;
    bool transposed = false;
    WarpsmithActivation activation = WARPSMITH_NO_ACTIVATION;
    WarpsmithPrecision precision = WARPSMITH_FP32;
    // Which of the library's proposals, from 0, which it takes for the fastest; the last where there are fewer.
    int algorithm = 0;
};

#define WARPSMITH_PROVIDED __attribute__((visibility("hidden")))

// `bias` has n numbers, or is null.
WARPSMITH_PROVIDED int warpsmith_gemm(float* out, const float* a, const float* b, const float* bias, const WarpsmithGemm& gemm, cudaStream_t stream);

// `weight` is (filters, channels / groups, ...), of a transposed one (channels, filters / groups, ...), as in PyTorch; `bias`
// has a number for each filter, or is null.
WARPSMITH_PROVIDED int warpsmith_conv(float* out, const float* x, const float* weight, const float* bias, const WarpsmithConv& conv, cudaStream_t stream);
