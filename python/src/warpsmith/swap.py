"""Kernels in the place of a module's `forward`, and the module's own where they do not fit."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

# Where a module keeps its kernels; not among its submodules, whose parameters would count twice.
PLACE = "_warpsmith_kernels"
_importing = threading.Lock()


class Kernels:
    """A built package bound to one module's parameters."""

    def __init__(self, package: str, folder: Path, init_inputs: list[Any], prefix: str) -> None:
        self.package, self.folder, self.init_inputs, self.prefix = package, folder, init_inputs, prefix
        found = _import(package, folder)
        self._shape_of = importlib.import_module(f"{package}._drop_in")._shape_of
        with torch.random.fork_rng(devices=[]):
            self._fast = found.ModelNew(*init_inputs).eval()
        self._names = list(inspect.signature(self._fast.forward).parameters)
        self._module: weakref.ref[torch.nn.Module] | None = None
        self._bound: list[tuple[dict[str, Any], str, Any, Any, Any]] = []
        self._as_made = True
        self._warned = False
        # How often each has computed.
        self.calls = {"kernels": 0, "original": 0}

    def for_copy(self) -> Kernels:
        """The same for another module: weights of its own."""
        return Kernels(self.package, self.folder, self.init_inputs, self.prefix)

    def __deepcopy__(self, memo: dict[int, Any]) -> Kernels:
        return self.for_copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return Kernels, (self.package, self.folder, self.init_inputs, self.prefix)

    def computes(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the kernels may stand in for this call."""
        if module.training or kwargs or torch.compiler.is_compiling():
            return False
        shape = self._shape_of(args)
        if shape is None or shape.folder is None:
            return False
        if not self._is_bound(module):
            self._bind(module)
        if torch.is_grad_enabled() and (any(entry[2].requires_grad for entry in self._bound) or any(isinstance(one, torch.Tensor) and one.requires_grad for one in args)):
            if not self._warned:
                self._warned = True
                warnings.warn("the original computes this, because kernels give no gradients: call it under `torch.no_grad()`", stacklevel=4)
            return False
        return self._as_made

    def __call__(self, *args: Any) -> Any:
        return self._fast(*args)

    def _is_bound(self, module: torch.nn.Module) -> bool:
        if self._module is None or self._module() is not module:
            return False
        for place, name, kept, dtype, device in self._bound:
            if kept.dtype is not dtype or kept.device != device or place.get(name) is not kept:
                return False
        return True

    def _bind(self, module: torch.nn.Module) -> None:
        """Both have the very same tensors, so what changes one changes the other."""
        state = module.state_dict(keep_vars=True)
        made = self._fast.state_dict()
        found = {f"{self.prefix}{name}": one for name, one in state.items()}
        self._as_made = found.keys() == made.keys() and all(found[name].dtype is one.dtype for name, one in made.items())
        if self._as_made:
            self._fast.load_state_dict(found, assign=True)
        self._bound = []
        for inside in module.modules():
            for place in (inside._parameters, inside._buffers):
                kept: dict[str, Any] = place
                self._bound += [(kept, name, one, one.dtype, one.device) for name, one in kept.items() if isinstance(one, torch.Tensor)]
        self._module = weakref.ref(module)


def _import(package: str, folder: Path) -> Any:
    if package in sys.modules:
        return sys.modules[package]
    with _importing:
        sys.path.insert(0, str(folder))
        try:
            importlib.invalidate_caches()
            return importlib.import_module(package)
        finally:
            sys.path.remove(str(folder))


def forward_of(kind: type[torch.nn.Module]) -> Callable[..., Any]:
    """The module's own `forward`, whatever was put in front of it."""
    found = kind.forward
    return getattr(found, "__warpsmith_original__", found)


def call(module: torch.nn.Module, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kernels: Kernels | None = module.__dict__.get(PLACE)
    if kernels is not None and kernels.computes(module, args, kwargs):
        kernels.calls["kernels"] += 1
        return kernels(*args)
    if kernels is not None:
        kernels.calls["original"] += 1
    return original(module, *args, **kwargs)


def swapped(module: torch.nn.Module, kernels: Kernels) -> torch.nn.Module:
    """A module like it, with the same parameters, of a class derived from its own."""
    made = copy.copy(module)
    made.__class__ = _derived(type(module))
    made.__dict__[PLACE] = kernels
    return made.eval()


_classes: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()


def _derived(kind: type[torch.nn.Module]) -> type[torch.nn.Module]:
    found = _classes.get(kind)
    if found is None:
        original = forward_of(kind)

        def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            return call(self, original, args, kwargs)

        forward.__warpsmith_original__ = original  # type: ignore[attr-defined]
        found = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__})
        _classes[kind] = found
    return found
