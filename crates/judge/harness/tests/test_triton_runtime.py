"""Triton's preparation and replay. Kernels are compiled as for an H100 and launched on nothing: there is no device here."""

from __future__ import annotations

import importlib.util
import os
import struct
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

HARNESS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HARNESS))

import triton_runtime
import worker
from triton_runtime import Arguments, NotSupported

SOLUTION = textwrap.dedent('''
    import torch
    import triton
    import triton.language as tl


    @triton.jit
    def scale(out, x, n, by, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, at < n) * by, at < n)


    @triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=8)], key=["n"])
    @triton.jit
    def tuned(out, x, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, at < n) + 1, at < n)


    def run(x):
        out = torch.empty_like(x)
        n = x.numel()
        scale[(triton.cdiv(n, 64),)](out, x, n, 2.5, BLOCK=64)
        tuned[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](out, x, n)
        return out
''')

# Runs in a process of its own: what is patched there stays there.
DRIVER = textwrap.dedent('''
    import json, pathlib, subprocess, sys
    sys.path.insert(0, sys.argv[1])
    import torch
    import worker
    import triton_runtime

    folder, mode, size = pathlib.Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    launched = []

    def make_driver():
        from triton.backends.compiler import GPUTarget
        from triton.backends.driver import GPUDriver
        from triton.backends.nvidia.driver import CudaDriver

        class Utils:
            get_device_properties = staticmethod(lambda device: {"max_shared_mem": 232448, "multiprocessor_count": 132})
            load_binary = staticmethod(lambda name, code, shared, device: (1, (name, len(code)), 32, 0, 1024))

        class Launcher:
            def __init__(self, src, metadata):
                self.arguments, self.metadata = triton_runtime.Arguments(src.signature.values()), metadata

            def __call__(self, x, y, z, stream, function, packed, told, enter, leave, *values):
                self.arguments.fill(values, 0, 0)
                launched.append([function[0], x, self.metadata.num_warps, len(self.arguments.words)])

        class Driver(CudaDriver):
            def __init__(self):
                self.utils, self.launcher_cls = Utils(), Launcher
                self.get_current_device = lambda: 0
                self.get_current_stream = lambda device: 0

            def get_current_target(self):
                return GPUTarget("cuda", 90, 32)

            def get_benchmarker(self):
                times = iter((3.0, 1.0))

                def measure(call, quantiles):
                    call()
                    return [next(times)] * 3

                return measure

        return Driver()

    def assemble(wanted):
        import triton
        ptxas = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
        text, out = folder / "k.ptx", folder / "k.cubin"
        text.write_text(wanted["ptx"])
        subprocess.run([ptxas, "--gpu-name=" + wanted["arch"], text, "-o", out], check=True)
        return out.read_bytes()

    frozen = folder / "frozen.json"
    files = triton_runtime.unpacked(frozen.read_bytes()) if mode == "judged" else {}
    kept = triton_runtime.Kept(folder / mode, files, mode == "prepared")
    triton_runtime.install(kept, assemble if mode == "prepared" else None, 87, make_driver)
    worker.hide_what_is_absent("triton")
    made = worker.execute((folder / "solution.py").read_text(), "model_new.py", "model_new")
    answer = {"launched": launched}
    try:
        made.run(torch.empty(size))
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    for name in ("torch._inductor.compile_fx", "numpy", "ctypes"):
        try:
            __import__(name)
            answer["open"] = name
        except worker.CandidateError:
            pass
    if mode == "prepared":
        frozen.write_text(json.dumps(kept.packed()))
        answer["names"] = sorted({name for files in kept.files.values() for name in files})
    print(json.dumps(answer))
''')


@unittest.skipUnless(importlib.util.find_spec("triton"), "Triton is not installed")
class ReplayTest(unittest.TestCase):
    def run_in(self, folder: Path, mode: str, size: int) -> dict:
        import json

        (folder / "solution.py").write_text(SOLUTION)
        command = [sys.executable, "-B", "-W", "ignore", "-c", DRIVER, str(HARNESS), str(folder), mode, str(size)]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return json.loads(done.stdout)

    def test_what_was_prepared_is_launched_and_nothing_else(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            prepared = self.run_in(folder, "prepared", 1024)
            self.assertEqual([prepared.get("error"), prepared.get("open")], [None, None])
            # Both configurations were tried, and the quick one runs.
            kernels = [entry[0] for entry in prepared["launched"]]
            self.assertEqual(kernels, ["scale", "tuned", "tuned", "tuned"])
            self.assertIn("tuned.autotune.json", prepared["names"])
            self.assertTrue(all(name.endswith((".cubin", ".json")) for name in prepared["names"]), prepared["names"])

            judged = self.run_in(folder, "judged", 1024)
            self.assertEqual([judged.get("error"), judged.get("open")], [None, None])
            self.assertEqual(judged["launched"], [["scale", 16, 4, 6], ["tuned", 8, 8, 5]])
            # Another number, divisible by sixteen like the first, is the same kernel, but nobody chose its configuration.
            other = self.run_in(folder, "judged", 2048)
            self.assertIn("NotPrepared", other["error"])
            self.assertEqual([entry[0] for entry in other["launched"]], ["scale"])
            # An odd one is another kernel.
            odd = self.run_in(folder, "judged", 1023)
            self.assertRegex(odd["error"], "NotPrepared: `scale` was not compiled")
            self.assertEqual(odd["launched"], [])


class Peer:
    """The supervisor's end of a worker's channel, which has one answer."""

    def __init__(self, answer: dict, code: bytes | None) -> None:
        self.answer, self.code, self.heard = answer, code, []

    def send(self, message: dict) -> None:
        self.heard.append(message)

    def recv(self) -> tuple[dict, list[int]]:
        if self.code is None:
            return self.answer, []
        fd = os.memfd_create("code")
        os.write(fd, self.code)
        return self.answer, [fd]


class AssembledTest(unittest.TestCase):
    def test_machine_code_is_asked_for_in_the_middle_of_a_request(self) -> None:
        peer = Peer({"verb": "assembled", "error": None, "id": 9}, b"\x7fELF" * 1000)
        state = {"channel": peer, "id": 4}
        self.assertEqual(triton_runtime.assembled(state, {"ptx": "x"}), b"\x7fELF" * 1000)
        self.assertEqual(peer.heard, [{"ok": {"assemble": {"ptx": "x"}}, "id": 4}])
        self.assertEqual(state["id"], 9)  # the request that is answered in the end

    @unittest.skipUnless(importlib.util.find_spec("triton"), "Triton is not installed")
    def test_what_cannot_be_assembled_is_tritons_own_error(self) -> None:
        peer = Peer({"verb": "assembled", "error": "too many registers", "id": 9}, None)
        with self.assertRaisesRegex(Exception, "too many registers") as raised:
            triton_runtime.assembled({"channel": peer, "id": 4}, {})
        self.assertTrue(triton_runtime.is_compile_error(raised.exception))


class AbsentTest(unittest.TestCase):
    def test_languages_are_refused_by_name(self) -> None:
        for name, said in (("tilelang", "TileLang"), ("cutlass.cute", "CuTe DSL"), ("cuda", "cuTile"), ("triton", "a form of its own")):
            with self.assertRaisesRegex(worker.CandidateError, said):
                worker.Absent().find_spec(name)
        self.assertIsNone(worker.Absent("triton").find_spec("triton.language"))


class Pointer:
    def data_ptr(self) -> int:
        return 1 << 40


class ArgumentsTest(unittest.TestCase):
    def test_arguments_are_packed_as_a_kernel_reads_them(self) -> None:
        arguments = Arguments(["*fp32", "i32", "constexpr", "fp32", "fp64", "i64", "*i8", "bf16", "u1"])
        arguments.fill((Pointer(), -2, 64, 0.5, -1.5, -1, None, 1.0, True), 7, 8)
        raw = bytes(arguments.words)
        at = lambda place, form: struct.unpack_from("<" + form, raw, 8 * place)[0]  # noqa: E731
        self.assertEqual([at(0, "Q"), at(1, "i"), at(2, "f"), at(3, "d"), at(4, "q"), at(5, "Q")], [1 << 40, -2, 0.5, -1.5, -1, 0])
        self.assertEqual([at(6, "H"), at(7, "B"), at(8, "Q"), at(9, "Q")], [0x3F80, 1, 7, 8])
        self.assertEqual(len(arguments.pointers), 10)

    def test_tuples_are_given_member_by_member(self) -> None:
        arguments = Arguments([("*fp32", ("i32", "constexpr")), "i64"])
        arguments.fill(((Pointer(), (5, 6)), 9), 0, 0)
        self.assertEqual(list(arguments.words), [1 << 40, 5, 9, 0, 0])

    def test_tensor_descriptors_are_refused_by_name(self) -> None:
        with self.assertRaisesRegex(NotSupported, "tensor descriptors"):
            Arguments(["tensordesc<fp32[16, 16]>"])


if __name__ == "__main__":
    unittest.main()
