"""The trusted process: model.py, inputs, weights, answers and the comparison (PROTOCOL.md, "Trusted: requests").

It never runs a line of a candidate. All it takes from one is bytes in the arena and a description of where they lie, and
both are checked before use. Errors propagate and are told apart in one place, `reply_to`.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from dataclasses import dataclass, field, replace
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # an isolated interpreter does not look beside its script

import quick_torch  # noqa: E402, F401, first: it imports PyTorch
import torch  # noqa: E402

import appeal  # noqa: E402
import draws  # noqa: E402
import gate  # noqa: E402
import loading  # noqa: E402
import mutation  # noqa: E402
import nvml  # noqa: E402
import regions  # noqa: E402
import reports  # noqa: E402
import screen  # noqa: E402
import task  # noqa: E402
import transforms  # noqa: E402
import values  # noqa: E402
from channel import Channel  # noqa: E402
from compare import (  # noqa: E402
    LeafAnswer,
    LeafReport,
    Runs,
    answer_leaves,
    compare_as_if_right,
    judge_leaf,
    quick_numbers,
    quick_report,
    relaxed,
    with_honest_errors,
)
from host_memory import HostMemory  # noqa: E402
from loading import Loaded  # noqa: E402
from measure import scale_from, scale_numbers  # noqa: E402
from readings import Readings  # noqa: E402
from task import InputsChanged, Recorder, TaskError, first_sentences  # noqa: E402
from variants import Variant  # noqa: E402

PROTOCOL = 1
SAMPLE_BYTES = 64 << 20
POISON = 0xFF
IN_HAND_BYTES = 1 << 30


@dataclass
class Drawn:
    """What lies in one slot, and its answer."""

    variant: Variant
    inputs: list[regions.Witness]
    answers: list[LeafAnswer]
    exact: bool
    draft: Draft | None = None  # without what can be made again; None where nothing is compared
    appealed: bool = False
    heard: list[LeafAnswer] | None = None  # answers with a panel's limits, once somebody appealed


@dataclass
class Draft:
    """A draw whose reference has been started, and what is to be read of its answer."""

    request: dict[str, Any]
    variant: Variant
    inputs: list[Any]
    answer: Any
    calls: list[task.IndexCall]
    transform: str
    scales: dict[values.Path, int]


@dataclass
class Read:
    """The outputs of one call, copied, and what is to be read of their comparison."""

    request: dict[str, Any]
    drawn: Drawn
    tree: Any
    places: list[tuple[int, int]]
    message: str
    intact: list[int]
    sampled: list[int] | bool
    leaves: dict[values.Path, int] = field(default_factory=dict)


@dataclass
class Memory:
    """The regions in force."""

    slots: regions.Region
    weights: regions.Region
    arena: regions.Region
    sample: regions.Region | None
    slot_bytes: int
    slot_count: int
    reader: regions.SampleReader | None = None  # CUDA; on the CPU the supervisor reads
    veil: regions.Veil | None = None  # CUDA
    gate: gate.Keeper | None = None  # CUDA
    behind_gate: gate.Seen | None = None  # of the last call behind it

    def close(self) -> None:
        if self.gate is not None:
            self.gate.close()
        for region in (self.slots, self.weights, self.arena, self.sample):
            if region is not None:
                region.close()


class Trusted:
    """Answers requests; holds one task and its regions at a time."""

    def __init__(self, support: str | None = None) -> None:
        self._support = support
        self._host: HostMemory | None = None
        self._task: Loaded | None = None
        self._memory: Memory | None = None
        self._drawn: dict[int, Drawn] = {}
        self._target = "cpu"
        self._accepted: str | None = None
        self._timing = False

    @property
    def spin_seconds(self) -> float:
        """Cores are what a CPU target measures: there this process sleeps at once."""
        return 0.05 if self._target == "cuda" else 0.0

    def handle(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        verb = request["verb"]
        if verb not in ("hello", "load", "regions", "weights", "draw", "reveal", "ping", "reference", "sample", "shut", "gated", "idle", "clocks", "check", "memory", "mutants", "forget", "quit"):
            raise ValueError(f"unknown verb `{verb}`")
        if verb == "regions":
            return self.regions(request)
        return getattr(self, verb)(request), []

    def hello(self, _: dict[str, Any]) -> dict[str, Any]:
        return {
            "protocol": PROTOCOL,
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "cpu_threads": torch.get_num_threads(),
            **regions.device_facts(),
        }

    # ---- the task ----------------------------------------------------------------------------------------------------

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        self.forget({})
        self._target = request["target"]
        if self._target == "cpu" and self._host is None and self._support is not None:
            self._host = HostMemory(self._support)
        self._task, told = loading.load(request["source"], self._target, request["seed"])
        return told

    def weights(self, request: dict[str, Any]) -> dict[str, Any]:
        loaded = self._loaded()
        loaded.reference.use(draws.fresh_model(loaded.reference, request["seed"], loaded.moved))
        memory = self._memory
        if memory is not None:
            veiled = request.get("veiled", False)
            self._write_weights(loaded, memory.veil.weights(loaded.weights_bytes) if veiled else memory.weights.tensor)
        return {}

    def _write_weights(self, loaded: Loaded, region: torch.Tensor) -> None:
        state = loaded.reference.state()
        for entry in loaded.state:
            source = state[entry["name"]]
            spec = {**entry, "stride": list(draws.contiguous_stride(source))}
            values.view(region, spec).copy_(source)
        self._synchronize()

    def forget(self, _: dict[str, Any]) -> dict[str, Any]:
        self._drawn.clear()
        self._task, self._accepted, self._timing = None, None, False
        self._release_memory()
        if self._target == "cuda":
            torch.cuda.empty_cache()
        elif self._host is not None:
            self._host.give_back()
        return {}

    def memory(self, _: dict[str, Any]) -> dict[str, int]:
        """Bytes of the device that this process holds, and that nobody does."""
        if self._target != "cuda":
            return {"held": 0, "free": 0}
        torch.cuda.empty_cache()
        return {"held": self.held_bytes, "free": torch.cuda.mem_get_info()[0]}

    def quit(self, _: dict[str, Any]) -> dict[str, Any]:
        return self.forget({})

    # ---- memory ------------------------------------------------------------------------------------------------------

    def regions(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        loaded = self._loaded()
        count, slot_bytes, arena = request["slot_count"], request["slot_bytes"], request["arena_bytes"]
        if slot_bytes % regions.ALIGNMENT:
            raise ValueError(f"slot_bytes must be a multiple of {regions.ALIGNMENT}")
        self._drawn.clear()
        self._release_memory()
        self._accepted, self._timing = None, False
        if self._target == "cuda":
            weights = max(loaded.weights_bytes, regions.COPIED_BYTES)
            made = [regions.create_cuda(size) for size in (count * slot_bytes, weights, arena)]
            reader = regions.SampleReader(made[2])
            self._memory = Memory(*made, None, slot_bytes, count, reader, regions.Veil(*made, slot_bytes), gate.Keeper())
        else:
            self._memory = Memory(
                regions.create_cpu("slots", count * slot_bytes, read_only_for_others=True),
                regions.create_cpu("weights", loaded.weights_bytes, read_only_for_others=True),
                regions.create_cpu("arena", arena, read_only_for_others=False),
                regions.create_cpu("sample", SAMPLE_BYTES, read_only_for_others=False, populate=False),
                slot_bytes,
                count,
            )
        memory = self._memory
        self._write_weights(loaded, memory.weights.tensor)
        if self._target == "cuda":
            weights = memory.weights.handle if loaded.weights_bytes else None
            return {"slots": memory.slots.handle, "weights": weights, "arena": memory.arena.handle}, [memory.gate.fd]
        return {}, [memory.slots.fd, memory.weights.fd, memory.arena.fd, memory.sample.fd]

    def _release_memory(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    # ---- draws -------------------------------------------------------------------------------------------------------

    def draw(self, request: dict[str, Any]) -> dict[str, Any]:
        """Fills slots; for each, whether its transform had to be left out."""
        skipped = []
        if request.get("window"):
            self._overwrite(*request["window"])
        for part in in_parts(request["draws"], self._loaded().variants[request["variant"]]):
            readings = Readings()
            for one in part:
                self._drawn.pop(self._slot(one["slot"]), None)
            drafts = [self._draft({**request, **one}, readings) for one in part]
            readings.take()
            skipped += [self._keep(draft, readings) for draft in drafts]
        if self._target == "cuda":
            regions.flush_cache()
        self._synchronize()
        return {"skipped": skipped}

    def _draft(self, request: dict[str, Any], readings: Readings) -> Draft:
        """Inputs and the reference's answer, which the device may still be at; plain ones if the transform does not fit."""
        loaded = self._loaded()
        variant = loaded.variants[request["variant"]]
        transform = transforms.chosen(request["transform"], variant.survey.transforms, request["seed"])
        if not request["answer"]:  # for baselines, whose outputs nobody compares
            return Draft(request, variant, loaded.reference.inputs(request["variant"], request["seed"]), None, [], transform, {})
        if transform != "plain":
            transforms.factor(transform, 0)  # an unknown name is our mistake, whatever the task allows
            made = self._started(variant, request, transform) if variant.survey.traits.transformable else None
        if transform == "plain" or made is None:
            made, transform = self._started(variant, request, "plain"), "plain"
        inputs, answer, calls = made
        scales = {leaf.path: readings.add(scale_numbers(leaf.value)) for leaf in values.leaves(answer) if _is_float(leaf)}
        return Draft(request, variant, inputs, answer, calls, transform, scales)

    def _keep(self, draft: Draft, readings: Readings) -> bool:
        """Puts a draw into its slot with its answer; whether the transform was left out."""
        request, variant = draft.request, draft.variant
        if not request["answer"]:
            self._fill_slot(variant, request, draft.inputs)
            self._drawn[request["slot"]] = Drawn(variant, [], [], False)
            return False
        inputs, drawn = self._settled(draft, readings)
        self._fill_slot(variant, request, inputs)
        self._drawn[request["slot"]] = drawn
        return request["transform"] not in (drawn.draft.transform, transforms.OTHER)

    def _settled(self, draft: Draft, readings: Readings) -> tuple[list[Any], Drawn]:
        """Inputs and answers; plain ones where the reference does not stand the transform."""
        answered = self._answered(draft, readings)
        if answered is None:
            inputs, answer, calls = self._started(draft.variant, draft.request, "plain")
            draft = Draft(draft.request, draft.variant, inputs, answer, calls, "plain", {})
            answered = self._answered(draft, None)
        kept = replace(draft, inputs=[], answer=None, calls=[])
        return draft.inputs, Drawn(draft.variant, _witnesses(draft.inputs), *answered, kept)

    # ---- wrong variants of the task ----------------------------------------------------------------------------------

    def mutants(self, request: dict[str, Any]) -> dict[str, Any]:
        """Which wrong variants the checks refuse. It leaves nothing behind that a judgement would see."""
        variants = self._loaded().variants
        kept = [(variant.learnt, dict(variant.apart)) for variant in variants], self._accepted, self._timing
        try:
            return mutation.measured(self, request)
        finally:
            learnt, self._accepted, self._timing = kept
            for variant, (known, apart) in zip(variants, learnt):
                variant.learnt, variant.apart = known, apart

    def reference_at_hand(self) -> task.Reference:
        return self._loaded().reference

    def drawn_aside(self, request: dict[str, Any]) -> tuple[list[Any], Drawn]:
        """A draw that goes into no slot."""
        readings = Readings()
        draft = self._draft(request, readings)
        readings.take()
        return self._settled(draft, readings)

    def report_of(self, tree: Any, drawn: Drawn) -> dict[str, Any]:
        """The comparison of outputs that came from nowhere but here."""
        return self._compare(Read({}, drawn, tree, [], "", [], True), Readings())

    def reveal(self, request: dict[str, Any]) -> dict[str, Any]:
        """Puts in place what was drawn behind the veil: the last thing before a timed call."""
        memory = self._mapped()
        memory.veil.reveal(None if request["slot"] is None else self._slot(request["slot"]), request.get("window"))
        return {}

    def shut(self, request: dict[str, Any]) -> dict[str, Any]:
        self._mapped().gate.shut(request["number"])
        return {}

    def gated(self, request: dict[str, Any]) -> dict[str, Any]:
        """Times a call that the worker queues meanwhile behind the gate: once it has, its inputs are put in place and the gate is
        opened. A sample of the outputs is read as soon as the device says that they are there."""
        memory, number, slot = self._mapped(), request["number"], self._slot(request["slot"])
        memory.behind_gate = None
        memory.gate.await_queued(number)
        memory.veil.reveal(slot)
        took = memory.gate.opened(number, request["limit_s"])
        if took is not None:
            specs = draws.tensor_specs([self._loaded().variants[request["variant"]].outputs])
            memory.behind_gate = gate.Seen.read(memory.reader, memory.arena, slot, specs, memory.gate.await_told(number))
        return {"us": took}

    def _overwrite(self, start: int, end: int) -> None:
        """Nothing that a candidate wrote before is of any use: neither zeros nor what it may have guessed of a pattern."""
        self._mapped().arena.tensor[start:end].fill_(2 + os.urandom(1)[0] % 254)

    def _fill_slot(self, variant: Variant, request: dict[str, Any], inputs: list[Any]) -> None:
        memory = self._mapped()
        if request.get("veiled", False):
            region, start = memory.veil.inputs(variant.input_bytes), 0
        else:
            region, start = memory.slots.tensor, request["slot"] * memory.slot_bytes
        if draws.outline(inputs) != variant.outline:
            raise TaskError("unsupported_input", "get_inputs() does not return the same shapes and numbers every time")
        for spec, tensor in zip(draws.tensor_specs(variant.specs), values.tensors(inputs)):
            values.view(region, spec, start, memory.slot_bytes).copy_(tensor)

    def _started(self, variant: Variant, request: dict[str, Any], transform: str) -> tuple[list[Any], Any, list[Any]] | None:
        """Inputs, answer and calls that choose; None if the reference refuses the transform."""
        reference = self._loaded().reference
        while True:
            inputs = self._inputs(request, transform)
            recorder = Recorder(keep_calls=True) if variant.survey.traits.picks else None
            try:
                answer = reference.run(inputs, mode=recorder, wait=False)
                return inputs, answer, recorder.calls if recorder else []
            except InputsChanged:  # met once: from then on it is given copies
                continue
            except TaskError:
                if transform == "plain":
                    raise
                return None

    def _inputs(self, request: dict[str, Any], transform: str) -> list[Any]:
        """The inputs of a draw, the same whenever they are asked for."""
        loaded, number, seed = self._loaded(), request["variant"], request["seed"]
        fixed = loaded.variants[number].survey.traits.fixed
        return transforms.transformed(loaded.reference.inputs(number, seed), transform, seed, fixed)

    def _answered(self, draft: Draft, readings: Readings | None) -> tuple[list[LeafAnswer], bool] | None:
        """The answer to compare with and whether it is exact, or None if the reference does not stand the transform."""
        reference, variant, transform = self._loaded().reference, draft.variant, draft.transform
        scales = None
        if readings is not None:
            found = {leaf.path: leaf.value for leaf in values.leaves(draft.answer) if _is_float(leaf)}
            scales = {path: scale_from(found[path], readings.of(part)) for path, part in draft.scales.items()}
        finite = scales is not None and all(scale.finite for scale in scales.values())
        if transform != "plain" and not finite and not screen.stays_finite(draft.answer, variant.learnt):
            return None
        wide = rounded = None
        if transform in transforms.FAR_SIDES and reference.double in ("none", "one_draw"):
            return None  # so far out eager errs in ways of its own, which only float64 tells
        # Where limits are wide eager will do: whoever is refused then is heard before float64.
        exact = draft.request["exact"] and transform not in transforms.STRUCTURAL
        if exact and reference.double not in ("none", "one_draw"):
            wide = reference.run_double(draft.inputs, draft.answer)
        if wide is not None and variant.survey.traits.has_gemm:
            rounded = reference.run_tf32(draft.inputs)
        runs = Runs(draft.answer, wide, rounded, draft.calls)
        answers, learnt = answer_leaves(runs, variant.known(transform), variant.terms(transform, self._target), scales)
        variant.learn(transform, learnt)
        return answers, wide is not None

    # ---- checks ------------------------------------------------------------------------------------------------------

    def sample(self, request: dict[str, Any]) -> dict[str, Any]:
        """Reads a sample into private memory: the end of the timed interval. The supervisor has checked every place;
        `check` checks them again."""
        self._mapped().reader.read(request["groups"])
        return {}

    def ping(self, _: dict[str, Any]) -> dict[str, Any]:
        return {}

    def reference(self, request: dict[str, Any]) -> dict[str, Any]:
        """How long the reference takes here and now: the quick one of ten runs, or of as many as a third of a second allows."""
        reference, number = self._loaded().reference, request["variant"]
        inputs, times = reference.inputs(number, 1), []
        while len(times) < 12 and sum(times) < 0.3:
            started = time.perf_counter()
            reference.run(inputs)
            times.append(time.perf_counter() - started)
        return {"us": sorted(times)[len(times) // 5] * 1e6}

    def idle(self, _: dict[str, Any]) -> dict[str, Any]:
        """How long the quickest of a few tiny kernels takes: long, if another process keeps the device busy."""
        times = []
        for _turn in range(4):
            started = time.perf_counter()
            regions.tiny_kernel()
            self._synchronize()
            times.append(time.perf_counter() - started)
        return {"us": min(times) * 1e6}

    def clocks(self, request: dict[str, Any]) -> dict[str, Any]:
        return nvml.clocks(request["uuid"])

    def check(self, request: dict[str, Any]) -> dict[str, Any]:
        """The calls of one interval, up to the first that does not pass; of a baseline's, all that precedes a report."""
        told: list[dict[str, Any]] = []
        judged, calls = request["phase"] != "for_nothing", request["calls"]
        for part in in_parts(calls, self._at(calls[0]["slot"]).variant) if calls else []:
            told += self._checked(request, part, judged)
            judged = judged and _holds(told[-1])
        self._synchronize()
        return {"reports": told}

    def _checked(self, request: dict[str, Any], calls: list[dict[str, Any]], judged: bool) -> list[dict[str, Any]]:
        """Reports of some calls, none if they are not to be judged; their outputs are overwritten."""
        readings, told = Readings(), []
        reads = [self._read({**request, **one}, readings) for one in calls]
        readings.take()
        for read in reads:
            if request["phase"] == "for_nothing":
                self._compare_for_nothing(read)
            elif judged:
                told.append(self._report(read, readings))
                judged = _holds(told[-1])
        for start, end in (place for read in reads for place in read.places):
            self._mapped().arena.tensor[start:end].fill_(POISON)
        return told

    @staticmethod
    def _compare_for_nothing(read: Read) -> None:
        """What a comparison that holds would still have to do."""
        given = {leaf.path: leaf.value for leaf in values.leaves(read.tree)}
        for answer in read.drawn.answers:
            value = given.get(answer.path)
            if answer.kind == "tensor" and answer.path not in read.leaves and isinstance(value, torch.Tensor) and _alike(value, answer):
                compare_as_if_right(value, answer)

    def _read(self, request: dict[str, Any], readings: Readings) -> Read:
        """The one full read of a call's outputs: everything after it looks at these copies, which the worker cannot reach."""
        drawn, arena, places = self._at(request["slot"]), self._mapped().arena.tensor, []
        wanted = iter(draws.tensor_specs([drawn.variant.outputs]))

        def copied(raw: dict[str, Any]) -> torch.Tensor:
            found = values.view(arena, raw)
            spec, may_overlap = values.parse_spec(raw), next(wanted, {}).get("overlaps", False)
            if spec.overlaps_itself and not may_overlap:
                raise values.ValueRefused("elements of an output share memory")
            places.append((spec.offset, spec.offset + spec.span))
            return found.clone(memory_format=torch.contiguous_format)

        try:
            tree, message = values.decode(request["outputs"], copied), ""
        except values.ValueRefused as error:
            tree, message = None, f"the outputs cannot be read: {error}"
        intact = [readings.add(one) for one in self._inputs_intact(request["slot"], drawn)]
        offsets = [start for start, _ in places]
        sampled = False if message else self._sample_agrees(request, values.tensors(tree), offsets, readings)
        read = Read(request, drawn, tree, places, message, intact, sampled)
        given = {leaf.path: leaf.value for leaf in values.leaves(tree)}
        for answer in drawn.answers:
            value = given.get(answer.path)
            if answer.kind == "tensor" and isinstance(value, torch.Tensor) and _alike(value, answer):
                numbers = quick_numbers(value, answer)
                if numbers is not None:
                    read.leaves[answer.path] = readings.add(numbers)
        return read

    def _report(self, read: Read, readings: Readings) -> dict[str, Any]:
        said = [bool(readings.of(part)[0]) for part in read.sampled] if isinstance(read.sampled, list) else [read.sampled]
        if read.request["phase"] == "exact" and self._timing:
            self._accepted, self._timing = None, False
        self._timing |= read.request["phase"] == "timed"
        report = self._compare(read, readings)
        return {**report, "sample_ok": all(said), "inputs_ok": all(readings.of(part)[0] for part in read.intact)}

    def _compare(self, read: Read, readings: Readings) -> dict[str, Any]:
        drawn, message = read.drawn, read.message
        report = reports.empty_report(drawn.answers) | {"transform": drawn.draft.transform if drawn.draft else "plain"}
        given = {leaf.path: leaf for leaf in values.leaves(read.tree)}
        wanted = [(answer.path, answer.kind) for answer in drawn.answers]
        if message or sorted(map(repr, wanted)) != sorted(repr((leaf.path, leaf.kind)) for leaf in given.values()):
            return report | {"message": message or reports.structure_message(drawn.answers, given)}
        pairs = [(given[answer.path].value, answer) for answer in drawn.answers]
        tensors = [(value, answer) for value, answer in pairs if answer.kind == "tensor"]
        report["structure_ok"] = True
        report["shape_ok"] = all(value.shape == answer.value.shape for value, answer in tensors)
        report["dtype_ok"] = all(value.dtype == answer.dtype for value, answer in tensors)
        if not (report["shape_ok"] and report["dtype_ok"]):
            return report | {"message": reports.form_message(tensors)}
        results = [self._judged(value, answer, read, readings) for value, answer in pairs]
        found = self._summary(pairs, results, drawn.exact)
        if not found["passed"] and appeal.worth_hearing(results):
            if not drawn.appealed:
                drawn.appealed, drawn.heard = True, self._heard(drawn)
            if drawn.heard is not None:
                pairs = [(value, answer) for (value, _), answer in zip(pairs, drawn.heard)]
                found = self._summary(pairs, [judge_leaf(value, answer) for value, answer in pairs], drawn.exact)
        return report | found

    def _heard(self, drawn: Drawn) -> list[LeafAnswer] | None:
        """The draw's answers in float64, with limits that a panel of honest variants passes; None where they cannot be had."""
        reference, variant, draft = self._loaded().reference, drawn.variant, drawn.draft
        if draft is None or reference.double in ("none", "one_draw"):
            return None
        try:
            inputs = self._inputs(draft.request, draft.transform)
            answers = drawn.answers if drawn.exact else appeal.exact_answers(reference, variant, draft.transform, inputs)
            if answers is None:
                return None
            honest = appeal.honest_errors(reference, inputs, answers, draft.request["seed"])
        except (TaskError, torch.OutOfMemoryError):  # the verdict stands: float64 takes more memory than the draw did
            return None
        variant.learn(draft.transform, with_honest_errors(variant.known(draft.transform), honest))
        return [relaxed(answer, honest.get(answer.path)) for answer in answers]

    @staticmethod
    def _judged(value: Any, answer: LeafAnswer, read: Read, readings: Readings) -> LeafReport:
        part = read.leaves.get(answer.path)
        quick = None if part is None else quick_report(answer, readings.of(part))
        return quick or judge_leaf(value, answer)

    def _summary(self, pairs: list[tuple[Any, LeafAnswer]], results: list[LeafReport], exact: bool) -> dict[str, Any]:
        grades = {result.grade for result in results}
        grade = None if None in grades else "tf32" if "tf32" in grades else "fp32"
        if grade == "tf32" and not exact and self._accepted == "fp32":
            grade = None  # the exact draws were passed in float32: a timed one may not be worse
        if grade is not None and exact:
            self._accepted = "tf32" if "tf32" in (grade, self._accepted) else "fp32"
        sizes = [answer.value.numel() if answer.kind == "tensor" else 1 for _, answer in pairs]
        share = sum(size * result.share for size, result in zip(sizes, results)) / max(sum(sizes), 1)
        failed = [number for number, result in enumerate(results) if result.grade is None]
        first = (pairs[failed[0]][1], results[failed[0]]) if failed else (None, None)
        worst = reports.worst(failed[0], *pairs[failed[0]], results[failed[0]]) if failed else None
        return {
            "finite_ok": all(result.finite for result in results),
            "passed": grade is not None,
            "class": grade,
            "share_within_tolerance": share,
            "worst": worst,
            "candidate_error": reports.number(max((r.errors.rms for r in results if r.errors), default=0.0)),
            "message": "" if grade else reports.value_message(worst, share, *first),
        }

    def _sample_agrees(
        self, request: dict[str, Any], copies: list[torch.Tensor], offsets: list[int], readings: Readings
    ) -> list[int] | bool:
        """Whether what was seen at the end of the timed interval is what lies there now: known already, or to be read."""
        sampled = request.get("sampled")
        if self._target == "cpu":
            return sampled is None or regions.sample_agrees(self._mapped().sample.tensor, sampled, copies)
        if sampled == "gate":
            seen = self._mapped().behind_gate
            found = seen.agrees(self._mapped().arena, request["slot"], offsets) if seen else None
            return False if found is None else [readings.add(one) for one in found]
        if sampled is False:  # one of a burst that the supervisor did not ask to see
            return True
        samples, kept = self._mapped().reader.seen(request["slot"]), [copy for copy in copies if copy.numel()]
        if samples is None or len(kept) != len(samples):
            return False
        return [readings.add(sample.agrees(copy)) for sample, copy in zip(samples, kept)]

    def _inputs_intact(self, slot: int, drawn: Drawn) -> list[torch.Tensor]:
        """For each input, whether it is as it was drawn."""
        memory, specs = self._mapped(), draws.tensor_specs(drawn.variant.specs)
        seen = (values.view(memory.slots.tensor, spec, slot * memory.slot_bytes, memory.slot_bytes) for spec in specs)
        return [witness.confirms(tensor) for tensor, witness in zip(seen, drawn.inputs)]

    # ---- what must be there ------------------------------------------------------------------------------------------

    def _loaded(self) -> Loaded:
        if self._task is None:
            raise RuntimeError("no task is loaded")
        return self._task

    def _mapped(self) -> Memory:
        if self._memory is None:
            raise RuntimeError("no regions were made")
        return self._memory

    def _slot(self, slot: int) -> int:
        if not 0 <= slot < self._mapped().slot_count:
            raise ValueError(f"there is no slot {slot}")
        return slot

    @property
    def held_bytes(self) -> int:
        memory = self._memory
        parts = (memory.slots, memory.weights, memory.arena) if memory else ()
        return torch.cuda.memory_reserved() + sum(part.tensor.numel() for part in parts)

    def _at(self, slot: int) -> Drawn:
        if slot not in self._drawn:
            raise RuntimeError(f"nothing was drawn into slot {slot}")
        return self._drawn[slot]

    def _synchronize(self) -> None:
        if self._target == "cuda":
            torch.cuda.synchronize()


# ---- helpers -------------------------------------------------------------------------------------------------------


def in_parts(calls: list[Any], variant: Variant) -> list[list[Any]]:
    """So many at once as take little memory: of a long burst of large ones not all are copied together."""
    each = max(1, IN_HAND_BYTES // max(1, variant.input_bytes + variant.output_bytes))
    return [calls[start : start + each] for start in range(0, len(calls), each)]


def _holds(report: dict[str, Any]) -> bool:
    return bool(report["passed"] and report["sample_ok"] and report["inputs_ok"])


def _witnesses(inputs: list[Any]) -> list[regions.Witness]:
    return [regions.Witness.of(tensor) for tensor in values.tensors(inputs)]


def _is_float(leaf: values.Leaf) -> bool:
    return leaf.kind == "tensor" and leaf.value.dtype in values.FLOATS.values()


def _alike(value: torch.Tensor, answer: LeafAnswer) -> bool:
    return value.shape == answer.value.shape and value.dtype == answer.dtype


# ---- the loop --------------------------------------------------------------------------------------------------------


def reply_to(trusted: Trusted, request: Any) -> tuple[dict[str, Any], list[int]]:
    """The single place where errors are told apart: the task's fault, or ours."""
    try:
        answer, fds = trusted.handle(request)
        return {"ok": answer}, fds
    except TaskError as error:
        message = str(error) + (_elsewhere(trusted) if error.code == "too_large" else "")
        return {"error": {"kind": "task", "code": error.code, "message": message}}, []
    except torch.OutOfMemoryError as error:
        message = first_sentences(error) + _elsewhere(trusted)
        return {"error": {"kind": "harness", "code": "out_of_memory", "message": message}}, []
    except Exception as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-4000:]
        return {"error": {"kind": "harness", "code": type(error).__name__, "message": text}}, []


def _elsewhere(trusted: Trusted) -> str:
    if not torch.cuda.is_initialized():
        return ""
    free, total = torch.cuda.mem_get_info()
    taken = total - free - trusted.held_bytes
    return f" ({taken / 2**30:.1f} of {total / 2**30:.1f} GiB are taken by other processes)"


def serve(channel: Channel, support: str) -> None:
    trusted = Trusted(support)
    while True:
        try:
            channel.spin_seconds = trusted.spin_seconds
            request, fds = channel.recv()
        except EOFError:
            return
        for fd in fds:
            os.close(fd)  # none is expected
        reply, sent = reply_to(trusted, request)
        channel.send({**reply, "id": request.get("id") if isinstance(request, dict) else None}, sent)
        if isinstance(request, dict) and request.get("verb") == "quit":
            return


def main() -> None:
    serve(Channel(3), support=sys.argv[1])


if __name__ == "__main__":
    main()
