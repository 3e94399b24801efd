"""The module that users construct: kernels where they fit, the original elsewhere, one operator for `torch.compile`.

`_shapes.json` says which inputs the kernels were written for and what they give. Kernels compute no gradients.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import weakref
from pathlib import Path

import torch

PACKAGE = __package__
FILE = Path(__file__).parent / "_shapes.json"
# Modules by number, because operators take tensors and numbers.
_modules: weakref.WeakValueDictionary[int, torch.nn.Module] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class Shape:
    """Inputs that kernels were written for."""

    def __init__(self, entry: dict) -> None:
        self.inputs = [(one["shape"] and tuple(one["shape"]) or (), getattr(torch, one["dtype"]), one["device"]) if isinstance(one, dict) else one for one in entry["inputs"]]
        self.outputs = [(one["shape"], one["stride"], getattr(torch, one["dtype"])) for one in entry["outputs"]]
        self.single, self.folder = entry["single"], entry["folder"]
        self.is_tensors = bool(self.inputs) and all(isinstance(one, tuple) for one in self.inputs)

    def fits(self, inputs) -> bool:
        return len(inputs) == len(self.inputs) and all(_fits(one, wanted) for one, wanted in zip(inputs, self.inputs))


def _fits(value, wanted) -> bool:
    if isinstance(wanted, str):
        return type(value).__name__ == wanted
    shape, dtype, device = wanted
    return isinstance(value, torch.Tensor) and value.dtype is dtype and value.device.type == device and tuple(value.shape) == shape


class Known:
    guard: bool = False
    shapes: list[Shape] = []

    @classmethod
    def read(cls, content: dict) -> None:
        cls.guard, cls.shapes = content["guard"], [Shape(entry) for entry in content["shapes"]]


if FILE.exists():
    Known.read(json.loads(FILE.read_text()))


def _shape_of(inputs) -> Shape | None:
    for shape in Known.shapes:
        if shape.fits(inputs):
            return shape
    return None


@torch.library.custom_op(f"{PACKAGE}::forward", mutates_args=(), schema="(Tensor[] inputs, int module) -> Tensor[]")
def _operator(inputs, module):
    results = _modules[module].run(_shape_of(inputs).folder, *inputs)
    return [results] if isinstance(results, torch.Tensor) else list(results)


@_operator.register_fake
def _(inputs, module):
    return [torch.empty_strided(shape, stride, dtype=dtype, device=inputs[0].device) for shape, stride, dtype in _shape_of(inputs).outputs]


def drop_in(kernels: dict[str, type]) -> type:
    """`kernels` are modules by the folder they lie in; the first holds the parameters of all."""
    first = next(iter(kernels.values()))
    names = list(inspect.signature(first.forward).parameters)[1:]
    forward_of = {folder: made.forward for folder, made in kernels.items()}

    class ModelNew(first):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            # In lists, where parameters of a module are not looked for.
            self._made_with, self._original = [args, kwargs], []
            self._dtypes = [one.dtype for one in self.state_dict().values()]
            self._is_as_made = True
            self._register()

        def _register(self) -> None:
            self._number = next(_numbers)
            _modules[self._number] = self

        def __setstate__(self, state) -> None:
            # A copy has weights of its own.
            super().__setstate__(state)
            self._register()

        def _apply(self, *args, **kwargs):
            made = super()._apply(*args, **kwargs)
            self._is_as_made = [one.dtype for one in self.state_dict().values()] == self._dtypes
            return made

        def forward(self, *inputs, **named):
            inputs = [*inputs, *(named[name] for name in names[len(inputs):] if name in named)]
            shape = _shape_of(inputs) if self._is_as_made else None
            if shape is None and not Known.guard:
                given = [tuple(one.shape) if isinstance(one, torch.Tensor) else one for one in inputs]
                raise ValueError(f"these kernels were not written for inputs {given}, or not for this type or device; "
                                 "`warpsmith optimize --guard` falls back to the original there, `--inputs` adds shapes")
            if shape is None or shape.folder is None:
                return self._by_original(*inputs)
            inputs = [one.contiguous() if isinstance(one, torch.Tensor) else one for one in inputs]
            if torch.compiler.is_compiling() and shape.is_tensors:
                results = _operator(inputs, self._number)
                return results[0] if shape.single else tuple(results)
            return self.run(shape.folder, *inputs)

        @torch.compiler.disable
        def run(self, folder, *inputs):
            return forward_of[folder](self, *inputs)

        @torch.compiler.disable
        def _by_original(self, *inputs):
            if not self._original:
                args, kwargs = self._made_with
                self._original.append(importlib.import_module(f"{PACKAGE}._original").Model(*args, **kwargs))
            original = self._original[0]
            device = next((one.device for one in inputs if isinstance(one, torch.Tensor)), None)
            original.to(device).load_state_dict(self.state_dict(), assign=True)
            return original.train(self.training)(*inputs)

    ModelNew.__module__, ModelNew.__qualname__ = PACKAGE, "ModelNew"
    return ModelNew
