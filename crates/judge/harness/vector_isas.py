"""Lets `torch.compile` find the processor's vector instructions without an import of PyTorch for each of them.

PyTorch builds a small library for every instruction set and loads it in a new process that imports PyTorch first, in every
process that compiles: nine imports, half a minute on a slow core. The library itself needs only `libtorch_cpu`.
"""

from __future__ import annotations

import os

import torch
from torch._inductor.cpu_vec_isa import VecISA

LOAD = """
from ctypes import CDLL, RTLD_GLOBAL
CDLL({libtorch!r}, RTLD_GLOBAL)
CDLL("__lib_path__")
"""


def load_without_import() -> None:
    libtorch = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    # A PyTorch that does it in another way goes on doing so.
    if "import torch" in getattr(VecISA, "_avx_py_load", "") and os.path.exists(libtorch):
        VecISA._avx_py_load = LOAD.format(libtorch=libtorch)
