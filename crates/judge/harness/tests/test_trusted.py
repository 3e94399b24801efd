"""The trusted process through its requests: what it refuses, what it flags, what it accepts.

The tests play the worker themselves: they map the regions as it does and write answers into the arena.
"""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from typing import Any, Callable
from unittest import mock

HARNESS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HARNESS), str(HARNESS.parents[1] / "schema" / "python")]

import torch

import draws
import regions
import transforms
import trusted
import values
from trusted import Trusted, reply_to

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
SEED = 0xFEDCBA9876543210


def task(forward: str, inputs: str, init: str = "pass", arguments: str = "x", init_inputs: str = "[]", parameters: str = "") -> str:
    """A module in KernelBench form."""
    return HEAD + (
        f"class Model(nn.Module):\n"
        f"    def __init__(self{parameters}):\n        super().__init__()\n        {init}\n"
        f"    def forward(self{', ' if arguments else ''}{arguments}):\n        {forward}\n"
        f"def get_inputs():\n    return {inputs}\n"
        f"def get_init_inputs():\n    return {init_inputs}\n"
    )


class Bench:
    """A trusted process with one task, and the worker's view of its memory."""

    def __init__(self, source: str, load: bool = True) -> None:
        self.trusted = Trusted()
        self.loaded: dict[str, Any] = {}
        self.source = source
        if load:
            self.loaded = self.ask("load", source=source, name="t", target="cpu", seed=SEED)
            self.map()

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        reply, _ = reply_to(self.trusted, {"verb": verb, **fields})
        if "error" in reply:
            raise AssertionError(reply["error"]["message"])
        return reply["ok"]

    def refusal(self) -> str | None:
        reply, _ = reply_to(self.trusted, {"verb": "load", "source": self.source, "name": "t", "target": "cpu", "seed": SEED})
        error = reply.get("error")
        return None if error is None else f"{error['kind']}: {error['code']}"

    def map(self) -> None:
        variant = self.loaded["variants"][0]
        self.slot_bytes = regions.align(max(variant["input_bytes"], 1))
        reply, fds = reply_to(self.trusted, {
            "verb": "regions", "slot_count": 3, "slot_bytes": self.slot_bytes, "arena_bytes": 1 << 22,
        })
        assert "ok" in reply, reply
        self.slots = regions.attach_cpu(fds[0], 3 * self.slot_bytes, writable=False)
        self.weights = regions.attach_cpu(fds[1], self.loaded["weights_bytes"], writable=False)
        self.arena = regions.attach_cpu(fds[2], 1 << 22, writable=True)
        self.sample = regions.attach_cpu(fds[3], 1 << 22, writable=True)

    def draw(self, slot: int = 1, transform: str = "plain", exact: bool = True, seed: int = 5) -> dict[str, Any]:
        draws = [{"slot": slot, "seed": seed, "transform": transform}]
        return self.ask("draw", draws=draws, variant=0, exact=exact, answer=True)

    def inputs(self, slot: int = 1) -> list[Any]:
        base = slot * self.slot_bytes
        make = lambda raw: values.view(self.slots, raw, base, self.slot_bytes).clone()  # noqa: E731
        return [values.decode(value, make) for value in self.loaded["variants"][0]["inputs"]]

    def state(self) -> dict[str, torch.Tensor]:
        whole = {}
        for entry in self.loaded["state"]:
            stride = list(torch.empty(entry["shape"], device="meta").stride())
            whole[entry["name"]] = values.view(self.weights, {**entry, "stride": stride})
        return whole

    def put(self, outputs: Any) -> Any:
        """Writes an answer as a worker would; strides are kept."""
        layout = draws.Layout()

        def place(tensor: torch.Tensor) -> dict[str, Any]:
            raw = values.describe(tensor, layout.place(tensor), draws.dense_stride(tensor))
            values.view(self.arena, raw).copy_(tensor)
            return raw

        return values.encode(outputs, place)

    def check(self, outputs: Any, slot: int = 1, phase: str = "exact", sampled: Any = None) -> dict[str, Any]:
        return self.check_wire(self.put(outputs), slot, phase, sampled)

    def check_wire(self, outputs: Any, slot: int = 1, phase: str = "exact", sampled: Any = None) -> dict[str, Any]:
        calls = [{"slot": slot, "outputs": outputs, "sampled": sampled}]
        return self.ask("check", calls=calls, phase=phase)["reports"][0]

    def passes(self, candidate: Callable[..., Any], **draw: Any) -> bool:
        self.draw(**draw)
        report = self.check(candidate(*self.inputs()), phase="exact" if draw.get("exact", True) else "timed")
        return report["passed"] and report["inputs_ok"] and report["sample_ok"]


class RefusalTest(unittest.TestCase):
    def assert_refused(self, code: str | None, source: str) -> None:
        self.assertEqual(Bench(source, load=False).refusal(), None if code is None else f"task: {code}")

    def test_broken_modules(self) -> None:
        self.assert_refused("syntax", "def (")
        self.assert_refused("missing_model", HEAD + "def get_inputs(): return []")
        self.assert_refused("missing_model", HEAD + "Model = 3\ndef get_inputs(): return []")
        self.assert_refused("missing_inputs", HEAD + "class Model(nn.Module): pass")
        self.assert_refused("model_raised", "import torch\n1/0")
        self.assert_refused("model_raised", task("return x @ x", "[torch.rand(2, 3)]"))
        self.assert_refused("model_raised", task("return x", "[torch.rand(2, 3)]", init="raise ValueError(1)"))
        self.assert_refused("unsupported_output", task("return x.to(torch.complex64)", "[torch.rand(9)]"))
        self.assert_refused("unsupported_output", task("return None", "[torch.rand(9)]"))
        self.assert_refused("unsupported_output", task("return object()", "[torch.rand(9)]"))
        self.assert_refused("unsupported_input", task("return x", "[object()]"))
        self.assert_refused("unsupported_input", task("return x", "[torch.rand(3).to(torch.complex64)]"))
        self.assert_refused("unsupported_input", task("return x", "torch.rand(3)"))
        self.assert_refused("unsupported_input", task("return x", "[torch.rand(9)]", parameters=", t", init_inputs="[torch.rand(3)]"))
        self.assert_refused("too_large", task("return x * 2", "[torch.rand(1 << 20, 1 << 20)]"))

    def test_out_of_memory_is_told_in_short(self) -> None:
        said = "CUDA out of memory. Tried to allocate 6.00 GiB. GPU 0 has a total capacity of 139 GiB and advice."
        bench = Bench(task(f"raise torch.OutOfMemoryError({said!r})", "[torch.rand(9)]"), load=False)
        told = "Model.forward ran out of memory: CUDA out of memory. Tried to allocate 6.00 GiB."
        with self.assertRaises(AssertionError) as refused:
            bench.ask("load", source=bench.source, name="t", target="cpu", seed=SEED)
        self.assertEqual(str(refused.exception), told)

    def test_random_references(self) -> None:
        self.assert_refused("random", task("return x + torch.rand(100)", "[torch.rand(100)]"))
        self.assert_refused("random", task("return F.dropout(x, 0.5, True)", "[torch.rand(100)]"))
        self.assert_refused("random", task("return x * self.h", "[torch.rand(100)]", init="self.h = torch.randn(100)"))
        self.assert_refused(None, task("return self.d(x) * 2", "[torch.rand(100)]", init="self.d = nn.Dropout(0.5)"))
        self.assert_refused(None, task("return x * self.h", "[torch.rand(100)]", init="self.h = torch.arange(100.0)"))

    def test_constants(self) -> None:
        self.assert_refused("constant", task(
            "h = torch.tanh(x @ self.w).max(1, keepdim=True).values; return h - h.mean(1, keepdim=True)",
            "[torch.randn(64, 32)]", init="self.w = nn.Parameter(torch.randn(32, 32))",
        ))
        self.assert_refused("constant", task("return torch.softmax(x, 1).sum(1)", "[torch.rand(64, 32)]"))
        self.assert_refused("constant", task("return x * 0 + 3.5", "[torch.rand(64)]"))
        self.assert_refused("constant", task("return self.w * 2", "[torch.rand(64)]", init="self.w = nn.Parameter(torch.randn(64))"))
        self.assert_refused("constant", task("return (x > 2)", "[torch.randint(0, 2, (64,))]"))

    def test_trivial_copies(self) -> None:
        self.assert_refused("trivial", task("return x.clone()", "[torch.rand(64)]"))
        self.assert_refused("trivial", task("return x * 1.0, y", "[torch.rand(64), torch.randn(8)]", arguments="x, y"))
        self.assert_refused(None, task("return x, x * 2", "[torch.rand(64)]"))

    def test_not_finite(self) -> None:
        self.assert_refused("not_finite", task("return torch.log(x)", "[torch.rand(64) - 2]"))
        self.assert_refused("not_finite", task("return x / 0", "[torch.rand(64) + 1]"))

    def test_numerically_degenerate(self) -> None:
        self.assert_refused("numerically_degenerate", task("return torch.floor(x * 3e7) % 2 + x", "[torch.rand(4096)]"))

    def test_tasks_that_look_suspicious_but_are_fine(self) -> None:
        self.assert_refused(None, task("return torch.softmax(x, 1)", "[torch.rand(8, 20000)]"))
        self.assert_refused(None, task("return F.mse_loss(x, y)", "[torch.rand(4096), torch.rand(4096)]", arguments="x, y"))
        self.assert_refused(None, task("return x.argmax(1)", "[torch.randn(64, 100)]"))
        self.assert_refused(None, task("return x.sum(1)", "[torch.rand(64, 4096)]"))
        self.assert_refused(None, task("return torch.tril(x @ x)", "[torch.tril(torch.rand(64, 64))]"))


class ScreenTest(unittest.TestCase):
    def screen(self, source: str) -> dict[str, Any]:
        return Bench(source).loaded["screen"]

    def test_relu_on_positive_inputs_is_flagged(self) -> None:
        every = ["plain", "scaled", "negated", "far", "far_negated", "mixed", "uneven", "outliers", "faint"]
        found = self.screen(task("return torch.relu(x)", "[torch.rand(64, 64)]"))
        self.assertEqual(found, {"degenerate_inputs": True, "transforms": [*every[:4], "other"], "checks": [*every, "outliers"], "refused": None})
        self.assertTrue(self.screen(task("return F.hardtanh(x)", "[torch.rand(64, 64)]"))["degenerate_inputs"])
        self.assertFalse(self.screen(task("return torch.relu(x)", "[torch.randn(64, 64)]"))["degenerate_inputs"])

    def test_only_transforms_the_reference_stands(self) -> None:
        self.assertEqual(self.screen(task("return x.sqrt()", "[torch.rand(64)]"))["checks"], ["plain", "scaled", "far", "uneven", "outliers", "outliers"])
        loss = task("return F.binary_cross_entropy(x, y)", "[torch.rand(64), torch.rand(64)]", arguments="x, y")
        self.assertEqual(self.screen(loss)["checks"], ["plain", "scaled"])  # down, never up
        self.assertEqual(self.screen(task("return x * 2", "[torch.randint(0, 9, (64,))]"))["transforms"], ["plain"])

    def test_facts(self) -> None:
        source = task("return F.linear(x, self.w)", "[torch.randn(16, 32)]", init="self.w = nn.Parameter(torch.randn(8, 32))")
        found = Bench(source).loaded
        self.assertEqual((found["has_matmul_or_conv"], found["flops"], found["fp64"]), (True, 2 * 16 * 8 * 32, "all"))
        self.assertEqual(found["min_bytes"], 4 * (16 * 32 + 8 * 32 + 16 * 8))
        self.assertEqual(found["state"], [{
            "name": "w", "dtype": "float32", "shape": [8, 32], "offset": 0, "bytes": 1024, "kind": "parameter", "persistent": True,
        }])
        for forward in ("F.conv2d(x, self.w)", "torch.einsum('abcd,efgd->abcefg', x, self.w)",
                        "F.scaled_dot_product_attention(x, x, x)", "x @ self.w.mT[0]"):
            source = task(f"return {forward}", "[torch.randn(2, 3, 8, 4)]", init="self.w = nn.Parameter(torch.randn(5, 3, 3, 4))")
            self.assertTrue(Bench(source).loaded["has_matmul_or_conv"], forward)
        found = Bench(task("return x.exp()", "[torch.randn(65)]")).loaded
        self.assertEqual((found["has_matmul_or_conv"], found["min_bytes"]), (False, 2 * 65 * 4))
        self.assertEqual(Bench(task("return x[:5].exp()", "[torch.randn(65)]")).loaded["min_bytes"], 5 * 4)


class WeightsTest(unittest.TestCase):
    SOURCE = task("return self.n(self.l(x))", "[torch.randn(32, 16)]",
                  init="self.l = nn.Linear(16, 8); self.n = nn.BatchNorm1d(8); self.register_buffer('mask', torch.tril(torch.ones(3, 3)))")

    def test_everything_learnable_moves_and_the_region_follows(self) -> None:
        bench = Bench(self.SOURCE)
        state = bench.state()
        first = {name: tensor.clone() for name, tensor in state.items()}
        self.assertFalse(torch.all(first["n.weight"] == 1))
        self.assertFalse(torch.all(first["n.bias"] == 0))
        self.assertFalse(torch.all(first["n.running_mean"] == 0))
        self.assertTrue(torch.all(first["n.running_var"] > 0))
        self.assertTrue(torch.equal(first["mask"], torch.tril(torch.ones(3, 3))))
        self.assertEqual(int(first["n.num_batches_tracked"]), 0)
        bench.ask("weights", seed=77)
        for name in ("l.weight", "l.bias", "n.weight", "n.bias", "n.running_mean", "n.running_var"):
            self.assertFalse(torch.equal(state[name], first[name]), name)
        bench.ask("weights", seed=SEED)
        for name, tensor in state.items():
            self.assertTrue(torch.equal(tensor, first[name]), name)

    def candidate(self, bench: Bench, x: torch.Tensor) -> torch.Tensor:
        s = bench.state()
        h = F.linear(x, s["l.weight"], s["l.bias"])
        return F.batch_norm(h, s["n.running_mean"], s["n.running_var"], s["n.weight"], s["n.bias"])

    def test_answers_follow_the_weights(self) -> None:
        bench = Bench(self.SOURCE)
        self.assertTrue(bench.passes(lambda x: self.candidate(bench, x)))
        bench.ask("weights", seed=78)
        stale = {name: tensor.clone() for name, tensor in bench.state().items()}
        self.assertTrue(bench.passes(lambda x: self.candidate(bench, x)))
        bench.ask("weights", seed=79)
        self.assertFalse(bench.passes(lambda x: F.linear(x, stale["l.weight"], stale["l.bias"])))

    def test_weights_whose_perturbation_is_not_finite_stay_fresh(self) -> None:
        source = task("return x * torch.log(1e-3 - (self.w - 1).abs())", "[torch.rand(64)]", init="self.w = nn.Parameter(torch.ones(64))")
        self.assertTrue(torch.all(Bench(source).state()["w"] == 1))

    def test_running_statistics_are_calibrated_where_the_signal_would_die_out(self) -> None:
        layers = "nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU()) for _ in range(60)])"
        source = task("return self.n(x)", "[torch.randn(32, 16)]", init=f"self.n = {layers}")
        bench = Bench(source)
        self.assertTrue(bench.loaded["calibrated_statistics"])
        self.assertFalse(Bench(self.SOURCE).loaded["calibrated_statistics"])
        module: dict[str, Any] = {}
        exec(source, module)
        model = module["Model"]().eval()
        model.load_state_dict(bench.state())
        self.assertTrue(bench.passes(lambda x: model(x).detach()))
        kept = model(bench.inputs()[0]).detach()
        self.assertFalse(bench.passes(lambda x: kept, seed=6))

    def test_tied_parameters_stay_tied(self) -> None:
        source = task("return self.a(self.b(x))", "[torch.randn(4, 8)]",
                      init="self.a = nn.Linear(8, 8); self.b = nn.Linear(8, 8); self.b.weight = self.a.weight")
        state = Bench(source).state()
        self.assertTrue(torch.equal(state["a.weight"], state["b.weight"]))


F = torch.nn.functional


class PlaceTest(unittest.TestCase):
    def test_strides_that_do_not_nest_share_memory(self) -> None:
        for shape, stride in (([16, 961, 64], [1024, 1, 1]), ([4, 8], [0, 1]), ([4, 8], [7, 1])):
            self.assertTrue(values.overlaps_itself(shape, stride), (shape, stride))
        for shape, stride in (([4, 8], [8, 1]), ([4, 8], [1, 4]), ([4, 8], [16, 2]), ([1, 8], [0, 1]), ([0, 8], [0, 0]), ([], [])):
            self.assertFalse(values.overlaps_itself(shape, stride), (shape, stride))


class CheckTest(unittest.TestCase):
    def test_an_honest_answer_under_every_transform(self) -> None:
        bench = Bench(task("return torch.relu(x) * y", "[torch.rand(40, 50), torch.rand(40, 50)]", arguments="x, y"))
        for transform in transforms.TRANSFORMS:
            for exact in (True, False):
                for seed in (1, 2):
                    with self.subTest(transform=transform, exact=exact):
                        drawn = {"transform": transform, "exact": exact, "seed": seed}
                        self.assertTrue(bench.passes(lambda x, y: x.clamp(min=0) * y, **drawn))
        self.assertFalse(bench.passes(lambda x, y: x * y, transform="negated"))

    def test_an_rms_norm_has_the_epsilon_of_its_own_type(self) -> None:
        """float64's would be another: faint rows tell them apart, and so do the limits."""
        for forward in ("return F.rms_norm(x, (32,))", "return nn.RMSNorm(32)(x)"):
            bench = Bench(task(forward, "[torch.randn(48, 32)]"))
            norm = lambda x, eps: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)  # noqa: E731
            eps = torch.finfo(torch.float32).eps
            for transform in ("plain", "faint"):
                self.assertTrue(bench.passes(lambda x: norm(x, eps), transform=transform))
            self.assertFalse(bench.passes(lambda x: norm(x, 10 * eps), transform="faint"))

    def test_far_out_a_softmax_needs_its_maximum(self) -> None:
        bench = Bench(task("return torch.softmax(x, -1)", "[torch.randn(64, 512)]"))
        careless = lambda x: x.exp() / x.exp().sum(-1, keepdim=True)  # noqa: E731
        careful = lambda x: careless(x - x.amax(-1, keepdim=True))  # noqa: E731
        self.assertTrue(bench.passes(careless, transform="scaled"))
        for seed in (1, 2, 3):
            self.assertFalse(bench.passes(careless, transform="far", seed=seed))
            self.assertTrue(bench.passes(careful, transform="far", seed=seed))
        bench.draw(seed=4, exact=False)
        nearly = careful(bench.inputs()[0]) * (1 + 3e-5)
        self.assertFalse(bench.check(nearly, phase="timed")["passed"], "what eager errs far out is no excuse for plain draws")

    def test_seeds_decide_everything(self) -> None:
        bench = Bench(task("return x + 1", "[torch.rand(64)]"))
        drawn = []
        for seed in (1, 2, 1, 1 << 63, SEED):
            bench.draw(seed=seed)
            drawn.append(bench.inputs()[0])
        self.assertTrue(torch.equal(drawn[0], drawn[2]))
        self.assertFalse(torch.equal(drawn[0], drawn[1]))

    def test_skipped_transforms_are_drawn_plain(self) -> None:
        bench = Bench(task("return x.sqrt()", "[torch.rand(64)]"))
        self.assertEqual(bench.draw(transform="negated"), {"skipped": [True]})
        self.assertTrue(torch.all(bench.inputs()[0] >= 0))
        self.assertTrue(bench.check(bench.inputs()[0].sqrt())["passed"])

    def test_the_report_names_what_is_wrong(self) -> None:
        bench = Bench(task("return x.sin(), x.cos()", "[torch.rand(8, 9)]"))

        def report(make: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
            bench.draw()
            return bench.check(make(bench.inputs()[0]))

        self.assertFalse(report(lambda x: x.sin())["structure_ok"])
        self.assertFalse(report(lambda x: (x.sin(), x.cos(), x))["structure_ok"])
        self.assertFalse(report(lambda x: {"a": x.sin(), "b": x.cos()})["structure_ok"])
        self.assertFalse(report(lambda x: (x.sin(), 1.0))["structure_ok"])
        found = report(lambda x: (x.sin(), x.cos().T))
        self.assertEqual((found["structure_ok"], found["shape_ok"], found["dtype_ok"]), (True, False, True))
        found = report(lambda x: (x.sin(), x.cos().double()))
        self.assertEqual((found["shape_ok"], found["dtype_ok"], found["passed"]), (True, False, False))
        found = report(lambda x: (x.sin(), x.cos() * torch.nan))
        self.assertEqual((found["finite_ok"], found["passed"], found["share_within_tolerance"]), (False, False, 0.5))
        found = report(lambda x: (x.sin(), x.sin()))
        self.assertEqual((found["finite_ok"], found["passed"], found["class"], found["worst"]["leaf"]), (True, False, None, 1))
        found = report(lambda x: [x.sin(), x.cos()])
        self.assertEqual((found["passed"], found["class"], found["share_within_tolerance"]), (True, "fp32", 1.0))
        self.assertIsNone(found["tf32_error"])

    def test_hostile_descriptions_are_reports_not_errors(self) -> None:
        bench = Bench(task("return x.sin()", "[torch.rand(64)]"))
        bench.draw()
        far = {"tensor": {"dtype": "float32", "shape": [64], "stride": [1], "offset": 1 << 40}}
        for outputs in (far, {"tensor": {}}, {"x": 1}, 5, {"tuple": []}, None):
            found = bench.check_wire(outputs)
            self.assertEqual((found["structure_ok"], found["passed"]), (False, False))

    def test_places_are_poisoned_after_the_check(self) -> None:
        bench = Bench(task("return x.sin()", "[torch.rand(64)]"))
        bench.draw()
        wire = bench.put(bench.inputs()[0].sin())
        self.assertTrue(bench.check_wire(wire)["passed"])
        self.assertEqual(bench.arena[:256].unique().tolist(), [255])
        self.assertFalse(bench.check_wire(wire)["passed"])

    def test_the_reference_is_timed_here_and_now(self) -> None:
        bench = Bench(task("return torch.softmax(x, -1)", "[torch.randn(8, 32)]"))
        self.assertGreater(bench.ask("reference", variant=0)["us"], 0)

    def test_a_window_is_overwritten_before_its_call(self) -> None:
        bench = Bench(task("return torch.softmax(x, -1)", "[torch.randn(8, 32)]"))
        bench.arena.zero_()
        draws = [{"slot": 1, "seed": 5, "transform": "plain"}]
        bench.ask("draw", draws=draws, variant=0, exact=False, answer=True, window=[4096, 8192])
        self.assertGreater(int(bench.arena[4096:8192].min()), 1)
        self.assertEqual(int(bench.arena[:4096].sum() + bench.arena[8192:].sum()), 0)

    def test_elements_that_share_memory_are_refused_unless_the_reference_does_so(self) -> None:
        rows = torch.arange(32.0).expand(8, 32)
        for forward, refused in (("return x.mean(0, True).expand(8, 32).contiguous()", True), ("return x.mean(0, True).expand(8, 32)", False)):
            bench = Bench(task(forward, "[torch.randn(8, 32)]"))
            bench.draw()
            bench.arena[:128] = bench.inputs()[0].mean(0).view(torch.uint8)
            spec = values.describe(rows, 0)
            report = bench.ask("check", calls=[{"slot": 1, "outputs": {"tensor": spec}, "sampled": None}], phase="exact")["reports"][0]
            self.assertEqual("share memory" in report["message"], refused, report)
            self.assertEqual(report["passed"], not refused)

    def test_a_sample_that_differs_from_the_full_read_is_seen(self) -> None:
        bench = Bench(task("return x.sin()", "[torch.rand(300)]"))
        for spoiled in (False, True):
            bench.draw()
            answer = bench.inputs()[0].sin()
            positions = torch.tensor([0, 7, 299])
            items = answer[positions].clone()
            items[1] += float(spoiled)
            start = 40
            bench.sample[start : start + 24] = positions.view(torch.uint8)
            bench.sample[start + 24 : start + 36] = items.view(torch.uint8)
            entry = {"leaf": 0, "offset": start, "count": 3, "item_bytes": 4}
            found = bench.check(answer, sampled=[entry])
            self.assertEqual((found["passed"], found["sample_ok"]), (True, not spoiled))

    def test_changed_inputs_are_seen(self) -> None:
        bench = Bench(task("return x.sin()", "[torch.rand(300)]"))
        bench.draw()
        answer = bench.inputs()[0].sin()
        bench.trusted._memory.slots.tensor[bench.slot_bytes + 3] ^= 1  # a worker cannot on the CPU, but on CUDA it can
        self.assertFalse(bench.check(answer)["inputs_ok"])

    def test_slots_are_apart(self) -> None:
        bench = Bench(task("return x.sin()", "[torch.rand(300)]"))
        for slot in (0, 1, 2):
            bench.draw(slot=slot, seed=slot, exact=False)
        kept = [bench.inputs(slot)[0].sin() for slot in (0, 1, 2)]
        self.assertTrue(bench.check(kept[2], slot=2, phase="timed")["passed"])
        self.assertFalse(bench.check(kept[0], slot=1, phase="timed")["passed"])
        self.assertTrue(bench.check(kept[1], slot=1, phase="timed")["passed"])

    def test_several_calls_at_once(self) -> None:
        self.check_several()

    def test_several_calls_in_parts(self) -> None:
        for held in (1, 5000):  # one call at a time, and two
            with mock.patch.object(trusted, "IN_HAND_BYTES", held):
                self.check_several()

    def check_several(self) -> None:
        bench = Bench(task("return x.sin()", "[torch.rand(300)]"))
        draws = [{"slot": slot, "seed": slot, "transform": name} for slot, name in enumerate(("plain", "negated", "scaled"))]
        self.assertEqual(bench.ask("draw", draws=draws, variant=0, exact=False, answer=True)["skipped"], [False] * 3)
        right = [bench.inputs(slot)[0].sin() for slot in (0, 1, 2)]
        for wrong in (None, 0, 1, 2):
            kept = [answer + 1 if slot == wrong else answer for slot, answer in enumerate(right)]
            wires = bench.put(kept)["list"]
            calls = [{"slot": slot, "outputs": wire, "sampled": None} for slot, wire in enumerate(wires)]
            passed = [report["passed"] for report in bench.ask("check", calls=calls, phase="timed")["reports"]]
            self.assertEqual(passed, [True] * 3 if wrong is None else [True] * wrong + [False])
            self.assertEqual(bench.arena[:1200].unique().tolist(), [255])
        wires = bench.put(right)["list"]
        calls = [{"slot": slot, "outputs": wire, "sampled": None} for slot, wire in enumerate(wires)]
        self.assertEqual(bench.ask("check", calls=calls, phase="for_nothing")["reports"], [])
        self.assertEqual(bench.arena[:1200].unique().tolist(), [255])

    def test_strided_outputs(self) -> None:
        bench = Bench(task("return x.T * 2", "[torch.rand(30, 20)]"))
        self.assertTrue(bench.passes(lambda x: (x * 2).T))
        self.assertTrue(bench.passes(lambda x: (x * 2).T.contiguous()))

    def test_bf16_and_stale_answers_fail(self) -> None:
        source = task("return torch.relu(x @ self.w.t() + self.b)", "[torch.randn(64, 512)]",
                      init="self.w = nn.Parameter(torch.randn(128, 512) * 0.05); self.b = nn.Parameter(torch.randn(128) * 0.05)")
        bench = Bench(source)
        state = bench.state()
        honest = lambda x: torch.relu(F.linear(x, state["w"], state["b"]))  # noqa: E731
        short = lambda x: torch.relu(F.linear(x.bfloat16(), state["w"].bfloat16()).float() + state["b"])  # noqa: E731
        for exact in (True, False):
            self.assertTrue(bench.passes(honest, exact=exact))
            self.assertFalse(bench.passes(short, exact=exact))
            self.assertFalse(bench.passes(lambda x: torch.zeros(64, 128), exact=exact))
        bench.draw(seed=1)
        kept = honest(bench.inputs()[0])
        self.assertFalse(bench.passes(lambda x: kept, seed=2))

    def test_softmax_zeros_fail(self) -> None:
        bench = Bench(task("return torch.softmax(x, 1)", "[torch.rand(8, 50000)]"))
        self.assertTrue(bench.passes(lambda x: torch.exp(x) / torch.exp(x).sum(1, keepdim=True)))
        self.assertFalse(bench.passes(lambda x: torch.zeros_like(x)))
        self.assertFalse(bench.passes(lambda x: torch.full_like(x, 1 / 50000)))


class FormTest(unittest.TestCase):
    def test_in_place_references_run_on_copies(self) -> None:
        bench = Bench(task("x.mul_(2); return x.relu_()", "[torch.randn(64)]"))
        self.assertTrue(bench.loaded["mutates_inputs"])
        for transform in ("plain", "negated"):
            self.assertTrue(bench.passes(lambda x: (2 * x).clamp(min=0), transform=transform))
        hidden = Bench(task("x.data.mul_(2); return x + 1", "[torch.randn(64)]"))
        self.assertTrue(hidden.loaded["mutates_inputs"])
        self.assertTrue(hidden.passes(lambda x: 2 * x + 1))

    def test_nested_outputs(self) -> None:
        bench = Bench(task("return {'a': [x * 2, (x.sum(), 3)], 'b': {'c': x.max(0), 'd': None, 'e': 0.5}}", "[torch.randn(20, 6)]"))
        good = lambda x: {"b": {"e": 0.5, "d": None, "c": tuple(x.max(0))}, "a": (x * 2, [x.sum(), 3])}  # noqa: E731
        self.assertTrue(bench.passes(good))
        self.assertFalse(bench.passes(lambda x: {**good(x), "a": (x * 2, [x.sum(), 4])}))
        self.assertFalse(bench.passes(lambda x: {**good(x), "z": 1}))

    def test_no_inputs_at_all(self) -> None:
        source = task("return (self.w * 2).cumsum(0)", "[]", init="self.w = nn.Parameter(torch.randn(64))", arguments="")
        bench = Bench(source)
        self.assertTrue(bench.passes(lambda: (bench.state()["w"] * 2).cumsum(0)))
        self.assertFalse(bench.passes(lambda: torch.zeros(64)))
        self.assertEqual(Bench(task("return torch.arange(9.0)", "[]", arguments=""), load=False).refusal(), "task: constant")

    def test_inputs_of_every_kind(self) -> None:
        source = task(
            "return (t['a'] * s).sum(0) + h[0] + (1.0 if flag else 0.0), i[1].flip(0), (b[0] & b[1])",
            "[{'a': torch.rand(4, 6)}, 2.5, (torch.rand(6), None), [3, torch.randint(0, 100, (5,))], True, "
            "[torch.rand(7) > 0.5, torch.rand(7) > 0.5], 'mode']",
            arguments="t, s, h, i, flag, b, mode",
        )
        bench = Bench(source)
        good = lambda t, s, h, i, flag, b, mode: ((t["a"] * s).sum(0) + h[0] + 1, i[1].flip(0), b[0] & b[1])  # noqa: E731
        for transform in ("plain", "negated"):
            self.assertTrue(bench.passes(good, transform=transform))

    def test_strided_inputs_keep_their_strides(self) -> None:
        source = task("return x * 2 + y + z", "[torch.rand(6, 8).T, torch.rand(8, 1).expand(8, 6), torch.rand(16, 6)[::2]]", arguments="x, y, z")
        bench = Bench(source)
        self.assertEqual([v["tensor"]["stride"] for v in bench.loaded["variants"][0]["inputs"]], [[1, 8], [6, 1], [6, 1]])
        self.assertTrue(bench.passes(lambda x, y, z: 2 * x + y + z))

    def test_half_and_double_and_integer_tasks(self) -> None:
        for dtype in ("float16", "bfloat16", "float64"):
            bench = Bench(task("return torch.tanh(x) * 3", f"[torch.randn(500).to(torch.{dtype})]"))
            self.assertTrue(bench.passes(lambda x: torch.tanh(x) * 3), dtype)
            self.assertFalse(bench.passes(lambda x: torch.zeros_like(x)), dtype)
        bench = Bench(task("return x // 3", "[torch.randint(0, 1000, (500,), dtype=torch.int32)]"))
        self.assertTrue(bench.passes(lambda x: x // 3))
        self.assertFalse(bench.passes(lambda x: x // 3 + (x == x[0])))

    def test_hard_coded_dtypes_still_get_a_float64_answer(self) -> None:
        bench = Bench(task("return (x.float() @ torch.ones(256, 8, dtype=torch.float32)).to(torch.float32)", "[torch.rand(64, 256)]"))
        self.assertEqual(bench.loaded["fp64"], "all")
        bench.draw()
        self.assertGreater(bench.check(torch.zeros(64, 8))["eager_error"], 0)

    def test_index_outputs_accept_ties(self) -> None:
        bench = Bench(task("return x.argmax(1)", "[torch.randint(0, 3, (64, 100)).float()]"))
        last = lambda x: 99 - x.flip(1).argmax(1)  # noqa: E731
        for exact in (True, False):
            self.assertTrue(bench.passes(last, exact=exact))
            self.assertFalse(bench.passes(lambda x: (last(x) + 1) % 100, exact=exact))

    def test_variants(self) -> None:
        source = task("return x.sin()", "[torch.rand(64)]") + "def get_inputs_variants():\n    return [[torch.rand(n)] for n in (8, 16)]\n"
        loaded = Bench(source).loaded
        self.assertEqual([v["inputs"][0]["tensor"]["shape"] for v in loaded["variants"]], [[64], [8], [16]])

    def test_requests_out_of_order_are_ours(self) -> None:
        for request in ({"verb": "draw", "slot": 0}, {"verb": "nonsense"}, {}, {"verb": "regions"}, {"verb": "_loaded"}):
            reply, _ = reply_to(Trusted(), request)
            self.assertEqual(reply["error"]["kind"], "harness")
        bench = Bench(task("return x.sin()", "[torch.rand(64)]"))
        self.assertEqual(bench.ask("memory"), {"held": 0, "free": 0})
        self.assertEqual(bench.ask("forget"), {})
        self.assertEqual(reply_to(bench.trusted, {"verb": "weights", "seed": 1})[0]["error"]["kind"], "harness")
        self.assertEqual(bench.ask("hello")["protocol"], 1)


if __name__ == "__main__":
    unittest.main()
