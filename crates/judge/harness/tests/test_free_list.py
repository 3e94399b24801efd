"""Where the arena's memory comes from, by the ranges that the judge sets."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import unittest
from pathlib import Path

HARNESS = Path(__file__).resolve().parent.parent
NONE = ctypes.c_size_t(-1).value
SOURCE = """
#include "free_list.h"
extern "C" {
FreeList* made(size_t size) { auto* list = new FreeList; list->reset(size); return list; }
void confine(FreeList* list, size_t start, size_t end, size_t kept) { list->confine(start, end, kept); }
size_t take(FreeList* list, size_t size) { return list->take(size); }
size_t take_spare(FreeList* list, size_t size) { return list->take_spare(size); }
void give(FreeList* list, size_t offset) { list->give(offset); }
}
"""


class FreeListTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder) / "list.cpp", Path(folder) / "list.so"
            source.write_text(SOURCE)
            subprocess.run(["g++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{HARNESS}", "-o", str(library), str(source)], check=True)
            cls.native = ctypes.CDLL(str(library))
        cls.native.made.restype = ctypes.c_void_p
        cls.native.take.restype = cls.native.take_spare.restype = ctypes.c_size_t

    def call(self, name: str, *numbers: int) -> int:
        return getattr(self.native, name)(ctypes.c_void_p(self.list), *map(ctypes.c_size_t, numbers))

    def setUp(self) -> None:
        self.native.made.argtypes = [ctypes.c_size_t]
        self.list = self.native.made(100)

    def test_what_finds_no_room_in_the_window_lies_in_what_is_kept(self) -> None:
        self.call("confine", 50, 80, 20)
        self.assertEqual([self.call("take", 30), self.call("take", 10), self.call("take", 30)], [50, 0, NONE])

    def test_spare_memory_is_the_last_resort_and_only_outside_of_timed_calls(self) -> None:
        self.call("confine", 0, 40, 40)
        self.assertEqual([self.call("take", 30), self.call("take", 30), self.call("take_spare", 30)], [0, NONE, 40])
        self.assertEqual(self.call("take_spare", 31), NONE)
        self.call("confine", 75, 100, 40)
        self.assertEqual(self.call("take_spare", 5), NONE)
        self.call("give", 40)
        self.call("confine", 0, 40, 40)
        self.assertEqual(self.call("take_spare", 60), 40)


if __name__ == "__main__":
    unittest.main()
