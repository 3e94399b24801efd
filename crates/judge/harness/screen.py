"""Is a task worth judging? Run once per task, before any candidate.

A task is refused if an answer that needs no computation passes on every admissible distribution, if the reference does
not give the same answer twice, or if it is not finite. What is learnt here about eager's error serves all later checks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import draws
import transforms
from compare import LeafAnswer, Learnt, Runs, Terms, answer_leaves, passes
from indices import numbers_alike
from measure import all_finite, errors_of, scale_of
from task import ALL_SCALES_OPS, ASSERTING_OPS, GEMM_OPS, PARTIAL_OPS, InputsChanged, Recorder, Reference, TaskError, reseed
from values import FLOATS, Leaf, Path, ValueRefused, encode, leaves, tensors, tree_map

SLOW_SECONDS = 5.0
EXCLUDED_LIMIT = 0.01
NON_FINITE_LIMIT = 0.5
FEW_ELEMENTS = 16
REPEAT_EPS = 256.0
CONSTANTS = ("zeros", "mean", "previous")


@dataclass(frozen=True)
class Traits:
    """What the first run of a task showed."""

    has_gemm: bool
    flops: int
    picks: bool  # some integer output chooses elements: later runs are recorded too
    transformable: bool
    reads_all: bool  # no operator that may leave part of its input unread
    all_scales: bool  # elements of every size come out relatively exact, however they are computed
    fixed: tuple[bool, ...] = ()  # for each input tensor, whether it is the same in every draw


@dataclass(frozen=True)
class Survey:
    """One variant of a task, screened."""

    inputs: list[Any]
    answer: Any
    traits: Traits
    learnt: dict[Path, Learnt]
    excluded_share: float
    eager_us: float
    transforms: tuple[str, ...]
    degenerate_inputs: bool


@dataclass
class Evidence:
    """Which trivial answers still pass, per output, over the distributions tried so far."""

    passing: dict[Path, set[str]] = field(default_factory=dict)

    def note(self, path: Path, names: set[str]) -> None:
        self.passing[path] = names if path not in self.passing else self.passing[path] & names

    @property
    def trivial(self) -> bool:
        return all(self.passing.values())

    @property
    def constant(self) -> bool:
        return all(names & set(CONSTANTS) for names in self.passing.values())


def survey(reference: Reference, variant: int, seed: int, moved: draws.Moved) -> Survey:
    inputs, answer, recorder = _first_run(reference, variant, seed)
    _check_outputs(answer)
    seconds = _check_repeatable(reference, inputs, answer, seed)
    picks = any(tensor.dtype == torch.int64 or tensor.dtype == torch.int32 for tensor in tensors(answer)) and bool(recorder.calls)
    safe = reference.target == "cpu" or not (recorder.operators & ASSERTING_OPS or recorder.casts_to_index)
    gemm = bool(recorder.operators & GEMM_OPS)
    traits = Traits(
        gemm, int(recorder.flops), picks, safe and bool(tensors(inputs)), not recorder.operators & PARTIAL_OPS,
        recorder.operators <= ALL_SCALES_OPS,
    )
    runs = Runs(answer, reference.run_double(inputs, answer), reference.run_tf32(inputs) if gemm else None, recorder.calls)
    answers, learnt = answer_leaves(runs, {}, Terms(plain=True, tf32_class=False, all_scales=traits.all_scales))
    _check_numbers(answers)
    _check_hidden_state(reference, inputs, answers, seed)
    del runs
    found = Survey(inputs, answer, traits, learnt, _excluded_share(answers), seconds * 1e6, ("plain",), False)
    return _screen(reference, (variant, seed, moved), found, answers)


def _first_run(reference: Reference, variant: int, seed: int) -> tuple[list[Any], Any, Recorder]:
    """Runs once under the recorder; again, on copies, if the reference turns out to write to its inputs."""
    for _ in range(2):
        inputs = reference.inputs(variant, seed)
        kept = tree_map(torch.clone, inputs)
        recorder = Recorder(keep_calls=True)
        try:
            answer = reference.run(inputs, mode=recorder)
        except InputsChanged:
            continue
        if not reference.mutates and not all(_same_bits(a, b) for a, b in zip(tensors(inputs), tensors(kept))):
            reference.mutates = True
            continue
        return kept, answer, recorder
    raise TaskError("model_raised", "the reference changes its inputs in a way that copies do not stop")


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    a, b = first.contiguous().reshape(-1).view(torch.uint8), second.contiguous().reshape(-1).view(torch.uint8)
    return torch.equal(a, b)


# ---- checks ----------------------------------------------------------------------------------------------------------


def _check_outputs(answer: Any) -> None:
    try:
        encode(answer, lambda tensor: {})
    except ValueRefused as error:
        raise TaskError("unsupported_output", f"Model.forward returns {error}") from None
    kinds = {leaf.kind for leaf in leaves(answer)}
    if not kinds & {"tensor", "float", "int", "bool"}:
        raise TaskError("unsupported_output", "Model.forward returns nothing to compare")


def _check_numbers(answers: list[LeafAnswer]) -> None:
    for answer in answers:
        if answer.scale is not None and not answer.scale.finite:
            value = answer.value
            odd = float((~value.isfinite()).double().mean())
            if bool(value.isnan().any()) or odd > NON_FINITE_LIMIT:
                raise TaskError("not_finite", f"{odd:.1%} of the reference's output is not finite")
    share = _excluded_share(answers)
    if share > EXCLUDED_LIMIT:
        raise TaskError(
            "numerically_degenerate",
            f"for {share:.1%} of the output float32 and float64 disagree by far more than rounding explains",
        )


def _excluded_share(answers: list[LeafAnswer]) -> float:
    return max((a.excluded / max(a.value.numel(), 1) for a in answers if a.exclude is not None), default=0.0)


def agrees(tree: Any, answers: list[LeafAnswer]) -> bool:
    """Whether a tree of the same structure passes in any class."""
    given = {leaf.path: leaf for leaf in leaves(tree)}
    for answer in answers:
        leaf = given.get(answer.path)
        if leaf is None or leaf.kind != answer.kind or not _same_form(leaf, answer):
            return False
        if not passes(leaf.value, answer):
            return False
    return len(given) == len(answers)


def _same_form(leaf: Leaf, answer: LeafAnswer) -> bool:
    return leaf.kind != "tensor" or (leaf.value.shape == answer.value.shape and leaf.value.dtype == answer.dtype)


def _check_repeatable(reference: Reference, inputs: list[Any], answer: Any, seed: int) -> float:
    """Runs again under another state of the random generator; also the planning time, the median of three.

    Comes before float64: a random reference would look hopelessly inexact there, and then anything would pass.
    """
    times = []
    for turn in range(3):
        reseed((seed ^ 0x5DEECE66D) + turn)
        started = time.perf_counter()
        again = reference.run(inputs)
        times.append(time.perf_counter() - started)
        if turn == 0 and not _repeats(again, answer):
            raise TaskError("random", "the reference gives different answers for the same inputs")
        if times[-1] > SLOW_SECONDS:
            break
    return sorted(times)[len(times) // 2]


def _repeats(again: Any, answer: Any) -> bool:
    """The same up to the order of summation, which a GPU does not always keep."""
    before = list(leaves(answer))
    after = list(leaves(again))
    if [(leaf.path, leaf.kind) for leaf in before] != [(leaf.path, leaf.kind) for leaf in after]:
        return False
    for first, second in zip(before, after):
        if first.kind != "tensor":
            if not numbers_alike(second.value, first.value):
                return False
        elif first.value.shape != second.value.shape:
            return False
        elif first.value.dtype not in FLOATS.values():
            if not torch.equal(first.value, second.value):
                return False
        elif not _nearly(second.value.contiguous(), first.value.contiguous()):
            return False
    return True


def _nearly(candidate: torch.Tensor, answer: torch.Tensor) -> bool:
    """Not finite counts as the same here: another check speaks of that."""
    scale = scale_of(answer)
    if not scale.finite:
        candidate, answer = candidate.nan_to_num(0.0, 0.0, 0.0), answer.nan_to_num(0.0, 0.0, 0.0)
        scale = scale_of(answer)
    return errors_of(candidate, answer, scale).rms <= REPEAT_EPS * torch.finfo(answer.dtype).eps


def _check_hidden_state(reference: Reference, inputs: list[Any], answers: list[LeafAnswer], seed: int) -> None:
    """A candidate gets the state dict only: tensors outside it must not be drawn at random."""
    model = reference.model
    known = {tensor.data_ptr() for tensor in reference.state().values()}
    own = ("_parameters", "_modules")
    held = [tensors(list(value.values()) if name == "_buffers" else value)
            for part in model.modules() for name, value in part.__dict__.items() if name not in own]
    if all(tensor.data_ptr() in known for group in held for tensor in group):
        return
    other = draws.fresh_model(reference, seed ^ 0x2545F4914F6CDD1D, draws.Moved.NOTHING)
    other.load_state_dict(reference.state())
    reference.use(other)
    try:
        again = reference.run(inputs)
    finally:
        reference.use(model)
    if not agrees(again, answers):
        raise TaskError("random", "the reference holds random tensors outside its state dict, which no candidate can know")


# ---- trivial answers -------------------------------------------------------------------------------------------------


def _trivial_answers(leaf: LeafAnswer, inputs: list[Any], previous: Any) -> dict[str, Any]:
    if leaf.kind != "tensor":
        zero = type(leaf.value)(0) if leaf.kind in ("int", "float", "bool") else leaf.value
        return {"zeros": zero, "previous": previous}
    value, dtype = leaf.value, leaf.dtype
    made = {"zeros": torch.zeros((), dtype=dtype, device=value.device).expand_as(value)}
    # The mean of a few elements would give the answer away: there it is the mean of the draw before.
    source = value if value.numel() >= FEW_ELEMENTS else previous
    if isinstance(source, torch.Tensor) and source.numel():
        mean = leaf.scale.mean if source is value and leaf.scale else scale_of(source).mean
        mean = mean if dtype in FLOATS.values() else round(mean)
        made["mean"] = torch.tensor(mean, device=value.device).to(dtype).expand_as(value)
    if isinstance(previous, torch.Tensor) and previous.shape == value.shape:
        made["previous"] = previous.contiguous()
    for number, tensor in enumerate(tensors(inputs)):
        if tensor.shape == value.shape and tensor.dtype == dtype:
            made[f"input {number}"] = tensor.contiguous()
    return made


def _passing(answers: list[LeafAnswer], inputs: list[Any], previous: Any, evidence: Evidence) -> None:
    before = {leaf.path: leaf.value for leaf in leaves(previous)}
    for leaf in answers:
        trivial = _trivial_answers(leaf, inputs, before.get(leaf.path))
        still = evidence.passing.get(leaf.path)
        names = [name for name in trivial if still is None or name in still]
        evidence.note(leaf.path, {name for name in names if passes(trivial[name], leaf)})


def _screen(reference: Reference, drawn: tuple[int, int, draws.Moved], found: Survey, answers: list[LeafAnswer]) -> Survey:
    """Tries the trivial answers on plain draws, then under every transform the reference stands."""
    plain, model, (variant, seed, moved) = Evidence(), reference.model, drawn
    if not tensors(found.inputs):  # only the weights can vary the answer
        reference.use(draws.fresh_model(reference, seed + 1, moved))
    inputs, second, other = _plain_answers(reference, variant, seed + 1, found)
    reference.use(model)
    _passing(answers, found.inputs, other, plain)
    _passing(second, inputs, found.answer, plain)
    everywhere, stood = Evidence(dict(plain.passing)), ["plain"]
    fixed = tuple(_same_bits(a, b) for a, b in zip(tensors(found.inputs), tensors(inputs)))
    found = replace(found, traits=replace(found.traits, fixed=fixed))
    for transform, turn in _trials(found, seed + 2) if found.traits.transformable else ():
        if found.eager_us > SLOW_SECONDS * 1e6 and transform in transforms.FAR_SIDES:
            continue
        tried = transformed_answers(reference, variant, turn, transform, found)
        if tried is not None:
            stood.append(transform)
            _passing(tried[1], tried[0], other, everywhere)
    if everywhere.trivial:
        code = "constant" if everywhere.constant else "trivial"
        names = sorted(set.union(*everywhere.passing.values())) if everywhere.passing else []
        raise TaskError(code, f"an answer that computes nothing passes on every distribution: {', '.join(names)}")
    return replace(found, transforms=tuple(dict.fromkeys(stood)), degenerate_inputs=plain.trivial)


def _trials(found: Survey, seed: int) -> list[tuple[str, int]]:
    """Each transform with a seed to try it under; the scales once up and once down, which may tell different things."""
    up = next(turn for turn in range(seed, seed + 1000) if transforms.factor("scaled", turn) > 1)
    down = next(turn for turn in range(seed, seed + 1000) if transforms.factor("scaled", turn) < 1)
    named = transforms.fitting(found.inputs, found.traits.fixed, found.traits.has_gemm)
    return [(name, turn) for name in named for turn in ((up, down) if name == "scaled" else (seed,))]


def _plain_answers(reference: Reference, variant: int, seed: int, found: Survey) -> tuple[list[Any], list[LeafAnswer], Any]:
    inputs = reference.inputs(variant, seed)
    recorder = Recorder(keep_calls=True) if found.traits.picks else None
    answer = reference.run(inputs, mode=recorder)
    runs = Runs(answer, None, None, recorder.calls if recorder else [])
    answers, learnt = answer_leaves(runs, found.learnt, Terms(plain=True, tf32_class=False, all_scales=found.traits.all_scales))
    found.learnt.update(learnt)
    return inputs, answers, answer


def transformed_answers(
    reference: Reference, variant: int, seed: int, transform: str, found: Survey
) -> tuple[list[Any], list[LeafAnswer]] | None:
    """Answers under a transform, or None if the reference does not stand it."""
    inputs = transforms.transformed(reference.inputs(variant, seed), transform, seed, found.traits.fixed)
    recorder = Recorder(keep_calls=True) if found.traits.picks else None
    try:
        answer = reference.run(inputs, mode=recorder)
    except TaskError:
        return None
    if not stays_finite(answer, found.learnt):
        return None
    runs = Runs(answer, None, None, recorder.calls if recorder else [])
    answers, _ = answer_leaves(runs, found.learnt, Terms(plain=False, tf32_class=False, all_scales=found.traits.all_scales))
    return inputs, answers


def stays_finite(answer: Any, learnt: dict[Path, Learnt]) -> bool:
    """No NaN, and nothing infinite unless the plain answer had that too."""
    for leaf in leaves(answer):
        if leaf.kind == "tensor" and leaf.value.dtype in FLOATS.values() and leaf.value.numel():
            known = learnt.get(leaf.path)
            usual = known is None or not known.finite
            if not all_finite(leaf.value) and (not usual or bool(leaf.value.isnan().any())):
                return False
    return True
