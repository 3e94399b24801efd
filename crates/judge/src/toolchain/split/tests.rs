use super::*;

fn pieces(text: &str) -> Option<[String; 2]> {
    let SplitSource { host, device, .. } = split(text)?;
    let own = |text: String| text.split_once("#line 1\n").map(|(_, own)| own.to_owned());
    Some([own(host)?, own(device)?])
}

#[test]
fn a_file_is_taken_apart_at_its_functions() {
    let [host, device] = pieces(include_str!("../forms/add.cu")).unwrap();
    assert_eq!(
        host,
        "
#include <cuda_runtime.h>

__attribute__((visibility(\"hidden\"))) void add_kernel(const float* a, const float* b, float* out, int size) ;






torch::Tensor add_cuda(torch::Tensor a, torch::Tensor b) {
    auto size = a.numel();
    auto out = torch::zeros_like(a);
    const int threads = 256;
    const int blocks = (size + threads - 1) / threads;
    (__cudaPushCallConfiguration(blocks, threads) ? (void)0 : add_kernel(a.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), size));
    return out;
}
"
    );
    let kernel = "
#include <cuda_runtime.h>

__global__ void add_kernel(const float* a, const float* b, float* out, int size) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size) {
        out[i] = a[i] + b[i];
    }
}
";
    assert_eq!(device.trim_end(), kernel.trim_end());
    assert_eq!(
        device.matches('\n').count(),
        include_str!("../forms/add.cu").matches('\n').count()
    );
}

#[test]
fn every_part_goes_where_it_is_used() {
    let [host, device] = pieces(include_str!("../forms/tiled_matmul.cu")).unwrap();
    let both = [
        "#define TILE 32",
        "kRows = TILE / 4",
        "struct Shape",
        "matmul_kernel(",
    ];
    let host_only = [
        "ATen/cuda",
        "also_unused",
        "blocks_of(int64_t n)",
        "cudaGetErrorString",
        "? (void)0 : matmul_kernel(",
    ];
    let device_only = [
        "scale[2]",
        "float load(",
        "__shared__",
        "#if __CUDA_ARCH__",
        "__launch_bounds__",
    ];
    let expected = both
        .map(|text| (text, true, true))
        .into_iter()
        .chain(host_only.map(|text| (text, true, false)))
        .chain(device_only.map(|text| (text, false, true)));
    for (text, in_host, in_device) in expected {
        assert_eq!(
            host.contains(text),
            in_host,
            "{text} in the host file\n{host}"
        );
        assert_eq!(
            device.contains(text),
            in_device,
            "{text} in the device file\n{device}"
        );
    }
    // Its stub has to be found from the other file.
    assert!(!device.contains("static __global__") && !host.contains("static  void"));
    assert_eq!(host.lines().count(), device.lines().count());
    let softmax = split(include_str!("../forms/softmax.cu")).unwrap();
    assert_eq!(
        softmax.templates,
        BTreeSet::from(["softmax_kernel".to_owned()])
    );
    assert!(
        softmax
            .host
            .contains("? (void)0 : softmax_kernel<scalar_t>("),
        "{}",
        softmax.host
    );
    assert!(
        softmax
            .host
            .contains("? (void)0 : softmax_kernel<float, 8>(")
    );
}

#[test]
fn what_could_mean_something_else_is_not_split() {
    let kernel = "__global__ void k(float* x) { *x = 1; }\n";
    assert!(split(kernel).is_some());
    let host = "void run(float* x) { k<<<1, 1>>>(x); }\n";
    assert!(split(&format!("{kernel}{host}")).is_some());
    for other in [
        // Blocks, and launches or kernels that a macro hides.
        "namespace a { __global__ void k() {} }",
        "extern \"C\" { void f(); }",
        "#define RUN(k) k<<<1, 1>>>()",
        "#define KERNEL __global__ void",
        // The whole may take the other branch.
        "#ifdef TORCH_VERSION\n#endif",
        "__global__ void k() {\n#ifdef TORCH_VERSION\n#endif\n}",
        "void f() {\n#ifdef __CUDACC__\n#endif\n}",
        // One name on both sides: a call might mean either.
        "double g(double); __device__ float h() { return g(1.0f); }",
        "__device__ float g(float); double h() { return g(1.0); }",
        // Not understood.
        "struct S { } f(int) { }",
        "const char* text = R\"(})\";",
        "bool operator==(int, int) { }",
        "void f() {",
        "void f() { k<<<1, 1>>>; }",
        "void f() { (*k)<<<1, 1>>>(x); }",
    ] {
        assert_eq!(split(&format!("{other}\n{kernel}")), None, "{other}");
    }
}
