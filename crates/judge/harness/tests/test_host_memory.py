"""What the kernel has to do for one large tensor after the other, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch

HARNESS = Path(__file__).resolve().parent.parent
PROGRAM = """
import resource
import sys
import torch
from host_memory import HostMemory

MIB = 1 << 20

def faulted():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10

def worked():
    # Sizes that fit into what others left, and some that do not.
    before = faulted()
    right = 0.0
    for size in (96, 40, 96, 64, 33, 96):
        tensor = torch.full((size * MIB // 4,), 2.0)
        right += float((tensor * 0.5).sum()) / tensor.numel()
    assert right == 6.0, right
    return faulted() - before

before = anonymous()
host = HostMemory(sys.argv[1])
assert host.kept
worked()
kept = [worked() for _ in range(3)]
# Two of the largest at a time, not one for each call.
assert max(kept) < 500, kept
assert anonymous() - before < 300 * MIB, anonymous() - before
live = torch.full((16 * MIB,), 3.0)
host.give_back()
assert anonymous() - before < 100 * MIB, anonymous() - before
assert bool((live == 3.0).all()) and worked() >= 0
small = torch.ones(16)
assert float(small.sum()) == 16.0
"""


class HostMemoryTest(unittest.TestCase):
    def test_freed_memory_serves_the_next_tensors_until_it_is_given_back(self) -> None:
        package = Path(torch.__file__).parent
        with tempfile.TemporaryDirectory() as folder:
            # Of the native half only this: the rest takes half a minute to compile.
            source, library = Path(folder) / "arena.cpp", Path(folder) / "arena.so"
            source.write_text('#include "cpu_arena.h"')
            flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-w", f"-I{HARNESS}", f"-I{package}/include", f"-L{package}/lib"]
            subprocess.run(["g++", *flags, "-o", str(library), str(source), "-lc10"], check=True)
            done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM, str(library)], cwd=HARNESS, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
