// The registry of the CUDA Agent workspace form: REGISTER_BINDING(name, fn) runs fn(module) when the module is made.
#pragma once
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <vector>

inline std::vector<std::function<void(pybind11::module&)>>& warpsmith_bindings() {
    static std::vector<std::function<void(pybind11::module&)>> registered;
    return registered;
}

struct WarpsmithBinding {
    explicit WarpsmithBinding(std::function<void(pybind11::module&)> bind) { warpsmith_bindings().push_back(std::move(bind)); }
};

#define REGISTER_BINDING(name, fn) static WarpsmithBinding warpsmith_binding_##name([](pybind11::module& m) { fn(m); })
