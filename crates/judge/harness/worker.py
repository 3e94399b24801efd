"""Runs modules on request: the candidate in a worker forked from the zygote, the reference in the baseline process.

In a worker nothing here is a defence: the candidate shares this process and can change every line of it. What the judge
believes is decided outside. The decoys below are traps of another kind: they make tricks that would find nothing here fail
loudly instead of passing unnoticed.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import os
import sys
import time
import traceback
import types
from dataclasses import dataclass, field
from typing import Any, Callable

import torch

import inline
import kernels_module
import triton_runtime
import gate
from channel import Channel
from regions import attach_cpu, attach_cuda, cudart
from values import ValueRefused, decode, encode

PROTOCOL = 1
NOT_THEIRS = (os.path.dirname(__file__) + os.sep, os.path.dirname(torch.__file__) + os.sep)
_synchronize = torch._C._cuda_synchronize if hasattr(torch._C, "_cuda_synchronize") else None
_load_state_dict = torch.nn.Module.load_state_dict


class CandidateError(Exception):
    """The module's own fault; `code` is the stage."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Support:
    """The native half, loaded before any fork."""

    native: ctypes.CDLL
    cuda_arena: ctypes.CDLL


@dataclass
class Setup:
    """What one `setup` request built."""

    target: str
    slots: list[torch.Tensor]
    weights: torch.Tensor | None
    arena: torch.Tensor
    confine: Callable[[int, int, int], None]
    kept_bytes: int  # of the arena, for what outlives a call
    gate: gate.Visitor | None = None
    window: tuple[int, int] = (0, 0)  # where outputs of the call at hand must lie
    modules: dict[str, Callable[..., Any]] = field(default_factory=dict)
    staged: dict[int, list[Any]] = field(default_factory=dict)
    prepared: dict[int, list[Any]] = field(default_factory=dict)
    inputs: list[Any] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    decoys: list[torch.Tensor] = field(default_factory=list)
    reference: torch.nn.Module | None = None
    state: list[dict[str, Any]] = field(default_factory=list)


# ---- memory ----------------------------------------------------------------------------------------------------------


def place(region: torch.Tensor, spec: dict[str, Any]) -> torch.Tensor:
    """A tensor over `region` (bytes) where `spec` says."""
    dtype = getattr(torch, spec["dtype"])
    flat = region[spec["offset"] :].view(-1)
    usable = flat.numel() - flat.numel() % dtype.itemsize
    return flat[:usable].view(dtype).as_strided(spec["shape"], spec["stride"])


def attach(request: dict[str, Any], fds: list[int], support: Support) -> Setup:
    regions = request["regions"]
    slot_bytes, count = regions["slot_bytes"], regions["slot_count"]
    if request["target"] == "cuda":
        handles = regions["handles"]
        use_cuda_arena(handles["arena"], regions["arena_bytes"], support.cuda_arena)
        slots = attach_cuda(handles["slots"], slot_bytes * count)
        weights = attach_cuda(handles["weights"], regions["weights_bytes"]) if handles["weights"] else None
        arena = attach_cuda(handles["arena"], regions["arena_bytes"])
    else:
        slots = attach_cpu(fds[0], slot_bytes * count, writable=False)
        weights = attach_cpu(fds[1], regions["weights_bytes"], writable=False) if regions["weights_bytes"] else None
        arena = attach_cpu(fds[2], regions["arena_bytes"], writable=True)
        support.native.warpsmith_use_arena(ctypes.c_void_p(arena.data_ptr()), ctypes.c_size_t(regions["arena_bytes"]))
    pieces = [slots[i * slot_bytes : (i + 1) * slot_bytes] for i in range(count)]
    native = support.cuda_arena if request["target"] == "cuda" else support.native
    native.warpsmith_confine.argtypes, native.warpsmith_confine.restype = [ctypes.c_size_t] * 3, None
    visitor = gate.visitor(fds[0]) if request["target"] == "cuda" and fds else None
    return Setup(request["target"], pieces, weights, arena, native.warpsmith_confine, regions["arena_bytes"], visitor)


def confine(setup: Setup, window: list[int] | None) -> None:
    """Whatever is made from here on lies in the window, which the judge overwrites before a call, and its last part waits for
    outputs that were put elsewhere. Without one, it lies where nothing is overwritten."""
    start, end, room = window or (0, setup.kept_bytes, setup.arena.numel())
    setup.window = (start, room)
    setup.confine(start, end, setup.kept_bytes)


def use_cuda_arena(handle: str, size: int, native: ctypes.CDLL) -> None:
    """Makes every CUDA tensor of this process come from the shared arena."""
    cudart()  # made visible to the allocator, which looks its functions up by name
    native.warpsmith_open_arena.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    if native.warpsmith_open_arena(bytes.fromhex(handle), size) != 0:
        raise RuntimeError("the arena could not be opened")
    take, give = (ctypes.cast(function, ctypes.c_void_p).value for function in (native.warpsmith_malloc, native.warpsmith_free))
    allocator = torch._C._cuda_customAllocator(take, give)
    torch._C._cuda_changeCurrentAllocator(allocator)


# ---- the module ------------------------------------------------------------------------------------------------------


def decoy_module() -> types.ModuleType:
    """A `model` that is not the reference: whoever builds or extends it has given itself away."""
    made = types.ModuleType("model")

    class Model(torch.nn.Module):
        def __init_subclass__(cls, **_: object) -> None:
            raise CandidateError("decoy", "the submission extends the reference class")

        def __init__(self, *_: object, **__: object) -> None:
            raise CandidateError("decoy", "the submission builds the reference class")

    made.Model = Model
    made.get_inputs = made.get_init_inputs = lambda: []
    return made


class Absent(importlib.abc.MetaPathFinder):
    """Names what is not to be had in a worker, instead of a puzzling ImportError later."""

    WHY = {
        "triton": "Triton is judged as a form of its own, on a GPU: hand in a model_new.py with @triton.jit kernels and no other sources",
        "tilelang": "TileLang is not supported: write Triton or CUDA C++",
        "cutlass": "CuTe DSL is not supported: write Triton or CUDA C++",
        "torch._dynamo": "torch.compile is not available to a submission: write kernels",
        "torch._inductor": "torch.compile is not available to a submission: write kernels",
        "numpy": "NumPy is not available to a submission: write kernels",
        "cupy": "CuPy is not available to a submission: write kernels in kernels/",
        "numba": "Numba is not available to a submission: write kernels in kernels/",
        "ctypes": "ctypes is not available to a submission: call your kernels through warpsmith_kernels or a binding",
        "_ctypes": "ctypes is not available to a submission: call your kernels through warpsmith_kernels or a binding",
        "cffi": "cffi is not available to a submission: call your kernels through warpsmith_kernels or a binding",
        "cuda": "CUDA Python and cuTile are not available to a submission: write CUDA C++ in kernels/, or Triton",
    }

    def __init__(self, but: str = "") -> None:
        self._but = but

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        for known, why in self.WHY.items():
            if known != self._but and (name == known or name.startswith(known + ".")):
                raise CandidateError("language", why)


def hide_what_is_absent(but: str = "") -> None:
    sys.modules["model"] = decoy_module()
    sys.meta_path.insert(0, Absent(but))
    for name in Absent.WHY:
        if name != but:
            sys.modules.pop(name, None)


def execute(source: str, file_name: str, name: str) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__file__ = file_name
    linecache.cache[file_name] = (len(source), None, source.splitlines(True), file_name)
    sys.modules[name] = made
    exec(compile(source, file_name, "exec"), made.__dict__)
    return made


def state_of(setup: Setup, specs: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    made = {}
    for spec in specs:
        tensor = place(setup.weights, {**spec, "stride": contiguous_strides(spec["shape"])})
        made[spec["name"]] = torch.nn.Parameter(tensor, requires_grad=False) if spec["kind"] == "parameter" else tensor
    return made


def contiguous_strides(shape: list[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


def load_state(module: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Strict, and assigned rather than copied: the judge rewrites these very bytes between calls."""
    wanted, present = set(state), set(module.state_dict())
    if wanted != present:
        missing, extra = sorted(wanted - present), sorted(present - wanted)
        raise CandidateError(
            "state_dict",
            "ModelNew must have the reference's parameters and buffers under the same names; "
            f"missing: {missing[:8]}, unexpected: {extra[:8]}",
        )
    try:
        _load_state_dict(module, state, strict=True, assign=True)
    except RuntimeError as error:
        raise CandidateError("state_dict", str(error)) from None


def load_libraries(request: dict[str, Any], fds: list[int]) -> None:
    """Makes the built libraries importable under the names their form promises."""
    cuda = request["target"] == "cuda"
    if request["form"] == "triton":
        return
    for library, fd in zip(request["libraries"], fds):
        path = f"/proc/self/fd/{fd}"
        if request["form"] == "plain":
            sys.modules["warpsmith_kernels"] = kernels_module.module(ctypes.CDLL(path), cuda, frozenset(library.get("with_status", ())))
            continue
        loader = importlib.machinery.ExtensionFileLoader(library["name"], path)
        spec = importlib.util.spec_from_file_location(library["name"], path, loader=loader)
        made = importlib.util.module_from_spec(spec)
        loader.exec_module(made)
        sys.modules[library["name"]] = made


def tune(setup: Setup, request: dict[str, Any]) -> dict[str, Any]:
    """Calls the module on a slot as a judged call would, so that every kernel is compiled and chosen."""
    arguments = setup.prepared[request["slot"]]
    with torch.no_grad():
        for _ in range(2):
            setup.modules["candidate"](*arguments)
            _synchronize()
    return {}


def build_candidate(setup: Setup, request: dict[str, Any]) -> None:
    hide_what_is_absent("triton" if request["form"] == "triton" else "")
    sys.argv = ["profiling"]  # bait for code that behaves better when it believes to be checked
    try:
        if request["form"] == "inline":
            inline.install(inline.prebuilt(request["libraries"]))
        made = execute(request["source"], request["file_name"], "model_new")
        module = made.ModelNew(*decode_arguments(request["init"]))
        if setup.target == "cuda":
            torch.nn.Module.to(module, "cuda")
        module = module.eval()
        if not isinstance(module, torch.nn.Module):
            raise CandidateError("type", "ModelNew is not a torch.nn.Module")
        load_state(module, state_of(setup, request["state"]))
    except SystemExit as error:
        raise CandidateError("load", f"the submission ended the process: {error!r}") from None
    setup.modules["candidate"] = module
    device = "cuda" if setup.target == "cuda" else "cpu"
    setup.decoys = [
        torch.full(tuple(spec["shape"]), 1, dtype=getattr(torch, spec["dtype"]), device=device) for spec in request["decoys"]
    ]


def decode_arguments(tree: list[Any]) -> list[Any]:
    def refuse(_: dict[str, Any]) -> torch.Tensor:
        raise CandidateError("init", "tensors as constructor arguments are not supported")

    return [decode(value, refuse) for value in tree]


def build_reference(setup: Setup, request: dict[str, Any]) -> None:
    made = execute(request["source"], "model.py", "model")
    module = made.Model(*decode_arguments(request["init"])).eval()
    if setup.target == "cuda":
        module = module.cuda()
    setup.reference, setup.state = module, request["state"]
    reload_weights(setup)
    setup.modules["eager"] = module


def reload_weights(setup: Setup) -> None:
    """Copies, so that the reference keeps its own memory layout (cuDNN packs recurrent weights, for one)."""
    if setup.weights is None or setup.reference is None:
        return
    fresh = state_of(setup, setup.state)
    with torch.no_grad():
        for name, tensor in setup.reference.state_dict(keep_vars=True).items():
            tensor.data.copy_(fresh[name])


def null_outputs(outputs: Any, copies: int, device: str) -> list[Any]:
    """What null modules hand over: as many as a burst is long, made once."""

    def make(spec: dict[str, Any]) -> torch.Tensor:
        return torch.empty(spec["shape"], dtype=getattr(torch, spec["dtype"]), device=device)

    return [decode(outputs, make) for _ in range(copies)]


def null_module(made: list[Any], device: str, touch: bool) -> torch.nn.Module:
    """Same arity and same results to hand over, nothing computed: what a call costs by itself.

    With `touch` it also launches the smallest kernel there is, because waking this process's context on the GPU is part
    of what any single call costs.
    """

    class Null(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.next = 0
            self.spot = torch.zeros(1, device=device)

        def forward(self, *_: object) -> Any:
            self.next = (self.next + 1) % len(made)
            if touch:
                self.spot.zero_()
            return made[self.next]

    return Null().eval()


def add_baselines(setup: Setup, request: dict[str, Any]) -> None:
    tf32 = request["tf32"]
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    device = "cuda" if setup.target == "cuda" else "cpu"
    made = null_outputs(request["outputs"], len(setup.slots), device)
    setup.modules["null"] = null_module(made, device, touch=False)
    setup.modules["null_single"] = null_module(made, device, touch=device == "cuda")
    if request["compile"]:
        torch._dynamo.reset()
        mode = request.get("mode") or "default"
        setup.modules["compile"] = torch.compile(setup.reference, mode=mode, dynamic=False)


# ---- calls -----------------------------------------------------------------------------------------------------------


def prepare(setup: Setup, inputs: list[Any], stage: bool) -> None:
    setup.inputs = inputs
    setup.prepared = {
        index: [decode(value, lambda spec, slot=slot: place(slot, spec)) for value in inputs]
        for index, slot in enumerate(setup.slots)
    }
    setup.staged = {}
    if stage:  # in-place references need inputs they may write to
        setup.staged = {index: clone_tree(made) for index, made in setup.prepared.items()}


def clone_tree(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(clone_tree(item) for item in value)
    if isinstance(value, dict):
        return {key: clone_tree(item) for key, item in value.items()}
    return value


def restage(setup: Setup, slots: list[int]) -> None:
    if setup.staged:
        for index in slots:
            setup.staged[index] = clone_tree(setup.prepared[index])
        if setup.target == "cuda":
            _synchronize()


# The judge picks a name for each call at random. Every call is checked and every call may be timed, so code that acts on
# these names only gives itself away. `expected` is bait too: no answer was ever in this process.
def timing_benchmark(module: Callable[..., Any], arguments: list[Any], expected: list[torch.Tensor]) -> Any:
    answer = expected[0] if expected else None
    result = module(*arguments)
    del answer
    return result


def verification_check(module: Callable[..., Any], arguments: list[Any], expected: list[torch.Tensor]) -> Any:
    answer = expected[0] if expected else None
    result = module(*arguments)
    del answer
    return result


LABELS = {"timing": timing_benchmark, "check": verification_check}


def call(setup: Setup, request: dict[str, Any]) -> dict[str, Any]:
    module = setup.modules[request["module"]]
    run = LABELS[request["label"]]
    arguments = setup.staged or setup.prepared
    confine(setup, request.get("window"))
    setup.kept.clear()  # the outputs of the call before: they have been read
    if request.get("gate"):
        return call_behind_gate(setup, lambda index: run(module, arguments[index], setup.decoys), request)
    results = []
    with torch.no_grad():
        for index in request["slots"]:
            results.append(run(module, arguments[index], setup.decoys))
        if setup.target == "cuda":
            _synchronize()
    setup.kept.extend(results)
    return {"outputs": told(setup, results)}


def call_behind_gate(setup: Setup, run: Callable[[int], Any], request: dict[str, Any]) -> dict[str, Any]:
    """Queues all that a call does on the device, and says where its outputs will lie, before the gate opens."""
    number, results = request["gate"], []
    with torch.no_grad():
        setup.gate.hold(number)
        try:
            results += [run(index) for index in request["slots"]]
        finally:
            setup.gate.passed(number)
        outputs = told(setup, results)
        setup.gate.tell(number, offsets_of(outputs))
        _synchronize()
    setup.kept.extend(results)
    return {"outputs": outputs}


def offsets_of(tree: Any) -> list[int]:
    """Where the tensors of a described value lie."""
    if isinstance(tree, dict) and "tensor" in tree:
        return [tree["tensor"]["offset"]]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [offset for part in parts for offset in offsets_of(part)]


def told(setup: Setup, results: list[Any]) -> list[Any]:
    """What each call returned. A tensor that differs from the first call's in nothing but its place is told by that alone:
    this runs on the clock, and a short kernel takes less than a description."""
    whole = [encode(result, lambda tensor: locate(setup, tensor)) for result in results[:1]]
    first = results[0] if results else None
    alike = type(first) is torch.Tensor and first.numel() > 0
    if alike:
        dtype, shape, stride, device, size = first.dtype, first.shape, first.stride(), first.device, extent(first)
        base, (start, end) = setup.arena.data_ptr(), setup.window
    for result in results[1:]:
        if alike and type(result) is torch.Tensor and result.layout == torch.strided and result.dtype == dtype:
            offset = result.data_ptr() - base
            same = result.shape == shape and result.stride() == stride and result.device == device
            if same and start <= offset and offset + size <= end:
                whole.append(offset)
                continue
        whole.append(encode(result, lambda tensor: locate(setup, tensor)))
    return whole


# Calls whose operators are counted, and calls before these, in which libraries are initialised.
COUNTED_CALLS, UNCOUNTED_CALLS = 3, 1


def operators(setup: Setup, request: dict[str, Any], native: ctypes.CDLL) -> dict[str, Any]:
    """What PyTorch computes in a call, as its guards count it, and how long the calls take."""
    module, arguments = setup.modules[request["module"]], (setup.staged or setup.prepared)[request["slot"]]
    confine(setup, None)
    setup.kept.clear()
    text = ctypes.create_string_buffer(1 << 16)
    with torch.no_grad():
        for number in range(UNCOUNTED_CALLS + COUNTED_CALLS):
            if number == UNCOUNTED_CALLS:
                native.warpsmith_operators(text, ctypes.c_int64(len(text) - 1))
                begun = time.perf_counter_ns()
            module(*arguments)
            if setup.target == "cuda":
                _synchronize()
    took = time.perf_counter_ns() - begun
    native.warpsmith_operators(text, ctypes.c_int64(len(text) - 1))
    counted = [line.split("\t") for line in text.value.decode().splitlines()]
    return {
        "operators": [
            {"name": name, "calls": int(calls) / COUNTED_CALLS, "share": min(int(spent) / took, 1.0)} for name, calls, spent in counted
        ]
    }


def locate(setup: Setup, tensor: torch.Tensor) -> dict[str, Any]:
    if tensor.device.type != setup.target or tensor.layout != torch.strided:
        raise ValueRefused(f"an output lies on {tensor.device} with layout {tensor.layout}")
    base, (start, end) = setup.arena.data_ptr(), setup.window
    offset = tensor.data_ptr() - base
    if tensor.numel() == 0:
        offset = 0
    elif not (start <= offset and offset + extent(tensor) <= end):
        setup.confine(start, end, setup.kept_bytes)
        tensor = torch.empty_like(tensor, memory_format=torch.contiguous_format).copy_(tensor)
        if setup.target == "cuda":
            _synchronize()
        setup.kept.append(tensor)
        offset = tensor.data_ptr() - base
    return {
        "dtype": str(tensor.dtype)[6:],
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "offset": offset,
    }


def extent(tensor: torch.Tensor) -> int:
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.element_size()


# ---- the loop --------------------------------------------------------------------------------------------------------


def describe(error: BaseException) -> str:
    """What went wrong, from where the submission's own lines begin: the way there through this harness helps nobody."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(NOT_THEIRS):
        trace = trace.tb_next
    if trace is None and not isinstance(error, SyntaxError):  # nothing of it is the submission's
        trace = error.__traceback__
    lines = traceback.format_exception(type(error), error, trace)
    return "".join(lines)[-4000:]


def handle(state: dict[str, Any], request: dict[str, Any], fds: list[int], support: Support) -> dict[str, Any]:
    verb = request["verb"]
    if verb == "extract":
        torch.set_num_threads(request["threads"])
        hide_what_is_absent()
        return {"extensions": inline.extract(request["source"], request["file_name"], decode_arguments(request["init"]))}
    if verb == "attach":
        torch.set_num_threads(request["threads"])
        state["spin"] = 0.05 if request["target"] == "cuda" else 0.0
        state["setup"] = attach(request, fds, support)
        for fd in fds:
            os.close(fd)
        return {"gate": state["setup"].gate is not None}
    setup = state["setup"]
    if verb == "watch":  # a reference, in a worker of its own
        state["flag"] = flag = attach_cpu(fds[0], 1, writable=False)
        support.native.warpsmith_watch(ctypes.c_void_p(flag.data_ptr()))
        for fd in fds:
            os.close(fd)
    elif verb == "candidate":
        setup.kept_bytes = request["kept_bytes"]
        confine(setup, None)
        state["flag"] = flag = attach_cpu(fds[0], 1, writable=False)
        support.native.warpsmith_watch(ctypes.c_void_p(flag.data_ptr()))
        load_libraries(request, fds[1:])
        if request["form"] == "triton":
            state["triton"] = triton_runtime.load(fds[1:], request["ptx_version"], state)
        for fd in fds:  # before any line of a submission's own runs
            os.close(fd)
        build_candidate(setup, request)
    elif verb == "reference":
        build_reference(setup, request)
    elif verb == "call":
        return call(setup, request)
    elif verb == "operators":
        return operators(setup, request, support.native)
    elif verb == "tune":
        return tune(setup, request)
    elif verb == "kernels":
        return {"files": state["triton"].packed()}
    elif verb == "release":
        setup.kept.clear()
    elif verb == "prepare":
        prepare(setup, request["inputs"], request["stage"])
    elif verb == "restage":
        restage(setup, request["slots"])
    elif verb == "modules":
        add_baselines(setup, request)
    elif verb == "drop":  # what a module holds lies in the arena, which the next one needs
        for name in request["modules"]:
            setup.modules.pop(name, None)
        gc.collect()  # a module's class and its methods refer to each other
    elif verb == "reload":
        reload_weights(setup)
    elif verb == "trapped":
        return {"operator": support.native.warpsmith_trapped().decode()}
    else:
        raise ValueError(f"unknown verb {verb}")
    return {}


def error_reply(error: BaseException, support: Support) -> dict[str, Any]:
    code, message = "raised", ""
    cause: BaseException | None = error
    while cause is not None:  # the submission may have wrapped ours in an exception of its own
        if isinstance(cause, CandidateError):
            code, message = cause.code, str(cause)
        elif isinstance(cause, ValueRefused):
            code, message = "output", str(cause)
        elif isinstance(cause, (triton_runtime.NotPrepared, triton_runtime.NotSupported)):
            code, message = "form", str(cause)
        elif triton_runtime.is_compile_error(cause):
            code = "compile"
        cause = cause.__cause__ or cause.__context__
    message = message or describe(error)
    operator = support.native.warpsmith_trapped().decode()
    return {"error": {"kind": "candidate", "code": "trapped" if operator else code, "message": message, "operator": operator}}


def serve(channel: Channel, support: Support) -> None:
    state: dict[str, Any] = {"channel": channel}
    while True:
        try:
            channel.spin_seconds = state.get("spin", 0.0)
            request, fds = channel.recv()
        except EOFError:
            return
        state["id"] = request.get("id")
        try:
            reply = {"ok": handle(state, request, fds, support)}
        except BaseException as error:  # everything the module can raise, SystemExit included, is its own fault
            reply = error_reply(error, support)
        channel.send({**reply, "id": state["id"]})


def load_support(native: str, cuda_arena: str, share: bool = False) -> Support:
    """With `share`, candidates' libraries find `warpsmith_gemm`."""
    loaded = ctypes.CDLL(native, mode=ctypes.RTLD_GLOBAL if share else ctypes.RTLD_LOCAL)
    loaded.warpsmith_trapped.restype = ctypes.c_char_p
    loaded.warpsmith_guard.restype = ctypes.c_int64
    return Support(loaded, ctypes.CDLL(cuda_arena))


def main() -> None:
    """The baseline process: the reference, by the same path as a candidate."""
    channel = Channel(3)
    support = load_support(sys.argv[1], sys.argv[2])
    if sys.argv[3] == "compiler":  # seconds of import, while others are still at work
        importlib.import_module("torch._inductor.compile_fx")
        importlib.import_module("vector_isas").load_without_import()
    request, _ = channel.recv()
    assert request["verb"] == "hello"
    channel.send({"ok": {"protocol": PROTOCOL, "torch": torch.__version__}})
    serve(channel, support)


if __name__ == "__main__":
    main()
