import dataclasses
import math
import subprocess
import sys
import tempfile
import unittest
from importlib import metadata
from pathlib import Path

import warpsmith
from warpsmith import command, schema

HERE = Path(__file__).parent


class Schema(unittest.TestCase):
    def test_the_types_are_what_the_command_says(self):
        installed = Path(schema.__file__)
        check = [sys.executable, HERE.parent / "generate.py", "--check", "--warpsmith", command.find(), "--to", installed]
        done = subprocess.run(check, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with tempfile.TemporaryDirectory() as folder:
            other = Path(folder, "schema.py")
            other.write_text(installed.read_text().replace("robust: float", "robust: int"))
            done = subprocess.run([*check[:-1], other], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 1)

    def test_numbers_that_are_not_finite_are_read(self):
        found = schema.Reward.from_json({"robust": 1.0, "raw": "inf", "composite": "nan", "ladder": 1.0, "of_a_later_version": 3})
        self.assertEqual(found.raw, math.inf)
        self.assertTrue(math.isnan(found.composite))
        with self.assertRaises(dataclasses.FrozenInstanceError):
            found.raw = 1.0

    def test_the_package_is_typed_and_needs_nothing(self):
        self.assertTrue(Path(warpsmith.__file__).with_name("py.typed").exists())
        self.assertEqual(metadata.requires("warpsmith"), None)
        done = subprocess.run([command.find(), "--version"], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.split(), ["warpsmith", warpsmith.__version__])

    def test_it_is_imported_without_torch(self):
        program = "import sys, warpsmith; assert 'torch' not in sys.modules and 'asyncio' in sys.modules"
        subprocess.run([sys.executable, "-c", program], check=True)


if __name__ == "__main__":
    unittest.main()
