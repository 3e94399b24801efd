"""Is it the draw's fault? What honest work errs on the very draw that a candidate did not pass.

Cancellation, a discontinuity nearby or an exponential can make an answer far more sensitive than eager's own error shows: eager
is one way of computing it, and may be lucky. So before a draw counts against a candidate, a panel of honest variants runs on it:
the float64 reference on inputs and weights that are off by a unit or two in the last place of float32, and eager on such
inputs, on inputs that lie in memory differently, and on another number of threads. Whatever errs no more than a small multiple
of what they do passes. Answers that are plainly wrong are not heard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from compare import LeafAnswer, LeafReport, Runs, answer_leaves
from measure import errors_of
from structure import is_mask
from task import InputsChanged, Recorder, Reference, TaskError, widen, widen_model
from tolerances import Errors
from values import FLOATS, Path, leaves, tree_map
from variants import Variant

ULP = 2.0**-23
HOPELESS_RMS = 1e-2


def worth_hearing(results: list[LeafReport]) -> bool:
    """No mistake that no rounding explains."""
    failed = [result for result in results if result.grade is None]
    return all(r.errors is not None and r.errors.finite and r.errors.rms <= HOPELESS_RMS for r in failed)


def exact_answers(reference: Reference, variant: Variant, transform: str, inputs: list[Any]) -> list[LeafAnswer] | None:
    """Answers in float64 of a draw that had none, or None where they cannot be had."""
    traits = variant.survey.traits
    recorder = Recorder(keep_calls=True) if traits.picks else None
    eager = reference.run(inputs, mode=recorder)
    exact = reference.run_double(inputs, eager)
    if exact is None:
        return None
    rounded = reference.run_tf32(inputs) if traits.has_gemm else None
    runs = Runs(eager, exact, rounded, recorder.calls if recorder else [])
    return answer_leaves(runs, variant.known(transform), variant.terms(transform, reference.target))[0]


def honest_errors(reference: Reference, inputs: list[Any], answers: list[LeafAnswer], seed: int) -> dict[Path, Errors]:
    """The worst of the panel against float64 answers, per output."""
    panel: list[Callable[[], Any]] = [
        lambda: _nudged_double(reference, inputs, seed),
        lambda: reference.run(_nudged(inputs, seed + 1)),
        lambda: reference.run(tree_map(_laid_out_otherwise, inputs)),
    ]
    if reference.target == "cpu":
        panel.append(lambda: _on_other_threads(lambda: reference.run(inputs)))
    found: dict[Path, Errors] = {}
    for run in panel:
        given = _attempt(run)
        for answer in answers:
            value = given.get(answer.path)
            if answer.scale is None or not isinstance(value, torch.Tensor) or value.shape != answer.value.shape:
                continue
            errors = errors_of(value.contiguous(), answer.value, answer.scale, answer.exclude, looks=answer.looks)
            if errors.finite:
                found[answer.path] = errors.joined(found.get(answer.path))
    return found


def _attempt(run: Callable[[], Any]) -> dict[Path, Any]:
    try:
        return {leaf.path: leaf.value for leaf in leaves(run())}
    except (TaskError, InputsChanged, RuntimeError, ValueError):  # a variant that cannot be had has nothing to say
        return {}


def _nudged_double(reference: Reference, inputs: list[Any], seed: int) -> Any:
    model = widen_model(reference.model)
    generators: dict[torch.device, torch.Generator] = {}
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float64:
                tensor.copy_(_off_by_ulps(tensor, generators, seed))
    return reference.run_wide(model, _nudged(tree_map(widen, inputs), seed))


def _nudged(inputs: list[Any], seed: int) -> list[Any]:
    generators: dict[torch.device, torch.Generator] = {}
    wide = (torch.float32, torch.float64)  # half types hold what they hold: their sums are made in float32
    return tree_map(lambda t: _off_by_ulps(t, generators, seed) if t.dtype in wide and not _labels(t) else t, inputs)


def _labels(tensor: torch.Tensor) -> bool:
    """Whole numbers and masks are what they are: a label next to one is no label, and any answer would pass."""
    return tensor.numel() > 0 and (bool((tensor == tensor.round()).all()) or is_mask(tensor))


def _off_by_ulps(tensor: torch.Tensor, generators: dict[torch.device, torch.Generator], seed: int) -> torch.Tensor:
    """Each element by one or two units in the last place of a float32, up or down."""
    generator = generators.setdefault(tensor.device, torch.Generator(tensor.device).manual_seed(seed % (1 << 63)))
    units = torch.randint(-2, 2, tensor.shape, generator=generator, device=tensor.device)
    return tensor * (1 + (units + (units >= 0)).to(tensor.dtype) * ULP)


def _laid_out_otherwise(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers with the last two dimensions swapped in memory: libraries then sum in another order."""
    if tensor.dim() < 2 or tensor.dtype not in FLOATS.values():
        return tensor
    return tensor.mT.contiguous().mT


def _on_other_threads(run: Callable[[], Any]) -> Any:
    kept = torch.get_num_threads()
    torch.set_num_threads(1 if kept > 1 else 2)
    try:
        return run()
    finally:
        torch.set_num_threads(kept)
