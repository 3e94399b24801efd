"""Wrong variants of a task: what is refused, what is not, and what is left behind."""

from __future__ import annotations

import copy
import sys
import unittest
from pathlib import Path
from typing import Any

HARNESS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HARNESS), str(HARNESS / "tests"), str(HARNESS.parents[1] / "schema" / "python")]

import torch

from graphs import Draw, Graph, NoGraph
from trusted import Trusted, reply_to

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
NORMED = HEAD + (
    "class Model(nn.Module):\n"
    "    def __init__(self):\n        super().__init__()\n        self.fc, self.norm = nn.Linear(24, 32), nn.LayerNorm(32)\n"
    "    def forward(self, x):\n        return self.norm(self.fc(x))\n"
    "def get_inputs():\n    return [torch.randn(48, 24)]\n"
)
HINGE = HEAD + (
    "class Model(nn.Module):\n"
    "    def forward(self, x, y):\n        return F.hinge_embedding_loss(x, y, margin=1.0)\n"
    "def get_inputs():\n    return [torch.rand(64, 32), torch.randint(0, 2, (64, 32)).float() * 2 - 1]\n"
)
CHECKS = ["plain", "scaled", "negated", "uneven"]


def value(shape: list[int], dtype: str = "float32", **source: Any) -> dict[str, Any]:
    return {"shape": shape, "dtype": dtype, "from": source}


def applied(op: str, inputs: list[int | None], shape: list[int], **arguments: Any) -> dict[str, Any]:
    return value(shape, arguments["dtype"] if op == "to" else "float32", kind="applied", op=op, inputs=inputs, arguments=arguments, result=0)


def normed() -> dict[str, Any]:
    names = [("fc.weight", [32, 24]), ("fc.bias", [32]), ("norm.weight", [32]), ("norm.bias", [32])]
    values = [value([48, 24], kind="input", position=0), *(value(shape, kind="state", name=name) for name, shape in names)]
    values.append(applied("linear", [0, 1, 2], [48, 32]))
    values.append(applied("layer_norm", [5, 3, 4], [48, 32], normalized_shape=[32], eps=1e-5))
    return {"values": values, "returns": [6]}


def hinge(margin: float = 1.0) -> dict[str, Any]:
    values = [value([64, 32], kind="input", position=place) for place in (0, 1)]
    return {"values": [*values, applied("hinge_embedding_loss", [0, 1], [], margin=margin, reduction="mean")], "returns": [2]}


def with_argument(graph: dict[str, Any], place: int, **changes: Any) -> dict[str, Any]:
    changed = copy.deepcopy(graph)
    changed["values"][place]["from"]["arguments"].update(changes)
    return changed


def with_inputs(graph: dict[str, Any], place: int, inputs: list[int | None]) -> dict[str, Any]:
    changed = copy.deepcopy(graph)
    changed["values"][place]["from"]["inputs"] = inputs
    return changed


class MutantTest(unittest.TestCase):
    def setUp(self) -> None:
        self.trusted = Trusted()

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        reply, _ = reply_to(self.trusted, {"verb": verb, **fields})
        if "error" in reply:
            raise AssertionError(reply["error"]["message"])
        return reply["ok"]

    def tried(self, source: str, graph: dict[str, Any], *mutants: Any, checks: list[str] = CHECKS, limit_s: float = 100.0) -> dict[str, Any]:
        """Mutants are graphs, or pairs of a graph and stale names."""
        self.ask("load", source=source, name="t", target="cpu", seed=7)
        told = [dict(zip(("graph", "stale"), one if isinstance(one, tuple) else (one, []))) for one in mutants]
        return self.ask("mutants", graph=graph, mutants=told, checks=checks, seed=11, limit_s=limit_s)

    def test_a_graph_without_a_mistake_is_accepted(self) -> None:
        found = self.tried(NORMED, normed(), normed())
        self.assertTrue(found["faithful"], found["message"])
        (same,) = found["trials"]
        self.assertIsNone(same["killed_by"])
        self.assertTrue(same["identical"])
        self.assertLess(same["near"], 1.0)

    def test_another_order_of_summation_is_accepted(self) -> None:
        """The product in two halves, added up."""
        graph = normed()
        halves = [applied("narrow", [place], shape, dim=1, start=start, length=12) for place, shape in ((0, [48, 12]), (1, [32, 12])) for start in (0, 12)]
        products = [applied("linear", [5, 7, None], [48, 32]), applied("linear", [6, 8, 2], [48, 32])]
        total = [applied("add", [9, 10], [48, 32], alpha=1), applied("layer_norm", [11, 3, 4], [48, 32], normalized_shape=[32], eps=1e-5)]
        split = {"values": [*graph["values"][:5], *halves, *products, *total], "returns": [12]}
        (trial,) = self.tried(NORMED, graph, split)["trials"]
        self.assertIsNone(trial["killed_by"])
        self.assertFalse(trial["identical"])

    def test_mistakes_are_refused(self) -> None:
        graph = normed()
        rounded = copy.deepcopy(graph)
        rounded["values"][5:5] = [applied("to", [0], [48, 24], dtype="bfloat16"), applied("to", [5], [48, 24], dtype="float32")]
        rounded["values"][7]["from"]["inputs"] = [6, 1, 2]
        rounded["values"][8]["from"]["inputs"] = [7, 3, 4]
        rounded["returns"] = [8]
        mutants = {
            "no bias": with_inputs(graph, 5, [0, 1, None]),
            "no weight of the norm": with_inputs(graph, 6, [5, None, 4]),
            "a large epsilon": with_argument(graph, 6, eps=1e-3),
            "operands in bfloat16": rounded,
        }
        found = self.tried(NORMED, graph, *mutants.values())
        for name, trial in zip(mutants, found["trials"]):
            self.assertIsNotNone(trial["killed_by"], name)

    def test_weights_as_they_were_are_refused_once_they_are_others(self) -> None:
        graph = normed()
        (trial,) = self.tried(NORMED, graph, (graph, ["fc.weight"]))["trials"]
        self.assertEqual((trial["killed_by"], trial["check"]), ("scaled", 1))

    def test_another_graph_is_not_the_tasks(self) -> None:
        found = self.tried(NORMED, with_argument(normed(), 6, eps=0.1))
        self.assertFalse(found["faithful"])
        self.assertIn("does not compute", found["message"])

    def test_what_cannot_be_computed_is_said(self) -> None:
        graph = normed()
        wrong_shape = copy.deepcopy(graph)
        wrong_shape["values"][6]["shape"] = [48, 31]
        unknown = copy.deepcopy(graph)
        unknown["values"][6]["from"]["op"] = "no_such_operator"
        for trial in self.tried(NORMED, graph, wrong_shape, unknown)["trials"]:
            self.assertIsNotNone(trial["broken"])
            self.assertIsNone(trial["killed_by"])

    def test_time_is_kept(self) -> None:
        found = self.tried(NORMED, normed(), with_inputs(normed(), 5, [0, 1, None]), limit_s=0.0)
        self.assertFalse(found["complete"])

    def test_an_appeal_does_not_turn_labels_into_something_else(self) -> None:
        """A label that is off by an ulp is no label: a panel on such inputs once let any answer pass."""
        found = self.tried(HINGE, hinge(), hinge(margin=1.01), checks=["plain", "plain", "plain"])
        self.assertTrue(found["faithful"], found["message"])
        self.assertEqual(found["trials"][0]["killed_by"], "plain")

    def test_nothing_is_left_behind(self) -> None:
        self.ask("load", source=NORMED, name="t", target="cpu", seed=7)
        variant = self.trusted._task.variants[0]
        before = dict(variant.learnt), dict(variant.apart), self.trusted._accepted, self.trusted._timing
        self.ask("mutants", graph=normed(), mutants=[{"graph": with_argument(normed(), 6, eps=1.2e-5), "stale": []}], checks=CHECKS, seed=11, limit_s=100.0)
        self.assertEqual((dict(variant.learnt), dict(variant.apart), self.trusted._accepted, self.trusted._timing), before)


def one_pass(x: torch.Tensor, dims: tuple[int, ...], eps: float) -> torch.Tensor:
    """Mean and variance of one look at each element: the mean of squares less the square of the mean."""
    mean, squares = x.mean(dims, keepdim=True), x.square().mean(dims, keepdim=True)
    return (x - mean) * torch.rsqrt((squares - mean.square()).clamp(min=0) + eps)


def split(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product in eight parts, added up."""
    return sum(a @ b.T for a, b in zip(x.chunk(8, 1), w.chunk(8, 1)))


def chunked_softmax(x: torch.Tensor) -> torch.Tensor:
    """With powers of two, and the sum of sums."""
    scaled = x * 1.4426950408889634
    raised = torch.exp2(scaled - scaled.amax(-1, keepdim=True))
    return raised / sum(part.sum(-1, keepdim=True) for part in raised.chunk(7, -1))


HONEST = [
    ("F.layer_norm(x, (96,))", "[torch.rand(64, 96)]", lambda x: one_pass(x, (1,), 1e-5)),
    ("F.group_norm(x, 4)", "[torch.randn(24, 8, 9, 9)]", lambda x: one_pass(x.view(24, 4, -1), (2,), 1e-5).view_as(x)),
    ("F.instance_norm(x)", "[torch.rand(24, 8, 9, 9)]", lambda x: one_pass(x, (2, 3), 1e-5)),
    ("F.rms_norm(x, (96,))", "[torch.randn(64, 96)]", lambda x: x / torch.sqrt(x.square().sum(-1, keepdim=True) / 96 + 2.0**-23)),
    ("F.normalize(x, dim=1)", "[torch.randn(64, 96)]", lambda x: x * torch.rsqrt(x.square().sum(1, keepdim=True).clamp(min=1e-24))),
    ("torch.softmax(x, -1)", "[torch.rand(64, 300)]", chunked_softmax),
    ("F.gelu(x)", "[torch.randn(64, 96)]", lambda x: 0.5 * x * (1 + torch.erf(x * 0.7071067811865476))),
    ("F.silu(x)", "[torch.rand(64, 96)]", lambda x: x / (1 + torch.exp2(-1.4426950408889634 * x))),
    ("x.std(1)", "[torch.rand(64, 96)]", lambda x: torch.sqrt((x.square().sum(1) - x.sum(1).square() / 96).clamp(min=0) / 95)),
    ("F.mse_loss(x, x.roll(1, 0))", "[torch.rand(64, 96)]", lambda x: sum(part.square().sum() for part in (x - x.roll(1, 0)).split(5)) / x.numel()),
    ("F.cosine_similarity(x, y)", "[torch.randn(64, 96), torch.randn(64, 96)]",
     lambda x, y: (x * y).sum(1) / (x.norm(dim=1).clamp(min=1e-8) * y.norm(dim=1).clamp(min=1e-8))),
    ("torch.logsumexp(x, 1)", "[torch.rand(64, 96)]", lambda x: x.amax(1) + torch.log(torch.exp(x - x.amax(1, keepdim=True)).sum(1))),
    ("x @ y.T", "[torch.rand(64, 96), torch.rand(40, 96)]", split),
]  # fmt: skip


class HonestTest(unittest.TestCase):
    """Draws that refuse mutants must not refuse work that is only done in another way."""

    def test_other_ways_pass_every_check(self) -> None:
        from test_trusted import Bench, task

        for forward, inputs, other in HONEST:
            bench = Bench(task(f"return {forward}", inputs, arguments="x, y" if inputs.count("torch.") > 1 else "x"))
            for transform in bench.loaded["screen"]["checks"]:
                for seed in (1, 2, 3):
                    with self.subTest(forward=forward, transform=transform, seed=seed):
                        self.assertTrue(bench.passes(other, transform=transform, seed=seed))


class GraphTest(unittest.TestCase):
    def draw(self, **state: torch.Tensor) -> Draw:
        return Draw([torch.randn(48, 24)], state, {name: 0 * tensor for name, tensor in state.items()}, "cpu", 1 << 30)

    def state(self) -> dict[str, torch.Tensor]:
        return {"fc.weight": torch.randn(32, 24), "fc.bias": torch.randn(32), "norm.weight": torch.randn(32), "norm.bias": torch.randn(32)}

    def test_a_graph_is_what_its_functional_forms_say(self) -> None:
        state = self.state()
        draw = self.draw(**state)
        (found,) = draw.outputs(Graph(normed()))
        hidden = torch.nn.functional.linear(draw.inputs[0], state["fc.weight"], state["fc.bias"])
        expected = torch.nn.functional.layer_norm(hidden, [32], state["norm.weight"], state["norm.bias"])
        self.assertTrue(torch.equal(found, expected))

    def test_only_what_follows_a_mistake_is_computed_again(self) -> None:
        draw = self.draw(**self.state())
        draw.outputs(Graph(normed()), keep=True)
        known = set(draw.kept)
        changed = Graph(with_argument(normed(), 6, eps=0.1))
        self.assertEqual([key in known for key in changed.keys], [True] * 6 + [False])
        (found,) = draw.outputs(changed)
        self.assertFalse(torch.equal(found, draw.outputs(Graph(normed()))[0]))
        self.assertEqual(set(draw.kept), known)

    def test_no_more_is_kept_than_there_is_room_for(self) -> None:
        draw = self.draw(**self.state())
        draw.room = 0
        first = draw.outputs(Graph(normed()), keep=True)
        self.assertEqual(draw.kept, {})
        self.assertTrue(torch.equal(first[0], draw.outputs(Graph(normed()))[0]))

    def test_stale_state_is_another(self) -> None:
        draw = self.draw(**self.state())
        (found,) = draw.outputs(Graph(normed(), ("norm.weight",)))
        self.assertTrue(torch.equal(found, draw.state["norm.bias"].expand(48, 32)))

    def test_a_shape_that_is_not_the_graphs_is_said(self) -> None:
        graph = normed()
        graph["values"][5]["shape"] = [48, 33]
        with self.assertRaisesRegex(NoGraph, r"value 5 \(linear\) is \[48, 32\]"):
            self.draw(**self.state()).outputs(Graph(graph))


if __name__ == "__main__":
    unittest.main()
