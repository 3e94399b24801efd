"""A live module as a task: the file that the command reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .errors import TaskError
from .live import Writer, _is_plain

if TYPE_CHECKING:
    from .sources import Task


def source_of(task: Task, variants: Iterable[Sequence[Any]] = ()) -> str:
    """`Model` with what it uses, `get_init_inputs` and `get_inputs`."""
    writer = Writer(drops={"optimized"})
    writer.add(task.module, "Model")
    for one in task.init_inputs:
        if not _is_plain(one):
            raise TaskError(
                f"`{task.module.__name__}` is constructed with a {type(one).__name__}",
                "a task's module takes numbers, strings and lists of these; wrap it in a class that makes the rest itself",
            )
    if callable(task.inputs):
        writer.add(task.inputs, "get_inputs")
    else:
        writer.imports.setdefault("torch", "import torch")
        writer.parts.append(drawing("get_inputs", f"[{', '.join(drawn(one) for one in task.inputs)}]"))
        lists = [f"[{', '.join(drawn(one) for one in inputs)}]" for inputs in variants]
        if lists:
            writer.parts.append(drawing("get_inputs_variants", f"[{', '.join(lists)}]"))
    writer.parts.append(drawing("get_init_inputs", repr(list(task.init_inputs))))
    return writer.text()


def drawing(name: str, result: str) -> str:
    return f"def {name}():\n    return {result}\n"


def drawn(value: Any) -> str:
    """An expression for fresh values like an example: of its shape and type, and in its range."""
    import torch

    if isinstance(value, torch.Tensor):
        shape = tuple(value.shape)
        if value.dtype is torch.bool:
            return f"(torch.rand({shape}) < 0.5)"
        if value.is_complex() or value.is_quantized or value.layout is not torch.strided:
            raise TaskError(f"an input is a tensor of {value.dtype} and {value.layout}", "inputs are dense tensors of real numbers")
        if not value.is_floating_point():
            low, high = (int(value.min()), int(value.max())) if value.numel() else (0, 0)
            return f"torch.randint({low}, {high + 1}, {shape}, dtype={value.dtype})"
        if value.numel() and bool(torch.isfinite(value).all()) and float(value.min()) >= 0.0:
            # Roots and logarithms are fed with what they can take.
            return _scaled(f"torch.rand({shape})", float(value.max()), value)
        return _scaled(f"torch.randn({shape})", float(value.double().std(correction=0)) if value.numel() else 1.0, value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {drawn(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(drawn, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    if _is_plain(value):
        return repr(value)
    raise TaskError(f"an input is a {type(value).__name__}", "inputs are tensors, numbers, strings, None, and containers of these")


def _scaled(made: str, scale: float, value: Any) -> str:
    import torch

    near_one = not (scale == scale and 1e-6 < scale < 1e6) or 0.5 < scale < 2.0
    made = made if near_one else f"{made} * {scale:.4g}"
    if value.dtype is torch.float32:
        return made
    return f"({made}).to({value.dtype})"
