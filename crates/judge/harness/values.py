"""Trees of tensors, numbers and containers, and their form on the wire (PROTOCOL.md, "Values").

What is decoded may come from a hostile process: every number is checked before memory is touched with it, and nothing
here evaluates, imports or unpickles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

DEPTH_LIMIT = 16
LEAF_LIMIT = 4096
RANK_LIMIT = 64
FLOATS = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}
DTYPES = FLOATS | {name: getattr(torch, name) for name in ("int8", "int16", "int32", "int64", "uint8", "bool")}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
OTHER_DTYPES = {name: getattr(torch, name) for name in ("complex64", "complex128")}


class ValueRefused(Exception):
    """A value has no place in the protocol."""


Path = tuple[Any, ...]


@dataclass(frozen=True)
class TensorSpec:
    """Where a tensor lies in a region of bytes; checked by `parse_spec`."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last one."""
        if self.numel == 0:
            return 0
        return (1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride))) * self.dtype.itemsize

    @property
    def overlaps_itself(self) -> bool:
        return overlaps_itself(self.shape, self.stride)


@dataclass(frozen=True)
class Leaf:
    """One end of a tree: where it hangs, what kind it is, and the value itself."""

    path: Path
    kind: str
    value: Any


def _whole(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def parse_spec(raw: Any) -> TensorSpec:
    """A tensor's place, or `ValueRefused`: nothing negative, nothing beyond 64 bits, aligned to its own items."""
    if type(raw) is not dict or raw.get("dtype") not in DTYPES:
        raise ValueRefused("a tensor without a known dtype")
    shape, stride, offset = raw.get("shape"), raw.get("stride"), raw.get("offset")
    if type(shape) is not list or type(stride) is not list or len(shape) != len(stride) or len(shape) > RANK_LIMIT:
        raise ValueRefused("a tensor whose shape and stride do not belong together")
    if not all(_whole(item) and item >= 0 for item in [*shape, *stride, offset]):
        raise ValueRefused("a tensor with a negative or absurd shape, stride or offset")
    spec = TensorSpec(DTYPES[raw["dtype"]], tuple(shape), tuple(stride), offset)
    if offset % spec.dtype.itemsize or spec.numel >= 1 << 48 or spec.span >= 1 << 60:
        raise ValueRefused("a tensor at a misaligned or impossible place")
    return spec


def view(region: torch.Tensor, raw: Any, base: int = 0, limit: int | None = None) -> torch.Tensor:
    """The tensor `raw` describes, over `region` (bytes) from `base`, inside `limit` bytes of it."""
    spec = parse_spec(raw)
    room = region.numel() - base if limit is None else limit
    if spec.offset + spec.span > room:
        raise ValueRefused("a tensor reaches outside its region")
    if spec.numel == 0:
        return torch.empty(spec.shape, dtype=spec.dtype, device=region.device)
    start = base + spec.offset
    flat = region[start : start + spec.span].view(spec.dtype)
    return flat.as_strided(spec.shape, spec.stride)


def overlaps_itself(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two elements may lie in one place; steps that do not nest count as overlapping (as in `value.rs`)."""
    reach = 0
    for step, size in sorted((step, size) for size, step in zip(shape, stride) if size > 1):
        if step <= reach:
            return 0 not in shape
        reach += step * (size - 1)
    return False


def describe(tensor: torch.Tensor, offset: int, stride: tuple[int, ...] | None = None) -> dict[str, Any]:
    """The wire form of a tensor that lies at `offset`."""
    if tensor.dtype not in NAMES:
        raise ValueRefused(f"tensors of {tensor.dtype} are not supported")
    return {
        "dtype": NAMES[tensor.dtype],
        "shape": list(tensor.shape),
        "stride": list(tensor.stride() if stride is None else stride),
        "offset": offset,
    }


def encode(obj: Any, place: Callable[[torch.Tensor], dict[str, Any]]) -> Any:
    """The wire form of `obj`; `place` says where a tensor lies (`describe` makes its answer)."""
    room = [LEAF_LIMIT]
    return _encode(obj, place, 0, room)


def _encode(obj: Any, place: Callable[[torch.Tensor], dict[str, Any]], depth: int, room: list[int]) -> Any:
    if depth > DEPTH_LIMIT:
        raise ValueRefused(f"nested deeper than {DEPTH_LIMIT}")
    if isinstance(obj, tuple):
        return {"tuple": [_encode(item, place, depth + 1, room) for item in tuple.__iter__(obj)]}
    if isinstance(obj, list):
        return {"list": [_encode(item, place, depth + 1, room) for item in list.__iter__(obj)]}
    if isinstance(obj, dict):
        pairs = dict.items(obj)
        return {"dict": [[_key(key), _encode(item, place, depth + 1, room)] for key, item in pairs]}
    room[0] -= 1
    if room[0] < 0:
        raise ValueRefused(f"more than {LEAF_LIMIT} leaves")
    return _encode_leaf(obj, place)


def _key(key: Any) -> Any:
    if type(key) is str or _whole(key):
        return key
    raise ValueRefused(f"a dict key of {type(key).__name__}")


def _encode_leaf(obj: Any, place: Callable[[torch.Tensor], dict[str, Any]]) -> Any:
    # A subclass can compute when it is looked at, or lie about being equal: only the exact types pass.
    if type(obj) is torch.Tensor or type(obj) is torch.nn.Parameter:
        if obj.layout != torch.strided or obj.is_quantized or obj.dtype not in NAMES:
            raise ValueRefused(f"a tensor of {obj.dtype} with layout {obj.layout}")
        return {"tensor": place(obj)}
    if obj is None or type(obj) is bool or type(obj) is str or _whole(obj):
        return obj
    if type(obj) is float:
        return {"float": repr(obj)}
    if type(obj) is torch.dtype:
        return {"dtype": str(obj).removeprefix("torch.")}
    if type(obj) is torch.device:
        return {"device": obj.type}
    raise ValueRefused(f"a value of type {type(obj).__name__}")


def decode(value: Any, make_tensor: Callable[[dict[str, Any]], Any]) -> Any:
    """The tree `value` stands for; `make_tensor` is handed each tensor's raw place and must check it (`parse_spec`)."""
    return _decode(value, make_tensor, 0, [LEAF_LIMIT])


def _decode(value: Any, make_tensor: Callable[[dict[str, Any]], Any], depth: int, room: list[int]) -> Any:
    if depth > DEPTH_LIMIT:
        raise ValueRefused(f"nested deeper than {DEPTH_LIMIT}")
    room[0] -= 1
    if room[0] < -LEAF_LIMIT:  # containers count here too: empty ones must not be free
        raise ValueRefused(f"more than {LEAF_LIMIT} leaves")
    if value is None or type(value) is bool or type(value) is str or _whole(value):
        return value
    if type(value) is not dict or len(value) != 1:
        raise ValueRefused("not a value of the protocol")
    ((kind, inner),) = value.items()
    if kind in ("list", "tuple") and type(inner) is list:
        items = [_decode(item, make_tensor, depth + 1, room) for item in inner]
        return items if kind == "list" else tuple(items)
    if kind == "dict" and type(inner) is list:
        return dict(_decode_pair(pair, make_tensor, depth, room) for pair in inner)
    return _decode_leaf(kind, inner, make_tensor)


def _decode_pair(pair: Any, make_tensor: Callable[[dict[str, Any]], Any], depth: int, room: list[int]) -> tuple[Any, Any]:
    if type(pair) is not list or len(pair) != 2:
        raise ValueRefused("not a pair of key and value")
    return _key(pair[0]), _decode(pair[1], make_tensor, depth + 1, room)


def _decode_leaf(kind: str, inner: Any, make_tensor: Callable[[dict[str, Any]], Any]) -> Any:
    if kind == "tensor" and type(inner) is dict:
        return make_tensor(inner)
    if kind == "float" and type(inner) is str:
        try:
            return float(inner)
        except ValueError:
            raise ValueRefused("a float that is none") from None
    if kind == "dtype" and inner in (DTYPES | OTHER_DTYPES):
        return (DTYPES | OTHER_DTYPES)[inner]
    if kind == "device" and inner in ("cpu", "cuda", "meta"):
        return torch.device(inner)
    raise ValueRefused("not a value of the protocol")


def leaves(obj: Any, path: Path = ()) -> Iterator[Leaf]:
    """The ends of a tree in order. Lists and tuples count as the same; an empty container is an end of its own."""
    if isinstance(obj, (list, tuple)):
        if not obj:
            yield Leaf(path, "sequence", None)
        for index, item in enumerate(obj):
            yield from leaves(item, (*path, index))
    elif isinstance(obj, dict):
        if not obj:
            yield Leaf(path, "dict", None)
        for key, item in obj.items():
            yield from leaves(item, (*path, ("key", key)))
    elif isinstance(obj, torch.Tensor):
        yield Leaf(path, "tensor", obj)
    else:
        yield Leaf(path, type(obj).__name__, obj)


def tensors(obj: Any) -> list[torch.Tensor]:
    return [leaf.value for leaf in leaves(obj) if leaf.kind == "tensor"]


def tree_map(function: Callable[[torch.Tensor], Any], obj: Any) -> Any:
    """The same tree with `function` of every tensor; named tuples become plain ones."""
    if isinstance(obj, torch.Tensor):
        return function(obj)
    if isinstance(obj, tuple):
        return tuple(tree_map(function, item) for item in obj)
    if isinstance(obj, list):
        return [tree_map(function, item) for item in obj]
    if isinstance(obj, dict):
        return {key: tree_map(function, item) for key, item in obj.items()}
    return obj
