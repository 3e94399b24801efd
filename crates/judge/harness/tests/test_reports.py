"""What a person reads of a comparison and of a broken module."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import reports
import worker
from compare import LeafAnswer


class PlaceTest(unittest.TestCase):
    def test_indices_are_those_of_the_output(self) -> None:
        value = torch.arange(2 * 3 * 5).reshape(2, 3, 5)
        answer = LeafAnswer(("output",), "tensor", value)
        for position in range(30):
            told = reports.place(position, answer)
            indices = [int(part) for part in told.split("]")[0].strip("[").split(",")]
            self.assertEqual(value[tuple(indices)], position)
            self.assertTrue(told.endswith(" of [2, 3, 5]"), told)
        self.assertEqual(reports.place(0, LeafAnswer(("output",), "tensor", torch.tensor(1.0))), "0")
        self.assertEqual(reports.place(0, LeafAnswer(("output",), "number", 1.0)), "0")


class DescribeTest(unittest.TestCase):
    def described(self, source: str) -> str:
        try:
            made = worker.execute(source, "model_new.py", "model_new")
            made.run()
        except Exception as error:  # noqa: BLE001
            trace = error.__traceback__
            error.__traceback__ = trace.tb_next if trace else None  # from here on it is the worker that calls
            return worker.describe(error)
        self.fail("nothing was raised")

    def test_a_syntax_error_has_no_frame_of_ours(self) -> None:
        told = self.described("x = 1\ny = = 2\n")
        self.assertIn('File "model_new.py", line 2', told)
        self.assertIn("y = = 2", told)
        self.assertIn("SyntaxError", told)
        self.assertNotIn("worker.py", told)

    def test_what_a_module_raises_begins_with_its_own_lines(self) -> None:
        told = self.described("def run():\n    return none_such\n")
        self.assertIn('File "model_new.py", line 2, in run', told)
        self.assertIn("NameError", told)
        self.assertNotIn("worker.py", told)
        told = self.described("raise ValueError('broken')\n")
        self.assertTrue(told.startswith('Traceback (most recent call last):\n  File "model_new.py", line 1'), told)

    def test_the_way_through_torch_is_left_out(self) -> None:
        source = (
            "import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n        return x + none_such\n"
            "def run():\n    pass\n"
        )
        made = worker.execute(source, "model_new.py", "model_new")
        try:
            made.M()(torch.zeros(1))
        except NameError as error:
            trace = error.__traceback__
            error.__traceback__ = trace.tb_next if trace else None
            told = worker.describe(error)
        self.assertTrue(told.startswith('Traceback (most recent call last):\n  File "model_new.py", line 4'), told)

    def test_what_is_ours_alone_is_told_whole(self) -> None:
        try:
            worker.contiguous_strides(None)  # type: ignore[arg-type]
        except TypeError as error:
            error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
            self.assertIn("worker.py", worker.describe(error))


if __name__ == "__main__":
    unittest.main()
