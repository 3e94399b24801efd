"""Takes a task in: its module built, as much of its state moved as it stands, screened, laid out, described."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import draws
import screen
import task
import transforms
import variants
from draws import Moved
from task import InputsChanged, Reference, TaskError
from variants import Variant


@dataclass
class Loaded:
    """The task at hand."""

    reference: Reference
    moved: Moved
    state: list[dict[str, Any]]
    weights_bytes: int
    variants: list[Variant] = field(default_factory=list)

    @property
    def has_gemm(self) -> bool:
        return any(variant.survey.traits.has_gemm for variant in self.variants)


def load(source: str, target: str, seed: int) -> tuple[Loaded, dict[str, Any]]:
    """The task, and what the supervisor is told of it (PROTOCOL.md, `load`)."""
    module = task.execute(source)
    init = task.init_inputs(module)
    init_values = [variants.encode_init(value) for value in init]
    reference = Reference(module, init, target)
    loaded = Loaded(reference, Moved.STATE, [], 0)
    with task.SizeGuard(task.free_memory(target) // 4):
        reference.use(draws.fresh_model(reference, seed, loaded.moved))
    with task.SizeGuard(task.free_memory(target) // 4):
        arguments = reference.inputs(0, seed)
    _settle_weights(loaded, arguments, seed)
    del arguments
    loaded.state, loaded.weights_bytes = draws.lay_out_state(reference.model)
    _survey(loaded, seed)
    reference.release()
    return loaded, _describe(loaded, init_values)


def _settle_weights(loaded: Loaded, arguments: list[Any], seed: int) -> None:
    """As much of the state is moved as leaves the reference finite; decided once."""
    reference = loaded.reference
    while reference.state() and loaded.moved is not Moved.NOTHING:
        try:
            if screen.stays_finite(reference.run(arguments), {}):
                return
        except InputsChanged:
            return
        except TaskError:
            pass
        loaded.moved = Moved.PARAMETERS if loaded.moved is Moved.STATE else Moved.NOTHING
        reference.use(draws.fresh_model(reference, seed, loaded.moved))


def _survey(loaded: Loaded, seed: int) -> None:
    """Screens every variant; again with buffers as they were made if moving them makes a task that cannot be judged, and with
    calibrated running statistics if without them nothing varies."""
    reference = loaded.reference
    try:
        _survey_variants(loaded, seed)
    except TaskError as error:
        if loaded.moved is Moved.STATE and draws.has_movable_buffers(reference.model):
            loaded.moved = Moved.PARAMETERS
            reference.use(draws.fresh_model(reference, seed, loaded.moved))
            _survey(loaded, seed)
            return
        if error.code != "constant" or not draws.keeps_statistics(reference.model):
            raise
        reference.calibrated = True
        try:
            reference.use(draws.fresh_model(reference, seed, loaded.moved))
            _survey_variants(loaded, seed)
        except TaskError:
            raise error from None


def _survey_variants(loaded: Loaded, seed: int) -> None:
    count = task.variant_count(loaded.reference.module)
    found = (screen.survey(loaded.reference, index, seed + 16 * index, loaded.moved) for index in range(count))
    loaded.variants = [variants.variant_of(survey) for survey in found]


def _describe(loaded: Loaded, init: list[Any]) -> dict[str, Any]:
    surveys = [variant.survey for variant in loaded.variants]
    weights = sum(entry["bytes"] for entry in loaded.state) if all(found.traits.reads_all for found in surveys) else 0
    return {
        "init": init,
        "class_name": "Model",
        "state": loaded.state,
        "weights_bytes": loaded.weights_bytes,
        "variants": [variants.describe(variant) for variant in loaded.variants],
        "has_matmul_or_conv": loaded.has_gemm,
        "flops": min(found.traits.flops for found in surveys),
        "min_bytes": min(variant.traffic_bytes for variant in loaded.variants) + weights,
        "training": False,
        "mutates_inputs": loaded.reference.mutates,
        "calibrated_statistics": loaded.reference.calibrated,
        "moved": loaded.moved.value,
        "screen": {"degenerate_inputs": any(found.degenerate_inputs for found in surveys), **_transforms(surveys), "refused": None},
        "excluded_share": max(found.excluded_share for found in surveys),
        "fp64": loaded.reference.double,
    }


def _transforms(surveys: list[screen.Survey]) -> dict[str, list[str]]:
    """What timed calls are drawn from, and what is checked before."""
    admissible = [name for name in transforms.TRANSFORMS if all(name in found.transforms for found in surveys)]
    # Timed calls are far on one side alone: each such answer takes float64.
    timed = [name for name in admissible if name in transforms.BY_NAME and name != "far_negated"]
    timed += [transforms.OTHER] if any(name not in transforms.BY_NAME for name in admissible) else []
    # Who looks only where he thinks an outlier might be meets it by chance: two chances.
    again = [name for name in admissible if name == "outliers"]
    return {"transforms": timed, "checks": admissible + again}
