"""The whole of `optimize` on a CPU: captured, compiled, judged, timed, loaded and called. Needs torch and a quiet machine."""

import copy
import importlib.util
import tempfile
import unittest
import warnings
from unittest import mock

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch
    import warpsmith
    from torch import nn
    from warpsmith import optimizing

    class Chain(nn.Module):
        """Six operators in one pass over memory: any fused kernel is faster than as many calls."""

        def __init__(self, width):
            super().__init__()
            self.width = width
            self.scale = nn.Parameter(torch.randn(width))

        def forward(self, x):
            y = torch.sigmoid(x * self.scale) * x
            return torch.relu(y + 1.0) * 0.5 - x * x

    @warpsmith.optimized(target="cpu", options=["--no-compile"])
    class Decorated(nn.Module):
        """The same, by the decorator; it does not keep what it was given."""

        def __init__(self, size):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(size))

        def forward(self, x):
            y = torch.sigmoid(x * self.scale) * x
            return torch.relu(y + 1.0) * 0.5 - x * x


def quietly(call, tries=4):
    """A machine that is too noisy to time anything says nothing about us."""
    for left in reversed(range(tries)):
        try:
            return call()
        except warpsmith.InfrastructureError as error:
            if error.code != "noisy_machine" or not left:
                raise


@unittest.skipUnless(HAS_TORCH, "torch is not in this Python")
class Optimizing(unittest.TestCase):
    def test_a_module_is_made_faster_and_keeps_its_shapes(self):
        module = Chain(512).eval()
        x = torch.randn(2048, 512)
        with tempfile.TemporaryDirectory() as folder:
            found = quietly(lambda: warpsmith.optimize(module, x, target="cpu", out=folder, options=["--no-compile"]))
            self.assertTrue(found.improved, found.report())
            self.assertGreater(found.speedup, 1.0)
            self.assertEqual(found.author, "compiler")
            self.assertTrue(any(path.startswith("kernels/") for path in found.kernels))
            self.assertIn("<table>", found._repr_html_())
            self.assertIn("eager", found.report())
            faster = found.module
            self.assertIsInstance(faster, Chain)
            self.assertEqual(faster.state_dict().keys(), module.state_dict().keys())
            calls = faster._warpsmith_kernels.calls
            with torch.no_grad():
                torch.testing.assert_close(faster(x), module(x), rtol=1e-4, atol=1e-5)
                self.assertEqual(calls, {"kernels": 1, "original": 0})
                # Another shape is the original's, and so is another type.
                other = torch.randn(3, 512)
                torch.testing.assert_close(faster(other), module(other))
                self.assertEqual(calls, {"kernels": 1, "original": 1})
                # Weights are shared, whatever happens to them.
                module.scale.mul_(2)
                torch.testing.assert_close(faster(x), module(x), rtol=1e-4, atol=1e-5)
                changed = copy.deepcopy(faster)
                changed.scale.mul_(3)
                torch.testing.assert_close(changed(x), Chain.forward(changed, x), rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(faster(x), module(x), rtol=1e-4, atol=1e-5)
                self.assertEqual(changed._warpsmith_kernels.calls["kernels"], 1)
                double = copy.deepcopy(faster).double()
                self.assertEqual(double(x.double()).dtype, torch.float64)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                faster(x).sum().backward()
            self.assertIsNotNone(module.scale.grad)
            self.assertIn("no_grad", str(told[0].message))
            # It is known now.
            again = warpsmith.optimize(module, x, target="cpu", out=folder, options=["--no-compile"])
            self.assertEqual(again.result, found.result)

    def test_a_decorated_class_optimizes_itself(self):
        module = Decorated(512)
        x = torch.randn(2048, 512)
        module(x)
        self.assertNotIn("_warpsmith_kernels", module.__dict__)
        module.eval()

        once = optimizing.optimize

        def again(*args, **options):
            return quietly(lambda: once(*args, **options))

        with torch.no_grad(), warnings.catch_warnings(), mock.patch.object(optimizing, "optimize", again):
            warnings.simplefilter("error")
            result = module(x)
        with torch.no_grad():
            torch.testing.assert_close(result, Chain.forward(module, x), rtol=1e-4, atol=1e-5)
            module(x[:5])
        self.assertEqual(module._warpsmith_kernels.calls, {"kernels": 1, "original": 1})


if __name__ == "__main__":
    unittest.main()
