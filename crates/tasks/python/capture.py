"""Captures what a module computes as an operator graph.

    python capture.py MODEL.PY [SMALLER.PY]

Prints one line of JSON: `{"graph": ...}` or `{"failed": {"stage", "message", "operator", "line"}}`.

`torch.export` traces the module under fake tensors, so shapes of any size cost nothing. Its ATen graph is then written in
PyTorch's functional names with every default filled in. Before anyone relies on a graph, it is interpreted by functional
forms alone and compared with the module on real inputs. Where these are too large for that, the same module with smaller
constants is captured, held to the same operators, and compared instead.

Tasks are trusted: this process runs the task's own code.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import sys
import types
import warnings
from unittest import mock

import torch
from torch._decomp import decompositions
from torch._subclasses.fake_tensor import FakeTensorMode

from functional import CaptureError, interpret
from translate import FILE, Translator

warnings.filterwarnings("ignore")

# All values of a graph together, beyond which the smaller module is compared.
COMPARE_BYTES = 1 << 29
# Beyond this no comparison is tried.
LARGEST_COMPARE_BYTES = 8 << 30
# Relative distance in the Euclidean norm. Functional forms call the same kernels as the module, so that differences come
# from another order of sums only.
LARGEST_ERROR = 1e-4
LARGEST_HALF_ERROR = 1e-2


def load(source: str):
    space = types.ModuleType("model")
    linecache.cache[FILE] = (len(source), None, source.splitlines(True), FILE)
    sys.modules["model"] = space
    try:
        exec(compile(source, FILE, "exec"), space.__dict__)
    except Exception as error:
        raise CaptureError("load", f"`{FILE}` does not load: {type(error).__name__}: {error}") from None
    return space


def build(space):
    init = space.get_init_inputs() if hasattr(space, "get_init_inputs") else []
    model = space.Model(**init) if isinstance(init, dict) else space.Model(*init)
    return model.eval(), list(space.get_inputs())


def as_tensors(inputs: list) -> tuple[list, set[int]]:
    """Python numbers become tensors without dimensions, so that they stay arguments of the graph."""
    scalars = {place for place, value in enumerate(inputs) if isinstance(value, (bool, int, float))}
    given = [torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None) if place in scalars else value
             for place, value in enumerate(inputs)]
    return given, scalars


def recurrent_shapes(inp, hidden, *rest, **options):
    """One layer of a recurrence, of which a trace under fake tensors needs shapes alone."""
    last = hidden if isinstance(hidden, torch.Tensor) else hidden[0]
    return inp.new_empty((*inp.shape[:-1], last.shape[-1])), hidden


def export(model, inputs: list):
    """Without a loop over every step of a recurrence: that takes minutes, and gives an LSTM's states a dimension too many."""
    layers = {"one_layer_rnn": recurrent_shapes, "select_one_layer_lstm_function": lambda *given: recurrent_shapes}
    with torch.no_grad(), contextlib.ExitStack() as stack:
        for name, replacement in layers.items():
            if hasattr(decompositions, name):
                stack.enter_context(mock.patch.object(decompositions, name, replacement))
        return torch.export.export(model, tuple(inputs), strict=False)


def capture(source: str) -> tuple[dict, list]:
    space = load(source)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode:
            model, inputs = build(space)
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError("load", f"the module cannot be made: {type(error).__name__}: {error}") from None
    tensors, scalars = as_tensors(inputs)
    first = None
    for given, kept in ((tensors, scalars), (inputs, set())) if scalars else ((inputs, set()),):
        try:
            program = export(model, given)
            break
        except Exception as error:
            first = first or error
    else:
        raise explained(first)
    translator = Translator(program, kept)
    return translator.run(), translator.captured.calls


def explained(error: Exception) -> CaptureError:
    text = f"{type(error).__name__}: {error}".split("\n\n")[0].strip()
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    return CaptureError("trace", text[:600], None, line)


def flat(result) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [tensor for one in result for tensor in flat(one)]
    return []


def compare(source: str, graph: dict, calls: list) -> None:
    """Interprets the graph and holds it against the module, with state that no structure can hide behind."""
    space = load(source)
    torch.manual_seed(0)
    model, inputs = build(space)
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


def distance(left: torch.Tensor, right: torch.Tensor) -> float:
    """Of finite elements relative to their norm; infinite where others are not the same."""
    left, right = left.double(), right.double()
    finite = right.isfinite()
    if not torch.equal(finite, left.isfinite()) or not torch.equal(left[~finite].nan_to_num(), right[~finite].nan_to_num()):
        return float("inf")
    left, right = left[finite], right[finite]
    return float((left - right).norm() / right.norm().clamp(min=1e-30)) if right.numel() else 0.0


def bytes_of(graph: dict) -> int:
    return sum(torch.Size(value["shape"]).numel() * getattr(torch, value["dtype"]).itemsize for value in graph["values"])


def operators(graph: dict) -> list:
    return [value["from"].get("op", value["from"]["kind"]) for value in graph["values"]]


def captured_and_compared(source: str, smaller: str | None) -> dict:
    graph, calls = capture(source)
    if smaller is not None and bytes_of(graph) > COMPARE_BYTES:
        try:
            small, small_calls = capture(smaller)
        except CaptureError:
            small = None
        if small is not None and operators(small) == operators(graph):
            compare(smaller, small, small_calls)
            return graph
    if bytes_of(graph) > LARGEST_COMPARE_BYTES:
        raise CaptureError("compare", f"its values take {bytes_of(graph) / 2**30:.0f} GiB, too much to compare the graph with the module")
    compare(source, graph, calls)
    return graph


def main() -> None:
    sources = []
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            sources.append(file.read())
    # What the module prints is not the answer.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            reply = {"graph": captured_and_compared(sources[0], sources[1] if len(sources) > 1 else None)}
        except CaptureError as error:
            reply = {"failed": error.reply}
    print(json.dumps(reply))


if __name__ == "__main__":
    main()
