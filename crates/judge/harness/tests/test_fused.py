"""The one-pass kernels against PyTorch's own operators, which are the oracle; they need a GPU."""

from __future__ import annotations

import math
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import fused
import measure
from measure import Looks, Scale


@unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
class FusedTest(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(0)
        self.want = torch.randn(fused.LEAST + 12345, device="cuda")
        self.got = self.want + 1e-6 * torch.randn_like(self.want)

    def by_operators(self, got: torch.Tensor) -> measure.Errors:
        kept, fused.LEAST = fused.LEAST, 1 << 62
        try:
            return measure.errors_of(got, self.want, self.scale())
        finally:
            fused.LEAST = kept

    def scale(self) -> Scale:
        return measure.scale_of(self.want)

    def test_errors_are_those_of_the_operators(self) -> None:
        self.got[777] = self.want[777] + 3
        ours, theirs = measure.errors_of(self.got, self.want, self.scale()), self.by_operators(self.got)
        self.assertAlmostEqual(ours.rms / theirs.rms, 1.0, places=5)
        self.assertEqual((ours.peak, ours.peak_at, ours.finite), (theirs.peak, theirs.peak_at, theirs.finite))
        self.assertEqual(ours.peak_at, 777)

    def test_what_is_not_finite_shows(self) -> None:
        for bad in (math.nan, math.inf, -math.inf):
            self.got[4242] = bad
            ours = measure.errors_of(self.got, self.want, self.scale())
            self.assertEqual((ours.finite, ours.peak, ours.rms), (False, math.inf, math.inf), bad)
            self.assertEqual(ours.peak_at, 4242)

    def test_pieces_make_one_answer(self) -> None:
        whole = fused.errors(self.got, self.want, 0.5)
        kept, fused._PIECE = fused._PIECE, 1 << 20
        try:
            parts = fused.errors(self.got, self.want, 0.5)
        finally:
            fused._PIECE = kept
        self.assertAlmostEqual(whole[0] / parts[0], 1.0, places=9)
        self.assertEqual(whole[1:], parts[1:])

    def test_a_random_part_is_looked_at_too(self) -> None:
        lost = measure.errors_of(torch.zeros_like(self.want), self.want, self.scale(), looks=Looks(lost=True))
        self.assertEqual(lost.lost, 1.0)

    def test_a_sum_tells_of_one_word_and_depends_on_the_key(self) -> None:
        words = self.want.view(torch.int32)
        before = [int(fused.keyed_sum(words, key)) for key in (1, 1, 2)]
        self.assertEqual(before[0], before[1])
        self.assertNotEqual(before[0], before[2])
        words[-1] ^= 1
        self.assertNotEqual(int(fused.keyed_sum(words, 1)), before[0])

    def test_two_words_that_change_places_are_told(self) -> None:
        words = self.want.view(torch.int32)
        before = int(fused.keyed_sum(words, 5))
        words[[3, 4]] = words[[4, 3]]
        self.assertNotEqual(int(fused.keyed_sum(words, 5)), before)


if __name__ == "__main__":
    unittest.main()
