"""Holds a graph against its module: functional forms alone interpret the graph, on the inputs that the module gets.

Real shapes take seconds and gigabytes where a few megabytes show the same. So the module is traced once more on smaller inputs.
That graph must be the one of the real shapes but for numbers, and is compared in its place. Where nothing smaller has the same
graph, the real shapes are compared.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from functional import CaptureError, interpret
from tracer import build, build_fake, load, trace

# All values of a graph together, beyond which smaller inputs are tried.
COMPARE_BYTES = 4 << 20
# Beyond this no comparison is tried.
LARGEST_COMPARE_BYTES = 8 << 30
# Relative distance in the Euclidean norm. Functional forms call the same kernels as the module, so that differences come
# from another order of sums only.
LARGEST_ERROR = 1e-4
LARGEST_HALF_ERROR = 1e-2
# With a batch of one, an operator that takes another dimension for the batch might compute the same.
SMALL_BATCH = 2
# For dimensions after the second: most windows fit into the first, wide ones into the next. `None` leaves them as they are.
SMALL_LENGTHS = (16, 64, None)
# Between lengths that differ, which so stay different. Strides of two and four still divide them.
LENGTH_STEP = 4


def captured_and_compared(source: str, smaller: str | None) -> dict:
    model, inputs = build_fake(source)
    graph, calls = trace(model, inputs)
    if bytes_of(graph) > COMPARE_BYTES:
        for text, shapes in smaller_inputs(source, smaller, model, inputs):
            if compared_smaller(graph, *text, shapes):
                return graph
    if bytes_of(graph) > LARGEST_COMPARE_BYTES:
        raise CaptureError("compare", f"its values take {bytes_of(graph) / 2**30:.0f} GiB, too much to compare the graph with the module")
    compare(source, graph, calls, shapes_of(inputs))
    return graph


def smaller_inputs(source: str, smaller: str | None, model, inputs: list) -> Iterator[tuple]:
    """Modules with the shapes to compare them on, what is probably cheapest first."""
    if smaller is not None:
        try:
            built = build_fake(smaller)
        except CaptureError:
            pass
        else:
            for shapes in small_shapes(built[1]):
                yield (smaller, *built), shapes
    for shapes in small_shapes(inputs):
        if shapes != shapes_of(inputs):
            yield (source, model, inputs), shapes


def shapes_of(inputs: list) -> list:
    return [list(one.shape) if isinstance(one, torch.Tensor) else None for one in inputs]


def small_shapes(inputs: list) -> list[list]:
    """Shapes of fewer items and shorter dimensions. Channels and features stay: weights are made for them."""
    shapes = shapes_of(inputs)
    batch = next((shape[0] for shape in shapes if shape), None)
    found = []
    for limit in SMALL_LENGTHS:
        lengths = sorted({length for shape in shapes if shape for length in shape[2:] if limit is not None and length > limit})
        short = {length: min(length, limit + LENGTH_STEP * place) for place, length in enumerate(lengths)}
        made = [shape and [min(shape[0], SMALL_BATCH) if shape[0] == batch else shape[0], *shape[1:2], *(short.get(length, length) for length in shape[2:])]
                for shape in shapes]
        found.append(made)
    # Where the batch of one input is the length of another, neither can be cut.
    found.append(shapes)
    return [made for place, made in enumerate(found) if made not in found[:place]]


def narrowed(inputs: list, shapes: list) -> list:
    def narrow(tensor, shape: list):
        if list(tensor.shape) == shape:
            return tensor
        for dim, length in enumerate(shape):
            tensor = tensor.narrow(dim, 0, length)
        # Dense as the whole was, so that views of it stay views.
        return tensor.clone()

    return [narrow(one, shape) if isinstance(one, torch.Tensor) else one for one, shape in zip(inputs, shapes, strict=True)]


def compared_smaller(graph: dict, source: str, model, inputs: list, shapes: list) -> bool:
    """Whether the module has the same graph on these shapes, and there computes what the module computes."""
    try:
        small, calls = trace(model, narrowed(inputs, shapes))
    except CaptureError:
        return False
    if structure(small) != structure(graph) or bytes_of(small) > LARGEST_COMPARE_BYTES:
        return False
    try:
        compare(source, small, calls, shapes)
    except CaptureError:
        raise
    except Exception:
        # Fake tensors accept some shapes that the operators themselves refuse.
        return False
    return True


def structure(graph: dict) -> dict:
    """A graph without the numbers that depend on shapes."""

    def without_numbers(value):
        if isinstance(value, dict):
            return {name: without_numbers(one) for name, one in value.items()}
        if isinstance(value, list):
            return [without_numbers(one) for one in value]
        return None if isinstance(value, (int, float)) and not isinstance(value, bool) else value

    def of(value: dict) -> tuple:
        source = dict(value["from"])
        free = {name: without_numbers(source.pop(name)) for name in ("arguments", "data") if name in source}
        return len(value["shape"]), value["dtype"], source, free

    return {"values": [of(value) for value in graph["values"]], "returns": graph["returns"]}


def compare(source: str, graph: dict, calls: list, shapes: list) -> None:
    """Interprets the graph and holds it against the module, with state that no structure can hide behind."""
    space = load(source)
    torch.manual_seed(0)
    model, inputs = build(space)
    inputs = narrowed(inputs, shapes)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.rand_like(tensor))
        state = dict(model.state_dict(keep_vars=True))
        for name, buffer in model.named_buffers():
            state.setdefault(name, buffer)
        found = interpret(graph, calls, state, [one.clone() if isinstance(one, torch.Tensor) else one for one in inputs])
        expected = flat(model(*inputs))
    if len(found) != len(expected):
        raise CaptureError("compare", f"the graph returns {len(found)} tensors, the module {len(expected)}")
    for left, right in zip(found, expected, strict=True):
        if left.shape != right.shape or left.dtype != right.dtype:
            raise CaptureError("compare", "the graph's result has another shape or type than the module's")
        off = distance(left, right)
        largest = LARGEST_HALF_ERROR if right.dtype in (torch.bfloat16, torch.float16) else LARGEST_ERROR
        if not off <= largest:
            raise CaptureError("compare", f"the graph computes something else than the module (off by {off:.2g})")


def flat(result) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [tensor for one in result for tensor in flat(one)]
    if isinstance(result, dict):
        return [tensor for one in result.values() for tensor in flat(one)]
    return []


def distance(left: torch.Tensor, right: torch.Tensor) -> float:
    """Of finite elements relative to their norm; infinite where others are not the same."""
    # The usual case: the same kernels ran in the same order.
    if torch.equal(left, right):
        return 0.0
    left, right = left.double(), right.double()
    finite = right.isfinite()
    if not torch.equal(finite, left.isfinite()) or not torch.equal(left[~finite].nan_to_num(), right[~finite].nan_to_num()):
        return float("inf")
    left, right = left[finite], right[finite]
    return float((left - right).norm() / right.norm().clamp(min=1e-30)) if right.numel() else 0.0


def bytes_of(graph: dict) -> int:
    return sum(torch.Size(value["shape"]).numel() * getattr(torch, value["dtype"]).itemsize for value in graph["values"])
