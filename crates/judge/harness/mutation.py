"""How many wrong variants of a task would the checks before timing refuse?

Mutants are graphs with one mistake each. They are interpreted on draws like those of a judgement and compared as a candidate's
outputs are: same weights, same transforms, same limits, same appeal. The graph without a mistake must pass them all.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import appeal
import task
import values
from compare import LeafAnswer
from graphs import Draw, Graph, NoGraph
from measure import errors_of

if TYPE_CHECKING:
    from trusted import Trusted

KEPT_SHARE = 0.25  # of free memory, for values that mutants have in common
VARIANT = 0  # a graph describes the shapes of `get_inputs()`


@dataclass
class Trial:
    """One mutant and what became of it."""

    graph: Graph
    killed_by: str | None = None
    check: int | None = None
    broken: str | None = None
    near: float = 0.0  # the largest error it passed with, as a share of the limit
    identical: bool = True  # the same bits as without the mistake, on every draw

    @property
    def alive(self) -> bool:
        return self.killed_by is None and self.broken is None

    def told(self) -> dict[str, Any]:
        return {
            "killed_by": self.killed_by, "check": self.check, "broken": self.broken,
            "near": self.near if self.near < 1e300 else 1e300, "identical": self.identical,
        }  # fmt: skip


class OutOfTime(Exception):
    """Mutants are left that nobody tried."""


def measured(trusted: Trusted, request: dict[str, Any]) -> dict[str, Any]:
    """What becomes of each mutant; `faithful` says whether the graph itself computes what the task does."""
    started = time.monotonic()
    chance = random.Random(request["seed"])
    original = Graph(request["graph"])
    trials = [Trial(Graph(one["graph"], tuple(one["stale"]))) for one in request["mutants"]]
    reference = trusted.reference_at_hand()
    told: dict[str, Any] = {"faithful": True, "message": "", "complete": True}
    first: dict[str, torch.Tensor] = {}
    for number, transform in enumerate(request["checks"]):
        seeds = chance.getrandbits(32), chance.getrandbits(32)
        trusted.weights({"seed": seeds[0]})
        first = first or {name: tensor.clone() for name, tensor in _state(reference).items()}
        alive = [trial for trial in trials if trial.alive]
        if number and not alive:
            break
        draw = _Check(trusted, transform, seeds[1], first)
        told["message"] = draw.objection(original)
        if told["message"]:
            told["faithful"] = False
            break
        try:
            _tried(draw, alive, number, started + request["limit_s"])
        except OutOfTime:
            told["complete"] = False
            break
    return told | {"trials": [trial.told() for trial in trials], "seconds": time.monotonic() - started}


def _tried(draw: _Check, alive: list[Trial], number: int, end: float) -> None:
    for trial in alive:
        if time.monotonic() > end:
            raise OutOfTime
        try:
            outputs = draw.outputs(trial.graph)
        except (NoGraph, RuntimeError, LookupError, TypeError, ValueError, NotImplementedError) as error:
            trial.broken = task.first_sentences(error)
            continue
        near = draw.passed(outputs)
        if near is None:
            trial.killed_by, trial.check = draw.transform, number
        else:
            trial.near = max(trial.near, near)
            trial.identical &= draw.is_original(outputs)


class _Check:
    """One draw with its answers, on which graphs are tried."""

    def __init__(self, trusted: Trusted, transform: str, seed: int, stale: dict[str, torch.Tensor]) -> None:
        self._trusted = trusted
        request = {"variant": VARIANT, "seed": seed, "transform": transform, "answer": True, "exact": True}
        inputs, self._drawn = trusted.drawn_aside(request)
        self.transform = self._drawn.draft.transform
        reference = trusted.reference_at_hand()
        device = reference.target
        room = int(KEPT_SHARE * task.free_memory(device))
        self._draw = Draw(inputs, _state(reference), stale, device, room)
        self._original: list[torch.Tensor] = []

    def outputs(self, graph: Graph, keep: bool = False) -> list[torch.Tensor]:
        with task.math_mode(tf32=False):
            return self._draw.outputs(graph, keep)

    def objection(self, original: Graph) -> str:
        """Why the graph without a mistake does not pass, if so."""
        try:
            self._original = self.outputs(original, keep=True)
        except (NoGraph, RuntimeError, LookupError, TypeError, ValueError, NotImplementedError) as error:
            return f"the graph cannot be interpreted: {task.first_sentences(error)}"
        report = self._report(self._original)
        return "" if report["passed"] else f"the graph does not compute what the task does ({self.transform}): {report['message']}"

    def is_original(self, outputs: list[torch.Tensor]) -> bool:
        pairs = zip(outputs, self._original, strict=True)
        return all(one.shape == other.shape and torch.equal(one, other) for one, other in pairs)

    def passed(self, outputs: list[torch.Tensor]) -> float | None:
        """How near to the limits a graph passes, or None if it does not."""
        outputs = [output.contiguous() for output in outputs]
        answers = [answer for answer in self._drawn.answers if answer.kind == "tensor"]
        near = [_nearness(value, answer) for value, answer in zip(outputs, answers)]
        # What no appeal would be heard for needs no report.
        if math.inf in near or not self._report(outputs)["passed"]:
            return None
        return max(near, default=0.0)

    def _report(self, outputs: list[torch.Tensor]) -> dict[str, Any]:
        """As a candidate's outputs would be reported. They were copied out of its memory, so they are contiguous."""
        given = iter([output.contiguous() for output in outputs])
        tree = values.decode(self._drawn.variant.outputs, lambda _: next(given))
        if next(given, None) is not None:
            raise NoGraph("the graph returns more tensors than the task")
        return self._trusted.report_of(tree, self._drawn)


def _nearness(value: torch.Tensor, answer: LeafAnswer) -> float:
    """An output's errors over what they may be; infinite where they are so large that nothing excuses them."""
    if answer.scale is None:
        return 0.0
    errors, limits = errors_of(value, answer.value, answer.scale, answer.exclude, looks=answer.looks), answer.loose or answer.strict
    if not limits.admit(errors) and not answer.allowed and not (errors.finite and errors.rms <= appeal.HOPELESS_RMS):
        return math.inf
    return max(errors.rms / max(limits.rms, 1e-30), errors.peak / max(limits.peak, 1e-30), 0.0)


def _state(reference: task.Reference) -> dict[str, torch.Tensor]:
    """By name, buffers that are not saved included."""
    return dict(reference.model.named_buffers()) | dict(reference.model.named_parameters(remove_duplicate=False)) | reference.state()
