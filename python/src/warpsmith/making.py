"""How a live module was made: its class, and what its constructor was given."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .errors import TaskError
from .live import _is_own, _is_plain
from .sources import Task
from .swap import forward_of
from .tasks import drawing, drawn, source_of

# Where a decorated class notes it.
MADE_WITH = "_warpsmith_made_with"
HINT = "give `init_inputs=[…]`, the arguments that its constructor was called with"


@dataclass(frozen=True)
class Made:
    """A module as a task's source can make it again."""

    source: str
    init_inputs: list[Any]
    # What stands before its names in the state dict of the task's module.
    prefix: str


def made(module: torch.nn.Module, inputs: Sequence[Any], shapes: Sequence[Sequence[Any]], init_inputs: Sequence[Any] | None) -> Made:
    kind = type(module)
    if not _is_own(kind):
        return Made(_wrapped(module, inputs, shapes), [], "inner.")
    found = list(init_inputs) if init_inputs is not None else _arguments(module)
    _check(module, kind, found, inputs)
    source = source_of(Task(kind, list(inputs), found), [list(one) for one in shapes])
    return Made(source, found, "")


def _arguments(module: torch.nn.Module) -> list[Any]:
    """What the constructor was given: as noted, or as the module keeps it under the same name."""
    kind = type(module)
    given = module.__dict__.get(MADE_WITH)
    found = []
    for name, parameter in list(inspect.signature(kind.__init__).parameters.items())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if given is not None:
            value = given.get(name, parameter.default)
        else:
            kept = getattr(module, name, parameter.default)
            value = kept if _is_plain(kept) else parameter.default
        if value is parameter.empty or (parameter.kind is parameter.KEYWORD_ONLY and value != parameter.default):
            raise TaskError(f"it cannot be seen what `{kind.__name__}` was given as `{name}`", HINT, "unknown_arguments")
        if parameter.kind is not parameter.KEYWORD_ONLY:
            found.append(value)
    return found


def _check(module: torch.nn.Module, kind: type[torch.nn.Module], init_inputs: list[Any], inputs: Sequence[Any]) -> None:
    """Made again with these and given its weights, it must be the same module."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            again = kind(*init_inputs)
        except Exception as error:
            raise TaskError(f"`{kind.__name__}` cannot be made again with {init_inputs}: {error}", HINT, "unknown_arguments") from error
        mine, other = module.state_dict(), again.state_dict()
        same = mine.keys() == other.keys() and all(mine[name].shape == one.shape and mine[name].dtype == one.dtype for name, one in other.items())
        if same:
            again.load_state_dict(mine)
            device = next((one.device for one in mine.values()), torch.device("cpu"))
            before = module.training
            try:
                torch.manual_seed(0)
                first = forward_of(kind)(module.eval(), *inputs)
                torch.manual_seed(0)
                same = _alike(first, forward_of(kind)(again.to(device).eval(), *inputs))
            finally:
                module.train(before)
        if not same:
            raise TaskError(f"`{kind.__name__}` made again with {init_inputs} is another module", HINT, "unknown_arguments")


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.shape == other.shape and torch.allclose(one.double(), other.double(), 1e-4, 1e-5, equal_nan=True)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(value, other[key]) for key, value in one.items())
    return bool(one == other)


def _wrapped(module: torch.nn.Module, inputs: Sequence[Any], shapes: Sequence[Sequence[Any]]) -> str:
    """A module of PyTorch's own, as the expression that makes it."""
    expression = _expression(module)
    names = [f"x{number}" for number in range(len(inputs))]
    text = (
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.inner = {expression}\n\n    def forward(self, {', '.join(names)}):\n        return self.inner({', '.join(names)})\n\n\n"
    )
    lists = [f"[{', '.join(map(drawn, one))}]" for one in [inputs, *shapes]]
    text += drawing("get_inputs", lists[0]) + "\n\n"
    if len(lists) > 1:
        text += drawing("get_inputs_variants", f"[{', '.join(lists[1:])}]") + "\n\n"
    text += drawing("get_init_inputs", "[]")
    space: dict[str, Any] = {}
    exec(compile(text, "<task>", "exec"), space)
    mine, other = module.state_dict(), space["Model"]().state_dict()
    if {f"inner.{name}": one.shape for name, one in mine.items()} != {name: one.shape for name, one in other.items()}:
        raise TaskError(f"how this {type(module).__name__} was made cannot be seen", "put it into a class of your own that makes it")
    return text


def _expression(module: torch.nn.Module) -> str:
    kind = type(module)
    if getattr(torch.nn, kind.__name__, None) is not kind:
        what = f"a {kind.__name__} inside of a module of PyTorch's"
        raise TaskError(f"{what} cannot be written down", "put all of it into a class of your own that makes it")
    if kind is torch.nn.Sequential:
        return f"nn.Sequential({', '.join(_expression(one) for one in module)})"
    if kind in (torch.nn.ModuleList, torch.nn.ModuleDict) or next(module.children(), None) is not None:
        raise TaskError(f"a {kind.__name__} cannot be written down", "put all of it into a class of your own that makes it")
    return f"nn.{kind.__name__}({module.extra_repr()})"
