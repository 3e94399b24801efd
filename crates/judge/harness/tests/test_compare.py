"""Which answers pass. The oracle is float64 throughout."""

from __future__ import annotations

import math
import sys
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from compare import (
    LeafAnswer,
    Runs,
    Terms,
    answer_leaves,
    judge_leaf,
    passes,
    quick_numbers,
    quick_report,
)
from measure import scale_from, scale_numbers, scale_of
from task import OperandRounding, Recorder, round_to_tf32


def sequential(terms: torch.Tensor) -> torch.Tensor:
    """Sums the last dimension one term after the other, as a naive loop does."""
    total = torch.zeros(terms.shape[:-1], dtype=terms.dtype)
    for index in range(terms.shape[-1]):
        total = total + terms[..., index]
    return total


def sequential_dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(a.shape[0], b.shape[1])
    for index in range(a.shape[1]):
        total = total + a[:, index : index + 1] * b[index : index + 1]
    return total


def answers(eager: Any, exact: Any = None, tf32: Any = None, tf32_class: bool = False, calls: Any = ()) -> list[LeafAnswer]:
    made, _ = answer_leaves(Runs(eager, exact, tf32, list(calls)), {}, Terms(plain=True, tf32_class=tf32_class))
    return made


def grade(candidate: Any, eager: Any, exact: Any = None, tf32: Any = None, tf32_class: bool = False) -> str | None:
    return judge_leaf(candidate, answers(eager, exact, tf32, tf32_class)[0]).grade


def noisy(values: torch.Tensor, ulps: float) -> torch.Tensor:
    return values * (1 + (2 * torch.rand_like(values) - 1) * ulps * torch.finfo(values.dtype).eps)


class SmallRestTest(unittest.TestCase):
    """Elements that are a small rest of large terms, where each is held to its own size."""

    def setUp(self) -> None:
        torch.manual_seed(1)
        a, b = torch.randn(256, 1024), torch.randn(1024, 256)
        self.eager, self.exact = a @ b, a.double() @ b.double()
        self.tf32 = round_to_tf32(a) @ round_to_tf32(b)
        self.other = (round_to_tf32(a).double() @ round_to_tf32(b).double()).float()

    def graded(self, candidate: torch.Tensor, tf32_class: bool = True) -> str | None:
        terms = Terms(plain=False, tf32_class=tf32_class, all_scales=True)
        made, _ = answer_leaves(Runs(self.eager, self.exact, self.tf32, []), {}, terms)
        return judge_leaf(candidate, made[0]).grade

    def test_what_tf32_itself_loses_is_no_mismatch(self) -> None:
        lost = ((self.other - self.exact).abs() > 0.1 * self.exact.abs()).double().mean()
        self.assertGreater(float(lost), 1e-3)
        self.assertEqual(self.graded(self.other), "tf32")
        self.assertIsNone(self.graded(self.other, tf32_class=False))

    def test_leaving_small_elements_out_is_one(self) -> None:
        small = self.exact.abs() < 0.05 * self.exact.abs().mean()
        self.assertIsNone(self.graded(self.other.masked_fill(small, 0)))


class QuickTest(unittest.TestCase):
    """What is worked out without waiting says the same as the close look, or nothing."""

    def test_scales(self) -> None:
        torch.manual_seed(3)
        cases = [torch.randn(1000), torch.zeros(5), torch.empty(0), torch.full((9,), 3e38), torch.rand(3, 4).bfloat16()]
        cases += [torch.tensor([1.0, math.inf, 2.0]), torch.tensor([math.nan])]
        for case in cases:
            self.assertEqual(scale_from(case, scale_numbers(case).tolist()), scale_of(case))

    def test_reports(self) -> None:
        torch.manual_seed(4)
        eager = torch.randn(5000)
        for ulps in (0.0, 1.0, 30.0, 300.0, 1e5):
            for spoil in (None, math.nan, math.inf, 1.0):
                candidate = noisy(eager, ulps)
                if spoil is not None:
                    candidate[17] = spoil
                answer = answers(eager, eager.double())[0]
                close = judge_leaf(candidate, answer)
                quick = quick_report(answer, quick_numbers(candidate, answer).tolist())
                if close.grade is None:
                    self.assertIsNone(quick)
                else:
                    self.assertEqual(quick.grade, close.grade)
                    self.assertAlmostEqual(quick.errors.rms, close.errors.rms, delta=1e-6 * close.errors.rms + 1e-12)

    def test_integers_and_what_needs_a_close_look(self) -> None:
        whole = torch.arange(50)
        answer = answers(whole)[0]
        self.assertEqual(quick_report(answer, [float(quick_numbers(whole, answer))]).grade, "fp32")
        self.assertIsNone(quick_report(answer, [float(quick_numbers(whole + 1, answer))]))
        infinite = torch.tensor([1.0, math.inf])
        self.assertIsNone(quick_numbers(infinite, answers(infinite)[0]))


class GemmTest(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(1)

    def check_gemm(self, draw: Any, depth: int) -> None:
        a, b = draw(48, depth), draw(depth, 48)
        exact, eager = a.double() @ b.double(), a @ b
        with OperandRounding():
            rounded = a @ b
        given = (eager, exact, rounded)
        self.assertEqual(grade(eager, *given), "fp32")
        self.assertEqual(grade(sequential_dot(a, b), *given), "fp32")
        self.assertIsNone(grade(round_to_tf32(a) @ round_to_tf32(b), *given))
        self.assertIsNone(grade(a.bfloat16().float() @ b.bfloat16().float(), *given))
        self.assertIsNone(grade(a.half().float() @ b.half().float(), *given))
        self.assertEqual(grade(rounded, *given, tf32_class=True), "tf32")
        self.assertIsNone(grade(a.bfloat16().float() @ b.bfloat16().float(), *given, tf32_class=True))

    def test_signed_operands(self) -> None:
        for depth in (512, 4096, 16384):
            with self.subTest(depth):
                self.check_gemm(torch.randn, depth)

    def test_positive_operands(self) -> None:
        for depth in (512, 4096, 16384):
            with self.subTest(depth):
                self.check_gemm(torch.rand, depth)

    def test_operands_are_rounded_to_ten_bits(self) -> None:
        values = torch.tensor([1.0, 1 + 2**-10, 1 + 2**-11, 1 + 2**-12, -3.14159, math.inf])
        want = [1.0, 1 + 2**-10, 1.0, 1.0, -3.140625, math.inf]
        self.assertEqual(round_to_tf32(values).tolist(), want)


class ReductionTest(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(2)

    def test_sums_of_positive_numbers_with_little_spread(self) -> None:
        for depth in (512, 4096, 16384):
            with self.subTest(depth):
                x = torch.rand(256, depth)
                exact, eager = x.double().sum(1), x.sum(1)
                self.assertEqual(grade(sequential(x), eager, exact), "fp32")
                self.assertIsNone(grade(x.bfloat16().float().sum(1), eager, exact))
                self.assertIsNone(grade(exact.mean().float().expand(256), eager, exact))
                self.assertIsNone(grade(x[:, : depth - depth // 64].sum(1) * 64 / 63, eager, exact))

    def test_softmax_over_many_entries(self) -> None:
        x = torch.rand(8, 50000)
        exact, eager = torch.softmax(x.double(), 1), torch.softmax(x, 1)
        powers = noisy(torch.exp(x - x.max(1, keepdim=True).values), 16)
        self.assertEqual(grade(powers / sequential(powers)[:, None], eager, exact), "fp32")
        for wrong in (torch.zeros_like(x), exact.mean().float().expand_as(x), eager.bfloat16().float(), eager.half().float(), x):
            self.assertIsNone(grade(wrong, eager, exact))

    def test_layer_norm(self) -> None:
        x = torch.randn(64, 1024) + 0.5
        exact = torch.nn.functional.layer_norm(x.double(), (1024,))
        eager = torch.nn.functional.layer_norm(x, (1024,))
        mean = sequential(x) / 1024
        variance = sequential(x * x) / 1024 - mean * mean
        own = (x - mean[:, None]) * torch.rsqrt(variance + 1e-5)[:, None]
        self.assertEqual(grade(own, eager, exact), "fp32")
        self.assertIsNone(grade(eager.bfloat16().float(), eager, exact))
        self.assertIsNone(grade((x.bfloat16() - 0.5).float(), eager, exact))

    def test_a_scalar_loss(self) -> None:
        a, b = torch.rand(1 << 16), torch.rand(1 << 16)
        exact, eager = ((a - b).double() ** 2).mean(), ((a - b) ** 2).mean()
        own = (((a - b) ** 2).view(256, 256).sum(1) / 65536).sum()
        self.assertEqual(grade(own, eager, exact), "fp32")
        self.assertIsNone(grade(eager * (1 + 1e-4), eager, exact))


class PointwiseTest(unittest.TestCase):
    def test_fast_math_passes_and_short_mantissas_do_not(self) -> None:
        torch.manual_seed(3)
        x = torch.randn(1 << 14) * 3
        for function in (torch.tanh, torch.exp, torch.sigmoid, torch.nn.functional.gelu):
            with self.subTest(function):
                exact, eager = function(x.double()), function(x)
                self.assertEqual(grade(noisy(eager, 16), eager, exact), "fp32")
                self.assertIsNone(grade(round_to_tf32(eager), eager, exact))
                self.assertIsNone(grade(eager.bfloat16().float(), eager, exact))

    def test_an_outlier_does_not_widen_the_bar_for_the_rest(self) -> None:
        x = torch.rand(1 << 14) + 0.5
        x[7] = 1e6
        self.assertIsNone(grade(x.bfloat16().float().index_fill(0, torch.tensor([7]), 1e6), x, x.double()))

    def test_what_a_mask_fills_in_does_not_either(self) -> None:
        torch.manual_seed(0)
        q, k, mask = torch.randn(256, 64), torch.randn(256, 64), torch.ones(256, 256).triu(1).bool()
        for fill in (-1e4, -1e9):
            for places in (mask, torch.rand(256, 256) < 1 / 32):
                eager, exact = (q @ k.T).masked_fill(places, fill), (q.double() @ k.double().T).masked_fill(places, fill)
                self.assertEqual(grade(eager, eager, exact), "fp32")
                self.assertEqual(grade(sequential_dot(q, k.T).masked_fill(places, fill), eager, exact), "fp32")
                for product in (torch.zeros(256, 256), (q.bfloat16() @ k.bfloat16().T).float()):
                    self.assertIsNone(grade(product.masked_fill(places, fill), eager, exact))
        # Where nothing else is there, it is the answer; and what a function saturates at is no fill.
        self.assertEqual(scale_of(torch.full((64, 64), -1e9)).mean_abs, 1e9)
        self.assertEqual(scale_of(1e9 * torch.eye(64)).mean_abs, 1e9 / 64)
        steep = torch.sigmoid(50 * torch.randn(256, 64).double())
        self.assertAlmostEqual(scale_of(steep).mean_abs, float(steep.mean()))

    def test_one_wrong_element_is_enough(self) -> None:
        x = torch.rand(1 << 16)
        wrong = x.clone()
        wrong[12345] += 1e-3
        report = judge_leaf(wrong, answers(x, x.double())[0])
        self.assertEqual((report.grade, report.position), (None, 12345))
        self.assertAlmostEqual(report.share, 1 - 1 / (1 << 16))

    def test_half_types(self) -> None:
        torch.manual_seed(4)
        x = torch.randn(64, 256)
        for dtype in (torch.float16, torch.bfloat16):
            with self.subTest(dtype):
                low = x.to(dtype)
                exact, eager = torch.softmax(low.double(), 1), torch.softmax(low, 1)
                self.assertEqual(grade(torch.softmax(low.float(), 1).to(dtype), eager, exact), "fp32")
                for wrong in (torch.zeros_like(low), exact.mean().to(dtype).expand_as(low), eager * 1.1, low):
                    self.assertIsNone(grade(wrong, eager, exact))

    def test_double(self) -> None:
        x = torch.rand(64, 256, dtype=torch.float64)
        self.assertEqual(grade(sequential(x), x.sum(1), x.sum(1)), "fp32")
        self.assertIsNone(grade(x.float().sum(1).double(), x.sum(1), x.sum(1)))


class PatternTest(unittest.TestCase):
    def test_infinities_and_nan_must_be_the_same_ones(self) -> None:
        x = torch.tensor([1.0, math.inf, -math.inf, 2.0])
        self.assertEqual(grade(x.clone(), x, x.double()), "fp32")
        for wrong in ([1.0, math.inf, math.inf, 2.0], [1.0, math.nan, -math.inf, 2.0], [1.0, 3e38, -math.inf, 2.0],
                      [math.inf, math.inf, -math.inf, 2.0]):
            self.assertIsNone(grade(torch.tensor(wrong), x, x.double()))
        y = torch.rand(100)
        spoiled = y.clone()
        spoiled[50] = math.nan
        report = judge_leaf(spoiled, answers(y, y.double())[0])
        self.assertEqual((report.grade, report.finite, report.position), (None, False, 50))
        self.assertIsNone(grade(torch.full_like(y, math.nan), y, y.double()))

    def test_elements_on_a_discontinuity_are_left_out(self) -> None:
        torch.manual_seed(5)
        x = torch.rand(100_000)
        eager, exact = torch.floor(x * 3 + 1.0), torch.floor(x.double() * 3 + 1.0)
        eager[:20] += 1  # as if rounding had gone the other way
        made = answers(eager, exact)[0]
        self.assertEqual(made.excluded, 20)
        other = exact.float()
        other[30:40] -= 1
        self.assertEqual(judge_leaf(other, made).grade, "fp32")
        other[1000:3000] -= 1
        self.assertIsNone(judge_leaf(other, made).grade)

    def test_integers_are_exact(self) -> None:
        for dtype in (torch.int32, torch.int64, torch.uint8):
            x = torch.arange(20).to(dtype)
            self.assertEqual(grade(x.clone(), x), "fp32")
            self.assertIsNone(grade(x + 1, x))
        flags = torch.tensor([True, False])
        self.assertIsNone(grade(~flags, flags))

    def test_python_numbers(self) -> None:
        self.assertEqual([grade(*pair) for pair in ((3, 3), (4, 3), (True, 1), (0.1 + 1e-9, 0.1), (0.1001, 0.1), (None, None))],
                         ["fp32", None, None, "fp32", None, "fp32"])
        self.assertEqual(grade(math.nan, math.nan), "fp32")

    def test_answers_without_float64_use_what_was_learnt(self) -> None:
        torch.manual_seed(6)
        a, b = torch.randn(64, 512), torch.randn(512, 64)
        eager, exact = a @ b, a.double() @ b.double()
        _, learnt = answer_leaves(Runs(eager, exact, round_to_tf32(a) @ round_to_tf32(b), []), {}, Terms(plain=True, tf32_class=False))
        a = torch.randn(64, 512)
        timed, _ = answer_leaves(Runs(a @ b, None, None, []), learnt, Terms(plain=True, tf32_class=False))
        self.assertTrue(passes(sequential_dot(a, b), timed[0]))
        self.assertFalse(passes(round_to_tf32(a) @ round_to_tf32(b), timed[0]))
        self.assertFalse(passes(eager, timed[0]))

    def test_nothing_changes_what_it_is_given(self) -> None:
        exact = torch.randn(1000, dtype=torch.float64)
        kept = exact.clone()
        made = answers(exact.float(), exact)[0]
        judge_leaf(torch.zeros(1000), made)
        passes(torch.zeros(1000), made)
        self.assertTrue(torch.equal(exact, kept))

    def test_empty_outputs(self) -> None:
        self.assertEqual(grade(torch.empty(0, 3), torch.empty(0, 3), torch.empty(0, 3, dtype=torch.float64)), "fp32")


class IndexTest(unittest.TestCase):
    def recorded(self, function: Any, x: torch.Tensor) -> LeafAnswer:
        recorder = Recorder(keep_calls=True)
        with torch.no_grad(), recorder:
            result = function(x)
        return answers(result, calls=recorder.calls)[0]

    def test_ties_are_no_mistake(self) -> None:
        x = torch.tensor([[1.0, 5.0, 5.0], [7.0, 7.0, 0.0]])
        for function in (lambda t: t.argmax(1), lambda t: t.max(1).indices, lambda t: t.argmax(dim=1, keepdim=True),
                         lambda t: t.argmax(1).int()):
            made = self.recorded(function, x)
            shape, dtype = made.value.shape, made.value.dtype
            for good in ([1, 0], [2, 1], [1, 1]):
                self.assertEqual(judge_leaf(torch.tensor(good, dtype=dtype).reshape(shape), made).grade, "fp32")
            for wrong in ([0, 0], [3, 0], [-1, 0], [1, 2]):
                self.assertIsNone(judge_leaf(torch.tensor(wrong, dtype=dtype).reshape(shape), made).grade)

    def test_what_a_mask_fills_in_makes_no_room_for_the_rest(self) -> None:
        torch.manual_seed(0)
        for fill in (-1e4, -1e9, float("-inf")):
            scores = torch.randn(64, 256).masked_fill(torch.rand(64, 256) < 0.5, fill)
            for function in (lambda t: t.argmax(1), lambda t: t.topk(3).indices[:, 0]):
                made = self.recorded(function, scores)
                self.assertEqual(judge_leaf(made.value.clone(), made).grade, "fp32")
                first = (scores > fill / 2).int().argmax(1).to(made.value.dtype) if fill > -1e30 else scores.isfinite().int().argmax(1)
                self.assertIsNone(judge_leaf(first, made).grade)

    def test_flat_argmin_and_other_dimensions(self) -> None:
        x = torch.tensor([[3.0, 1.0], [1.0, 4.0]])
        made = self.recorded(lambda t: t.argmin(), x)
        self.assertEqual([judge_leaf(torch.tensor(i), made).grade for i in (1, 2, 0, 4)], ["fp32", "fp32", None, None])
        made = self.recorded(lambda t: t.min(dim=0).indices, x)
        self.assertEqual(judge_leaf(torch.tensor([1, 0]), made).grade, "fp32")
        self.assertIsNone(judge_leaf(torch.tensor([0, 0]), made).grade)

    def test_topk_and_sort_name_each_element_once(self) -> None:
        x = torch.tensor([[2.0, 2.0, 1.0, 0.0]])
        made = self.recorded(lambda t: t.topk(2).indices, x)
        self.assertEqual(judge_leaf(torch.tensor([[1, 0]]), made).grade, "fp32")
        self.assertIsNone(judge_leaf(torch.tensor([[0, 0]]), made).grade)
        made = self.recorded(lambda t: t.argsort(dim=-1), x)
        self.assertEqual(judge_leaf(torch.tensor([[3, 2, 1, 0]]), made).grade, "fp32")
        self.assertIsNone(judge_leaf(torch.tensor([[3, 2, 1, 1]]), made).grade)

    def test_pooling_indices(self) -> None:
        x = torch.zeros(1, 1, 4, 4)
        made = self.recorded(lambda t: torch.nn.functional.max_pool2d(t, 2, return_indices=True)[1], x)
        self.assertEqual(judge_leaf(torch.full((1, 1, 2, 2), 15), made).grade, "fp32")
        self.assertIsNone(judge_leaf(torch.full((1, 1, 2, 2), 16), made).grade)

    def test_a_source_changed_later_is_compared_exactly(self) -> None:
        def function(t: torch.Tensor) -> torch.Tensor:
            t = t.clone()
            found = t.argmax(1)
            t.zero_()
            return found

        made = self.recorded(function, torch.tensor([[1.0, 5.0, 2.0]]))
        self.assertIsNone(judge_leaf(torch.tensor([0]), made).grade)


if __name__ == "__main__":
    unittest.main()
