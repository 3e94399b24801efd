//! Calls of matrix products and convolutions, as text.

use crate::library::{Convolution, Gemm, Operand};
use crate::scalar::Buffer;

/// On the processor: the one routine that is provided.
pub(crate) const GEMM: &str = "// Provided: row-major c = alpha op(a) op(b) + beta c, on all cores.
extern \"C\" void warpsmith_gemm(int transa, int transb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                               const float* b, int64_t ldb, float beta, float* c, int64_t ldc);";

type Names<'a> = &'a dyn Fn(Buffer) -> String;

pub(crate) fn gemm_on_cpu(gemm: &Gemm, name: Names<'_>) -> String {
    let Gemm {
        batch,
        m,
        n,
        k,
        a,
        b,
        out,
        ..
    } = *gemm;
    let place = |operand: Operand, size: i64| {
        let text = name(operand.buffer);
        if operand.batched && batch > 1 {
            format!("{text} + batch * {size}")
        } else {
            text
        }
    };
    let c = Operand {
        buffer: out,
        transposed: false,
        batched: true,
    };
    let call = format!(
        "warpsmith_gemm({}, {}, {m}, {n}, {k}, 1.0f, {}, {}, {}, {}, 0.0f, {}, {n});",
        i32::from(a.transposed),
        i32::from(b.transposed),
        place(a, m * k),
        if a.transposed { m } else { k },
        place(b, k * n),
        if b.transposed { k } else { n },
        place(c, m * n),
    );
    if batch == 1 {
        return format!("    {call}");
    }
    format!("    for (int64_t batch = 0; batch < {batch}; ++batch) {{\n        {call}\n    }}")
}

/// For each image the windows as columns of a matrix, then a product.
pub(crate) fn convolution_on_cpu(conv: &Convolution, name: Names<'_>) -> String {
    let (channels, filters) = (conv.channels / conv.groups, conv.filters / conv.groups);
    let taps: i64 = conv.kernel.iter().product();
    let places: i64 = conv.output.iter().product();
    let pixels: i64 = conv.input.iter().product();
    let rows = channels * taps;
    let mut lines = vec![
        format!("std::vector<float> columns({}LL);", rows * places),
        format!(
            "for (int64_t image = 0; image < {}; ++image) {{",
            conv.batch * conv.groups
        ),
    ];
    let group = if conv.groups > 1 {
        lines.push(format!(
            "    const int64_t group = image % {};",
            conv.groups
        ));
        format!(" + group * {}", filters * rows)
    } else {
        String::new()
    };
    lines.push(format!(
        "    const float* from = {} + image * {};",
        name(conv.x),
        channels * pixels
    ));
    lines.push("#pragma omp parallel for schedule(static)".to_owned());
    lines.push(format!("    for (int64_t row = 0; row < {rows}; ++row) {{"));
    lines.push(format!(
        "        const float* plane = from + row / {taps} * {pixels};"
    ));
    lines.push(format!(
        "        float* to = columns.data() + row * {places};"
    ));
    let mut below = taps;
    for (dim, extent) in conv.kernel.iter().enumerate() {
        below /= extent;
        let tap = match (dim, below) {
            (_, 1) => format!("row % {extent}"),
            _ => format!("row / {below} % {extent}"),
        };
        lines.push(format!(
            "        const int64_t tap{dim} = {tap} * {} - {};",
            conv.dilation[dim], conv.padding[dim]
        ));
    }
    let mut indent = "        ".to_owned();
    let rank = conv.kernel.len();
    let mut place = String::new();
    for dim in 0..rank {
        let (out, size) = (conv.output[dim], conv.input[dim]);
        lines.push(format!(
            "{indent}for (int64_t o{dim} = 0; o{dim} < {out}; ++o{dim}) {{"
        ));
        indent.push_str("    ");
        lines.push(format!(
            "{indent}const int64_t i{dim} = o{dim} * {} + tap{dim};",
            conv.stride[dim]
        ));
        place = if dim == 0 {
            "i0".to_owned()
        } else {
            format!("({place}) * {size} + i{dim}").replace("(i0)", "i0")
        };
    }
    let inside: Vec<String> = (0..rank)
        .map(|dim| format!("i{dim} >= 0 && i{dim} < {}", conv.input[dim]))
        .collect();
    lines.push(format!(
        "{indent}*to++ = {} ? plane[{place}] : 0.0f;",
        inside.join(" && ")
    ));
    for _ in 0..rank {
        indent.truncate(indent.len() - 4);
        lines.push(format!("{indent}}}"));
    }
    lines.push("    }".to_owned());
    lines.push(format!(
        "    warpsmith_gemm(0, 0, {filters}, {places}, {rows}, 1.0f, {}{group}, {rows}, columns.data(), {places}, 0.0f, {} + image * {}, {places});",
        name(conv.weight),
        name(conv.out),
        filters * places
    ));
    lines.push("}".to_owned());
    let indented: Vec<String> = lines
        .into_iter()
        .map(|line| {
            if line.starts_with('#') {
                line
            } else {
                format!("    {line}")
            }
        })
        .collect();
    indented.join("\n")
}

/// Begins a file that calls a library and hands its errors on.
pub(crate) const TRY: &str = "#define TRY(call)                                                   \\
    do {                                                            \\
        if (const int status = static_cast<int>(call)) return status; \\
    } while (0)";

/// Row-major is what cuBLAS takes for the transposed: it is asked for the transposed product.
pub(crate) fn gemm_on_cuda(gemm: &Gemm, function: &str, name: Names<'_>) -> String {
    let Gemm {
        batch,
        m,
        n,
        k,
        a,
        b,
        out,
        ..
    } = *gemm;
    let operation = |operand: Operand| {
        if operand.transposed {
            "CUBLAS_OP_T"
        } else {
            "CUBLAS_OP_N"
        }
    };
    let (lda, ldb) = (
        if a.transposed { m } else { k },
        if b.transposed { k } else { n },
    );
    let step = |operand: Operand, size: i64| if operand.batched { size } else { 0 };
    let (first, second, to) = (name(b.buffer), name(a.buffer), name(out));
    let call = if batch == 1 {
        format!(
            "cublasSgemm(handle, {}, {}, {n}, {m}, {k}, &one, {first}, {ldb}, {second}, {lda}, &zero, {to}, {n})",
            operation(b),
            operation(a)
        )
    } else {
        format!(
            "cublasSgemmStridedBatched(handle, {}, {}, {n}, {m}, {k}, &one, {first}, {ldb}, {}LL, {second}, {lda}, {}LL, &zero, {to}, {n}, {}LL, {batch})",
            operation(b),
            operation(a),
            step(b, k * n),
            step(a, m * k),
            m * n
        )
    };
    let others = if a.buffer == b.buffer {
        format!("const float* {first}")
    } else {
        format!("const float* {second}, const float* {first}")
    };
    format!(
        "// Row-major matrices are column-major ones transposed: cuBLAS computes out^T = b^T a^T, in strict float32.
int {function}(float* {to}, {others}, cudaStream_t stream) {{
    static cublasHandle_t handle = nullptr;
    if (!handle) TRY(cublasCreate(&handle));
    TRY(cublasSetStream(handle, stream));
    const float one = 1.0f, zero = 0.0f;
    TRY({call});
    return 0;
}}"
    )
}

/// With bias, and perhaps a `relu`, on the accumulators.
pub(crate) fn gemm_with_bias_on_cuda(
    gemm: &Gemm,
    bias: Buffer,
    function: &str,
    name: Names<'_>,
) -> String {
    let Gemm {
        m,
        n,
        k,
        a,
        b,
        out,
        epilogue,
        ..
    } = *gemm;
    let transposed = |operand: Operand| {
        if operand.transposed {
            "CUBLAS_OP_T"
        } else {
            "CUBLAS_OP_N"
        }
    };
    let shape = |rows: i64, columns: i64, turned: bool| {
        if turned {
            format!("{columns}, {rows}, {columns}")
        } else {
            format!("{rows}, {columns}, {rows}")
        }
    };
    let kind = if epilogue.relu {
        "CUBLASLT_EPILOGUE_RELU_BIAS"
    } else {
        "CUBLASLT_EPILOGUE_BIAS"
    };
    let (x, w, to, bias) = (name(a.buffer), name(b.buffer), name(out), name(bias));
    format!(
        "// Row-major matrices are column-major ones transposed: cuBLASLt computes out^T = b^T a^T, in strict float32, and adds
// the bias{} before it writes. What is kept depends on shapes alone.
int {function}(float* {to}, const float* {x}, const float* {w}, const float* {bias}, cudaStream_t stream) {{
    constexpr size_t room = size_t(32) << 20;
    static cublasLtHandle_t handle = nullptr;
    static cublasLtMatmulDesc_t product;
    static cublasLtMatrixLayout_t first, second, result;
    static cublasLtMatmulHeuristicResult_t best;
    static void* workspace;
    if (!handle) {{
        TRY(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        const cublasOperation_t turn_first = {}, turn_second = {};
        const cublasLtEpilogue_t epilogue = {kind};
        TRY(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &turn_first, sizeof turn_first));
        TRY(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSB, &turn_second, sizeof turn_second));
        TRY(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
        TRY(cublasLtMatrixLayoutCreate(&first, CUDA_R_32F, {}));
        TRY(cublasLtMatrixLayoutCreate(&second, CUDA_R_32F, {}));
        TRY(cublasLtMatrixLayoutCreate(&result, CUDA_R_32F, {n}, {m}, {n}));
        TRY(cudaMalloc(&workspace, room));
        cublasLtHandle_t made;
        TRY(cublasLtCreate(&made));
        cublasLtMatmulPreference_t preference;
        TRY(cublasLtMatmulPreferenceCreate(&preference));
        TRY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room));
        int found = 0;
        TRY(cublasLtMatmulAlgoGetHeuristic(made, product, first, second, result, result, preference, 1, &best, &found));
        cublasLtMatmulPreferenceDestroy(preference);
        if (!found) return CUBLAS_STATUS_NOT_SUPPORTED;
        handle = made;
    }}
    TRY(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &{bias}, sizeof {bias}));
    const float one = 1.0f, zero = 0.0f;
    TRY(cublasLtMatmul(handle, product, &one, {w}, first, {x}, second, &zero, {to}, result, {to}, result, &best.algo, workspace, room, stream));
    return 0;
}}",
        if epilogue.relu { " and applies the ReLU" } else { "" },
        transposed(b),
        transposed(a),
        shape(n, k, b.transposed),
        shape(k, m, a.transposed),
    )
}

/// The algorithm that the library's own rules name first.
const FORWARD: &str = "        cudnnConvolutionFwdAlgoPerf_t best;
        TRY(cudnnGetConvolutionForwardAlgorithm_v7(made, from, filter, convolution, result, 1, &found, &best));
        algorithm = best.algo;
        TRY(cudnnGetConvolutionForwardWorkspaceSize(made, from, filter, convolution, result, algorithm, &room));";

pub(crate) fn convolution_on_cuda(conv: &Convolution, function: &str, name: Names<'_>) -> String {
    // cuDNN has no convolution of one dimension: a second one of size one.
    let padded = |dims: &[i64], with: i64| {
        let mut dims = dims.to_vec();
        if dims.len() == 1 {
            dims.insert(0, with);
        }
        dims
    };
    let list = |dims: &[i64]| {
        dims.iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let tensor = |batch: i64, channels: i64, space: &[i64]| {
        let mut dims = vec![batch, channels];
        dims.extend(padded(space, 1));
        let mut strides = vec![1; dims.len()];
        for place in (0..dims.len() - 1).rev() {
            strides[place] = strides[place + 1] * dims[place + 1];
        }
        (list(&dims), list(&strides))
    };
    let rank = conv.input.len().max(2);
    let all = rank + 2;
    let (x_dims, x_strides) = tensor(conv.batch, conv.channels, &conv.input);
    let (y_dims, y_strides) = tensor(conv.batch, conv.filters, &conv.output);
    let mut w_dims = if conv.transposed {
        vec![conv.channels, conv.filters / conv.groups]
    } else {
        vec![conv.filters, conv.channels / conv.groups]
    };
    w_dims.extend(padded(&conv.kernel, 1));
    let (x, w, to) = (name(conv.x), name(conv.weight), name(conv.out));
    let bias = conv.epilogue.bias.map(&name);
    let parameter = bias
        .as_ref()
        .map(|bias| format!(", const float* {bias}"))
        .unwrap_or_default();
    let (declared, set_up, choose, run) = if conv.transposed {
        (
            "    static cudnnConvolutionBwdDataAlgo_t algorithm;\n".to_owned(),
            String::new(),
            "        cudnnConvolutionBwdDataAlgoPerf_t best;
        TRY(cudnnGetConvolutionBackwardDataAlgorithm_v7(made, filter, from, convolution, result, 1, &found, &best));
        algorithm = best.algo;
        TRY(cudnnGetConvolutionBackwardDataWorkspaceSize(made, filter, from, convolution, result, algorithm, &room));"
                .to_owned(),
            format!("TRY(cudnnConvolutionBackwardData(handle, &one, filter, {w}, from, {x}, convolution, algorithm, workspace, room, &zero, result, {to}));"),
        )
    } else if let Some(bias) = &bias {
        (
            "    static cudnnTensorDescriptor_t shift;
    static cudnnActivationDescriptor_t activation;
    static cudnnConvolutionFwdAlgo_t algorithm;\n"
                .to_owned(),
            format!(
                "        const int shift_dims[] = {{{}}}, shift_strides[] = {{{}}};
        TRY(cudnnCreateTensorDescriptor(&shift));
        TRY(cudnnSetTensorNdDescriptor(shift, CUDNN_DATA_FLOAT, {all}, shift_dims, shift_strides));
        TRY(cudnnCreateActivationDescriptor(&activation));
        TRY(cudnnSetActivationDescriptor(activation, CUDNN_ACTIVATION_RELU, CUDNN_PROPAGATE_NAN, 0.0));\n",
                list(&[vec![1, conv.filters], vec![1; rank]].concat()),
                list(&[vec![conv.filters, 1], vec![1; rank]].concat()),
            ),
            FORWARD.to_owned(),
            format!("TRY(cudnnConvolutionBiasActivationForward(handle, &one, from, {x}, filter, {w}, convolution, algorithm, workspace, room, &zero, result, {to}, shift, {bias}, activation, result, {to}));"),
        )
    } else {
        (
            "    static cudnnConvolutionFwdAlgo_t algorithm;\n".to_owned(),
            String::new(),
            FORWARD.to_owned(),
            format!(
                "TRY(cudnnConvolutionForward(handle, &one, from, {x}, filter, {w}, convolution, algorithm, workspace, room, &zero, result, {to}));"
            ),
        )
    };
    let found = if choose.contains("&found") {
        "        int found = 0;\n"
    } else {
        ""
    };
    let (padding, stride, dilation) = (
        padded(&conv.padding, 0),
        padded(&conv.stride, 1),
        padded(&conv.dilation, 1),
    );
    format!(
        "// What is kept depends on shapes alone: descriptors, the algorithm and its workspace.
int {function}(float* {to}, const float* {x}, const float* {w}{parameter}, cudaStream_t stream) {{
    static cudnnHandle_t handle = nullptr;
    static cudnnTensorDescriptor_t from, result;
    static cudnnFilterDescriptor_t filter;
    static cudnnConvolutionDescriptor_t convolution;
{declared}    static void* workspace = nullptr;
    static size_t room = 0;
    if (!handle) {{
        const int x_dims[] = {{{x_dims}}}, x_strides[] = {{{x_strides}}};
        const int y_dims[] = {{{y_dims}}}, y_strides[] = {{{y_strides}}};
        const int w_dims[] = {{{}}};
        const int padding[] = {{{}}}, stride[] = {{{}}}, dilation[] = {{{}}};
        TRY(cudnnCreateTensorDescriptor(&from));
        TRY(cudnnSetTensorNdDescriptor(from, CUDNN_DATA_FLOAT, {all}, x_dims, x_strides));
        TRY(cudnnCreateTensorDescriptor(&result));
        TRY(cudnnSetTensorNdDescriptor(result, CUDNN_DATA_FLOAT, {all}, y_dims, y_strides));
        TRY(cudnnCreateFilterDescriptor(&filter));
        TRY(cudnnSetFilterNdDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, {all}, w_dims));
        TRY(cudnnCreateConvolutionDescriptor(&convolution));
        TRY(cudnnSetConvolutionNdDescriptor(convolution, {rank}, padding, stride, dilation, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
        TRY(cudnnSetConvolutionGroupCount(convolution, {}));
        TRY(cudnnSetConvolutionMathType(convolution, CUDNN_FMA_MATH));
{set_up}        cudnnHandle_t made;
        TRY(cudnnCreate(&made));
{found}{choose}
        if (room > 0) TRY(cudaMalloc(&workspace, room));
        handle = made;
    }}
    TRY(cudnnSetStream(handle, stream));
    const float one = 1.0f, zero = 0.0f;
    {run}
    return 0;
}}",
        list(&w_dims),
        list(&padding),
        list(&stride),
        list(&dilation),
        conv.groups,
    )
}
