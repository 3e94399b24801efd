"""From the text of a task to the graph of its module, traced by `torch.export` under fake tensors: shapes of any size cost nothing."""

from __future__ import annotations

import contextlib
import linecache
import sys
import types
from unittest import mock

import torch
from torch._decomp import decompositions
from torch._subclasses.fake_tensor import FakeTensorMode

from functional import CaptureError
from translate import FILE, Translator


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


def replace_tensors(module: torch.nn.Module, fn, recurse: bool = True) -> torch.nn.Module:
    """What `Module.to` and its like do to tensors. PyTorch's own way, to swap them in place, fails for fake ones."""
    for child in module.children() if recurse else ():
        child._apply(fn)
    with torch.no_grad():
        for name, one in module._parameters.items():
            if one is not None:
                module._parameters[name] = torch.nn.Parameter(fn(one), one.requires_grad)
        for name, one in module._buffers.items():
            if one is not None:
                module._buffers[name] = fn(one)
    return module


def build_fake(source: str):
    space = load(source)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), mock.patch.object(torch.nn.Module, "_apply", replace_tensors):
            return build(space)
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError("load", f"the module cannot be made: {type(error).__name__}: {error}") from None


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


def trace(model, inputs: list) -> tuple[dict, list]:
    """The graph, and how to compute each of its values again."""
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
