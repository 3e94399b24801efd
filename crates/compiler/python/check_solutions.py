"""Compares what `teach` wrote with the modules themselves, on the CPU, many a minute: no sandbox, no timing, no verdict.

    check_solutions.py FOLDER [--only plain,fused,tuned] [--limit N] [--seconds N]

Solutions for `cuda` run thread by thread (`emulated_cuda.h`), the provided calls by their definition (`emulated_calls.cc`).
A check for whoever changes the teacher; what counts is what the judge says. Exits 1 if one is wrong.
"""

import argparse
import concurrent.futures
import ctypes
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import torch

HERE = Path(__file__).resolve()
HARNESS = HERE.parents[2] / "judge" / "harness"
PROVIDED = HERE.parents[2] / "judge" / "provided"
HEADERS = ["warpsmith.h", "warpsmith_device.h"]
FLAGS = ["-O3", "-std=c++17", "-fPIC", "-fopenmp", "-march=native", "-shared"]
# Vectors are taken by their first number's address, which a compiler may not think of.
EMULATED = ["-O1", "-std=c++17", "-fPIC", "-shared", "-fno-strict-aliasing", "-w", f"-I{HERE.parent}"]
GEMM = r"""
#include <cstdint>
#include <vector>
extern "C" void warpsmith_gemm(int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                               const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
#pragma omp parallel for
    for (int64_t i = 0; i < m; ++i) {
        std::vector<double> sums(n);
        for (int64_t l = 0; l < k && !tb; ++l) {
            const double factor = ta ? a[l * lda + i] : a[i * lda + l];
            for (int64_t j = 0; j < n; ++j) sums[j] += factor * b[l * ldb + j];
        }
        for (int64_t j = 0; j < n && tb; ++j)
            for (int64_t l = 0; l < k; ++l) sums[j] += double(ta ? a[l * lda + i] : a[i * lda + l]) * b[j * ldb + l];
        for (int64_t j = 0; j < n; ++j) c[i * ldc + j] = alpha * float(sums[j]) + (beta == 0 ? 0 : beta * c[i * ldc + j]);
    }
}
"""


def load(name: str, path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def split(arguments: str) -> list[str]:
    """At the commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in arguments:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def emulated(code: str) -> str:
    """Launches become calls that go through all threads."""

    def launch(found: re.Match[str]) -> str:
        kernel, how, arguments = found.groups()
        grid, block, *_ = split(how)
        return f"emulated::launch({grid}, {block}, [&] {{ {kernel}({arguments}); }});"

    code = code.replace("#include <cuda_runtime.h>", '#include "emulated_cuda.h"')
    code = re.sub(r"#include <cuda_(bf|fp)16.h>", "", code)
    return re.sub(r"([\w:]+(?:<[\w, ]+>)?)<<<(.+?)>>>\((.*?)\);", launch, code, flags=re.DOTALL)


def build(folder: Path) -> str | None:
    """What the compiler says, if it is not content."""
    sources, flags = sorted((folder / "kernels").glob("*.cpp")), FLAGS
    for path in sorted((folder / "kernels").glob("*.cu")):
        sources.append(path.with_suffix(".emulated.cc"))
        flags = [*EMULATED, f"-I{folder}"]
        code = path.read_text()
        sources[-1].write_text(emulated(code))
        for header in HEADERS if '"warpsmith.h"' in code else []:
            (folder / header).write_text(emulated((PROVIDED / header).read_text()))
        if "warpsmith_gemm" in code or "warpsmith_conv" in code:
            sources.append(HERE.parent / "emulated_calls.cc")
    made = subprocess.run(["g++", *flags, "-o", str(folder / "kernels.so"), *map(str, sources)], capture_output=True, text=True)
    return None if made.returncode == 0 else made.stderr[:1500]


def error(candidate: torch.Tensor, exact: torch.Tensor) -> float:
    """The judge's measure, its peak."""
    if candidate.shape != exact.shape:
        return float("inf")
    if not exact.is_floating_point():
        return float((candidate != exact).float().mean())
    exact, candidate = exact.double(), candidate.double()
    finite = exact.isfinite()
    if not torch.equal(finite, candidate.isfinite()):
        return float("inf")
    exact, candidate = exact[finite], candidate[finite]
    if exact.numel() == 0:
        return 0.0
    return float(((candidate - exact).abs() / (exact.abs() + exact.abs().mean() + 1e-300)).max())


def compare(task: Path, strategy: str, kernels_module: types.ModuleType) -> tuple[float, float]:
    """The candidate's error and eager's, both against float64."""
    reference = load("model", task / "model.py")
    torch.manual_seed(1)
    model = reference.Model(*reference.get_init_inputs()).eval()
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.add_(0.1 * torch.randn_like(value)).abs_() if (value >= 0).all() else value.mul_(1.1)
    inputs = reference.get_inputs()
    library = ctypes.CDLL(str(task / strategy / "kernels.so"))
    sys.modules["warpsmith_kernels"] = kernels_module.module(library, False, frozenset())
    candidate = load("model_new", task / strategy / "model_new.py")
    made = candidate.ModelNew(*reference.get_init_inputs()).eval()
    made.load_state_dict(model.state_dict())
    with torch.no_grad():
        own = made(*[value.clone() if isinstance(value, torch.Tensor) else value for value in inputs])
        eager = model(*inputs)
        wide = [value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value for value in inputs]
        exact = model.double()(*wide)
    tuples = lambda value: value if isinstance(value, (tuple, list)) else (value,)
    worst = (0.0, 0.0)
    for one, plain, right in zip(tuples(own), tuples(eager), tuples(exact), strict=True):
        worst = max(worst, (error(one, right), error(plain, right)))
    return worst


def wrong_with(task: Path, strategy: str, kernels_module: types.ModuleType) -> str | None:
    wrong = build(task / strategy)
    if wrong is not None:
        return wrong
    try:
        own, eager = compare(task, strategy, kernels_module)
    except Exception as raised:  # noqa: BLE001 - whatever it is, it is the finding
        return f"{type(raised).__name__}: {raised}"
    return None if own <= max(8 * eager, 4e-6) else f"error {own:.2e}, eager {eager:.2e}"


def apart(task: Path, strategy: str, kernels_module: types.ModuleType, seconds: float) -> str | None:
    """In a process of its own: a solution that crashes or never ends costs itself alone."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(int(seconds))
            os.write(writes, json.dumps(wrong_with(task, strategy, kernels_module)).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(answer) if answer else f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "ended"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="plain,fused,tuned")
    parser.add_argument("--limit", type=int, default=1 << 30)
    parser.add_argument("--seconds", type=float, default=120, help="for one solution")
    arguments = parser.parse_args()
    kernels_module = load("kernels_module", HARNESS / "kernels_module.py")
    shim = arguments.folder / "gemm.so"
    (arguments.folder / "gemm.cpp").write_text(GEMM)
    subprocess.run(["g++", *FLAGS, "-o", str(shim), str(arguments.folder / "gemm.cpp")], check=True)
    ctypes.CDLL(str(shim), mode=ctypes.RTLD_GLOBAL)
    tasks = sorted(path for path in arguments.folder.iterdir() if path.is_dir())[: arguments.limit]
    jobs = [(task, strategy) for task in tasks for strategy in arguments.only.split(",") if (task / strategy).is_dir()]
    good, bad = 0, []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        checked = pool.map(lambda job: apart(*job, kernels_module, arguments.seconds), jobs)
        for (task, strategy), wrong in zip(jobs, checked):
            if wrong is None:
                good += 1
            else:
                bad.append((task.name, strategy, wrong))
                print(json.dumps({"task": task.name, "strategy": strategy, "wrong": wrong}), flush=True)
    print(f"{good} right, {len(bad)} wrong")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
