//! What the code that a small model learns to write looks like: libraries do all that is theirs, a kernel reduces once, and
//! numbers are written as what they are made of.

use serde_json::json;
use warpsmith_compiler::{Strategy, compile};
use warpsmith_schema::{Target, Task};

use super::kernels::chain;

fn regular(task: &Task) -> (String, String) {
    let files = compile(task, Target::Cuda, Strategy::Fused).unwrap().files;
    let kernels = files.iter().find(|(path, _)| path.ends_with(".cu"));
    (kernels.unwrap().1.clone(), files["model_new.py"].clone())
}

#[test]
fn a_library_adds_the_bias_of_its_layer() {
    let nothing = json!({});
    let shape: &[u64] = &[64, 512];
    let (kernel, _) = regular(&chain(
        &[&[64, 256], &[512, 256], &[512], &[512]],
        &[
            ("linear", &[0, 1, 2], nothing.clone(), shape),
            ("add", &[4, 3], nothing.clone(), shape),
            ("relu", &[5], nothing.clone(), shape),
        ],
    ));
    assert!(
        kernel.contains("warpsmith_gemm(hidden, x0, x1, x2, gemm, stream)"),
        "{kernel}"
    );
    // The other one is added by a kernel.
    assert!(kernel.contains("hidden_at + x3_at"), "{kernel}");
    assert!(!kernel.contains("WARPSMITH_RELU"), "{kernel}");
    let shape: &[u64] = &[2, 12, 33];
    let grown = json!({ "stride": 2, "padding": 1, "output_padding": 1 });
    let (kernel, _) = regular(&chain(
        &[&[2, 8, 17], &[8, 12, 2], &[12]],
        &[
            ("conv_transpose1d", &[0, 1, 2], grown, shape),
            ("relu", &[3], nothing, shape),
        ],
    ));
    assert!(
        kernel.contains("warpsmith_conv(out, x0, x1, x2, conv, stream)"),
        "{kernel}"
    );
    assert!(kernel.contains("WARPSMITH_RELU"), "{kernel}");
}

#[test]
fn every_convolution_is_the_librarys() {
    for (weight, groups, result) in [
        (&[24_u64, 1, 3, 3][..], 24, &[2_u64, 24, 30, 62][..]),
        (&[48, 24, 1, 1][..], 1, &[2, 48, 32, 64][..]),
    ] {
        let (kernel, module) = regular(&chain(
            &[&[2, 24, 32, 64], weight],
            &[("conv2d", &[0, 1], json!({ "groups": groups }), result)],
        ));
        assert!(!kernel.contains("__global__"), "{kernel}");
        assert!(kernel.contains("WarpsmithConv conv{2, 24, "), "{kernel}");
        assert!(!module.contains(".view("), "{module}");
    }
}

#[test]
fn rows_of_a_product_are_written_as_extents() {
    let (kernel, _) = regular(&chain(
        &[&[16, 100, 32], &[32, 48]],
        &[("matmul", &[0, 1], json!({}), &[16, 100, 48])],
    ));
    assert!(
        kernel.contains("WarpsmithGemm gemm{16 * 100, 48, 32};"),
        "{kernel}"
    );
    let (kernel, _) = regular(&chain(
        &[&[16, 100, 32], &[16, 32, 48]],
        &[("bmm", &[0, 1], json!({}), &[16, 100, 48])],
    ));
    assert!(
        kernel.contains("WarpsmithGemm gemm{100, 48, 32};"),
        "{kernel}"
    );
}

#[test]
fn a_window_is_written_by_coordinates() {
    let window = json!({ "kernel_size": 4, "stride": 1, "padding": 1 });
    let (kernel, _) = regular(&chain(
        &[&[2, 3, 40, 50]],
        &[("max_pool2d", &[0], window, &[2, 3, 39, 49])],
    ));
    for line in [
        "if (row >= 2 * 3 * 39 * 49) return;",
        "const int w = row % 49;",
        "const int h = row / 49 % 39;",
        "const int plane = row / (39 * 49);",
        "const float x0_at = (h + k - 1 >= 0 && h + k - 1 < 40 && w + l - 1 >= 0 && w + l - 1 < 50) \
         ? x0[(plane * 40 + h + k - 1) * 50 + w + l - 1] : (-INFINITY);",
        "top = top < x0_at ? x0_at : top;",
        "out[row] = top;",
    ] {
        assert!(kernel.contains(line), "{line}\n{kernel}");
    }
    // Side by side, without a border, and however large.
    let window = json!({ "kernel_size": 8, "stride": 8 });
    let (kernel, _) = regular(&chain(
        &[&[2, 3, 64, 64, 33]],
        &[("avg_pool3d", &[0], window, &[2, 3, 8, 8, 4])],
    ));
    assert!(
        kernel.contains("x0[((plane * 64 + d * 8 + k) * 64 + h * 8 + l) * 33 + w * 8 + m]"),
        "{kernel}"
    );
    assert!(
        kernel.contains("const int d = row / (8 * 4) % 8;"),
        "{kernel}"
    );
}

#[test]
fn a_long_reduction_is_split_where_the_task_has_a_dimension() {
    let shape: &[u64] = &[4096, 8192];
    let (kernel, _) = regular(&chain(
        &[shape, shape],
        &[("mse_loss", &[0, 1], json!({}), &[])],
    ));
    assert!(kernel.contains("<<<4096, 256, 0, stream>>>"), "{kernel}");
    assert!(kernel.contains("c < 8192; c += 256"), "{kernel}");
    assert!(kernel.contains("float(4096 * 8192)"), "{kernel}");
    assert_eq!(kernel.matches("__global__").count(), 2, "{kernel}");
    let normal = json!({ "normalized_shape": [64, 96, 100] });
    let (kernel, _) = regular(&chain(
        &[&[8, 64, 96, 100]],
        &[("layer_norm", &[0], normal, &[8, 64, 96, 100])],
    ));
    // A norm is one kernel, however long its rows are.
    assert_eq!(kernel.matches("__global__").count(), 1, "{kernel}");
    assert!(kernel.contains("c < 64 * 96 * 100; c += 256"), "{kernel}");
}

#[test]
fn what_is_normalised_lies_in_memory() {
    let shape: &[u64] = &[128, 1024];
    let groups = json!({ "num_groups": 4 });
    let (kernel, _) = regular(&chain(
        &[shape],
        &[
            ("mish", &[0], json!({}), shape),
            ("group_norm", &[1], groups, shape),
        ],
    ));
    assert_eq!(kernel.matches("__global__").count(), 2, "{kernel}");
    assert_eq!(kernel.matches("tanh(").count(), 1, "{kernel}");
    assert!(kernel.contains("void mish_kernel("), "{kernel}");
    assert!(kernel.contains("void group_norm_kernel("), "{kernel}");
    // Of one element there is nothing to reduce.
    let along = |dims: &[u64]| json!({ "dim": dims, "keepdim": true });
    let few: &[u64] = &[8, 16, 1, 1];
    let (kernel, _) = regular(&chain(
        &[&[8, 16, 30, 40]],
        &[
            ("mean", &[0], along(&[2, 3]), few),
            ("mean", &[1], along(&[2, 3]), few),
        ],
    ));
    assert_eq!(kernel.matches("block_sum").count(), 1, "{kernel}");
}
