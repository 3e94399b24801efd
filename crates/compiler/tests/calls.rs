//! How products and convolutions are called on a GPU.

use serde_json::json;
use warpsmith_compiler::{CompileOptions, Strategy, compile_with};
use warpsmith_schema::{Dtype, Precision, Target, Task};

use super::kernels::{chain, tuned};

#[test]
fn a_product_has_its_bias_and_activation_in_the_call() {
    let nothing = json!({});
    let kernel = tuned(&chain(
        &[&[64, 256], &[512, 256], &[512]],
        &[
            ("linear", &[0, 1, 2], nothing.clone(), &[64, 512]),
            ("relu", &[3], nothing, &[64, 512]),
        ],
    ));
    assert_eq!(
        kernel,
        "#include \"warpsmith.h\"

extern \"C\" int run_linear_relu(float* out, const float* x0, const float* x1, const float* x2, cudaStream_t stream) {
    WarpsmithGemm gemm{64, 512, 256};
    gemm.transpose_b = true;
    gemm.activation = WARPSMITH_RELU;
    if (const int status = warpsmith_gemm(out, x0, x1, x2, gemm, stream)) return status;
    return cudaGetLastError();
}
"
    );
}

#[test]
fn a_large_product_may_be_computed_in_parts() {
    let nothing = json!({});
    let ops = |shape: &'static [u64]| ("matmul", &[0_usize, 1][..], nothing.clone(), shape);
    let large = tuned(&chain(
        &[&[4096, 2048], &[2048, 4096]],
        &[ops(&[4096, 4096])],
    ));
    assert!(
        large.contains("gemm.precision = WARPSMITH_3XTF32;"),
        "{large}"
    );
    let small = tuned(&chain(&[&[8, 64, 32], &[8, 32, 64]], &[ops(&[8, 64, 64])]));
    assert!(!small.contains("precision"), "{small}");
    assert!(small.contains("gemm.batch = 8;"), "{small}");
}

#[test]
fn a_convolution_says_what_differs_from_the_usual() {
    let arguments = json!({ "stride": [2, 1], "padding": [1, 2], "dilation": 1, "groups": 4 });
    let kernel = tuned(&chain(
        &[&[2, 8, 15, 16], &[12, 2, 3, 5], &[12]],
        &[("conv2d", &[0, 1, 2], arguments, &[2, 12, 8, 16])],
    ));
    assert!(
        kernel.contains(
            "    WarpsmithConv conv{2, 8, 12, {15, 16}, {3, 5}};
    conv.stride = {2, 1};
    conv.padding = {1, 2};
    conv.groups = 4;
    if (const int status = warpsmith_conv(out, x0, x1, x2, conv, stream)) return status;
"
        ),
        "{kernel}"
    );
    assert!(!kernel.contains("__global__"), "{kernel}");
}

#[test]
fn a_transposed_convolution_is_as_large_as_it_should_be() {
    let nothing = json!({});
    let arguments = json!({ "stride": 2, "padding": 1, "output_padding": 1 });
    let shape: &[u64] = &[2, 12, 32];
    let kernel = tuned(&chain(
        &[&[2, 8, 16], &[8, 12, 3]],
        &[
            ("conv_transpose1d", &[0, 1], arguments, shape),
            ("relu", &[2], nothing, shape),
        ],
    ));
    assert!(
        kernel.contains(
            "    WarpsmithConv conv{2, 8, 12, {16}, {3}};
    conv.stride = {2};
    conv.padding = {1};
    conv.output_padding = {1};
    conv.transposed = true;
    conv.activation = WARPSMITH_RELU;
    if (const int status = warpsmith_conv(out, x0, x1, nullptr, conv, stream)) return status;
"
        ),
        "{kernel}"
    );
}

#[test]
fn several_calls_have_shapes_of_their_own() {
    let nothing = json!({});
    let kernel = tuned(&chain(
        &[&[64, 256], &[512, 256], &[128, 512]],
        &[
            ("linear", &[0, 1], nothing.clone(), &[64, 512]),
            ("gelu", &[3], nothing.clone(), &[64, 512]),
            ("linear", &[4, 2], nothing, &[64, 128]),
        ],
    ));
    assert!(
        kernel.contains("WarpsmithGemm gemm{64, 512, 256};"),
        "{kernel}"
    );
    assert!(
        kernel.contains("WarpsmithGemm gemm2{64, 128, 512};"),
        "{kernel}"
    );
    assert!(kernel.contains("x2, nullptr, gemm2, stream)"), "{kernel}");
}

/// The CUDA file of a tuned solution in a precision.
fn in_precision(task: &Task, precision: Precision) -> String {
    let options = CompileOptions {
        precision,
        ..Strategy::Tuned.into()
    };
    let files = compile_with(task, Target::Cuda, &options).unwrap().files;
    let kernels = files.into_iter().find(|(path, _)| path.ends_with(".cu"));
    kernels.unwrap().1
}

#[test]
fn products_are_in_tf32_on_request_and_where_it_holds_the_operands() {
    let shape: &[u64] = &[2048, 2048];
    let nothing = json!({});
    let task = chain(&[shape, shape], &[("mm", &[0, 1], nothing, shape)]);
    let (exact, asked) = (Precision::Fp32, Precision::Tf32);
    let kernel = in_precision(&task, exact);
    assert!(kernel.contains("WARPSMITH_3XTF32"), "{kernel}");
    let kernel = in_precision(&task, asked);
    assert!(
        kernel.contains("gemm.precision = WARPSMITH_TF32;"),
        "{kernel}"
    );
    let mut narrow = task;
    for value in &mut narrow.graph.as_mut().unwrap().values {
        value.dtype = Dtype::Bfloat16;
    }
    let kernel = in_precision(&narrow, exact);
    assert!(
        kernel.contains("gemm.precision = WARPSMITH_TF32;"),
        "{kernel}"
    );
}
