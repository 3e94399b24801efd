"""What is a task and what is a solution; what is neither says so with the next step."""

import os
import pickle
import tempfile
import types
import unittest
from pathlib import Path

import warpsmith
from warpsmith.prompts import sources
from warpsmith.rewards import reply_of
from warpsmith.sources import solution_on_the_wire, task_on_the_wire

from .cases import FILES, KERNEL, MODEL_NEW, TASK


class Tasks(unittest.TestCase):
    def test_text_paths_and_names(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "twice.py")
            path.write_text(TASK)
            self.assertEqual(task_on_the_wire(path), {"path": str(path)})
            self.assertEqual(task_on_the_wire(f"{path}#1"), {"path": f"{path}#1"})
        self.assertEqual(task_on_the_wire(TASK), {"source": TASK, "name": "task"})
        self.assertEqual(task_on_the_wire("softmax"), {"id": "softmax"})

    def test_a_solution_beside_its_task_is_no_task(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("one", "two"):
                Path(folder, name).mkdir()
                Path(folder, name, "model.py").write_text(TASK)
                Path(folder, name, "model_new.py").write_text(MODEL_NEW)
            self.assertEqual(sources(Path(folder, "one")), [TASK])
            self.assertEqual(sources(folder), [TASK, TASK])

    def test_what_is_no_task(self):
        for wrong, kind in [
            ("import torch\nprint(1)\n", warpsmith.TaskError),
            ("missing/task.py", warpsmith.UnknownTaskError),
            ("missing.jsonl#3", warpsmith.UnknownTaskError),
            (Path("missing.py"), warpsmith.UnknownTaskError),
            (3, warpsmith.UnknownTaskError),
            (TASK + "# \ud800\n", warpsmith.TaskError),
            (TASK + "#" + "x" * (2 << 20), warpsmith.TaskError),
        ]:
            with self.subTest(wrong), self.assertRaises(kind) as raised:
                task_on_the_wire(wrong)
            self.assertTrue(raised.exception.hint)


class Solutions(unittest.TestCase):
    def test_folders_files_text_and_replies(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "kernels").mkdir()
            for path, text in FILES.items():
                (root / path).write_text(text)
            (root / "notes.txt").write_text("not read")
            self.assertEqual(solution_on_the_wire(root), {"files": FILES})
            self.assertEqual(solution_on_the_wire(str(root / "model_new.py")), {"files": {"model_new.py": MODEL_NEW}})
            (root / "kernels_cuda").mkdir()
            (root / "kernels_cuda" / "twice_relu.cu").write_text(KERNEL)
            self.assertEqual(solution_on_the_wire(root, "cpu"), {"files": FILES})
            self.assertEqual(solution_on_the_wire(root, "cuda"), {"files": {"model_new.py": MODEL_NEW, "kernels/twice_relu.cu": KERNEL}})
            os.symlink("/etc/passwd", root / "kernels" / "link.cpp")
            with self.assertRaisesRegex(warpsmith.SolutionError, "link"):
                solution_on_the_wire(root)
        self.assertEqual(solution_on_the_wire(FILES), {"files": FILES})
        self.assertEqual(solution_on_the_wire(MODEL_NEW), {"files": {"model_new.py": MODEL_NEW}})
        self.assertEqual(solution_on_the_wire(warpsmith.Reply("no code")), {"reply": "no code"})

    def test_what_is_no_solution(self):
        with tempfile.TemporaryDirectory() as empty:
            given = ["", " \n", "I would fuse both loops.", "I would fuse all. " * 1000, "a\0b", "import torch\nx = 1\n", "missing/", empty, {"kernels/x.cu": KERNEL}, 3, b"class ModelNew: pass"]
            given += [{"model_new.py": 3}, {"model_new.py": b"x"}, {**FILES, "../x": "y"}, {**FILES, 3: "y"}, {**FILES, "kernels/é.cu": "y"}]
            given += [MODEL_NEW + "# \ud800\n", MODEL_NEW + "#" + "x" * (2 << 20)]
            for wrong in given:
                with self.subTest(wrong), self.assertRaises(warpsmith.SolutionError) as raised:
                    solution_on_the_wire(wrong)
                self.assertTrue(raised.exception.hint)
                self.assertIn("hint: ", str(raised.exception))

    def test_what_a_model_says_is_never_an_error(self):
        self.assertEqual(solution_on_the_wire(warpsmith.Reply("half \ud83d of a pair")), {"reply": "half ? of a pair"})

    def test_errors_survive_a_process_border(self):
        error = pickle.loads(pickle.dumps(warpsmith.QueueFullError("full", "wait", "too_often")))
        self.assertEqual((type(error), error.message, error.hint, error.code), (warpsmith.QueueFullError, "full", "wait", "too_often"))
        self.assertIsInstance(error, warpsmith.InfrastructureError)

    def test_the_assistants_last_message_is_the_reply(self):
        messages = [{"role": "assistant", "content": "first"}, {"role": "tool", "content": "x"}]
        self.assertEqual(reply_of([*messages, {"role": "assistant", "content": "last"}]), "last")
        self.assertEqual(reply_of([*messages, {"role": "user", "content": "y"}]), "first")
        parts = [types.SimpleNamespace(role="assistant", content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])]
        self.assertEqual(reply_of(parts), "ab")
        self.assertEqual(reply_of([]), "")
        self.assertEqual(reply_of("text"), "text")


if __name__ == "__main__":
    unittest.main()
