"""Memory that several processes see: sealed memfds on the CPU, raw device allocations exported by IPC on CUDA.

An exported CUDA handle opens the whole allocation it lies in, so nothing here may come from a caching allocator: a
neighbour block would be readable too.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch

ALIGNMENT = 256
_F_SEAL_FUTURE_WRITE = 0x0010  # not in Python's fcntl module before 3.13
_IPC_LAZY_PEER_ACCESS = 1


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
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    if read_only_for_others:
        # After our own mapping: the seal leaves that one alone and forbids every later writable one.
        seals |= _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
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
    """A raw device allocation with its IPC handle."""
    size = max(align(size), ALIGNMENT)
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
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    return runtime


def _check(status: int, what: str) -> None:
    if status != 0:
        raise RuntimeError(f"{what}: {cudart().cudaGetErrorString(status).decode()}")
