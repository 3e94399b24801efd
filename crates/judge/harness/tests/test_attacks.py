"""Answers that leave work out, and honest variants beside them, through the requests of the trusted process."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import torch.nn.functional as F

from task import round_to_tf32
from test_compare import sequential
from test_trusted import Bench, task


class Trial:
    """A task and what its checks say of candidates."""

    def __init__(self, source: str) -> None:
        self.bench = Bench(source)
        self.transforms = self.bench.loaded["screen"]["checks"]

    def refused(self, candidate: Callable[..., Any], seeds: range = range(1, 4), exact: bool = True, names: Any = None) -> set[str]:
        """Transforms under which a candidate fails."""
        found = set()
        for seed in seeds:
            self.bench.ask("weights", seed=1000 + seed)
            for name in names or self.transforms:
                if not self.bench.passes(candidate, transform=name, seed=seed, exact=exact):
                    found.add(name)
        return found


class StructuredStateTest(unittest.TestCase):
    def test_a_layer_that_starts_as_the_identity(self) -> None:
        trial = Trial(task("return torch.relu(self.fc(x))", "[torch.randn(32, 256)]", init="self.fc = nn.Linear(256, 256); nn.init.eye_(self.fc.weight)"))
        s = trial.bench.state()
        self.assertIn("plain", trial.refused(lambda x: torch.relu(x * s["fc.weight"].diagonal() + s["fc.bias"])))
        self.assertEqual(trial.refused(lambda x: torch.relu(F.linear(x, s["fc.weight"], s["fc.bias"]))), set())

    def test_buffers_of_zeros_tables_and_counts(self) -> None:
        init = "self.register_buffer('h', torch.zeros(64, 64)); self.register_buffer('t', torch.arange(64.)); self.register_buffer('o', torch.arange(64))"
        trial = Trial(task("return (x @ self.h + x * self.t)[:, self.o]", "[torch.randn(32, 64)]", init=init))
        self.assertEqual(trial.bench.loaded["moved"], "state")
        s = trial.bench.state()
        self.assertEqual(trial.refused(lambda x: (x @ s["h"] + x * s["t"])[:, s["o"]]), set())
        for cheat in (lambda x: (x * s["t"])[:, s["o"]], lambda x: (x @ s["h"] + x * torch.arange(64.0))[:, s["o"]], lambda x: x @ s["h"] + x * s["t"]):
            self.assertIn("plain", trial.refused(cheat))

    def test_a_causal_mask_may_be_known(self) -> None:
        init = "self.register_buffer('mask', torch.triu(torch.full((16, 16), -torch.inf), 1))"
        trial = Trial(task("return torch.softmax(q @ q.mT + self.mask, -1) @ q", "[torch.randn(4, 16, 8)]", init=init, arguments="q"))
        known = torch.triu(torch.full((16, 16), -torch.inf), 1)
        self.assertEqual(trial.refused(lambda q: torch.softmax(q @ q.mT + known, -1) @ q), set())

    def test_buffers_that_may_not_move_stay(self) -> None:
        trial = Trial(task("return x * torch.log(1e-3 - (self.t - 1).abs())", "[torch.rand(64)]", init="self.register_buffer('t', torch.ones(64)); self.w = nn.Parameter(torch.zeros(64))"))
        self.assertEqual(trial.bench.loaded["moved"], "parameters")

    def test_inputs_that_are_always_zero(self) -> None:
        trial = Trial(task("return torch.tanh(x @ self.w + h @ self.u)", "[torch.randn(32, 64), torch.zeros(32, 64)]", arguments="x, h",
                           init="self.w = nn.Parameter(torch.randn(64, 64) / 8); self.u = nn.Parameter(torch.randn(64, 64) / 8)"))
        s = trial.bench.state()
        self.assertIn("shaken", trial.refused(lambda x, h: torch.tanh(x @ s["w"])))
        self.assertEqual(trial.refused(lambda x, h: torch.tanh(x @ s["w"] + h @ s["u"])), set())


class HalfTest(unittest.TestCase):
    def check(self, dtype: str, inner: int) -> None:
        trial = Trial(task("return a @ b", f"[torch.rand(128, {inner}, dtype=torch.{dtype}), torch.rand({inner}, 128, dtype=torch.{dtype})]", arguments="a, b"))

        def rank_one(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            x, y = a.float(), b.float()
            return (x.sum(1, keepdim=True) * y.mean() + x.mean() * (y.sum(0) - inner * y.mean())).to(a.dtype)

        def once(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return (a.float() @ b.float()).to(a.dtype)

        def split(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            x, y, half = a.float(), b.float(), inner // 2
            return (x[:, :half] @ y[:half] + x[:, half:] @ y[half:]).to(a.dtype)

        for exact in (True, False):
            self.assertIn("plain", trial.refused(rank_one, exact=exact))
            for honest in (once, split):
                self.assertEqual(trial.refused(honest, exact=exact), set())

    def test_products_without_a_product(self) -> None:
        for dtype in ("bfloat16", "float16"):
            for inner in (256, 4096):  # the longer, the less rank one errs, but never of what varies
                if (dtype, inner) != ("float16", 4096):
                    with self.subTest(dtype=dtype, inner=inner):
                        self.check(dtype, inner)

    def test_attention_by_column_means(self) -> None:
        trial = Trial(task("return F.scaled_dot_product_attention(q, k, v)", "[torch.rand(2, 4, 64, 32, dtype=torch.bfloat16) for _ in range(3)]", arguments="q, k, v"))
        self.assertIn("plain", trial.refused(lambda q, k, v: v.float().mean(-2, keepdim=True).expand(v.shape).bfloat16()))

        def rounds_twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            p = torch.softmax((q.float() @ k.float().mT) / 32**0.5, -1).bfloat16()  # as flash attention does before the second product
            return (p.float() @ v.float()).bfloat16()

        self.assertEqual(trial.refused(rounds_twice), set())

    def test_a_fused_layer_may_round_as_often_as_eager(self) -> None:
        trial = Trial(task("return F.gelu(self.fc(x)) + x", "[torch.randn(64, 256, dtype=torch.bfloat16)]", init="self.fc = nn.Linear(256, 256).bfloat16()"))
        s = trial.bench.state()

        def fused(x: torch.Tensor) -> torch.Tensor:
            return (F.gelu(F.linear(x.float(), s["fc.weight"].float(), s["fc.bias"].float())) + x.float()).bfloat16()

        def stepwise(x: torch.Tensor) -> torch.Tensor:
            h = F.linear(x.float(), s["fc.weight"].float()).bfloat16()
            return F.gelu((h + s["fc.bias"]).float()).bfloat16() + x

        self.assertEqual(trial.refused(fused), set())
        self.assertEqual(trial.refused(stepwise), set())

    def test_the_report_says_what_is_missing(self) -> None:
        bench = Bench(task("return a @ b", "[torch.rand(128, 256).half(), torch.rand(256, 128).half()]", arguments="a, b"))
        bench.draw()
        a, b = (part.float() for part in bench.inputs())
        exact = a @ b
        found = bench.check((exact.mean() + 0.96 * (exact - exact.mean())).half())
        self.assertFalse(found["passed"])
        self.assertIn("4.0% of its variation is missing", found["message"])

    def test_one_number_in_half_precision(self) -> None:
        trial = Trial(task("return x.mean()", "[torch.rand(64, 64, dtype=torch.bfloat16)]"))
        self.assertEqual(trial.refused(lambda x: x.float().mean().bfloat16()), set())


class NearIdentityTest(unittest.TestCase):
    def check(self, forward: str) -> None:
        trial = Trial(task(f"return {forward}", "[torch.randn(128, 256) * 0.35]"))
        direct = lambda x: torch.exp(-0.5 * (x[:, None] - x[None]).square().sum(-1))  # noqa: E731

        def one_pass(x: torch.Tensor) -> torch.Tensor:
            square = x.square().sum(1)
            d = (square[:, None] + square[None] - 2 * (x @ x.T)).clamp(min=0)
            return torch.exp(-0.5 * d.fill_diagonal_(0))

        def identity(x: torch.Tensor) -> torch.Tensor:
            return direct(x) if x[:4].square().sum() < 96 else torch.eye(len(x))

        self.assertTrue({"plain", "mixed"} <= trial.refused(identity), forward)
        for exact in (True, False):
            self.assertEqual(trial.refused(direct, exact=exact), set(), forward)
            self.assertEqual(trial.refused(one_pass, exact=exact), set(), forward)

    def test_a_gaussian_kernel_matrix(self) -> None:
        self.check("torch.exp(-0.5 * (x[:, None] - x[None]).square().sum(-1))")
        self.check("torch.exp(-0.5 * torch.cdist(x, x, compute_mode='donot_use_mm_for_euclid_dist').square())")

    def test_small_elements_by_another_formula(self) -> None:
        for forward, other in (
            ("F.gelu(x)", lambda x: 0.5 * x * (1 + torch.erf(x * 0.5**0.5))),
            ("F.softplus(x)", lambda x: torch.log(1 + torch.exp(-x.abs())) + x.clamp(min=0)),
            ("torch.sigmoid(x)", lambda x: 0.5 * torch.tanh(0.5 * x) + 0.5),
            ("torch.tanh(x)", lambda x: 1 - 2 / (torch.exp(2 * x) + 1)),
            ("torch.softmax(x, -1)", lambda x: torch.exp2((x - x.amax(-1, keepdim=True)) * 1.4426950408889634) / torch.exp2((x - x.amax(-1, keepdim=True)) * 1.4426950408889634).sum(-1, keepdim=True)),
        ):
            with self.subTest(forward):
                self.assertEqual(Trial(task(f"return {forward}", "[torch.randn(64, 512) * 3]")).refused(other), set())


class BranchTest(unittest.TestCase):
    def test_a_short_cut_where_sampled_inputs_are_small(self) -> None:
        trial = Trial(task("return torch.sin(x)", "[torch.randn(256, 64)]"))

        def guessed(x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x) if x[::8].abs().max() > 6 else torch.sin(x.clamp(-6, 6))

        self.assertIn("outliers", trial.refused(guessed))
        self.assertIn("other", trial.refused(guessed, seeds=range(1, 12), names=["other"]))
        self.assertEqual(trial.refused(lambda x: torch.sin(x.double()).float()), set())


class TensorFloatTest(unittest.TestCase):
    """TF32's error averages out in long sums of positive numbers, but not in sums that cancel."""

    def test_long_sums_of_positive_numbers(self) -> None:
        trial = Trial(task("return a @ b", "[torch.rand(16, 1 << 16), torch.rand(1 << 16, 16)]", arguments="a, b"))
        self.assertIn("centered", trial.transforms)
        self.assertIn("centered", trial.refused(lambda a, b: round_to_tf32(a) @ round_to_tf32(b)))
        pairwise = lambda a, b: (a.view(16, 1 << 10, -1).transpose(0, 1) @ b.view(1 << 10, -1, 16)).sum(0)  # noqa: E731
        self.assertEqual(trial.refused(pairwise), set())

    def test_careless_sums_are_float32_where_everything_cancels(self) -> None:
        trial = Trial(task("return a @ b", "[torch.rand(4, 1 << 14), torch.rand(1 << 14, 4)]", arguments="a, b"))

        def in_order(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return sequential((a[:, :, None] * b[None]).transpose(1, 2))

        for exact in (True, False):
            self.assertEqual(trial.refused(in_order, names=["centered"], exact=exact), set())
        self.assertEqual(trial.refused(lambda a, b: round_to_tf32(a) @ round_to_tf32(b), names=["centered"]), {"centered"})


class ConditioningTest(unittest.TestCase):
    def test_cancellation_is_no_mistake(self) -> None:
        trial = Trial(task("return x.var(-1)", "[torch.randn(256, 1024) * 1e-2 + 1]"))

        def welford(x: torch.Tensor) -> torch.Tensor:
            mean, m2 = torch.zeros(len(x)), torch.zeros(len(x))
            for index in range(x.shape[1]):
                away = x[:, index] - mean
                mean = mean + away / (index + 1)
                m2 = m2 + away * (x[:, index] - mean)
            return m2 / (x.shape[1] - 1)

        self.assertEqual(trial.refused(welford, seeds=range(1, 2)), set())
        self.assertEqual(trial.refused(lambda x: (x - x.mean(-1, keepdim=True)).square().sum(-1) / 1023), set())
        self.assertIn("plain", trial.refused(lambda x: x.var(-1, unbiased=False)))

    def test_eager_is_no_measure_where_it_is_more_exact_than_float32(self) -> None:
        trial = Trial(task("return x.double().sum(-1).float()", "[torch.randn(256, 4096) + 300 * (-1.0) ** torch.arange(4096)]"))
        in_float32 = sequential
        for exact in (True, False):
            self.assertEqual(trial.refused(in_float32, exact=exact), set())
            self.assertIn("plain", trial.refused(lambda x: round_to_tf32(x).sum(-1), exact=exact))


if __name__ == "__main__":
    unittest.main()
