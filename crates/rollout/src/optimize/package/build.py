"""Builds this package's kernels on first import, with the judge's own flags, and keeps them by content.

Needs g++, and nvcc for `.cu` files. Libraries lie in `$XDG_CACHE_HOME/warpsmith-packages` (`~/.cache` unless set).
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from . import _calls

HERE = Path(__file__).parent
# What the kernels call of `warpsmith.h`, if anything.
PROVIDED = HERE / "_provided"
GEMM = """
#include <cstdint>
extern "C" void sgemm_(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*,
                       const float*, const int*, const float*, float*, const int*);
extern "C" void warpsmith_gemm(int transa, int transb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
                               int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
    const char first = transb ? 'T' : 'N', second = transa ? 'T' : 'N';
    const int rows = int(n), columns = int(m), depth = int(k), sb = int(ldb), sa = int(lda), sc = int(ldc);
    sgemm_(&first, &second, &rows, &columns, &depth, &alpha, b, &sb, a, &sa, &beta, c, &sc);
}
"""


def kernels() -> dict[str, type]:
    """The modules by the folder they lie in: the package's own, and one for each further shape."""
    found = {}
    for folder in ["", *sorted(path.parent.name for path in HERE.glob("shape*/model_new.py"))]:
        with provided(HERE / folder):
            name = ".".join(filter(None, [__package__, folder, "model_new"]))
            found[folder] = importlib.import_module(name).ModelNew
    return found


@contextlib.contextmanager
def provided(folder: Path) -> Iterator[None]:
    """What `model_new` imports is there while it is imported, and belongs to this package alone."""
    sources = sorted(path for path in (folder / "kernels").rglob("*") if path.suffix in (".cpp", ".cc", ".cxx", ".cu"))
    name, made = None, None
    if sources and "cuda_extension" in (folder / "model_new.py").read_text():
        from torch.utils.cpp_extension import load

        name, made = "cuda_extension", load("cuda_extension", list(map(str, sources)), extra_cflags=["-O3"], extra_cuda_cflags=["-O3", "--use_fast_math"])
    elif sources:
        cuda = any(path.suffix == ".cu" for path in sources)
        library = ctypes.CDLL(str(_library(folder / "kernels", sources, cuda)))
        name, made = "warpsmith_kernels", _calls.module(library, cuda, _with_status(sources))
    before = sys.modules.get(name) if name else None
    try:
        if name:
            sys.modules[name] = made
        yield
    finally:
        if before is not None:
            sys.modules[name] = before
        elif name:
            sys.modules.pop(name, None)


def _with_status(sources: list[Path]) -> frozenset[str]:
    text = "\n".join(path.read_text() for path in sources)
    block = re.search(r'extern\s+"C"\s*\{', text)
    pattern = r"\bint\s+(\w+)\s*\(" if block else r'extern\s+"C"\s+int\s+(\w+)\s*\('
    return frozenset(re.findall(pattern, text))


def _library(kernels: Path, sources: list[Path], cuda: bool) -> Path:
    command = _command(cuda)
    content = hashlib.sha256("\0".join([*command, torch.__version__]).encode())
    for folder in (kernels, PROVIDED):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            content.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warpsmith-packages"
    kept = root / f"{content.hexdigest()[:32]}.so"
    if kept.exists():
        return kept
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        built, files = Path(folder, "kernels.so"), list(map(str, [*sources, *sorted(PROVIDED.glob("*.cu"))]))
        if not cuda and any("warpsmith_gemm" in path.read_text() for path in sources):
            shim = Path(folder, "gemm.cpp")
            shim.write_text(GEMM)
            files.append(str(shim))
        done = subprocess.run([*command, *files, "-o", str(built), *_libraries(cuda)], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"the kernels do not compile here:\n{done.stderr[-4000:]}")
        built.replace(kept)
    return kept


def _command(cuda: bool) -> list[str]:
    torch_lib = str(Path(torch.__file__).parent / "lib")
    if not cuda:
        compiler = shutil.which("g++") or shutil.which("c++")
        if compiler is None:
            raise RuntimeError("no C++ compiler was found: install g++")
        return [compiler, "-O3", "-std=c++17", "-fPIC", "-shared", "-fopenmp", "-w", "-march=native", f"-L{torch_lib}", f"-Wl,-rpath,{torch_lib}"]
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    compiler = shutil.which("nvcc") or str(Path(home, "bin", "nvcc"))
    if not Path(compiler).exists():
        raise RuntimeError("nvcc was not found: install the CUDA toolkit, or set CUDA_HOME")
    major, minor = torch.cuda.get_device_capability()
    arch = f"{major}{minor}{'a' if major >= 9 else ''}"
    return [compiler, "-O3", "-std=c++17", "--use_fast_math", "-shared", "-Xcompiler=-fPIC", f"-gencode=arch=compute_{arch},code=sm_{arch}", "-w", f"-I{PROVIDED}"]


def _libraries(cuda: bool) -> list[str]:
    if not cuda:
        return ["-ltorch_cpu"]
    brought = Path(torch.__file__).parent.parent / "nvidia"
    found = {}
    for stem in ("libcudart", "libcublas", "libcublasLt", "libcudnn"):
        files = sorted(brought.glob(f"*/lib/{stem}.so*"), key=lambda path: len(path.name))
        # nvcc takes no file whose name ends in a version.
        found |= {stem: ["-Xlinker", str(files[0])]} if files else {}
    runtime = ["-cudart=none", "-cudadevrt=none"] if "libcudart" in found else []
    return [*runtime, *sum(found.values(), []), *(f"-I{path}" for path in brought.glob("*/include"))]
