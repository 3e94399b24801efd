"""How launchers are called: what becomes of each argument, for every way of calling that is met."""

import ctypes
import subprocess
import tempfile
import unittest
from pathlib import Path

import torch

import kernels_module

SOURCE = """
#include <stdint.h>
int weigh(const float* a, const float* b, int64_t n, double scale, void* stream) {
    return stream ? -1 : (int)(10 * a[0] + (b ? b[n - 1] : 7) * scale);
}
void quiet(void* stream) {}
"""


class CallsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        source, built = Path(self.folder.name, "k.c"), Path(self.folder.name, "k.so")
        source.write_text(SOURCE)
        subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(built)], check=True)
        self.library = ctypes.CDLL(str(built))
        self.addCleanup(self.folder.cleanup)

    def code(self, *arguments: object) -> int:
        """What the launcher returned, which it raises."""
        kernels = kernels_module.module(self.library, False, frozenset(["weigh"])).kernels
        try:
            kernels.weigh(*arguments)
        except RuntimeError as error:
            return int(str(error).rsplit(" ", 1)[1])
        return 0

    def test_each_way_of_calling_has_its_own_types(self) -> None:
        kernels = kernels_module.module(self.library, False, frozenset(["weigh"])).kernels
        a, b = torch.tensor([1.0, 2.0]), torch.nn.Parameter(torch.tensor([3.0, 4.0]), requires_grad=False)
        for _ in range(2):  # the second time by what is known of the first
            for arguments, expected in [((a, b, 2, 0.5), 12), ((a, None, 2, 1.0), 17), ((b, a, True, 2.0), 32), ((b, b, 1, -10.0), 0)]:
                with self.subTest(arguments=arguments):
                    if expected:
                        with self.assertRaisesRegex(RuntimeError, f"weigh returned error {expected}$"):
                            kernels.weigh(*arguments)
                    else:
                        kernels.weigh(*arguments)

    def test_what_no_launcher_takes_is_refused(self) -> None:
        table = torch.ones(2, 3)
        with self.assertRaisesRegex(ValueError, "contiguous"):
            self.code(table.t(), table, 1, 1.0)
        with self.assertRaisesRegex(TypeError, "not str"):
            self.code("a", table, 1, 1.0)
        kernels = kernels_module.module(self.library, False).kernels
        with self.assertRaisesRegex(AttributeError, "no extern"):
            kernels.absent()
        kernels.quiet()


if __name__ == "__main__":
    unittest.main()
