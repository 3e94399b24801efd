"""What `torch.compile` is told about the processor is what PyTorch's own check says."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from torch._inductor.cpu_vec_isa import VecAVX2, VecISA

import vector_isas


class VectorIsaTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for change in (
            mock.patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": folder.name}),
            mock.patch.object(VecISA, "_avx_py_load", VecISA._avx_py_load),
        ):
            change.start()
            self.addCleanup(change.stop)

    @unittest.skipUnless(platform.machine() == "x86_64", "asks about AVX2")
    def test_the_answer_is_pytorchs_own(self) -> None:
        expected = VecAVX2().check_build(VecISA._avx_code)
        vector_isas.load_without_import()
        self.assertNotIn("import torch", VecISA._avx_py_load)
        self.assertTrue(expected)
        self.assertEqual(VecAVX2().check_build(VecISA._avx_code), expected)

    def test_a_library_that_does_not_load_is_none(self) -> None:
        vector_isas.load_without_import()
        missing = 'extern "C" int nowhere(); extern "C" int asked = nowhere();'
        self.assertFalse(VecAVX2().check_build(missing))


if __name__ == "__main__":
    unittest.main()
