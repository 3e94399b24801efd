"""The gate, with a thread in the place of a worker and its device."""

from __future__ import annotations

import sys
import threading
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import gate
import worker
from regions import Region, Sample


def device(page: gate.Gate, number: int, seconds: float) -> None:
    """Waits at the gate and computes for a while."""
    while page.words[gate.OPEN] != number:
        time.sleep(0)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
    page.words[gate.DONE] = number


class GateTest(unittest.TestCase):
    def setUp(self) -> None:
        self.keeper = gate.Keeper()
        self.page = gate.Gate(self.keeper.fd)
        self.addCleanup(self.keeper.close)
        self.addCleanup(self.page.close)

    def test_only_what_follows_the_opening_is_timed(self) -> None:
        self.keeper.shut(7)
        runs = threading.Thread(target=device, args=(self.page, 7, 0.02))
        begun = time.perf_counter()
        runs.start()
        time.sleep(0.05)
        took = self.keeper.opened(7, 5.0)
        self.assertLessEqual(took, (time.perf_counter() - begun - 0.05) * 1e6)
        self.assertGreaterEqual(took, 20_000)
        runs.join()

    def test_a_call_that_never_ends_has_no_time(self) -> None:
        self.keeper.shut(7)
        self.assertIsNone(self.keeper.opened(7, 0.01))

    def test_what_an_earlier_candidate_left_is_of_no_use(self) -> None:
        for word in (gate.OPEN, gate.DONE, gate.TOLD):
            self.page.words[word] = 8
        self.keeper.shut(8)
        self.assertEqual([self.page.words[word] for word in (gate.OPEN, gate.DONE, gate.TOLD)], [7, 0, 0])

    def test_places_are_told_for_one_call_alone(self) -> None:
        gate.Visitor.tell(self.page, 3, [512, 0, 1 << 40])
        self.assertEqual(self.keeper.outputs(3), [512, 0, 1 << 40])
        self.assertEqual(self.keeper.outputs(4), [])
        self.page.places[gate.PLACES] = 1 << 60
        self.assertEqual(self.keeper.outputs(3), [])

    def test_offsets_come_in_the_order_of_the_outputs(self) -> None:
        at = lambda offset: {"tensor": {"dtype": "float32", "shape": [1], "stride": [1], "offset": offset}}  # noqa: E731
        tree = [{"tuple": [at(3), {"dict": [["a", {"list": [at(1), None]}], ["b", 2.0]]}, at(2)]}]
        self.assertEqual(worker.offsets_of(tree), [3, 1, 2])


class Reader:
    """Reads at once, as the copy engine does."""

    def __init__(self, arena: Region) -> None:
        self.arena, self.found = arena, []

    def read(self, groups: list[dict]) -> None:
        group = groups[0]
        self.found = []
        for form, offset in zip(group["forms"], group["offsets"][0]):
            dtype, count = getattr(torch, form["dtype"]), form["shape"][0]
            items = self.arena.tensor[offset : offset + count * dtype.itemsize].view(dtype).clone()
            self.found.append(Sample(items.view(1, -1), 0, count))

    def seen(self, _: int) -> list[Sample]:
        return self.found


class SeenTest(unittest.TestCase):
    SPECS = [{"dtype": "float32", "shape": [4, 2], "stride": [2, 1]}, {"dtype": "int64", "shape": [3], "stride": [1]}]

    def setUp(self) -> None:
        self.arena = Region(tensor=torch.zeros(1024, dtype=torch.uint8))
        self.arena.tensor[256:288].view(torch.float32).copy_(torch.arange(8.0))

    def look(self, offsets: list[int]) -> gate.Seen | None:
        return gate.Seen.read(Reader(self.arena), self.arena, 5, self.SPECS, offsets)

    def holds(self, seen: gate.Seen, slot: int = 5, offsets: tuple[int, ...] = (256, 512)) -> bool | None:
        found = seen.agrees(self.arena, slot, list(offsets))
        return None if found is None else all(map(bool, found))

    def test_outputs_that_were_not_there_yet_are_seen(self) -> None:
        seen = self.look([256, 512])
        self.assertTrue(self.holds(seen))
        self.arena.tensor[512] = 1
        self.assertFalse(self.holds(seen))

    def test_outputs_told_elsewhere_are_not_confirmed(self) -> None:
        seen = self.look([256, 512])
        self.assertIsNone(self.holds(seen, offsets=(256, 768)))
        self.assertIsNone(self.holds(seen, slot=4))

    def test_impossible_places(self) -> None:
        for offsets in ([256], [256, 513], [-4, 512], [256, 1 << 50]):
            self.assertIsNone(self.look(offsets))


if __name__ == "__main__":
    unittest.main()
