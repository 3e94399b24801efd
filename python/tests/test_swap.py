"""Kernels in the place of a module, by a package as `optimize` writes it: built here and called, without a judge that times."""

import copy
import importlib.util
import json
import pickle
import tempfile
import unittest
import warnings
from pathlib import Path

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch
    from torch import nn
    import warpsmith
    from warpsmith import optimizing
    from warpsmith.making import made
    from warpsmith.sources import task_on_the_wire
    from warpsmith.swap import Kernels, swapped

    from .cases import judge

    class Scaled(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.scale = nn.Parameter(torch.rand(width) + 0.5)

        def forward(self, x):
            return torch.relu(x) * 2.0 * self.scale


# The texts that the command writes a package of, where the repository is at hand.
CRATES = Path(__file__).parent.parent / "crates"
if not CRATES.exists():
    CRATES = Path(__file__).parent.parent.parent / "crates"
PARTS = CRATES / "rollout/src/optimize/package"
MODEL_NEW = """import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        out = torch.empty_like(x)
        kernels.scaled(out, x, self.scale, x.shape[0], x.shape[1])
        return out
"""
SCALED = """#include <cstdint>

extern "C" int scaled(float* out, const float* x, const float* scale, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows * columns; ++i) out[i] = (x[i] > 0.0f ? 2.0f * x[i] : 0.0f) * scale[i % columns];
    return 0;
}
"""


def package(folder, name):
    inside = Path(folder) / name
    (inside / "kernels").mkdir(parents=True)
    fill = {"{package}": name, "{about}": "A test."}
    for source, to in [("init.py", "__init__.py"), ("build.py", "_build.py"), ("drop_in.py", "_drop_in.py")]:
        text = (PARTS / source).read_text()
        for mark, value in fill.items():
            text = text.replace(mark, value)
        (inside / to).write_text(text)
    (inside / "_calls.py").write_text((CRATES / "judge/harness/kernels_module.py").read_text())
    (inside / "model_new.py").write_text(MODEL_NEW)
    (inside / "kernels" / "scaled.cpp").write_text(SCALED)
    shape = {"shape": [16, 32], "dtype": "float32", "device": "cpu"}
    output = {"shape": [16, 32], "stride": [32, 1], "dtype": "float32"}
    shapes = {"guard": False, "shapes": [{"inputs": [shape], "outputs": [output], "single": True, "folder": ""}]}
    (inside / "_shapes.json").write_text(json.dumps(shapes))
    return Path(folder)


@unittest.skipUnless(HAS_TORCH and PARTS.exists(), "torch is not in this Python, or the repository is not at hand")
class Swap(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.package = package(cls.folder.name, "swap_test_fast")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        torch.manual_seed(0)
        self.module = Scaled(32)
        self.faster = swapped(self.module, Kernels("swap_test_fast", self.package, [32], ""))
        self.calls = self.faster._warpsmith_kernels.calls
        self.x = torch.randn(16, 32)

    def same(self, module, x, right=None):
        with torch.no_grad():
            torch.testing.assert_close(module(x), Scaled.forward(right or module, x))

    def test_what_fits_is_the_kernels_and_the_rest_the_originals(self):
        self.assertIsInstance(self.faster, Scaled)
        self.assertEqual(list(self.faster.state_dict()), ["scale"])
        self.same(self.faster, self.x, self.module)
        self.assertEqual(self.calls, {"kernels": 1, "original": 0})
        self.same(self.faster, torch.randn(3, 32))
        self.same(self.faster, self.x.T.contiguous().T)
        self.assertEqual(self.calls, {"kernels": 2, "original": 1})
        self.same(self.faster.train(), self.x)
        self.assertEqual(self.calls, {"kernels": 2, "original": 2})

    def test_weights_are_the_modules_whatever_happens_to_them(self):
        with torch.no_grad():
            self.same(self.faster, self.x)
            self.module.scale.mul_(3)
            self.same(self.faster, self.x, self.module)
            self.faster.load_state_dict({"scale": torch.ones(32)})
            self.same(self.faster, self.x)
            self.faster.scale = nn.Parameter(torch.full((32,), 2.0))
            self.same(self.faster, self.x)
        self.assertEqual(self.calls, {"kernels": 4, "original": 0})

    def test_copies_have_weights_of_their_own(self):
        self.same(self.faster, self.x)
        for other in (copy.deepcopy(self.faster), pickle_of(self.faster)):
            with torch.no_grad():
                other.scale.mul_(5)
            self.same(other, self.x)
            self.same(self.faster, self.x, self.module)
            self.assertEqual(other._warpsmith_kernels.calls["kernels"], 1)

    def test_another_type_is_the_originals(self):
        self.same(self.faster.double(), self.x.double())
        self.same(self.faster.float(), self.x)
        self.assertEqual(self.calls, {"kernels": 1, "original": 1})

    def test_gradients_are_the_originals_and_that_is_told_once(self):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            self.faster(self.x).sum().backward()
            self.faster(self.x).sum().backward()
        self.assertEqual(["no_grad" in str(one.message) for one in told], [True])
        self.assertIsNotNone(self.module.scale.grad)
        self.module.requires_grad_(False)
        self.faster(self.x)
        self.assertEqual(self.calls, {"kernels": 1, "original": 2})


@unittest.skipUnless(HAS_TORCH and PARTS.exists(), "torch is not in this Python, or the repository is not at hand")
class Kept(unittest.TestCase):
    def test_what_was_judged_once_is_used_as_it_is(self):
        """By a result as the command leaves it, with a verdict of the judge; another module is not taken for it."""
        module, x = Scaled(32), torch.randn(16, 32)
        how = made(module, [x], [], [32])
        flags = ["--target", "cpu", "--policy", "teacher", "--samples", "1", "--profile", "rl", "--guard"]
        task = warpsmith.Task(Scaled, [x], [32])
        files = {"model_new.py": MODEL_NEW, "kernels/scaled.cpp": SCALED}
        request = {"task": task_on_the_wire(task), "files": files}
        _, job, _ = judge()._connection.ask("POST", "/v1/judge?wait=600", request, 600)
        self.assertEqual(job["verdict"]["status"], "passed", job)
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder, "run", "result")
            package(result / "package", "kept_test_fast")
            for path, text in files.items():
                (result / path).parent.mkdir(parents=True, exist_ok=True)
                (result / path).write_text(text)
            answer = {"verdict": job["verdict"], "improved": True, "author": "compiler", "start": None}
            places = {"result": str(result), "run": str(result.parent), "key": optimizing._key(how.source, flags)}
            Path(folder, "python.json").write_text(json.dumps({**answer, **places}))
            found = warpsmith.optimize(module, x, init_inputs=[32], target="cpu", out=folder)
            self.assertEqual((found.improved, found.author, found.speedup), (True, "compiler", None))
            self.assertEqual(found.kernels, files)
            self.assertIn("kernels/scaled.cpp", found._repr_html_())
            self.assertIn("written by     compiler", found.report())
            with torch.no_grad():
                torch.testing.assert_close(found.module(x), module(x))
            self.assertEqual(found.module._warpsmith_kernels.calls, {"kernels": 1, "original": 0})
            self.assertNotEqual(optimizing._key(how.source + " ", flags), places["key"])


def pickle_of(module):
    """As another process would have it; the class is derived anew from the original's."""
    kernels = module.__dict__["_warpsmith_kernels"]
    plain = Scaled(32)
    plain.load_state_dict(pickle.loads(pickle.dumps(module.state_dict())))
    return swapped(plain, pickle.loads(pickle.dumps(kernels)))


if __name__ == "__main__":
    unittest.main()
