"""A gate before a call on the device: the call is queued, its inputs are put in place, and only then does it begin.

What a short call takes is lost in what surrounds it: waking a process, Python, messages, a change of contexts. Behind a gate none
of that is in the way. The worker queues a wait for a word of shared host memory, the kernels of `forward`, and a write to another
word; the trusted process opens the gate and sees the second word change. In between is the device's work alone.

The worker's half is believed in nothing. A word that is written early is met by a sample of the outputs that is read at once; a
call that does not wait for the gate has computed on old inputs.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import time
from dataclasses import dataclass
from typing import Any

import torch

from regions import Region, Sample, SampleReader, cudart

BYTES = 4096
# Words of 32 bits, in cache lines of their own: written by the trusted process, by the device, and by the worker.
OPEN, DONE, TOLD = 0, 16, 32
PLACES = 32  # from here on words of 64 bits: how many outputs, and where they lie
MOST_PLACES = 64
GREATER_OR_EQUAL, HOST_REGISTER_MAPPED = 0, 2
QUEUED_WITHIN = 3e-3  # a forward that waits for its own work is never queued as a whole
TOLD_WITHIN = 0.05


class Gate:
    """The page that both processes map; `fd` is the owner's."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, BYTES, flags=mmap.MAP_SHARED)
        self.words, self.places = memoryview(self._map).cast("I"), memoryview(self._map).cast("Q")

    def outputs(self, number: int) -> list[int]:
        """Where the worker says that the outputs of this call lie; nothing if it does not say."""
        count = self.places[PLACES]
        if self.words[TOLD] != number or count > MOST_PLACES:
            return []
        return list(self.places[PLACES + 1 : PLACES + 1 + count])

    def close(self) -> None:
        self.words.release()
        self.places.release()
        self._map.close()


class Keeper(Gate):
    """The trusted process's end."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("gate", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, BYTES)
        super().__init__(self.fd)

    def close(self) -> None:
        super().close()
        os.close(self.fd)

    def shut(self, number: int) -> None:
        """Before the worker hears of this call. Whatever an earlier one left in the words is of no use."""
        self.words[OPEN], self.words[DONE], self.words[TOLD] = number - 1, 0, 0

    def await_queued(self, number: int) -> None:
        _await(self.words, TOLD, number, QUEUED_WITHIN)

    def opened(self, number: int, limit: float) -> float | None:
        """Opens the gate; microseconds until the device says that it is done, or None if it does not."""
        words, begun = self.words, time.perf_counter_ns()
        words[OPEN] = number
        seen = _await(words, DONE, number, limit)
        return (time.perf_counter_ns() - begun) / 1000 if seen else None

    def await_told(self, number: int) -> list[int]:
        _await(self.words, TOLD, number, TOLD_WITHIN)
        return self.outputs(number)


@dataclass(frozen=True)
class Seen:
    """What lay where the worker said its outputs were, the moment the device was done: for each that has elements its first
    byte, its bytes and a sample of them, in the order of memory."""

    slot: int
    offsets: list[int]
    samples: list[tuple[int, int, Sample]]

    @staticmethod
    def read(reader: SampleReader, arena: Region, slot: int, specs: list[dict[str, Any]], offsets: list[int]) -> Seen | None:
        """None where the outputs cannot lie there."""
        if len(offsets) != len(specs):
            return None
        forms, places = [], []
        for spec, offset in zip(specs, offsets):
            dtype, count = getattr(torch, spec["dtype"]), math.prod(spec["shape"])
            size = count * dtype.itemsize
            if offset % dtype.itemsize or not 0 <= offset <= arena.tensor.numel():
                return None
            # A view whose elements overlap takes fewer bytes than they have.
            if count and not spec.get("overlaps") and offset + size <= arena.tensor.numel():
                forms.append({"dtype": spec["dtype"], "shape": [count], "stride": [1]})
                places.append((offset, size))
        reader.read([{"slots": [slot], "forms": forms, "offsets": [[offset for offset, _ in places]]}])
        found = reader.seen(slot) or []
        return Seen(slot, offsets, [(*place, sample) for place, sample in zip(places, found)])

    def agrees(self, arena: Region, slot: int, offsets: list[int]) -> list[torch.Tensor] | None:
        """Whether the same bytes still lie there: one truth value an output. None where it was another call."""
        if slot != self.slot or offsets != self.offsets:
            return None
        return [sample.agrees(arena.tensor[start : start + size].view(sample.items.dtype)) for start, size, sample in self.samples]


def _await(words: Any, place: int, number: int, limit: float) -> bool:
    until = time.perf_counter() + limit
    while words[place] != number:
        if time.perf_counter() > until:
            return words[place] == number
    return True


class Visitor(Gate):
    """The worker's end, on a device."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        runtime, at = cudart(), ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        seen = ctypes.c_void_p()
        runtime.cudaHostRegister.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
        status = runtime.cudaHostRegister(at, BYTES, HOST_REGISTER_MAPPED)
        status = status or runtime.cudaHostGetDevicePointer(ctypes.byref(seen), ctypes.c_void_p(at), ctypes.c_uint(0))
        if status:
            raise RuntimeError(f"the gate's page cannot be mapped on the device: {runtime.cudaGetErrorString(status).decode()}")
        self._device = seen.value
        driver = ctypes.CDLL("libcuda.so.1")
        self._wait, self._write = (_stream_operation(driver, name) for name in ("cuStreamWaitValue32", "cuStreamWriteValue32"))
        self.words[OPEN] = 0
        self.hold(0)  # open already: whether the driver does it at all
        self.passed(0)
        torch.cuda.synchronize()

    def hold(self, number: int) -> None:
        """What is queued from here on waits until the gate is open."""
        self._queue(self._wait, OPEN, number, GREATER_OR_EQUAL)

    def passed(self, number: int) -> None:
        self._queue(self._write, DONE, number, 0)

    def tell(self, number: int, offsets: list[int]) -> None:
        self.places[PLACES] = len(offsets)
        for index, offset in enumerate(offsets[:MOST_PLACES]):
            self.places[PLACES + 1 + index] = offset
        self.words[TOLD] = number

    def _queue(self, operation: Any, word: int, number: int, flags: int) -> None:
        stream = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
        status = operation(stream, self._device + 4 * word, number, flags)
        if status:
            raise RuntimeError(f"the driver refused a gate: error {status}")


def _stream_operation(driver: ctypes.CDLL, name: str) -> Any:
    """The driver's second version, which needs no setting of the module's."""
    found = getattr(driver, name + "_v2", None) or getattr(driver, name)
    found.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
    return found


def visitor(fd: int) -> Visitor | None:
    """None where the driver has no such operations: then calls are timed from outside alone."""
    try:
        return Visitor(fd)
    except (OSError, RuntimeError, AttributeError):
        return None
