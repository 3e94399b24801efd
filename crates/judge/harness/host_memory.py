"""Keeps the memory of large CPU tensors for the next ones.

The C library maps each large allocation afresh, and the kernel zeroes it page by page. Answers and comparisons of a CPU target
are many such tensors: it was two fifths of a judgement's processor time.
"""

from __future__ import annotations

import ctypes

# Of address space; memory is only what was touched.
_ROOM = 64 << 30
# Smaller ones the C library keeps itself.
_LEAST = 1 << 20


class HostMemory:
    """To be made once in a process: earlier tensors must lie where they lie."""

    def __init__(self, support: str) -> None:
        self._native = ctypes.CDLL(support)
        self.kept = bool(self._native.warpsmith_keep_memory(ctypes.c_size_t(_ROOM), ctypes.c_size_t(_LEAST)))

    def give_back(self) -> None:
        """All that is free now."""
        if self.kept:
            self._native.warpsmith_give_memory_back()
