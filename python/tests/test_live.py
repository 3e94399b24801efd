"""Live modules as source and in the place of their `forward`. Needs torch in this Python."""

import importlib.util
import math
import unittest

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch
    import torch.nn.functional as F
    import warpsmith
    from torch import nn
    from warpsmith.making import made
    from warpsmith.sources import task_on_the_wire

    from .cases import judge

    SCALE = math.pi

    def doubled(x):
        return x * SCALE

    class Gate(nn.Module):
        """Of this file, with a function and a constant of this file."""

        def __init__(self, width, slope=0.5):
            super().__init__()
            self.width, self.slope = width, slope
            self.linear = nn.Linear(width, width)

        def forward(self, x):
            return F.leaky_relu(doubled(self.linear(x)), self.slope)

    class Secret(nn.Module):
        """Does not keep what it was given."""

        def __init__(self, width):
            super().__init__()
            self.linear = nn.Linear(width, 2 * width)

        def forward(self, x):
            return self.linear(x)


def run(source):
    space = {}
    exec(compile(source, "<task>", "exec"), space)
    return space


@unittest.skipUnless(HAS_TORCH, "torch is not in this Python")
class Source(unittest.TestCase):
    def same(self, module, source, inputs, prefix=""):
        space = run(source)
        again = space["Model"](*space["get_init_inputs"]())
        again.load_state_dict({f"{prefix}{name}": one for name, one in module.state_dict().items()})
        drawn = space["get_inputs"]()
        self.assertEqual([one.shape for one in drawn], [one.shape for one in inputs])
        self.assertEqual([one.dtype for one in drawn], [one.dtype for one in inputs])
        with torch.no_grad():
            torch.testing.assert_close(again.eval()(*inputs), module.eval()(*inputs))

    def test_a_class_stands_alone_with_what_it_uses(self):
        gate, inputs = Gate(8, 0.25), [torch.randn(4, 8)]
        found = made(gate, inputs, [], None)
        self.assertEqual(found.init_inputs, [8, 0.25])
        self.same(gate, found.source, inputs)
        self.assertNotIn("warpsmith", found.source)

    def test_modules_of_torch_are_written_down(self):
        chain = nn.Sequential(nn.Linear(8, 4, bias=False), nn.GELU(), nn.LayerNorm(4))
        inputs = [torch.randn(3, 8)]
        found = made(chain, inputs, [], None)
        self.same(chain, found.source, inputs, "inner.")

    def test_arguments_that_cannot_be_seen_are_asked_for(self):
        with self.assertRaises(warpsmith.TaskError) as raised:
            made(Secret(4), [torch.randn(2, 4)], [], None)
        self.assertIn("init_inputs", raised.exception.hint)
        self.assertEqual(made(Secret(4), [torch.randn(2, 4)], [], [4]).init_inputs, [4])
        with self.assertRaisesRegex(warpsmith.TaskError, "another module"):
            made(Secret(4), [torch.randn(2, 4)], [], [5])

    def test_inputs_are_drawn_alike(self):
        given = [torch.randint(3, 9, (5, 7)), torch.rand(2, 3).double() * 90, torch.ones(4, dtype=torch.bool), 3, "x", None]
        source = warpsmith.Task(Gate, given, [8]).source()
        drawn = run(source)["get_inputs"]()
        self.assertEqual([type(one) for one in drawn], [type(one) for one in given])
        self.assertTrue(bool((drawn[0] >= 3).all()) and bool((drawn[0] < 9).all()) and drawn[0].dtype is torch.int64)
        self.assertTrue(bool((drawn[1] >= 0).all()) and drawn[1].dtype is torch.float64 and float(drawn[1].max()) > 2)
        self.assertEqual((drawn[2].dtype, drawn[3:]), (torch.bool, [3, "x", None]))

    def test_a_live_class_is_judged_as_a_task(self):
        task = warpsmith.Task(Gate, [torch.randn(16, 32)], [32])
        with self.assertRaises(warpsmith.TaskError):
            task_on_the_wire(Gate)
        kernel = 'extern "C" int gate(float* y, const float* h, long n) { for (long i = 0; i < n; ++i) { float v = h[i] * 3.14159265358979f; y[i] = v > 0 ? v : 0.5f * v; } return 0; }'
        model_new = (
            "import torch\nimport torch.nn as nn\nfrom warpsmith_kernels import kernels, warpsmith_gemm\n\n\n"
            "class ModelNew(nn.Module):\n    def __init__(self, width):\n        super().__init__()\n        self.linear = nn.Linear(width, width)\n\n"
            "    def forward(self, x):\n        return x\n"
        )
        verdict = judge().judge(task, {"model_new.py": model_new, "kernels/gate.cpp": kernel})
        self.assertFalse(verdict.passed)
        self.assertTrue(verdict.compiled, verdict.reason)


@unittest.skipUnless(HAS_TORCH, "torch is not in this Python")
class Optimizing(unittest.TestCase):
    def test_what_is_no_module(self):
        for wrong in (Gate, "softmax"):
            with self.assertRaises(warpsmith.UsageError) as raised:
                warpsmith.optimize(wrong, torch.randn(2))
            self.assertTrue(raised.exception.hint)
        with self.assertRaises(warpsmith.UsageError):
            warpsmith.optimized(3)


if __name__ == "__main__":
    unittest.main()
