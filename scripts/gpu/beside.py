#!/usr/bin/env python3
"""The teacher's tuned solutions beside `torch.compile`, call by call with CUDA events: what kernels take without a judge.

    cargo run --release -p warpsmith-compiler --example solutions -- TASKS cuda FOLDER
    scripts/gpu/beside.py FOLDER [--seconds N] [--only WORD,WORD]

Proves nothing about a solution (the judge does that); tells what a judgement's times should come to, for many tasks a minute.
Solutions that call a library of NVIDIA's are left out and counted; what fails is told, and the others go on.
"""

import argparse
import ctypes
import importlib.util
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

JUDGE = Path(__file__).resolve().parents[2] / "crates" / "judge"
COMPILERS = 7  # processes that compile references ahead
ROUNDS, WARM = 14, 3
FASTER = 1 / 0.95


def load(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reference(torch: types.ModuleType, task: Path) -> tuple[types.ModuleType, object, list[object]]:
    module = load(task / "model.py")
    torch.manual_seed(0)
    model = module.Model(*module.get_init_inputs()).cuda().eval()
    return module, model, [one.cuda() if torch.is_tensor(one) else one for one in module.get_inputs()]


def compile_ahead(tasks: list[Path], until: float) -> None:
    """Leaves what `torch.compile` makes of each in the cache that all processes share."""
    import torch

    torch.set_default_device("cuda")
    for task in tasks:
        if time.time() > until:
            return
        try:
            _, model, inputs = reference(torch, task)
            with torch.no_grad():
                torch.compile(model, dynamic=False)(*inputs)
            del model, inputs
        except Exception:  # told where it is measured
            continue
        finally:
            torch._dynamo.reset()
            torch.cuda.empty_cache()


def build(nvcc: str, task: Path, library: Path) -> None:
    flags = ["-O3", "-std=c++17", "-arch=native", "-Xcompiler=-fPIC", "--use_fast_math", "-shared", "-cudart=shared", f"-I{JUDGE / 'provided'}"]
    subprocess.run([nvcc, *flags, "-o", library, *(task / "tuned" / "kernels").glob("*.cu")])


def medians(torch: types.ModuleType, functions: list[object], inputs: list[object]) -> list[float]:
    """Microseconds, in turns; each call follows one of its own kind."""
    times: list[list[float]] = [[] for _ in functions]
    for turn in range(ROUNDS):
        for function, kept in zip(functions, times):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            function(*inputs)
            begin.record()
            function(*inputs)
            end.record()
            torch.cuda.synchronize()
            if turn >= WARM:
                kept.append(1e3 * begin.elapsed_time(end))
    return [statistics.median(kept) for kept in times]


def measure(torch: types.ModuleType, task: Path, source: str, library: Path) -> tuple[float, float, float]:
    """Gigabytes of inputs and outputs, microseconds of the teacher's and of `torch.compile`."""
    import kernels_module

    module, model, inputs = reference(torch, task)
    with_status = frozenset(re.findall(r'extern "C" int (\w+)', source))  # a launch that fails would look quick
    sys.modules["warpsmith_kernels"] = kernels_module.module(ctypes.CDLL(str(library)), True, with_status)
    new = load(task / "tuned" / "model_new.py").ModelNew(*module.get_init_inputs()).cuda().eval()
    new.load_state_dict(model.state_dict())
    with torch.no_grad():
        compiled = torch.compile(model, dynamic=False)
        given = new(*inputs)
        outputs = [given] if torch.is_tensor(given) else list(given)
        size = sum(one.nbytes for one in [*inputs, *outputs] if torch.is_tensor(one))
        del given, outputs
        ours, theirs = medians(torch, [new, compiled], inputs)
    return size / 1e9, ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--only", default="")
    parser.add_argument("--ahead", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    until = time.time() + arguments.seconds
    words = [word for word in arguments.only.split(",") if word]
    found = sorted(path.parent for path in arguments.folder.glob("*/tuned") if not words or any(word in path.parent.name for word in words))
    if not found:
        sys.exit(f"error: no solutions of the teacher's are in {arguments.folder}")
    sources = {task: "".join(one.read_text() for one in (task / "tuned" / "kernels").iterdir()) for task in found}
    tasks = [task for task in found if not re.search("warpsmith_(gemm|conv)", sources[task])]
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / "warpsmith-beside"))
    if arguments.ahead is not None:
        return compile_ahead(tasks[arguments.ahead :: COMPILERS], until)

    import torch

    if not torch.cuda.is_available():
        sys.exit("error: this machine has no GPU: nothing was measured")
    sys.path.insert(0, str(JUDGE / "harness"))
    nvcc = os.environ.get("NVCC", "/usr/local/cuda/bin/nvcc")
    again = [sys.executable, __file__, str(arguments.folder), "--only", arguments.only, "--seconds", str(arguments.seconds / 2)]
    ahead = [subprocess.Popen([*again, "--ahead", str(part)]) for part in range(COMPILERS)]
    torch.set_default_device("cuda")
    gains, failed = [], 0
    with tempfile.TemporaryDirectory() as work:
        libraries = {task: Path(work) / f"{task.name}.so" for task in tasks}
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda task: build(nvcc, task, libraries[task]), tasks))
        for process in ahead:
            process.wait()
        print("| task | GB | ours, us | TB/s | `torch.compile`, us | TB/s | over |\n|---|---|---|---|---|---|---|")
        for task in tasks:
            if time.time() > until:
                break
            try:
                size, ours, theirs = measure(torch, task, sources[task], libraries[task])
            except Exception as error:
                failed += 1
                print(f"| {task.name} | failed: {' '.join(str(error).split())[:160]} |", flush=True)
                continue
            finally:
                torch._dynamo.reset()
                torch.cuda.empty_cache()
            gains.append(theirs / ours)
            told = f"{size:.2f} | {ours:.0f} | {1e3 * size / ours:.2f} | {theirs:.0f} | {1e3 * size / theirs:.2f} | {theirs / ours:.2f}x"
            print(f"| {task.name} | {told} |", flush=True)
    mean = math.exp(statistics.fmean(map(math.log, gains))) if gains else float("nan")
    faster = sum(gain >= FASTER for gain in gains)
    print(f"\n{faster} of {len(gains)} faster by 5 %, {mean:.2f}x in the geometric mean; {failed} failed, {len(found) - len(tasks)} that call a library left out")


if __name__ == "__main__":
    main()
