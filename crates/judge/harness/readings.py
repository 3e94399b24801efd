"""Numbers that lie on a device and are wanted here, fetched in one go: waiting for each costs more than computing it."""

from __future__ import annotations

import torch


class Readings:
    """First everything is added, then all of it taken; `of` gives each part."""

    def __init__(self) -> None:
        self._parts: list[torch.Tensor] = []
        self._taken: list[list[float]] = []

    def add(self, numbers: torch.Tensor) -> int:
        """A few numbers, as float64; what to ask for them by."""
        self._parts.append(numbers.detach().reshape(-1).double())
        return len(self._parts) - 1

    def take(self) -> None:
        """Waits for the device, once."""
        sizes = [part.numel() for part in self._parts]
        flat = torch.cat(self._parts).tolist() if self._parts else []
        self._parts, start = [], 0
        for size in sizes:
            self._taken.append(flat[start : start + size])
            start += size

    def of(self, part: int) -> list[float]:
        return self._taken[part]
