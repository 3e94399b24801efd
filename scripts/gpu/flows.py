"""What `scripts/gpu/bench` sets beside our judge, in a few lines of our own.

public       the flow of the CUDA Agent workspace: compile with torch's extension builder, verify on five inputs, profile
             with torch.profiler (5 + 10 calls of eager, compiled and extension), each in a process of its own
kernelbench  load_inline, five checks and a hundred timings with CUDA events, in one fresh process
agreement    an honest kernel of at least a millisecond: CUDA events against the judge
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
AGENT = ROOT / "examples" / "cuda_agent_form"
INLINE = ROOT / "examples" / "inline_form"
MATMUL = ROOT / "examples" / "matmul_epilogue"
PROVIDED = ROOT / "crates" / "judge" / "provided"
HARNESS = ROOT / "crates" / "judge" / "harness"


def load(path: Path, name: str):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def pair(folder: Path, solution: Path):
    """The reference and the solution with the same weights, and a function that draws inputs."""
    import torch

    task, new = load(folder / "model.py", "model"), load(solution, "model_new")
    init = task.get_init_inputs()
    reference, candidate = task.Model(*init).cuda().eval(), new.ModelNew(*init).cuda().eval()
    candidate.load_state_dict(reference.state_dict())
    draw = lambda: [value.cuda() if isinstance(value, torch.Tensor) else value for value in task.get_inputs()]
    return reference, candidate, draw


def check(reference, candidate, draw) -> None:
    import torch

    with torch.no_grad():
        for _ in range(5):
            inputs = draw()
            assert torch.allclose(candidate(*inputs), reference(*inputs), atol=1e-2, rtol=1e-2)


# ---- steps, each in a process of its own ---------------------------------------------------------------------------------


def step_compile(build: Path) -> None:
    from torch.utils.cpp_extension import load as build_extension

    work = build / "work"
    shutil.copytree(AGENT / "kernels_cuda", work / "kernels")
    for name in ("binding.cpp", "binding_registry.h"):
        shutil.copy(HARNESS / name, work / name)
    sources = [work / "binding.cpp", *sorted((work / "kernels").iterdir())]
    build_extension(
        "cuda_extension", [str(source) for source in sources if source.suffix in (".cpp", ".cu")],
        build_directory=str(build), extra_cflags=["-O3"], extra_cuda_cflags=["-O3", "--use_fast_math"],
        extra_include_paths=[str(work)], is_python_module=False,
    )


def step_verify(build: Path) -> None:
    sys.path.insert(0, str(build))
    check(*pair(AGENT, AGENT / "model_new.py"))


def step_profile(build: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    sys.path.insert(0, str(build))
    reference, candidate, draw = pair(AGENT, AGENT / "model_new.py")
    inputs = draw()
    with torch.no_grad():
        for module in (reference, torch.compile(reference), candidate):
            for _ in range(5):
                module(*inputs)
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
                for _ in range(10):
                    module(*inputs)
                torch.cuda.synchronize()
            sum(getattr(event, "self_device_time_total", 0) for event in prof.key_averages())


def step_inline(_: Path) -> None:
    import torch

    reference, candidate, draw = pair(INLINE, INLINE / "solution_cuda.py")
    check(reference, candidate, draw)
    inputs = draw()
    with torch.no_grad():
        for module in (candidate, reference):
            for _ in range(3):
                module(*inputs)
            for _ in range(100):
                event_us(lambda: module(*inputs))


def event_us(call) -> float:
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return 1000 * begin.elapsed_time(end)


# ---- parts ---------------------------------------------------------------------------------------------------------------


def timed(step: str, build: Path) -> float:
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": str(build / "extensions"), "TORCH_CUDA_ARCH_LIST": arch(),
                                "TORCHINDUCTOR_CACHE_DIR": str(build / "inductor"), "TRITON_CACHE_DIR": str(build / "triton"),
                                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, __file__, f"step_{step}", str(build)], env=environment, capture_output=True, text=True)
    took = time.perf_counter() - begun
    if done.returncode != 0:
        raise SystemExit(f"the step {step} failed, so there is nothing to compare with:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    return took


def arch() -> str:
    answer = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    return answer.stdout.splitlines()[0].strip()


def public() -> None:
    with tempfile.TemporaryDirectory() as folder:
        took = {step: timed(step, Path(folder)) for step in ("compile", "verify", "profile")}
    parts = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in took.items())
    print("| flow | one iteration | parts |\n|---|---|---|")
    print(f"| public scripts' flow, CUDA Agent form (`cuda_agent_form`) | {sum(took.values()):.1f} s, {60 / sum(took.values()):.1f} /min | {parts} |")


def kernelbench() -> None:
    with tempfile.TemporaryDirectory() as folder:
        took = timed("inline", Path(folder))
    print("| flow | one evaluation | parts |\n|---|---|---|")
    print(f"| KernelBench style (`inline_form`) | {took:.1f} s, {60 / took:.1f} /min | load_inline, 5 checks, 100 event timings of each |")


def agreement(binary: str) -> None:
    import torch

    size = 4096
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "linear_relu_4096"
        shutil.copytree(MATMUL, work)
        source = (work / "model.py").read_text()
        assert "4096, 256, 1024" in source
        (work / "model.py").write_text(source.replace("4096, 256, 1024", f"{size}, {size}, {size}"))
        done = subprocess.run([binary, "judge", str(work), "--target", "cuda", "--no-compile", "--json", "-q"], capture_output=True, text=True)
        verdict = json.loads(done.stdout)
        if verdict.get("status") != "passed":
            raise SystemExit(f"the judge did not pass it: {done.stdout[-2000:]}")
        ours = verdict["times_us"]["candidate"]

        library = Path(folder) / "linear_relu.so"
        capability = arch().replace(".", "")
        nvcc = shutil.which("nvcc") or os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
        subprocess.run([nvcc, "-O3", "-std=c++17", f"-arch=sm_{capability}", "-shared", "-Xcompiler", "-fPIC", "-o", str(library),
                        f"-I{PROVIDED}", str(MATMUL / "kernels_cuda" / "linear_relu.cu"), str(PROVIDED / "gemm.cu"), "-lcublasLt"], check=True)
        launch = ctypes.CDLL(str(library)).linear_relu
        weight, bias = torch.randn(size, size, device="cuda") / 64, torch.randn(size, device="cuda")
        inputs = [torch.randn(size, size, device="cuda") for _ in range(6)]
        outputs = [torch.empty_like(x) for x in inputs]

        def call(index: int) -> None:
            pointers = [ctypes.c_void_p(t.data_ptr()) for t in (outputs[index % 6], inputs[index % 6], weight, bias)]
            sizes = [ctypes.c_int64(size)] * 3
            assert launch(*pointers, *sizes, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)) == 0

        for index in range(20):
            call(index)
        torch.cuda.synchronize()
        events = statistics.median(event_us(lambda: call(index)) for index in range(100))
    off = 100 * (ours / events - 1)
    print("| agreement with CUDA events | judge | events | difference | goal |\n|---|---|---|---|---|")
    reached = "reached" if abs(off) <= 2 else f"missed by {abs(off) - 2:.1f} points"
    print(f"| `matmul_epilogue` at {size}, strict fp32 | {ours:.1f} us | {events:.1f} us | {off:+.2f} % | within 2 %: {reached} |")


def main() -> None:
    what, argument = sys.argv[1:3]
    if what.startswith("step_"):
        globals()[what](Path(argument))
    elif what == "agreement":
        agreement(argument)
    else:
        {"public": public, "kernelbench": kernelbench}[what]()


if __name__ == "__main__":
    main()
