"""Memory that several processes see: sealed memfds on the CPU, raw device allocations exported by IPC on CUDA.

An exported CUDA handle opens the whole allocation it lies in, so nothing here may come from a caching allocator: a
neighbour block would be readable too.
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import mmap
import os
import random
import warnings
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

import fused

ALIGNMENT = 256
WITNESS_BYTES = 1 << 30
_F_SEAL_FUTURE_WRITE = 0x0010  # not in Python's fcntl module before 3.13
_IPC_LAZY_PEER_ACCESS = 1
_CUDA_BLOCK = 2 << 20
SAMPLE_RUNS, SAMPLE_RUN = 4096, 16  # 65,536 positions, in runs long enough to use each memory transaction fully
_LANDING_BYTES = 32 << 20
_HOST_TO_DEVICE = 1
COPIED_BYTES = 256 << 10  # by the copy engine for certain
_NOISE_BYTES = 16 << 20
_DEVICE_TO_HOST = 2


def align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass
class Region:
    """Bytes this process owns and others map. `tensor` is all of them as uint8."""

    tensor: torch.Tensor | None
    fd: int | None = None
    handle: str | None = None
    pointer: int | None = field(default=None, repr=False)

    def close(self) -> None:
        """Gives the memory back. Views of `tensor` must be gone on CUDA; on the CPU the last one unmaps."""
        self.tensor = None
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
        if self.pointer is not None:
            torch.cuda.synchronize()
            _check(cudart().cudaFree(ctypes.c_void_p(self.pointer)), "cudaFree")
            self.pointer = None


# ---- CPU -------------------------------------------------------------------------------------------------------------


def create_cpu(name: str, size: int, read_only_for_others: bool, populate: bool = True) -> Region:
    """A memfd mapped here for writing; sealed so that no other mapping of it can be writable, if asked for."""
    size = max(size, mmap.PAGESIZE)
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    mapped = _map(fd, size, writable=True, populate=populate)
    # No more seals by anybody: one that a worker added would shut out the next.
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    if read_only_for_others:
        # After our own mapping: the seal leaves that one alone and forbids every later writable one.
        seals |= _F_SEAL_FUTURE_WRITE
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return Region(tensor=torch.frombuffer(mapped, dtype=torch.uint8), fd=fd)


def attach_cpu(fd: int, size: int, writable: bool) -> torch.Tensor:
    """Another process's region as bytes. A read-only one must not be written to: the process would be killed."""
    mapped = _map(fd, max(size, 1), writable, populate=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of every buffer it may not write to
        return torch.frombuffer(mapped, dtype=torch.uint8, count=size) if size else torch.empty(0, dtype=torch.uint8)


def _map(fd: int, size: int, writable: bool, populate: bool) -> mmap.mmap:
    flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if populate else 0)
    return mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))


# ---- CUDA ------------------------------------------------------------------------------------------------------------


class _IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


def create_cuda(size: int) -> Region:
    """A raw device allocation with its IPC handle.

    Whole blocks of 2 MiB: cudaMalloc cuts smaller ones out of a block, and a handle opens all of it.
    """
    size = max(-(-size // _CUDA_BLOCK), 1) * _CUDA_BLOCK
    torch.cuda.init()
    torch.cuda.synchronize()
    runtime = cudart()
    pointer = ctypes.c_void_p()
    _check(runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)), "cudaMalloc")
    handle = _IpcHandle()
    _check(runtime.cudaIpcGetMemHandle(ctypes.byref(handle), pointer), "cudaIpcGetMemHandle")
    return Region(tensor=_over(pointer.value, size), handle=bytes(handle).hex(), pointer=pointer.value)


def attach_cuda(handle_hex: str, size: int) -> torch.Tensor:
    """Another process's device allocation as bytes; stays open for the life of this process."""
    raw = bytes.fromhex(handle_hex)
    if len(raw) != ctypes.sizeof(_IpcHandle):
        raise ValueError("an IPC handle has 64 bytes")
    torch.cuda.init()
    torch.cuda.synchronize()
    pointer = ctypes.c_void_p()
    handle = _IpcHandle.from_buffer_copy(raw)
    opened = cudart().cudaIpcOpenMemHandle(ctypes.byref(pointer), handle, ctypes.c_uint(_IPC_LAZY_PEER_ACCESS))
    _check(opened, "cudaIpcOpenMemHandle")
    return _over(pointer.value, size)


def _over(pointer: int, size: int) -> torch.Tensor:
    """A tensor over memory it does not own. (`__cuda_array_interface__` would need NumPy, which may be absent.)"""
    device = torch.device("cuda", torch.cuda.current_device())
    storage = torch._C._construct_storage_from_data_pointer(pointer, device, size)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage, 0, (size,), (1,))


def cudart() -> ctypes.CDLL:
    """The runtime PyTorch itself loaded: a second copy would have state of its own."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if "/libcudart" in path and ".so" in path:
            return _typed(ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL))
    raise RuntimeError("PyTorch has not loaded the CUDA runtime")


def _typed(runtime: ctypes.CDLL) -> ctypes.CDLL:
    runtime.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
    runtime.cudaFree.argtypes = [ctypes.c_void_p]
    runtime.cudaIpcGetMemHandle.argtypes = [ctypes.POINTER(_IpcHandle), ctypes.c_void_p]
    runtime.cudaIpcOpenMemHandle.argtypes = [ctypes.POINTER(ctypes.c_void_p), _IpcHandle, ctypes.c_uint]
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    runtime.cudaMemcpy2DAsync.argtypes = [pointer, size, pointer, size, size, size, ctypes.c_int, pointer]
    runtime.cudaStreamSynchronize.argtypes = [pointer]
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    return runtime


def _check(status: int, what: str) -> None:
    if status != 0:
        raise RuntimeError(f"{what}: {cudart().cudaGetErrorString(status).decode()}")


@lru_cache(maxsize=1)
def _sweep() -> torch.Tensor:
    size = 2 * torch.cuda.get_device_properties(0).L2_cache_size
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def flush_cache() -> None:
    """Writes twice the L2: whoever is timed next finds inputs in memory, not in a cache that we warmed."""
    _sweep().zero_()


@lru_cache(maxsize=1)
def _spot() -> torch.Tensor:
    return torch.zeros(1, device="cuda")


def tiny_kernel() -> None:
    _spot().zero_()


# ---- sampling --------------------------------------------------------------------------------------------------------


def rows_of_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """One row of bytes per element, in row-major order."""
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).reshape(flat.numel(), -1) if flat.numel() else flat.to(torch.uint8)


@dataclass(frozen=True)
class Sample:
    """What was seen of one output: runs of neighbours, one in each stratum, all moved by the same random step."""

    items: torch.Tensor
    start: int
    width: int

    def agrees(self, copy: torch.Tensor) -> torch.Tensor:
        """Whether a later full read, contiguous, holds the same bytes: one truth value, on the copy's device."""
        flat = copy.view(-1)
        seen = flat.as_strided(self.items.shape, (self.width, 1), flat.storage_offset() + self.start)
        items = rows_of_bytes(self.items).to(copy.device, non_blocking=True)
        return (rows_of_bytes(seen) == items).all()


def strata(count: int, runs: int) -> tuple[int, int, int, int]:
    """How a sample of `count` elements lies: rows, row length, distance of rows, and how many places the first may take.

    Where it starts is drawn after the worker said it was done; the same for every stratum of one call and fresh for the
    next, so that whoever leaves any share of an output for later is met within a few calls.
    """
    if count <= runs * SAMPLE_RUN:
        return 1, count, max(count, 1), 1
    width = count // runs
    return runs, SAMPLE_RUN, width, count - (runs - 1) * width - SAMPLE_RUN + 1


class SampleReader:
    """Reads samples of device memory that the candidate's process has just written, inside timed intervals.

    A kernel of ours would make the GPU change contexts, which costs more than most kernels that are timed here (measured
    on an H200: 160 us, and noisy). The copy engine reads in 16 us while the other context stays where it is; and it does
    not wait for that context's work, so whoever is not done yet is met in the middle of it.
    """

    def __init__(self, arena: Region) -> None:
        self._arena = arena
        self._landing = torch.empty(_LANDING_BYTES, dtype=torch.uint8, pin_memory=True)
        self._base = self._landing.data_ptr()
        self._stream = torch.cuda.Stream()
        self._handle = self._stream.cuda_stream
        self._runtime = cudart()
        self._chances = random.Random(os.urandom(16))
        self._seen: dict[int, list[_Seen | Sample]] = {}

    def read(self, groups: list[dict[str, Any]]) -> None:
        """One sample of every output of the calls in `groups`; earlier samples are forgotten. Returns when all is read."""
        self._seen, used, by_kernel = {}, 0, False
        runs = max(SAMPLE_RUNS // max(sum(len(group["slots"]) for group in groups), 1), 1)
        for group in groups:
            forms = [_Form.of(form, runs) for form in group["forms"]]
            for slot, offsets in zip(group["slots"], group["offsets"]):
                found = self._seen.setdefault(slot, [])
                for form, offset in zip(forms, offsets):
                    if form.count == 0:
                        continue
                    start = int(self._chances.random() * form.room)
                    if form.dense and used + form.size <= _LANDING_BYTES:
                        self._copy(form, offset + start * form.item, used)
                        found.append(_Seen(form, start, used))
                        used += form.stride_bytes
                    else:
                        found.append(self._by_kernel(form, offset, start))
                        by_kernel = True
        _check(self._runtime.cudaStreamSynchronize(self._handle), "waiting for a sample")
        if by_kernel:
            torch.cuda.synchronize()

    def _copy(self, form: _Form, offset: int, landing: int) -> None:
        status = self._runtime.cudaMemcpy2DAsync(
            self._base + landing, form.row_bytes, self._arena.pointer + offset, form.width_bytes, form.row_bytes, form.rows,
            _DEVICE_TO_HOST, self._handle,
        )  # fmt: skip
        if status:
            _check(status, "reading a sample")

    def _by_kernel(self, form: _Form, offset: int, start: int) -> Sample:
        tensor = self._arena.tensor.view(form.dtype).as_strided(form.shape, form.stride, offset // form.item)
        flat = tensor.contiguous().view(-1)
        items = flat.as_strided((form.rows, form.length), (form.width, 1), flat.storage_offset() + start).clone()
        return Sample(items, start, form.width)

    def seen(self, slot: int) -> list[Sample] | None:
        """What the last `read` saw of a call, one sample an output that has elements; None if it was not read."""
        found = self._seen.get(slot)
        return None if found is None else [one if isinstance(one, Sample) else self._sample(one) for one in found]

    def _sample(self, seen: _Seen) -> Sample:
        form = seen.form
        items = self._landing[seen.landing : seen.landing + form.size].view(form.dtype).view(form.rows, form.length)
        return Sample(items, seen.start, form.width)


class Veil:
    """Inputs and weights that wait in host memory while the candidate's process warms up on others.

    The copy engine puts them in place without a change of contexts (a kernel of ours, a copy from device memory, or a copy of
    so few bytes that the driver sends them along with its commands costs the call that follows 150 us on an H200, a copy
    from the host nothing). It takes about 20 us a megabyte.
    """

    def __init__(self, slots: Region, weights: Region, arena: Region, slot_bytes: int) -> None:
        self._slots, self._weights, self._arena, self._slot_bytes = slots, weights, arena, slot_bytes
        self._held: dict[str, torch.Tensor] = {}
        self._waiting: dict[str, int] = {}  # bytes to copy
        self._stream = torch.cuda.Stream()

    def inputs(self, size: int) -> torch.Tensor:
        """Where to write the inputs of the next call."""
        return self._hold("inputs", size, self._slot_bytes)

    def weights(self, size: int) -> torch.Tensor:
        return self._hold("weights", size, self._weights.tensor.numel())

    def _hold(self, name: str, size: int, room: int) -> torch.Tensor:
        if name not in self._held:
            self._held[name] = torch.empty(room, dtype=torch.uint8, pin_memory=True)
        self._waiting[name] = max(size, min(COPIED_BYTES, room))
        return self._held[name]

    def reveal(self, slot: int | None, window: list[int] | None = None) -> None:
        """`window`: bytes of the arena to overwrite first, which hold what the warm-up calls left. Without a slot that is all."""
        if window is not None:
            noise = self._noise()
            for start in range(window[0], window[1], noise.numel()):
                self._copy(self._arena.pointer + start, noise, min(noise.numel(), window[1] - start))
        if slot is not None:
            places = {"inputs": self._slots.pointer + slot * self._slot_bytes, "weights": self._weights.pointer}
            for name, size in self._waiting.items():
                self._copy(places[name], self._held[name], size)
            self._waiting.clear()
        _check(cudart().cudaStreamSynchronize(ctypes.c_void_p(self._stream.cuda_stream)), "revealing inputs")

    def _copy(self, place: int, held: torch.Tensor, size: int) -> None:
        status = cudart().cudaMemcpyAsync(
            ctypes.c_void_p(place), ctypes.c_void_p(held.data_ptr()), ctypes.c_size_t(size),
            _HOST_TO_DEVICE, ctypes.c_void_p(self._stream.cuda_stream),
        )  # fmt: skip
        _check(status, "revealing inputs")

    def _noise(self) -> torch.Tensor:
        """Bytes that no output holds but by chance."""
        if "noise" not in self._held:
            made = torch.empty(_NOISE_BYTES, dtype=torch.uint8, pin_memory=True)
            self._held["noise"] = made.random_(2, 256, generator=torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "little")))
        return self._held["noise"]


@dataclass(frozen=True)
class _Form:
    """How the sample of an output of one form lies; worked out once for all calls of an interval."""

    dtype: torch.dtype
    shape: list[int]
    stride: list[int]
    item: int
    count: int
    dense: bool
    rows: int
    length: int
    width: int
    room: int  # places the first element may take

    @staticmethod
    def of(form: dict[str, Any], runs: int) -> _Form:
        dtype, shape, stride = getattr(torch, form["dtype"]), form["shape"], form["stride"]
        count = math.prod(shape)
        return _Form(dtype, shape, stride, dtype.itemsize, count, dense(shape, stride), *strata(count, runs))

    @property
    def row_bytes(self) -> int:
        return self.length * self.item

    @property
    def width_bytes(self) -> int:
        return self.width * self.item

    @property
    def size(self) -> int:
        return self.rows * self.row_bytes

    @property
    def stride_bytes(self) -> int:
        return align(self.size)


@dataclass(frozen=True)
class _Seen:
    form: _Form
    start: int
    landing: int


def dense(shape: list[int], stride: list[int]) -> bool:
    """Whether elements lie one after the other in row-major order."""
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride)):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def sample_agrees(region: torch.Tensor, sampled: list[dict[str, int]], copies: list[torch.Tensor]) -> bool:
    """The CPU's sample, taken by the supervisor: per leaf int64 positions, then as many raw items."""
    for entry in sampled:
        start = entry["offset"]
        copy, count, item = copies[entry["leaf"]], entry["count"], entry["item_bytes"]
        end = start + count * (8 + item)
        if item != copy.element_size() or end > region.numel():
            return False
        if count:
            positions = region[start : start + 8 * count].clone().view(torch.int64)
            items = region[start + 8 * count : end].clone().view(count, item)
            if int(positions.min()) < 0 or int(positions.max()) >= copy.numel():
                return False
            if not torch.equal(rows_of_bytes(copy)[positions], items):
                return False
    return True


@dataclass(frozen=True)
class Witness:
    """What a tensor held: a copy, or for a large one on the GPU a keyed sum over its words, to save its memory.

    The key is drawn here and never leaves, so a change that keeps the sum can only be guessed.
    """

    copy: torch.Tensor | None
    key: int = 0
    total: torch.Tensor | None = None

    @staticmethod
    def of(tensor: torch.Tensor) -> Witness:
        if not tensor.is_cuda or tensor.nbytes < WITNESS_BYTES or tensor.nbytes % 4:
            return Witness(tensor)
        key = int.from_bytes(os.urandom(7), "little")
        return Witness(None, key, _keyed_sum(tensor, key))

    def confirms(self, seen: torch.Tensor) -> torch.Tensor:
        """One truth value, on the tensor's device."""
        if self.copy is None:
            return _keyed_sum(seen, self.key) == self.total
        return (rows_of_bytes(seen) == rows_of_bytes(self.copy)).all()


def _keyed_sum(tensor: torch.Tensor, key: int) -> torch.Tensor:
    """Sum of word times random factor, modulo 2^64, over the elements in row-major order."""
    words = tensor.contiguous().reshape(-1).view(torch.int32)
    in_one_pass = fused.keyed_sum(words, key)
    if in_one_pass is not None:
        return in_one_pass
    generator = torch.Generator(words.device).manual_seed(key)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for part in words.split(1 << 25):
        factors = torch.randint(-(1 << 62), 1 << 62, part.shape, generator=generator, device=words.device)
        total += (factors * part).sum()
    return total


# ---- the machine -----------------------------------------------------------------------------------------------------


def device_facts() -> dict[str, Any]:
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(0)
        version = Path("/proc/driver/nvidia/version")
        return {
            "cuda": torch.version.cuda,
            "device_name": found.name,
            "driver": version.read_text().splitlines()[0] if version.exists() else None,
            "l2_bytes": found.L2_cache_size,
            "total_memory": found.total_memory,
        }
    models = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cuda": None,
        "device_name": models[0] if models else "cpu",
        "driver": None,
        "l2_bytes": 0,
        "total_memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }
