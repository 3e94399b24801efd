"""An interpreter of graphs that were just traced. `graph_forms.py` says what operator names stand for."""

from __future__ import annotations

import torch

from graph_forms import FORMS, VARIADIC, functional, revived


class CaptureError(Exception):
    """The module cannot be captured, for a reason that its author can act on."""

    def __init__(self, stage: str, message: str, operator: str | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.reply = {"stage": stage, "message": message, "operator": operator, "line": line}


def call_of(op: str, names: list[str]):
    """Computes an operator again from its tensors and arguments."""

    def call(tensors: list, arguments: dict):
        try:
            form = functional(op)
        except LookupError as error:
            raise CaptureError("translate", str(error), op) from None
        if op not in FORMS and isinstance(arguments.get("dtype"), str):
            arguments = {**arguments, "dtype": getattr(torch, arguments["dtype"])}
        if op in VARIADIC:
            return form(*tensors, **arguments)
        given = dict(zip(names, tensors, strict=True))
        return form(**{name: tensor for name, tensor in given.items() if tensor is not None}, **arguments)

    return call


def interpret(graph: dict, calls: list, state: dict, inputs: list) -> list:
    values: list = []
    for value, call in zip(graph["values"], calls, strict=True):
        source = value["from"]
        match source["kind"]:
            case "input" | "scalar":
                made = inputs[source["position"]]
                made = made if isinstance(made, torch.Tensor) else torch.tensor(made, dtype=getattr(torch, value["dtype"]))
            case "state":
                made = state[source["name"]]
            case "constant":
                made = call
            case _:
                operands = [None if place is None else values[place] for place in source["inputs"]]
                made = call(operands, {name: revived(one) for name, one in source["arguments"].items()})
                made = made[source["result"]] if isinstance(made, (tuple, list)) else made
        if list(made.shape) != value["shape"] or (source["kind"] != "scalar" and str(made.dtype) != f"torch.{value['dtype']}"):
            raise CaptureError("compare", f"value {len(values)} ({source.get('op', source['kind'])}) is {list(made.shape)} {made.dtype}, the graph says {value['shape']} {value['dtype']}")
        values.append(made)
    return [values[place] for place in graph["returns"]]
