"""The forms that a task's inputs and outputs take, and how the supervisor is told of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

import draws
import screen
import values
from compare import Learnt, Terms
from task import TaskError
from transforms import FAR_SIDES, STRUCTURAL

APART = STRUCTURAL | FAR_SIDES | {"centered"}


@dataclass
class Variant:
    """One form of a task's inputs."""

    survey: screen.Survey
    specs: list[Any]
    outputs: Any
    outline: list[Any]
    input_bytes: int
    output_bytes: int
    traffic_bytes: int  # what a call must read and write, weights aside
    learnt: dict[values.Path, Learnt]
    apart: dict[str, dict[values.Path, Learnt]] = field(default_factory=dict)

    def known(self, transform: str) -> dict[values.Path, Learnt]:
        """What earlier draws of this kind have shown. Where eager errs in ways of its own, it excuses no other draw."""
        return self.apart.get(transform, self.learnt) if transform in APART else self.learnt

    def learn(self, transform: str, learnt: dict[values.Path, Learnt]) -> None:
        if transform in APART:
            self.apart[transform] = learnt
        else:
            self.learnt = learnt

    def terms(self, transform: str, target: str) -> Terms:
        all_scales = self.survey.traits.all_scales
        return Terms(transform == "plain", target == "cuda", all_scales, transform in STRUCTURAL, transform == "centered")


def encode_init(value: Any) -> Any:
    def refuse(_: torch.Tensor) -> dict[str, Any]:
        raise values.ValueRefused("tensors as constructor arguments")

    try:
        return values.encode(value, refuse)
    except values.ValueRefused as error:
        raise TaskError("unsupported_input", f"get_init_inputs() returns {error}") from None


def variant_of(found: screen.Survey) -> Variant:
    """Lays out inputs and outputs; of the survey everything is kept but its tensors."""
    inputs, outputs = draws.Layout(), draws.Layout()
    try:
        specs = [
            values.encode(value, lambda t: values.describe(t, inputs.place(t), draws.dense_stride(t))) for value in found.inputs
        ]
    except values.ValueRefused as error:
        raise TaskError("unsupported_input", f"get_inputs() returns {error}") from None
    answer = values.encode(found.answer, lambda t: _output(t, outputs.place(t)))
    read = sum(tensor.nbytes for tensor in values.tensors(found.inputs)) if found.traits.reads_all else 0
    return Variant(
        survey=replace(found, inputs=[], answer=None),
        specs=specs,
        outputs=answer,
        outline=draws.outline(found.inputs),
        input_bytes=inputs.bytes,
        output_bytes=outputs.bytes,
        traffic_bytes=read + sum(tensor.nbytes for tensor in values.tensors(found.answer)),
        learnt=dict(found.learnt),
    )


def _output(tensor: torch.Tensor, offset: int) -> dict[str, Any]:
    """Where the reference's own output is a view whose elements share memory, a candidate's may be one too."""
    spec = values.describe(tensor, offset, draws.contiguous_stride(tensor))
    return spec | {"overlaps": True} if values.overlaps_itself(tensor.shape, tensor.stride()) else spec


def describe(variant: Variant) -> dict[str, Any]:
    return {
        "inputs": variant.specs,
        "outputs": variant.outputs,
        "input_bytes": variant.input_bytes,
        "output_bytes": variant.output_bytes,
        "eager_us": variant.survey.eager_us,
    }
