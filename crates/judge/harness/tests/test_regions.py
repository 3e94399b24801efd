"""What other processes may do with the shared memory."""

from __future__ import annotations

import mmap
import os
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import regions


def in_child(action: object) -> int:
    """The exit status of `action` in a forked process: 0 done, 1 refused, else killed."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
            os._exit(0)
        except (PermissionError, OSError):
            os._exit(1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class RegionTest(unittest.TestCase):
    def test_sealed_memory_is_read_only_for_everyone_else(self) -> None:
        region = regions.create_cpu("slots", 8192, read_only_for_others=True)
        region.tensor.fill_(7)

        def write_through_map() -> None:
            mmap.mmap(region.fd, 8192, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)[0] = 1

        def reopen() -> None:
            again = os.open(f"/proc/self/fd/{region.fd}", os.O_RDWR)
            mmap.mmap(again, 8192, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)[0] = 1

        refused = (write_through_map, reopen, lambda: os.pwrite(region.fd, b"x", 0), lambda: os.ftruncate(region.fd, 4096),
                   lambda: os.ftruncate(region.fd, 1 << 20))
        for action in refused:
            with self.subTest(action):
                self.assertEqual(in_child(action), 1)
        self.assertEqual(in_child(lambda: self.assertEqual(int(regions.attach_cpu(region.fd, 8192, writable=False)[5]), 7)), 0)
        region.tensor[0] = 9  # the owner still writes
        self.assertEqual(int(region.tensor[0]), 9)
        region.close()

    def test_a_reader_that_writes_is_killed(self) -> None:
        region = regions.create_cpu("slots", 4096, read_only_for_others=True)
        self.assertLess(in_child(lambda: regions.attach_cpu(region.fd, 4096, writable=False).fill_(1)), 0)
        self.assertEqual(int(region.tensor.max()), 0)
        region.close()

    def test_the_arena_is_shared_both_ways_but_keeps_its_size(self) -> None:
        region = regions.create_cpu("arena", 10000, read_only_for_others=False)
        self.assertEqual(in_child(lambda: regions.attach_cpu(region.fd, 10000, writable=True).fill_(3)), 0)
        self.assertEqual(region.tensor.unique().tolist(), [3])
        self.assertEqual(in_child(lambda: os.ftruncate(region.fd, 1)), 1)
        region.close()

    def test_the_keyed_sum_sees_every_change(self) -> None:
        tensor = torch.rand(100, 30)
        total = regions._keyed_sum(tensor, 7)
        self.assertEqual(total, regions._keyed_sum(tensor.T.contiguous().T, 7))
        self.assertNotEqual(total, regions._keyed_sum(tensor, 8))
        swapped = tensor.clone()
        swapped[0, 0], swapped[0, 1] = tensor[0, 1], tensor[0, 0]
        self.assertNotEqual(total, regions._keyed_sum(swapped, 7))
        self.assertTrue(regions.Witness.of(tensor).confirms(tensor.clone()))
        self.assertFalse(regions.Witness.of(tensor).confirms(swapped))

    def test_nothing_is_left_out_of_alignment(self) -> None:
        self.assertEqual([regions.align(size) for size in (0, 1, 256, 257)], [0, 256, 256, 512])
        region = regions.create_cpu("weights", 0, read_only_for_others=True)
        self.assertEqual(regions.attach_cpu(region.fd, 0, writable=False).numel(), 0)
        self.assertIsInstance(region.tensor, torch.Tensor)
        region.close()


class StrataTest(unittest.TestCase):
    def test_a_sample_stays_inside_and_meets_every_stratum(self) -> None:
        for count in (0, 1, 65_535, 65_536, 65_537, 1_000_003, 50_000_000):
            for runs in (1, 64, 4096):
                rows, length, width, room = regions.strata(count, runs)
                for start in {0, room // 2, room - 1}:
                    last = start + (rows - 1) * width + length
                    self.assertLessEqual(last, max(count, 1))
                    self.assertGreaterEqual(rows * length, min(count, runs * regions.SAMPLE_RUN))
                    self.assertLessEqual(count - last, width + runs)

    def test_every_element_can_be_met(self) -> None:
        for count, runs in ((1000, 4), (1021, 7)):
            rows, length, width, room = regions.strata(count, runs)
            met = {start + row * width + step for start in range(room) for row in range(rows) for step in range(length)}
            self.assertEqual(met, set(range(count)))

    def test_dense_is_row_major_without_gaps(self) -> None:
        for tensor, expected in (
            (torch.empty(3, 4), True), (torch.empty(3, 4).t(), False), (torch.empty(3, 8)[:, :4], False),
            (torch.empty(()), True), (torch.empty(1, 4)[:, :], True), (torch.empty(5, 1).expand(5, 3), False),
        ):  # fmt: skip
            self.assertEqual(regions.dense(list(tensor.shape), list(tensor.stride())), expected)


if __name__ == "__main__":
    unittest.main()
