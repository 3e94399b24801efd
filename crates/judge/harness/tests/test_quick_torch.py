"""PyTorch without the kernels of fake tensors, in a process of its own."""

import os
import subprocess
import sys
import unittest

HARNESS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = """
import quick_torch
import sys
import torch

assert quick_torch.FAKE_KERNELS not in sys.modules and not hasattr(torch, "_meta_registrations")
module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Softmax(1)).eval()
x = torch.randn(2, 3, 8, 8)
with torch.no_grad():
    right = module(x)
    traced = torch.export.export(module, (x,), strict=False).module()
assert quick_torch.FAKE_KERNELS in sys.modules
assert torch.equal(traced(x), right)
assert (torch.empty(2, 3, device="meta") @ torch.empty(3, 5, device="meta")).shape == (2, 5)
"""


class QuickTorch(unittest.TestCase):
    def test_fake_tensors_have_their_kernels_once_a_graph_is_traced(self):
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], cwd=HARNESS, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
