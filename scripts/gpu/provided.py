#!/usr/bin/env python3
"""The provided calls `warpsmith_gemm` and `warpsmith_conv` on this GPU: exact by the judge's own limits, and how fast.

    scripts/gpu/provided.py [--cases N] [--seed S] [--json FILE]

First N random products and N random convolutions (strides, padding, dilation, groups, transposed, one to three dimensions, odd
extents, bias, activation, every precision), and an eighth as many large ones, against float64 in PyTorch, each judged as the
judge would. Then fixed shapes, timed beside PyTorch eager in the same run. Needs nvcc and a PyTorch for CUDA; fails loudly
without a GPU. Exits 1 if a call is wrong.
"""

import argparse
import concurrent.futures
import ctypes
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROVIDED = ROOT / "crates" / "judge" / "provided"
sys.path.insert(0, str(ROOT / "crates" / "judge" / "harness"))
PRECISIONS = ("fp32", "tf32", "3xtf32")
SHIM = """
#include "warpsmith.h"
using Extents = std::array<int64_t, 3>;
extern "C" int gemm(float* out, const float* a, const float* b, const float* bias, const int64_t* v, cudaStream_t stream) {
    WarpsmithGemm gemm{v[0], v[1], v[2]};
    gemm.transpose_a = v[3], gemm.transpose_b = v[4], gemm.batch = v[5], gemm.share_a = v[6], gemm.share_b = v[7];
    gemm.activation = WarpsmithActivation(v[8]), gemm.precision = WarpsmithPrecision(v[9]);
    return warpsmith_gemm(out, a, b, bias, gemm, stream);
}
extern "C" int conv(float* out, const float* x, const float* weight, const float* bias, const int64_t* v, cudaStream_t stream) {
    const auto extents = [&](int from) { return Extents{v[from], v[from + 1], v[from + 2]}; };
    WarpsmithConv conv{v[0], v[1], v[2], extents(3), extents(6), extents(9), extents(12), extents(15), extents(18)};
    conv.groups = v[21], conv.transposed = v[22];
    conv.activation = WarpsmithActivation(v[23]), conv.precision = WarpsmithPrecision(v[24]);
    return warpsmith_conv(out, x, weight, bias, conv, stream);
}
"""


def die(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(3)


try:
    import torch
    import torch.nn.functional as F
except ImportError:
    die("there is no PyTorch in this Python")
if not torch.cuda.is_available():
    die("this machine has no GPU: nothing was checked")
import compare  # noqa: E402 - needs torch


def build(folder: Path) -> ctypes.CDLL:
    """As the judge builds them."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = shutil.which("nvcc") or str(Path(home, "bin", "nvcc"))
    if not Path(nvcc).exists():
        die("nvcc was not found: install the CUDA toolkit, or set CUDA_HOME")
    major, minor = torch.cuda.get_device_capability()
    arch = f"{major}{minor}{'a' if major >= 9 else ''}"
    brought = Path(torch.__file__).parents[1] / "nvidia"
    includes = [f"-I{path}" for path in brought.glob("*/include")]
    libraries = []
    for stem in ("libcublasLt", "libcudnn"):
        found = sorted(brought.glob(f"*/lib/{stem}.so*"), key=lambda path: len(path.name))
        libraries += ["-Xlinker", str(found[0])] if found else [f"-l{stem[3:]}"]
    (folder / "shim.cu").write_text(SHIM)
    flags = ["-O3", "-std=c++17", "--use_fast_math", f"-gencode=arch=compute_{arch},code=sm_{arch}", "-Xcompiler=-fPIC", f"-I{PROVIDED}", *includes]

    def compile_one(source: Path) -> str:
        made = folder / f"{source.stem}.o"
        subprocess.run([nvcc, "-c", *flags, "-Werror", "all-warnings", "-o", str(made), str(source)], check=True)
        return str(made)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        objects = list(pool.map(compile_one, [PROVIDED / "gemm.cu", PROVIDED / "conv.cu", folder / "shim.cu"]))
    library = folder / "provided.so"
    subprocess.run([nvcc, "-shared", "-cudart=shared", "-o", str(library), *objects, *libraries], check=True)
    return ctypes.CDLL(str(library))


def pointer(tensor: "torch.Tensor | None") -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def draw(*shape: int, kind: str, offset: int = 0) -> torch.Tensor:
    """With an `offset` it does not begin where vectors can."""
    count = 1
    for extent in shape:
        count *= extent
    flat = torch.empty(count + offset, device="cuda")
    flat = flat.normal_() if kind == "normal" else flat.uniform_() if kind == "positive" else flat.normal_().mul_(torch.rand_like(flat).mul(8).exp())
    return flat[offset:].view(shape)


class Gemm:
    def __init__(self, m, n, k, ta=False, tb=False, batch=1, share_a=False, share_b=False, bias=False, relu=False, kind="normal", offset=0):
        self.numbers = [m, n, k, ta, tb, batch, share_a, share_b, relu]
        self.name = f"gemm {batch} x {m} x {n} over {k}{' a^T' * ta}{' b^T' * tb}{' shared a' * share_a}{' shared b' * share_b}{' bias' * bias}{' relu' * relu} {kind}"
        self.a = draw(1 if share_a else batch, *((k, m) if ta else (m, k)), kind=kind, offset=offset)
        self.b = draw(1 if share_b else batch, *((n, k) if tb else (k, n)), kind=kind, offset=offset)
        self.bias = draw(n, kind=kind) if bias else None
        self.ta, self.tb, self.relu, self.batch, self.rows = ta, tb, relu, batch, min(m, max(1, (1 << 31) // max(1, k * n)))
        self.out = torch.empty(batch, m, n, device="cuda")
        self.call, self.data = "gemm", (self.a, self.b, self.bias)
        self.flops = 2 * batch * m * n * k

    def eager(self, a=None, b=None, bias=None):
        a, b = self.a if a is None else a, self.b if b is None else b
        bias = self.bias if bias is None else bias
        a, b = a.mT if self.ta else a, b.mT if self.tb else b
        if self.batch == 1 and bias is not None:
            out = F.linear(a[0], b[0].mT, bias)[None]
        else:
            out = torch.matmul(a, b)
            out = out if bias is None else out + bias
        return out.relu() if self.relu else out

    def exact(self):
        """Of so many rows as are cheap."""
        a = self.a[:, :, : self.rows] if self.ta else self.a[:, : self.rows]
        return self.eager(a.double(), self.b.double(), None if self.bias is None else self.bias.double())

    def part(self, out):
        return out[:, : self.rows]


class Conv:
    def __init__(self, batch, channels, filters, space, kernel, stride=1, padding=0, dilation=1, output_padding=0, groups=1, transposed=False,
                 bias=True, relu=False, kind="positive", offset=0, weights="normal"):  # fmt: skip
        dims = len(space)
        each = lambda value: (value,) * dims if isinstance(value, int) else tuple(value)
        kernel, self.stride, self.padding, self.dilation, self.output_padding = map(each, (kernel, stride, padding, dilation, output_padding))
        self.groups, self.transposed, self.relu, self.dims = groups, transposed, relu, dims
        self.x = draw(batch, channels, *space, kind=kind, offset=offset)
        self.weight = draw(*((channels, filters // groups) if transposed else (filters, channels // groups)), *kernel, kind=weights, offset=offset) * 0.1
        self.bias = draw(filters, kind="normal") if bias else None
        self.out = torch.empty_like(self.eager())
        self.name = (f"conv{'_transpose' * transposed}{dims}d {batch} x {channels} {list(space)} -> {filters}, kernel {list(kernel)} stride {list(self.stride)} "
                     f"padding {list(self.padding)} dilation {list(self.dilation)}{f' groups {groups}' if groups > 1 else ''}{' bias' * bias}{' relu' * relu} {kind}{' weights ' + weights if weights != 'normal' else ''}")  # fmt: skip
        fill = lambda values, with_: [*values, *[with_] * (3 - dims)]
        self.numbers = [batch, channels, filters, *fill(space, 0), *fill(kernel, 0), *fill(self.stride, 1), *fill(self.padding, 0), *fill(self.dilation, 1),
                        *fill(self.output_padding, 0), groups, transposed, relu]  # fmt: skip
        self.call, self.data = "conv", (self.x, self.weight, self.bias)
        taps = 1
        for extent in kernel:
            taps *= extent
        self.flops = 2 * taps * (self.x.numel() * filters if transposed else self.out.numel() * channels) // groups

    def eager(self, x=None, weight=None, bias=None):
        x, weight = self.x if x is None else x, self.weight if weight is None else weight
        bias = self.bias if bias is None else bias
        if self.transposed:
            out = getattr(F, f"conv_transpose{self.dims}d")(x, weight, bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        else:
            out = getattr(F, f"conv{self.dims}d")(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        return out.relu() if self.relu else out

    def exact(self):
        """Of the first images."""
        return self.eager(self.x[:2].double(), self.weight.double(), None if self.bias is None else self.bias.double())

    def part(self, out):
        return out[:2]


def allow_tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def runner(library, case, precision: str):
    numbers = (ctypes.c_int64 * 32)(*map(int, [*case.numbers, PRECISIONS.index(precision)]))
    function, data = getattr(library, case.call), [pointer(tensor) for tensor in case.data]

    def run() -> int:
        return function(pointer(case.out), *data, numbers, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

    return run


def judged(library, case) -> dict[str, dict]:
    """For each precision: the call's status, its error in units of eager's own, and what the judge would say."""
    exact = case.exact()
    scale = compare.scale_of(exact)
    measure = lambda out: compare.errors_of(case.part(out).contiguous(), exact, scale)
    allow_tf32(True)
    eager_tf32 = measure(case.eager())
    allow_tf32(False)
    eager = measure(case.eager())
    strict = compare.fp32_limits(torch.float32, eager, eager_tf32, scale.relative_spread)
    found = {"eager": {"rms": eager.rms, "tf32_rms": eager_tf32.rms}}
    for precision in PRECISIONS:
        case.out.fill_(float("nan"))
        status = runner(library, case, precision)()
        torch.cuda.synchronize()
        errors = measure(case.out)
        # What PyTorch computes without TF32 in its own class anyway (a convolution in groups, say) may be TF32 here.
        limits = compare.tf32_limits(strict, compare.Errors(max(eager_tf32.rms, 2**-11), max(eager_tf32.peak, 2**-8))) if precision == "tf32" else strict
        found[precision] = {"status": status, "rms": errors.rms, "peak": errors.peak, "good": status == 0 and limits.admit(errors), "limit": limits.rms}
    return found


def random_gemm(dice: random.Random) -> Gemm:
    extent = lambda: dice.choice([1, 2, 3, 5, 8, 31, 64, 100, 127, 256, dice.randint(1, 700)])
    k = dice.choice([1, 3, 4, 7, 64, 333, 512, 513, 777, 1024, 4096, dice.randint(1, 3000)])
    flip = lambda: dice.random() < 0.5
    batch = dice.choice([1, 1, 2, 3, 17])
    share = dice.choice([None, None, "a", "b"]) if batch > 1 else None
    return Gemm(extent(), extent(), k, flip(), flip(), batch, share == "a", share == "b", flip(), flip(), dice.choice(["normal", "positive", "wide"]), dice.choice([0, 0, 0, 1, 2]))


def large_gemm(dice: random.Random) -> Gemm:
    """For which operands in two parts pay."""
    flip = lambda: dice.random() < 0.5
    batch = dice.choice([1, 1, 3])
    return Gemm(dice.randint(1500, 4000), 4 * dice.randint(500, 1000), dice.randint(200, 2500), flip(), flip(), batch, False, batch > 1 and flip(), flip(), flip(),
                dice.choice(["normal", "positive", "wide"]), dice.choice([0, 0, 1]))  # fmt: skip


def random_conv(dice: random.Random) -> Conv:
    dims = dice.choice([1, 2, 2, 3])
    groups = dice.choice([1, 1, 1, 2, 4])
    depthwise = dice.random() < 0.1
    channels = groups * dice.choice([1, 2, 3, 5, 8, 16, 33])
    filters = groups * dice.choice([1, 2, 3, 7, 8, 16, 40])
    if depthwise:
        groups = filters = channels
    many = lambda low, high: tuple(dice.randint(low, high) for _ in range(dims))
    kernel, stride, dilation = many(1, 5), many(1, 3), many(1, 2)
    padding = tuple(dice.randint(0, extent // 2 + 1) for extent in kernel)
    least = [dilate * (extent - 1) + 1 for extent, dilate in zip(kernel, dilation)]
    space = tuple(extent + dice.randint(0, {1: 300, 2: 40, 3: 12}[dims]) for extent in least)
    transposed = dice.random() < 0.4
    output_padding = tuple(dice.randint(0, one - 1) for one in stride) if transposed else 0
    if transposed and any((a - 1) * s - 2 * p + l + o < 1 for a, s, p, l, o in zip(space, stride, padding, least, output_padding)):
        padding = 0
    flip = lambda: dice.random() < 0.5
    return Conv(dice.choice([1, 2, 5]), channels, filters, space, kernel, stride, padding, dilation, output_padding, groups, transposed, flip(), flip(),
                dice.choice(["normal", "positive"]), dice.choice([0, 0, 0, 1]), dice.choice(["normal", "normal", "positive"]))  # fmt: skip


def large_conv(dice: random.Random) -> Conv:
    """The same."""
    dims = dice.choice([2, 2, 3])
    many = lambda low, high: tuple(dice.randint(low, high) for _ in range(dims))
    transposed, flip = dice.random() < 0.5, lambda: dice.random() < 0.5
    stride = many(1, 2)
    space = many(50, 90) if dims == 2 else many(10, 22)
    return Conv(dice.randint(9, 24), dice.randint(30, 150), dice.randint(60, 200), space, many(2, 4), stride, many(0, 1), many(1, 2), transposed=transposed,
                bias=flip(), relu=flip(), kind=dice.choice(["normal", "positive"]), offset=dice.choice([0, 0, 1]), weights=dice.choice(["normal", "normal", "positive"]))  # fmt: skip


def microseconds(function, times: int = 9) -> float:
    for _ in range(2):
        function()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    marks[0].record()
    for mark in marks[1:]:
        function()
        mark.record()
    torch.cuda.synchronize()
    return 1e3 * statistics.median(first.elapsed_time(second) for first, second in zip(marks, marks[1:]))


FIXED = [
    lambda: Gemm(512, 512, 512), lambda: Gemm(1024, 1024, 1024), lambda: Gemm(1536, 1536, 1536), lambda: Gemm(2048, 2048, 2048), lambda: Gemm(4096, 4096, 4096),
    lambda: Gemm(4096, 4096, 4096, kind="positive"), lambda: Gemm(1024, 8192, 8192, tb=True, bias=True, relu=True, kind="positive"),
    lambda: Gemm(128, 16384, 16384, tb=True, bias=True), lambda: Gemm(1024, 1024, 8192, tb=True, bias=True), lambda: Gemm(256, 256, 131072, kind="positive"),
    lambda: Gemm(2048, 4096, 8192, ta=True), lambda: Gemm(32768, 64, 4096), lambda: Gemm(16384, 32, 16384), lambda: Gemm(32768, 32768, 64), lambda: Gemm(16384, 16384, 256),
    lambda: Gemm(512, 1024, 2048, batch=128), lambda: Gemm(1024, 64, 1024, batch=128), lambda: Gemm(1024, 1024, 64, batch=128, tb=True), lambda: Gemm(999, 1111, 2222, tb=True, bias=True),
    lambda: Gemm(128, 768, 3072, tb=True, bias=True, relu=True),
    lambda: Conv(16, 64, 128, (256, 256), 3, padding=1), lambda: Conv(8, 256, 256, (64, 64), 3, padding=1, relu=True), lambda: Conv(64, 128, 128, (56, 56), 1), lambda: Conv(16, 64, 128, (128, 128), 3, weights="positive"),
    lambda: Conv(16, 64, 128, (64, 64), 3, stride=2, transposed=True, weights="positive"), lambda: Conv(8, 64, 128, (16, 32, 32), 3, weights="positive"),
    lambda: Conv(128, 64, 128, (128, 128), 3), lambda: Conv(128, 8, 64, (256, 256), 3, relu=True), lambda: Conv(32, 3, 64, (224, 224), 7, stride=2, padding=3),
    lambda: Conv(64, 512, 512, (14, 14), 3, padding=1), lambda: Conv(16, 256, 512, (32, 32), 5, padding=2), lambda: Conv(16, 96, 192, (57, 61), (3, 5), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
    lambda: Conv(16, 64, 64, (64, 64), 3, padding=1, groups=4), lambda: Conv(16, 128, 128, (256, 256), 3, padding=1, groups=128),
    lambda: Conv(8, 24, 32, (131072,), 3, padding=1), lambda: Conv(32, 64, 128, (65536,), 9, stride=2), lambda: Conv(16, 3, 16, (16, 64, 64), 3), lambda: Conv(16, 32, 64, (16, 64, 64), 3, padding=1),
    lambda: Conv(8, 32, 64, (64, 64, 64), (3, 5, 7)), lambda: Conv(16, 64, 128, (128, 128), 4, stride=2, padding=1, transposed=True),
    lambda: Conv(16, 64, 64, (128, 128), 3, padding=1, transposed=True), lambda: Conv(16, 32, 64, (16, 32, 32), 3, stride=2, padding=1, output_padding=1, transposed=True),
    lambda: Conv(8, 64, 128, (32768,), 5, stride=2, padding=2, output_padding=1, transposed=True), lambda: Conv(16, 32, 32, (24, 48, 48), 3, stride=2, padding=1, output_padding=1, groups=4, transposed=True),
]  # fmt: skip


def in_a_graph(library) -> bool:
    """A captured call reads what its tensors hold when it is replayed."""
    for case in (Gemm(256, 384, 1500, tb=True, bias=True, relu=True), Conv(4, 40, 24, (30, 34), 3, padding=1, relu=True)):
        for precision in PRECISIONS:
            run = runner(library, case, precision)
            run()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            case.data[0].mul_(-2.0)
            graph.replay()
            torch.cuda.synchronize()
            replayed = case.out.clone()
            run()
            if not torch.equal(replayed, case.out):
                return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=320)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        library = build(folder)
    finally:
        shutil.rmtree(folder)
    torch.manual_seed(arguments.seed)
    dice = random.Random(arguments.seed)
    wrong, total = 0, 0

    def check(case) -> dict[str, dict]:
        nonlocal wrong, total
        found = judged(library, case)
        for precision in PRECISIONS:
            total += 1
            if not found[precision]["good"]:
                wrong += 1
                print(f"WRONG {precision}: {case.name}: {found[precision]}, eager {found['eager']}", flush=True)
        return found

    for make, count in ((random_gemm, arguments.cases), (random_conv, arguments.cases), (large_gemm, arguments.cases // 8), (large_conv, arguments.cases // 8)):
        for _ in range(count):
            check(make(dice))
    if not in_a_graph(library):
        wrong += 1
        print("WRONG: a replayed graph differs from a call")
    print(f"{total} calls of random shapes, {wrong} wrong\n", flush=True)
    rows = []
    print("| call | eager | eager, TF32 | `FP32` | `3XTF32` | `TF32` | error of eager, `FP32`, `3XTF32` (eps) |\n|---|---|---|---|---|---|---|")
    for make in FIXED:
        case = make()
        found = check(case)
        allow_tf32(True)
        times = {"eager_tf32": microseconds(case.eager)}
        allow_tf32(False)
        times |= {"eager": microseconds(case.eager)} | {precision: microseconds(runner(library, case, precision)) for precision in PRECISIONS}
        eps = [found[one]["rms"] / torch.finfo(torch.float32).eps for one in ("eager", "fp32", "3xtf32")]
        print(f"| {case.name} | {times['eager']:.0f} | {times['eager_tf32']:.0f} | {times['fp32']:.0f} | {times['3xtf32']:.0f} | {times['tf32']:.0f} | {eps[0]:.2f}, {eps[1]:.2f}, {eps[2]:.2f} |", flush=True)
        rows.append({"name": case.name, "flops": case.flops, "us": times, "errors": found})
        del case
        torch.cuda.empty_cache()
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, microseconds; {total} calls, {wrong} wrong")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
