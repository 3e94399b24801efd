"""What becomes of structured weights, buffers and inputs, and which transforms a task gets."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import transforms
from structure import is_mask, restructured, shaken
from transforms import factor, fitting, mixed, transformed, uneven


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class ShakenTest(unittest.TestCase):
    def test_an_identity_gets_other_elements(self) -> None:
        made = shaken(torch.eye(64), generator())
        self.assertEqual(int((made == 0).sum()), 0)
        self.assertTrue(torch.allclose(made.diagonal(), torch.ones(64), atol=0.3))

    def test_a_side_of_zero_is_kept(self) -> None:
        for tensor in (torch.relu(torch.randn(1000)), torch.rand(1000), torch.eye(30)):
            self.assertTrue(bool((shaken(tensor, generator()) >= 0).all()))
            self.assertTrue(bool((shaken(-tensor, generator()) <= 0).all()))

    def test_constants_and_masks_held_as_parameters(self) -> None:
        self.assertGreater(float(shaken(torch.zeros(100), generator()).std()), 0.05)
        self.assertGreater(float(shaken(torch.full((100,), 50.0), generator()).std()), 2.0)
        mask = torch.tensor([0.0, -torch.inf]).repeat(50)
        made = shaken(mask, generator())
        self.assertTrue(torch.equal(made.isinf(), mask.isinf()))
        self.assertFalse(bool((made == 0).any()))
        large = shaken(torch.tensor([0.0, -1e9]).repeat(50), generator())
        self.assertLess(float(large[::2].abs().max()), 1.0)

    def test_half_types_and_all_sizes(self) -> None:
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            made = shaken(torch.randn(500).to(dtype), generator())
            self.assertEqual(made.dtype, dtype)
            self.assertTrue(bool(made.isfinite().all()))


class RestructuredTest(unittest.TestCase):
    def test_masks_settings_and_offsets_stay(self) -> None:
        for tensor in (
            torch.tril(torch.ones(8, 8)), torch.triu(torch.full((8, 8), -torch.inf), 1), torch.tril(torch.ones(8, 8)).bool(),
            torch.tensor(0.125), torch.tensor([0, 7, 9, 30]), torch.zeros(5, dtype=torch.int64),
        ):  # fmt: skip
            self.assertIsNone(restructured(tensor, generator()), tensor)

    def test_states_tables_and_counts_do_not(self) -> None:
        for tensor in (torch.zeros(8, 8), torch.ones(40), torch.eye(64), torch.arange(64.0), torch.hann_window(64)):
            self.assertFalse(torch.equal(restructured(tensor, generator()), tensor), tensor)
        order = restructured(torch.arange(64), generator())
        self.assertEqual(order.sort().values.tolist(), list(range(64)))
        self.assertNotEqual(order.tolist(), list(range(64)))
        flags = restructured(torch.zeros(800, dtype=torch.bool), generator())
        self.assertAlmostEqual(float(flags.double().mean()), 1 / 8, delta=0.05)
        lengths = restructured(torch.full((400,), 16), generator())
        self.assertEqual((int(lengths.min()), int(lengths.max())), (8, 16))

    def test_what_is_sorted_stays_sorted(self) -> None:
        made = restructured(torch.linspace(0, 1, 50), generator())
        self.assertTrue(bool((made.diff() >= 0).all()))

    def test_an_identity_is_no_mask(self) -> None:
        self.assertEqual([is_mask(torch.eye(64)), is_mask(torch.tril(torch.ones(9, 9)))], [False, True])


class TransformTest(unittest.TestCase):
    def test_a_seed_decides_everything(self) -> None:
        inputs = [torch.rand(40, 30), torch.zeros(30)]
        for name in transforms.TRANSFORMS:
            first, again = (transformed(inputs, name, 5, (False, True)) for _ in range(2))
            other = transformed(inputs, name, 6, (False, True))
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(first, again)), name)
            if name not in ("plain", "negated", "centered"):
                self.assertFalse(all(torch.equal(a, b) for a, b in zip(first, other)), name)
        with self.assertRaises(ValueError):
            factor("unheard", 1)

    def test_only_what_would_change_something(self) -> None:
        def names(*inputs: torch.Tensor, fixed: bool = False, gemm: bool = False) -> list[str]:
            return fitting(list(inputs), tuple(fixed for _ in inputs), gemm)

        usual = ["scaled", "negated", "far"]
        self.assertEqual(names(torch.randn(8)), [*usual, "uneven", "outliers"])
        self.assertEqual(names(torch.randn(8, 8), gemm=True), [*usual, "mixed", "uneven", "outliers", "faint"])
        self.assertEqual(names(torch.rand(8, 8), gemm=True), [*usual, "far_negated", "mixed", "uneven", "outliers", "faint", "centered"])
        self.assertEqual(names(torch.zeros(8), fixed=True), [*usual, "uneven", "outliers", "shaken"])
        self.assertEqual(names(torch.arange(8)), [])
        self.assertEqual(names(torch.arange(8), fixed=True), ["shaken"])

    def test_faint_rows_are_zeros_or_small(self) -> None:
        x = torch.randn(64, 8, 32)
        made = transformed([x], "faint", 3)[0]
        samples = made.abs().amax((1, 2))
        self.assertEqual(int((samples == 0).sum()), 4)
        factor = (made / x)[made != 0]
        self.assertTrue(bool(((factor > 0) & (factor <= 1)).all()))
        self.assertTrue(bool((factor < 0.02).any()))
        self.assertGreater(float((factor == 1).double().mean()), 0.6)
        self.assertFalse(bool(made[made == 0].signbit().any()))
        few = transformed([torch.randn(4, 32)], "faint", 3)[0].abs().amax(1)
        self.assertEqual((int((few == 0).sum()), int(((few > 0) & (few < 0.1)).sum())), (1, 1))
        mask = (torch.rand(64, 32) < 0.5).float()
        self.assertTrue(torch.equal(transformed([mask], "faint", 3)[0], mask))

    def test_mixed_rows_are_means_of_two(self) -> None:
        x = torch.softmax(torch.randn(200, 40), 1)
        made = mixed(x, [], generator())
        self.assertTrue(torch.allclose(made.sum(1), torch.ones(200), atol=1e-5))
        far = torch.cdist(x, x) + 100 * torch.eye(200)
        near = torch.cdist(made, made) + 100 * torch.eye(200)
        self.assertLess(float(near.min()), 0.5 * float(far.min()))

    def test_rows_of_two_inputs_come_near_each_other(self) -> None:
        x, y = torch.randn(200, 40), torch.randn(200, 40)
        a, b = transformed([x, y], "mixed", 3)
        self.assertLess(float(torch.cdist(a, b).min()), 0.6 * float(torch.cdist(x, y).min()))

    def test_uneven_sizes_keep_signs_and_zeros(self) -> None:
        x = torch.relu(torch.randn(300, 200))
        made = uneven(x, generator())
        self.assertTrue(torch.equal(made == 0, x == 0) and bool((made >= 0).all()))
        rows = (made.norm(dim=1) / x.norm(dim=1)).log2()
        self.assertGreater(float(rows.max() - rows.min()), 4.0)

    def test_far_is_on_either_side(self) -> None:
        for name, side in (("far", 1), ("far_negated", -1)):
            made = transformed([torch.rand(64)], name, 5)[0]
            self.assertGreaterEqual(float((side * made).max()), 127)
            self.assertTrue(bool((side * made >= 0).all()))

    def test_ends_are_often_what_counts(self) -> None:
        x = torch.randn(300, 200, 9)
        made = uneven(x, generator())
        for dim, size in enumerate(x.shape):
            self.assertGreater(float((made.argmax(dim) == size - 1).double().mean()), 0.05)
            self.assertGreater(float((made.argmin(dim) == size - 1).double().mean()), 0.05)
        positive = uneven(torch.rand(300, 200) + 1e-3, generator())
        self.assertGreater(float((positive.argmin(1) == 199).double().mean()), 0.05)
        self.assertTrue(bool((positive > 0).all()))

    def test_outliers_are_few(self) -> None:
        x = torch.randn(300, 200)
        touched = []
        for seed in range(20):
            made = transformed([x], "outliers", seed)[0]
            touched.append(int((made != x).any(dim=1).sum()))
        self.assertTrue(all(1 <= rows <= 3 for rows in touched), touched)

    def test_centred_inputs_have_no_mean(self) -> None:
        x, flags, signed = torch.rand(50, 50), torch.tril(torch.ones(9, 9)), torch.randn(50)
        made = transformed([x, flags, signed], "centered", 1)
        self.assertAlmostEqual(float(made[0].mean()), 0.0, places=5)
        self.assertTrue(torch.equal(made[1], flags) and torch.equal(made[2], signed))


if __name__ == "__main__":
    unittest.main()
