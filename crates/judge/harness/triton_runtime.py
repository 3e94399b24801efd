"""Triton in a worker: compiled and tuned in one, replayed in another.

In the first worker kernels are compiled to PTX; the supervisor has `ptxas` assemble it, and both halves of every kernel and what the
autotuner measured are kept by Triton's own keys. In the worker that is judged the same keys must be found: nothing is compiled or
tuned there. Launches go through ctypes, so that no library is built for them.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import struct
from pathlib import Path
from typing import Any, Callable

import torch

# Asks for the machine code of a PTX text: its answer, or why there is none.
Assemble = Callable[[dict[str, Any]], bytes]

FILES_LIMIT = 11 << 20  # what fits into a frame as text


class NotPrepared(Exception):
    """A kernel, or a choice between kernels, that the preparation did not meet."""


class NotSupported(Exception):
    """What Triton has and the judge has not."""


COMPILE_ERRORS = ("CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct", "PTXASError")


def is_compile_error(error: BaseException) -> bool:
    return type(error).__module__.startswith("triton.") and type(error).__name__ in COMPILE_ERRORS


def assembler_error(log: str) -> Exception:
    """As Triton itself raises it: its autotuner passes over such a configuration."""
    from triton.runtime.errors import PTXASError

    return PTXASError(log)


class Kept:
    """Files by key and name, as Triton's cache has them; on disk they lie in the worker's own scratch."""

    def __init__(self, folder: Path, files: dict[str, dict[str, bytes]], open_to_more: bool) -> None:
        self.folder, self.files, self.open = folder, files, open_to_more
        self._written: set[tuple[str, str]] = set()

    def path(self, key: str, name: str) -> str | None:
        data = self.files.get(key, {}).get(name)
        if data is None:
            return None
        place = self.folder / key / name
        if (key, name) not in self._written:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            self._written.add((key, name))
        return str(place)

    def put(self, key: str, name: str, data: bytes) -> str:
        if not self.open:
            raise NotPrepared(f"`{name.rsplit('.', 1)[0]}` was not compiled for these arguments while the solution was prepared")
        # What machine code was made from is of no use later.
        if name.endswith((".cubin", ".json")):
            self.files.setdefault(key, {})[name] = data
            if sum(len(data) for files in self.files.values() for data in files.values()) > FILES_LIMIT:
                raise NotSupported("the compiled kernels take more than 11 MiB: tune over fewer configurations")
        return str(self.folder / key / name)

    def packed(self) -> dict[str, dict[str, str]]:
        return {key: {name: base64.b64encode(data).decode() for name, data in files.items()} for key, files in self.files.items()}


def unpacked(text: bytes) -> dict[str, dict[str, bytes]]:
    return {key: {name: base64.b64decode(data) for name, data in files.items()} for key, files in json.loads(text).items()}


def manager_of(kept: Kept) -> type:
    """Triton's interface to a cache, over `kept`."""

    class Manager:
        def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
            self.key = key

        def get_file(self, name: str) -> str | None:
            return kept.path(self.key, name)

        def put(self, data: Any, name: str, binary: bool = True) -> str:
            return kept.put(self.key, name, data if isinstance(data, bytes) else str(data).encode())

        def get_group(self, name: str) -> dict[str, str] | None:
            if name not in kept.files.get(self.key, {}):
                return None
            return {one: kept.path(self.key, one) for one in kept.files[self.key]}

        def put_group(self, name: str, group: dict[str, str]) -> str:
            files = kept.files[self.key]
            for one in list(group):
                group.pop(one) if one not in files else group.update({one: kept.path(self.key, one)})
            return group[name]

    return Manager


def install(kept: Kept, assemble: Assemble | None, ptx_version: int, make_driver: Callable[[], Any] | None = None) -> None:
    """Makes Triton compile by `assemble`, or not at all, and keep everything in `kept`. To be called before a line of a candidate's
    runs, since nothing that Triton imports itself is to be had afterwards."""
    import triton
    import triton.language.extra.cuda.libdevice  # noqa: F401
    import triton.testing  # noqa: F401
    from triton import knobs
    from triton.backends.nvidia import compiler
    from triton.runtime import autotuner, cache
    from triton.runtime import driver as drivers

    def make_cubin(self: Any, src: str, metadata: dict[str, Any], opt: Any, capability: int) -> bytes:
        if assemble is None:
            raise NotPrepared(f"`{metadata.get('name')}` was not compiled while the solution was prepared")
        if opt.ptx_options:
            raise NotSupported("`ptx_options` are not supported")
        return assemble({"ptx": src, "fmad": opt.enable_fp_fusion, "arch": compiler.sm_arch_from_capability(capability)})

    def make_ir(self: Any, *_: Any) -> Any:
        raise NotPrepared(f"`{self.name}` was not compiled for these arguments while the solution was prepared")

    def measure(*_: Any, **__: Any) -> Any:
        raise NotPrepared("an autotuned kernel met arguments for which it was not tuned while the solution was prepared, or its "
                          "configurations have a `pre_hook`, whose choice cannot be kept")  # fmt: skip

    # Both would read gigabytes of Triton itself, and ask `ptxas` for its version.
    cache.triton_key = autotuner.triton_key = lambda: triton.__version__
    compiler.CUDABackend.hash = lambda self: str(self.target)
    compiler.get_ptx_version_from_options = lambda options, arch: options.ptx_version or ptx_version
    compiler.CUDABackend.make_cubin = make_cubin
    if assemble is None:
        from triton.compiler.compiler import ASTSource, IRSource

        ASTSource.make_ir = IRSource.make_ir = make_ir
        autotuner.Autotuner._bench = measure
    knobs.cache.manager_class = manager_of(kept)
    knobs.autotuning.cache = True
    knobs.compilation.store_binary_only = True
    drivers.set_active((make_driver or driver)())


# ---- in a worker -----------------------------------------------------------------------------------------------------


def load(fds: list[int], ptx_version: int, state: dict[str, Any]) -> Kept:
    """Triton with the kernels that were prepared, or, where none are handed over, as it prepares them."""
    files = unpacked(read_all(fds[0])) if fds else {}
    kept = Kept(Path.cwd() / "kernels", files, open_to_more=not fds)
    install(kept, None if fds else lambda wanted: assembled(state, wanted), ptx_version)
    return kept


def read_all(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def assembled(state: dict[str, Any], wanted: dict[str, Any]) -> bytes:
    """Machine code from the supervisor, asked for in the middle of a request of its own."""
    channel = state["channel"]
    channel.send({"ok": {"assemble": wanted}, "id": state["id"]})
    answer, fds = channel.recv()
    state["id"] = answer["id"]
    try:
        if answer.get("error") is not None:
            raise assembler_error(answer["error"])
        return read_all(fds[0])
    finally:
        for fd in fds:
            os.close(fd)


# ---- launches --------------------------------------------------------------------------------------------------------


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint32 * 16)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    ]  # fmt: skip


COOPERATIVE, CLUSTER, CLUSTER_POLICY, PROGRAMMATIC = 2, 4, 5, 6
SPREAD = 1
MAX_SHARED_OPTIN, MAX_REGISTERS, MULTIPROCESSORS, WARP_SIZE, CLOCK, MEMORY_CLOCK, BUS_WIDTH = 97, 12, 16, 10, 13, 36, 37
MAX_THREADS, SHARED, LOCAL, REGISTERS, MAX_DYNAMIC_SHARED, NON_PORTABLE_CLUSTER = 0, 1, 3, 4, 8, 14
PREFER_SHARED = 1
STATIC_SHARED = 49152
_FLOATS = {"fp16": "e", "fp32": "f", "f32": "f", "fp64": "d"}


def packed(kind: str, value: Any) -> int:
    """The bits of one argument, as a kernel reads them."""
    if kind[0] == "*":
        return 0 if value is None else value if isinstance(value, int) else value.data_ptr()
    if kind in _FLOATS:
        return int.from_bytes(struct.pack("<" + _FLOATS[kind], value), "little")
    if kind == "bf16":
        return int.from_bytes(struct.pack("<f", value), "little") >> 16
    return int(value) & 0xFFFFFFFFFFFFFFFF


def flat(kinds: Any) -> list[str]:
    """Kinds of a signature in the order of arguments; tuples count as their members."""
    return [one for kind in kinds for one in (flat(kind) if isinstance(kind, tuple) else [kind])]


def flat_values(values: Any, kinds: Any) -> list[Any]:
    pairs = zip(values, kinds)
    return [one for value, kind in pairs for one in (flat_values(value, kind) if isinstance(kind, tuple) else [value])]


class Arguments:
    """Room for a kernel's parameters, and where each lies."""

    def __init__(self, signature: Any) -> None:
        self._signature = tuple(signature)
        self._nested = any(isinstance(kind, tuple) for kind in self._signature)
        kinds = flat(self._signature)
        if any(kind.startswith("tensordesc") or kind == "nvTmaDesc" for kind in kinds):
            raise NotSupported("tensor descriptors are not supported as kernel arguments: pass pointers")
        self._given = [(place, kind) for place, kind in enumerate(kinds) if kind != "constexpr"]
        count = len(self._given) + 2  # and two of scratch memory
        self.words = (ctypes.c_uint64 * count)()
        start = ctypes.addressof(self.words)
        self.pointers = (ctypes.c_void_p * count)(*(start + 8 * index for index in range(count)))

    def fill(self, values: tuple[Any, ...], *scratch: int) -> None:
        flattened = flat_values(values, self._signature) if self._nested else values
        words, index = self.words, 0
        for place, kind in self._given:
            words[index] = packed(kind, flattened[place])
            index += 1
        words[index], words[index + 1] = scratch


def driver() -> Any:
    """A driver whose launches and properties need no library of their own."""
    from triton.backends.driver import GPUDriver
    from triton.backends.nvidia.driver import CudaDriver
    from triton.runtime import _allocation

    # Counts the devices, for which PyTorch imports ctypes when it does it first; afterwards it knows, and ctypes is not to be had.
    torch.cuda.init()
    torch.cuda.get_device_capability()
    library = ctypes.CDLL("libcuda.so.1")
    library.cuGetErrorString.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    library.cuLaunchKernelEx.argtypes = [ctypes.c_void_p] * 4
    library.cuModuleLoadData.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.cuModuleGetFunction.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p]
    library.cuFuncGetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    library.cuFuncSetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    library.cuFuncSetCacheConfig.argtypes = [ctypes.c_void_p, ctypes.c_int]
    launch_kernel = library.cuLaunchKernelEx

    def check(status: int) -> None:
        if status:
            text = ctypes.c_char_p()
            library.cuGetErrorString(status, ctypes.byref(text))
            raise RuntimeError(f"Triton Error [CUDA]: {(text.value or b'unknown error').decode()}")

    def device_attribute(kind: int, device: int) -> int:
        found, handle = ctypes.c_int(), ctypes.c_int()
        check(library.cuDeviceGet(ctypes.byref(handle), device))
        check(library.cuDeviceGetAttribute(ctypes.byref(found), kind, handle))
        return found.value

    def function_attribute(kind: int, function: ctypes.c_void_p) -> int:
        found = ctypes.c_int()
        check(library.cuFuncGetAttribute(ctypes.byref(found), kind, function))
        return found.value

    class Utils:
        @staticmethod
        def get_device_properties(device: int) -> dict[str, int]:
            names = ("max_shared_mem", "max_num_regs", "multiprocessor_count", "warpSize", "sm_clock_rate", "mem_clock_rate", "mem_bus_width")
            kinds = (MAX_SHARED_OPTIN, MAX_REGISTERS, MULTIPROCESSORS, WARP_SIZE, CLOCK, MEMORY_CLOCK, BUS_WIDTH)
            return {name: device_attribute(kind, device) for name, kind in zip(names, kinds)}

        @staticmethod
        def load_binary(name: str, code: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
            torch.cuda.current_stream()  # makes the context
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            check(library.cuModuleLoadData(ctypes.byref(module), code))
            check(library.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
            most = device_attribute(MAX_SHARED_OPTIN, device)
            if shared > STATIC_SHARED and most > STATIC_SHARED:
                check(library.cuFuncSetCacheConfig(function, PREFER_SHARED))
                check(library.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, most - function_attribute(SHARED, function)))
            registers, spilled, threads = (function_attribute(kind, function) for kind in (REGISTERS, LOCAL, MAX_THREADS))
            return module.value, function.value, registers, spilled // 4, threads

        @staticmethod
        def set_printf_fifo_size(_: int) -> None:
            raise NotSupported("printing from kernels is not supported")

    class Launcher:
        def __init__(self, src: Any, metadata: Any) -> None:
            self._arguments = Arguments(src.signature.values())
            self._metadata = metadata
            self._config, self._used, attributes = _Config(), False, (_Attribute * 4)()
            count, clusters = 0, getattr(metadata, "num_ctas", 1)
            for wanted, kind, value in (
                (metadata.launch_pdl, PROGRAMMATIC, (1,)), (metadata.launch_cooperative_grid, COOPERATIVE, (1,)),
                (clusters != 1, CLUSTER, (clusters, 1, 1)), (clusters != 1, CLUSTER_POLICY, (SPREAD,)),
            ):  # fmt: skip
                if wanted:
                    attributes[count].id = kind
                    attributes[count].value[: len(value)] = list(value)
                    count += 1
            self._clusters, self._config.attributes, self._config.count = clusters, attributes, count
            self._config.block[:] = [32 * metadata.num_warps, 1, 1]
            self._config.shared = metadata.shared
            self._at = ctypes.addressof(self._config), ctypes.addressof(self._arguments.pointers)

        def __call__(self, x: int, y: int, z: int, stream: int, function: int, packed: Any, told: Any, enter: Any, leave: Any, *args: Any) -> None:
            if x * y * z <= 0:
                return
            scratch = [self._scratch(name, allocator, x * y * z, stream) for name, allocator in _SCRATCH]
            if not self._used and self._clusters == 16:
                check(library.cuFuncSetAttribute(function, NON_PORTABLE_CLUSTER, 1))
            self._used = True
            self._arguments.fill(args, *(0 if one is None else one.data_ptr() for one in scratch))
            grid = self._config.grid
            grid[0], grid[1], grid[2] = x * self._clusters, y, z
            self._config.stream = stream
            status = launch_kernel(self._at[0], function, self._at[1], None)
            if status:
                check(status)

        def _scratch(self, name: str, allocator: Any, blocks: int, stream: int) -> Any:
            size = getattr(self._metadata, f"{name}_scratch_size", 0)
            if not size:
                return None
            return allocator.get()(blocks * self._clusters * size, getattr(self._metadata, f"{name}_scratch_align"), stream)

    _SCRATCH = (("global", _allocation._allocator), ("profile", _allocation._profile_allocator))

    class Driver(CudaDriver):
        def __init__(self) -> None:
            self.utils, self.launcher_cls = Utils(), Launcher
            GPUDriver.__init__(self)

    return Driver()
