"""Small tasks and solutions, and one judge for all tests."""

from __future__ import annotations

import functools
import textwrap

import warpsmith

TASK = textwrap.dedent("""\
    import torch
    import torch.nn as nn


    class Model(nn.Module):
        def forward(self, x):
            return torch.relu(x) * 2.0


    def get_inputs():
        return [torch.randn(64, 128)]


    def get_init_inputs():
        return []
    """)
MODEL_NEW = textwrap.dedent("""\
    import torch
    import torch.nn as nn
    from warpsmith_kernels import kernels


    class ModelNew(nn.Module):
        def forward(self, x):
            out = torch.empty_like(x)
            kernels.twice_relu(out, x, x.numel())
            return out
    """)
KERNEL = textwrap.dedent("""\
    #include <cstdint>

    extern "C" int twice_relu(float* out, const float* x, int64_t n) {
        for (int64_t i = 0; i < n; ++i) out[i] = x[i] > 0.0f ? 2.0f * x[i] : 0.0f;
        return 0;
    }
    """)
FILES = {"model_new.py": MODEL_NEW, "kernels/twice_relu.cpp": KERNEL}
# A wrong one: the factor is missing.
WRONG = {**FILES, "kernels/twice_relu.cpp": KERNEL.replace("2.0f * x[i]", "x[i]")}


def reply(files: dict[str, str]) -> str:
    """What a language model says."""
    return "Fused.\n\n" + "\n\n".join(f"write {path}\n```\n{text}```" for path, text in files.items()) + "\n"


@functools.cache
def judge() -> warpsmith.Judge:
    """Compiles and verifies only: times mean nothing while tests run."""
    return warpsmith.Judge(target="cpu", profile="verify")
