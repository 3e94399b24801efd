"""Imports PyTorch in two thirds of its time, for the processes that every judge starts.

A third of the import registers kernels for fake tensors, which only graphs are traced with (`torch.compile`, `torch.export`).
They are registered when tracing is first imported or begins.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

FAKE_KERNELS = "torch._meta_registrations"
# Each of these counts on the kernels' modules having been imported before.
TRACING = ("torch._dynamo", "torch._decomp", "torch._prims", "torch._refs", "torch.utils._content_store")


class _Latecomers:
    """Sees which modules are imported. It finds none itself."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in TRACING:
            register()


_latecomers = _Latecomers()


def register() -> None:
    """What `import torch` left out."""
    if _latecomers in sys.meta_path:
        sys.meta_path.remove(_latecomers)
        importlib.import_module(FAKE_KERNELS)


def import_torch() -> None:
    """To be called before anything else imports PyTorch."""
    sys.modules[FAKE_KERNELS] = types.ModuleType(FAKE_KERNELS)
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    del sys.modules[FAKE_KERNELS], torch._meta_registrations
    sys.meta_path.insert(0, _latecomers)
    begin = FakeTensorMode.__init__

    def register_and_begin(self: FakeTensorMode, *args: Any, **named: Any) -> None:
        FakeTensorMode.__init__ = begin
        register()
        begin(self, *args, **named)

    FakeTensorMode.__init__ = register_and_begin


if "torch" not in sys.modules:
    import_torch()
