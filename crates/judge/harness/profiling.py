"""Where the time goes, twice over.

Without arguments: a trusted process (PROTOCOL.md's framing) that measures the machine's roofline and profiles the reference.
Verbs: `hello`, `roofline {target}`, `reference {source, target, folder|null, compile}`.

With `--solution JOB OUT [--once]`: the driver that runs a candidate inside the sandbox. It reads the job folder, writes
`OUT/result.json`, and nothing it says is evidence: the candidate shares its process.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import math
import mmap
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # an isolated interpreter does not look beside its script

import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import flop_registry  # noqa: E402

import task  # noqa: E402
import values  # noqa: E402
from channel import Channel  # noqa: E402

PROTOCOL = 1
CALLS, LEAST_CALLS, BUDGET_SECONDS = 20, 3, 5.0
OPERATOR_RUNS = 5
SAVED_BYTES = 64 << 20  # a larger tensor is described by its range and drawn again in the sandbox
ALIGNMENT = 64
SEED = 20

# Operators that make or reinterpret memory without moving what is in it.
FREE_OPS = frozenset("empty empty_like empty_strided new_empty new_empty_strided detach alias lift_fresh _unsafe_view".split())
# Operators that read no more of their first argument than they return or have indices for.
GATHER_OPS = frozenset("embedding index_select gather index take _embedding_bag nll_loss_forward nll_loss2d_forward".split())
# Operators that overwrite their first argument without reading it.
OVERWRITING_OPS = frozenset("copy_ fill_ zero_".split())
COPYING_OPS = frozenset("clone _to_copy cat stack zeros ones full arange zeros_like ones_like full_like".split())
HALVES = (torch.float16, torch.bfloat16)


# ---- clocks and caches -----------------------------------------------------------------------------------------------


class Clock:
    """Times calls with cold caches: CUDA events on the GPU, the monotonic clock on the CPU."""

    def __init__(self, target: str) -> None:
        self.cuda = target == "cuda"
        size = 2 * cache_bytes(self.cuda)
        self._scratch = torch.zeros(size // 4, device=target)

    def flush(self) -> None:
        """Reads more than the caches hold. Reading leaves no dirty lines whose write-back the next call would pay for."""
        self._scratch.sum()

    def time(self, call: Callable[[], Any]) -> float:
        """Microseconds of one call. On CUDA the flush is still running while `call` is queued, which hides launching."""
        self.flush()
        if not self.cuda:
            started = time.perf_counter()
            call()
            return (time.perf_counter() - started) * 1e6
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3

    def series(self, prepare: Callable[[], list[Any]], call: Callable[..., Any]) -> list[float]:
        """Several calls, each on arguments from `prepare`; stops early when they are slow."""
        call(*prepare())
        call(*prepare())
        self.synchronize()
        taken, begun = [], time.monotonic()
        while len(taken) < CALLS and (len(taken) < LEAST_CALLS or time.monotonic() - begun < BUDGET_SECONDS):
            arguments = prepare()
            taken.append(self.time(lambda: call(*arguments)))
        return taken

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


def cache_bytes(cuda: bool) -> int:
    if cuda:
        found = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)
        return min(max(found, 16 << 20), 256 << 20)
    best = 0
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = entry.read_text().strip()
        scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        best = max(best, int(text.rstrip("KM") or 0) * scale)
    return min(max(best, 16 << 20), 128 << 20)


# ---- the machine -----------------------------------------------------------------------------------------------------


def measure_roofline(target: str) -> dict[str, Any]:
    """What plain PyTorch reaches here: the bandwidth of a stream and the rate of a large GEMM."""
    clock = Clock(target)
    with task.math_mode(tf32=False):
        return _roofline_cuda(clock) if clock.cuda else _roofline_cpu(clock)


def _best(clock: Clock, call: Callable[[], Any]) -> float:
    """Microseconds: the best of many, for a limit is what can be reached at all."""
    call()
    return min(clock.time(call) for _ in range(15))


def calm(samples: list[float]) -> float:
    """The lower quartile: other programs on the machine only ever make a call slower."""
    return sorted(samples)[len(samples) // 4]


def _gemm_gflops(clock: Clock, size: int, dtype: torch.dtype) -> float:
    left, right = (torch.randn(size, size, device="cuda" if clock.cuda else "cpu").to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    return 2e-3 * size**3 / _best(clock, lambda: torch.mm(left, right, out=out))


def _roofline_cpu(clock: Clock) -> dict[str, Any]:
    count = min(max(cache_bytes(False), 64 << 20), task.free_memory("cpu") // 16) // 4
    first, second, out = torch.rand(count), torch.rand(count), torch.zeros(count)
    triad = _best(clock, lambda: torch.add(first, second, alpha=3.0, out=out))
    return {
        "bandwidth_gbps": 12e-3 * count / triad,
        "fp32_gflops": _gemm_gflops(clock, 1024, torch.float32),
        "tf32_gflops": None,
        "half_gflops": None,
        "how": f"measured: triad over 3 x {4 * count >> 20} MiB and a 1024 fp32 GEMM, {torch.get_num_threads()} threads",
    }


def _roofline_cuda(clock: Clock) -> dict[str, Any]:
    count = min(1 << 30, torch.cuda.mem_get_info()[0] // 8) // 4
    source = torch.zeros(count, device="cuda")
    target = torch.empty_like(source)
    copy = _best(clock, lambda: target.copy_(source))
    del source, target
    torch.cuda.empty_cache()
    strict = _gemm_gflops(clock, 8192, torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = True
    relaxed = _gemm_gflops(clock, 8192, torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = False
    return {
        "bandwidth_gbps": 8e-3 * count / copy,
        "fp32_gflops": strict,
        "tf32_gflops": relaxed,
        "half_gflops": _gemm_gflops(clock, 8192, torch.bfloat16),
        "how": f"measured: device-to-device copy of {4 * count >> 20} MiB and 8192 GEMMs in fp32, tf32 and bf16",
    }


# ---- the reference ---------------------------------------------------------------------------------------------------


def touched_bytes(tensor: torch.Tensor) -> int:
    """Bytes behind a tensor's elements; a broadcast dimension is there once."""
    if tensor.layout != torch.strided:
        return 0
    sizes = [size for size, step in zip(tensor.shape, tensor.stride()) if step != 0 or size == 0]
    return tensor.element_size() * math.prod(sizes)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


class Counter(TorchDispatchMode):
    """Notes name, traffic, work and time of every operator that moves data.

    Work is PyTorch's own count for GEMMs, convolutions and attention, else one operation per element of the largest operand.
    On CUDA the caller has put the device to sleep first, so that the events around each operator bracket device time alone.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is ever compiled, and the guard's first use imports the compiler for seconds

    def __init__(self, cuda: bool) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self.read: dict[int, int] = {}  # storage: most bytes one operator read of it
        self._cuda = cuda

    def __torch_dispatch__(self, func: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        name = task.operator_name(func)
        marks = self._mark()
        result = func(*args, **kwargs)
        marks = (*marks, *self._mark())
        if func.is_view or name in FREE_OPS:
            return result
        given = values.tensors([list(args), list(kwargs.values())])
        made = values.tensors(result)
        gathers = name in GATHER_OPS
        written = sum(map(touched_bytes, made))
        overwritten = id(args[0]) if name in OVERWRITING_OPS else None
        traffic = written
        for index, tensor in enumerate(given):
            size = touched_bytes(tensor)
            if gathers and index == 0:
                size = min(size, max([written, *map(touched_bytes, given[1:])]))
            if id(tensor) != overwritten:
                self.read[_storage(tensor)] = max(self.read.get(_storage(tensor), 0), size)
                traffic += size
        count = flop_registry.get(func._overloadpacket)
        matrix = count is not None
        flops = count(*args, **kwargs, out_val=result) if matrix else max((t.numel() for t in [*given, *made]), default=0)
        if gathers or name in OVERWRITING_OPS or name in COPYING_OPS:
            flops = 0
        half = matrix and any(tensor.dtype in HALVES for tensor in made)
        self.rows.append({"name": f"aten::{name}", "marks": marks, "bytes": traffic, "flops": int(flops), "half": half})
        return result

    def _mark(self) -> tuple[Any, ...]:
        if not self._cuda:
            return (time.perf_counter(),)
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return (event,)

    def times(self) -> dict[str, float]:
        """Microseconds by operator name."""
        sums: dict[str, float] = {}
        for row in self.rows:
            start, end = row["marks"]
            taken = start.elapsed_time(end) * 1e3 if self._cuda else (end - start) * 1e6
            sums[row["name"]] = sums.get(row["name"], 0.0) + taken
        return sums


class Subject:
    """The reference with its inputs, ready to be called again and again."""

    def __init__(self, source: str, target: str) -> None:
        self.target = target
        made = task.execute(source)
        self.init = task.init_inputs(made)
        self.model = task.build(made, self.init, target, SEED)
        self.inputs = task.inputs(made, 0, target, SEED)
        self.mutates = False
        before = [tensor._version for tensor in values.tensors(self.inputs)]
        with task.blame("model_raised", "Model.forward"), task.math_mode(tf32=False):
            self.outputs = self.model(*self.inputs)
        if before != [tensor._version for tensor in values.tensors(self.inputs)]:
            self.mutates = True
            self.inputs = task.inputs(made, 0, target, SEED)

    def arguments(self) -> list[Any]:
        return values.tree_map(torch.clone, self.inputs) if self.mutates else self.inputs


def profile_reference(request: dict[str, Any]) -> dict[str, Any]:
    target = request["target"]
    subject = Subject(request["source"], target)
    clock = Clock(target)
    reply: dict[str, Any] = {"kernels": None, "compile_kernels": None, "compile_us": None, "compile_why": None}
    with task.blame("model_raised", "Model.forward"), task.math_mode(tf32=False):
        reply["times_us"] = clock.series(subject.arguments, subject.model)
        reply |= count_operators(subject, clock)
        if clock.cuda:
            reply["kernels"] = trace_kernels(lambda: subject.model(*subject.arguments()))
            if request["compile"]:
                reply |= compiled(subject, clock)
    if request["folder"] is not None:
        reply["job"] = save(subject, Path(request["folder"]))
    return reply


def count_operators(subject: Subject, clock: Clock) -> dict[str, Any]:
    runs: list[dict[str, float]] = []
    for _ in range(OPERATOR_RUNS + 1):
        arguments = subject.arguments()
        counter = Counter(clock.cuda)
        clock.flush()
        if clock.cuda:
            torch.cuda._sleep(20_000_000)  # some 10 ms in which the CPU queues every operator
        with counter:
            outputs = subject.model(*arguments)
        clock.synchronize()
        runs.append(counter.times())
    operators: dict[str, dict[str, Any]] = {}
    for row in counter.rows:
        entry = operators.setdefault(row["name"], {"name": row["name"], "calls": 0, "bytes": 0, "flops": 0})
        entry["calls"] += 1
        entry["bytes"] += row["bytes"]
        entry["flops"] += row["flops"]
    for name, entry in operators.items():
        entry["time_us"] = calm([run.get(name, 0.0) for run in runs[1:]])
    return {
        "operators": sorted(operators.values(), key=lambda entry: -entry["time_us"]),
        "half_flops": sum(row["flops"] for row in counter.rows if row["half"]),
        "min_bytes": least_bytes(arguments, subject.model, outputs, counter.read),
    }


def least_bytes(arguments: list[Any], model: torch.nn.Module, outputs: Any, read: dict[int, int]) -> int:
    """What any implementation moves: what is used of inputs and weights, once, and the outputs."""
    sources: dict[int, int] = {}
    for tensor in values.tensors([arguments, list(model.state_dict().values())]):
        storage = _storage(tensor)
        sources[storage] = min(tensor.untyped_storage().nbytes(), read.get(storage, 0))
    results = {_storage(tensor): touched_bytes(tensor) for tensor in values.tensors(outputs)}
    return sum(sources.values()) + sum(size for storage, size in results.items() if storage not in sources)


def compiled(subject: Subject, clock: Clock) -> dict[str, Any]:
    """What torch.compile makes of it: the kernels to beat."""
    try:
        importlib.import_module("vector_isas").load_without_import()  # seconds of import, for whoever compiles
        made = torch.compile(subject.model, dynamic=False)
        taken = clock.series(subject.arguments, made)
        kernels = trace_kernels(lambda: made(*subject.arguments()))
        return {"compile_kernels": kernels, "compile_us": calm(taken)}
    except Exception as error:  # it is not needed for anything else
        return {"compile_why": f"torch.compile failed: {str(error).strip()[:400]}"}


# ---- kernels by the profiler -----------------------------------------------------------------------------------------


def trace_kernels(call: Callable[[], Any], calls: int = CALLS) -> list[dict[str, Any]]:
    """Device time per call by kernel, with launch shape and resources, from the profiler's own trace."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    # As torch.profiler uses it; that module's own class imports the compiler first, which takes seconds and a home.
    with torch.autograd.profiler.profile(use_device="cuda", use_kineto=True) as profiler:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        events = json.loads(Path(path).read_text()).get("traceEvents", [])
    return summarise_trace(events, calls)


def summarise_trace(events: list[dict[str, Any]], calls: int) -> list[dict[str, Any]]:
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for event in events:
        if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        details = event.get("args", {})
        block, shared = details.get("block"), details.get("shared memory")
        row = rows.setdefault(
            (event.get("name"), str(block), shared),
            {
                "name": str(event.get("name")),
                "calls": 0,
                "time_us": 0.0,
                "threads": math.prod(block) if block else None,
                "blocks": math.prod(details["grid"]) if details.get("grid") else None,
                "registers": details.get("registers per thread"),
                "shared_bytes": shared,
            },
        )
        row["calls"] += 1 / calls
        row["time_us"] += float(event.get("dur", 0.0)) / calls
    return sorted(rows.values(), key=lambda row: -row["time_us"])


def trace_cpu(call: Callable[[], Any]) -> list[dict[str, Any]]:
    """Self time per call of launchers and operators."""
    with torch.autograd.profiler.profile(use_kineto=True) as profiler:
        for _ in range(CALLS):
            with torch.autograd.profiler.record_function("forward (own code)"):
                call()
    rows = [
        {"name": event.key, "calls": event.count / CALLS, "time_us": event.self_cpu_time_total / CALLS}
        for event in profiler.key_averages()
    ]
    return sorted(rows, key=lambda row: -row["time_us"])


# ---- the job folder --------------------------------------------------------------------------------------------------


def save(subject: Subject, folder: Path) -> dict[str, Any]:
    """Inputs and weights as plain bytes in `tensors.bin`, and where each lies; large ones only as a range."""
    with open(folder / "tensors.bin", "wb") as file:

        def place(tensor: torch.Tensor) -> dict[str, Any]:
            spec = values.describe(tensor, 0)
            spec["offset"] = None
            if tensor.nbytes <= SAVED_BYTES:
                kept = tensor.detach().cpu().contiguous()
                file.write(b"\0" * (-file.tell() % ALIGNMENT))
                spec["offset"] = file.tell()
                file.write(ctypes.string_at(kept.data_ptr(), kept.nbytes) if kept.nbytes else b"")
            else:
                low, high = torch.aminmax(tensor.detach().float() if tensor.is_floating_point() else tensor)
                spec["low"], spec["high"] = float(low), float(high)
            return spec

        parameters = {name for name, _ in subject.model.named_parameters(remove_duplicate=False)}
        state = [
            {"name": name, "parameter": name in parameters, "place": place(tensor)}
            for name, tensor in subject.model.state_dict().items()
        ]
        try:
            inputs = [values.encode(value, place) for value in subject.inputs]
            init = [values.encode(value, place) for value in subject.init]
        except values.ValueRefused as error:
            raise task.TaskError("unsupported_input", str(error)) from None
    return {"state": state, "inputs": inputs, "init": init, "mutates": subject.mutates}


def restore(spec: dict[str, Any], data: mmap.mmap | None, target: str) -> torch.Tensor:
    dtype = getattr(torch, spec["dtype"])
    made = torch.empty_strided(spec["shape"], spec["stride"], dtype=dtype, device=target)
    if made.numel() == 0:
        return made
    if spec["offset"] is not None:
        flat = torch.frombuffer(data, dtype=dtype, count=made.numel(), offset=spec["offset"])
        return made.copy_(flat.view(spec["shape"]))
    low, high = spec["low"], spec["high"]
    return made.uniform_(low, high) if dtype.is_floating_point else made.random_(int(low), int(high) + 1)


# ---- the solution, inside the sandbox --------------------------------------------------------------------------------


class TimedLaunchers:
    """Launchers of a plain-form solution, each under its own name in the profile."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Any:
        launch = getattr(self._kernels, name)

        def named(*arguments: Any) -> None:
            with torch.autograd.profiler.record_function(name):
                launch(*arguments)

        setattr(self, name, named)
        return named


def load_solution(job: dict[str, Any], folder: Path, data: mmap.mmap | None) -> Callable[[], Any]:
    """The candidate's module on its inputs, as a function of nothing."""
    import inline
    import worker

    target = job["target"]
    ctypes.CDLL(job["support"], mode=ctypes.RTLD_GLOBAL)  # `warpsmith_gemm`; the judge's traps are not armed here
    paths = [folder / f"{index}.so" for index in range(len(job["libraries"]))]
    fds = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
    worker.load_libraries(job, fds)
    if job["form"] == "plain" and target == "cpu":
        provided = sys.modules["warpsmith_kernels"]
        provided.kernels = TimedLaunchers(provided.kernels)
    if job["form"] == "inline":
        inline.install(inline.prebuilt(job["libraries"]))
    made = worker.execute((folder / "model_new.py").read_text(), "model_new.py", "model_new")
    init = [values.decode(value, lambda spec: restore(spec, data, "cpu")) for value in job["init"]]
    module = made.ModelNew(*init).to(target).eval()
    state = {}
    for entry in job["state"]:
        tensor = restore(entry["place"], data, target)
        state[entry["name"]] = torch.nn.Parameter(tensor, requires_grad=False) if entry["parameter"] else tensor
    worker.load_state(module, state)
    inputs = [values.decode(value, lambda spec: restore(spec, data, target)) for value in job["inputs"]]

    def call() -> Any:
        return module(*(values.tree_map(torch.clone, inputs) if job["mutates"] else inputs))

    return call


def run_solution(job: dict[str, Any], folder: Path, once: bool) -> dict[str, Any]:
    if job["mode"] == "extract":
        import inline

        init = [values.decode(value, lambda spec: restore(spec, None, "cpu")) for value in job["init"]]
        return {"extensions": inline.extract((folder / "model_new.py").read_text(), "model_new.py", init)}
    torch.set_num_threads(job["threads"])
    target = job["target"]
    with open(folder / "tensors.bin", "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else None
    with torch.no_grad():
        call = load_solution(job, folder, data)
        if once:
            call()
            return run_once(call, target)
        clock = Clock(target)
        taken = clock.series(list, call)
        kernels = trace_kernels(call) if clock.cuda else trace_cpu(call)
    return {"times_us": taken, "kernels": kernels}


def run_once(call: Callable[[], Any], target: str) -> dict[str, Any]:
    """One call between the marks that `ncu --profile-from-start off` waits for."""
    if target != "cuda":
        call()
        return {}
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
    return {}


def drive(arguments: list[str]) -> None:
    folder, out = Path(arguments[0]), Path(arguments[1])
    try:
        job = json.loads((folder / "job.json").read_text())
        result = run_solution(job, folder, "--once" in arguments)
    except BaseException as error:  # everything the module can raise, SystemExit included, is its own fault
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        result = {"error": text[-4000:]}
    (out / "result.json").write_text(json.dumps(result))
    if "error" in result:
        os._exit(1)


# ---- the loop of the trusted process ---------------------------------------------------------------------------------


def hello() -> dict[str, Any]:
    return {"protocol": PROTOCOL, "torch": torch.__version__, "threads": torch.get_num_threads()}


def handle(request: dict[str, Any]) -> dict[str, Any]:
    verb = request["verb"]
    if verb == "hello":
        return hello()
    if verb == "roofline":
        return measure_roofline(request["target"])
    if verb == "reference":
        return profile_reference(request)
    raise ValueError(f"unknown verb `{verb}`")


def reply_to(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": handle(request)}
    except task.TaskError as error:
        return {"error": {"kind": "task", "code": error.code, "message": str(error)}}
    except Exception as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return {"error": {"kind": "harness", "code": "profiling", "message": text[-4000:]}}


def serve() -> None:
    channel = Channel(3)
    with contextlib.suppress(EOFError):
        while True:
            request, fds = channel.recv()
            for fd in fds:
                os.close(fd)
            channel.send({**reply_to(request), "id": request.get("id")})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--solution"]:
        drive(sys.argv[2:])
    else:
        serve()
