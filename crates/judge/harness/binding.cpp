#include "binding_registry.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    for (auto& bind : warpsmith_bindings()) bind(module);
}
