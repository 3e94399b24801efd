#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#include "../binding_registry.h"

extern "C" void axpby_relu_launcher(float* out, const float* x, const float* y, int64_t count, float alpha, float beta);

static torch::Tensor axpby_relu(torch::Tensor x, torch::Tensor y, double alpha, double beta) {
    TORCH_CHECK(x.sizes() == y.sizes(), "x and y must have the same shape");
    TORCH_CHECK(x.is_contiguous() && y.is_contiguous(), "x and y must be contiguous");
    TORCH_CHECK(x.scalar_type() == torch::kFloat32 && y.scalar_type() == torch::kFloat32, "x and y must be float32");
    auto out = torch::empty_like(x);
    axpby_relu_launcher(out.data_ptr<float>(), x.data_ptr<float>(), y.data_ptr<float>(), x.numel(),
                        static_cast<float>(alpha), static_cast<float>(beta));
    return out;
}

static void register_axpby(pybind11::module& m) {
    m.def("axpby_relu", &axpby_relu, pybind11::arg("x"), pybind11::arg("y"), pybind11::arg("alpha"),
          pybind11::arg("beta"));
}
REGISTER_BINDING(axpby, register_axpby);
