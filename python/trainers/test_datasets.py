"""What `warpsmith export` writes, read by the real `datasets`."""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

from datasets import load_dataset
from tests.cases import FILES, TASK, reply
from warpsmith import command


class Export(unittest.TestCase):
    def test_a_run_is_read_back(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "tasks").mkdir()
            (root / "tasks" / "twice.py").write_text(TASK)
            script = [{"text": reply(FILES)}, {"text": "nothing"}]
            (root / "script.jsonl").write_text("".join(json.dumps(one) + "\n" for one in script[:1]))
            (root / "silent.jsonl").write_text(json.dumps(script[1]) + "\n")
            for name in ("script", "silent"):
                run = ["rollout", "--tasks", "tasks", "--policy", f"script:{name}.jsonl", "--mode", "single", "--profile", "verify", "--target", "cpu", "--out", name]
                done = subprocess.run([command.find(), *run, "--repairs", "0", "-q"], cwd=root, capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
            done = subprocess.run([command.find(), "export", "script", "silent", "--format", "hf", "--out", "data", "--json"], cwd=root, capture_output=True, check=True)
            self.assertEqual(json.loads(done.stdout)["rows"], 2)
            again = subprocess.run([command.find(), "export", "script", "--out", "data"], cwd=root, capture_output=True, check=False)
            self.assertEqual(again.returncode, 2)
            rows = load_dataset(str(root / "data"), split="train", cache_dir=str(root / "cache"))
            passed, silent = sorted(rows, key=lambda row: row["status"] is None)
            self.assertEqual((passed["status"], passed["robust"], passed["source"]), ("passed", 1.0, TASK))
            self.assertEqual(json.loads(passed["code"]), FILES)
            self.assertEqual(json.loads(passed["verdict"])["status"], "passed")
            self.assertEqual(passed["messages"][-1], {"role": "assistant", "content": reply(FILES)})
            self.assertEqual({one["role"] for one in passed["messages"]} >= {"user", "assistant"}, True)
            # Nothing was judged: that is no zero.
            self.assertEqual((silent["status"], silent["robust"], silent["code"], silent["ending"]), (None, None, None, "nothing_usable"))
            self.assertIn("2 episodes", (root / "data" / "README.md").read_text())

    def test_a_task_set_is_read_back_with_its_sides(self):
        made = {"id": "two", "ops": ["torch.nn.ReLU", "torch.sum"], "data_source": "torch#2", "code": TASK, "graph": None, "eager_us": 12.5, "split": "train"}
        known = {"level": 1, "problem_id": 19, "name": "19_ReLU", "code": TASK + "# é\n"}
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            rows = [made, {**made, "id": "three", "ops": [], "eager_us": None, "split": "validation"}, known]
            (root / "set.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))

            def export(*sources, out="data"):
                asked = [command.find(), "export", *sources, "--format", "hf", "--out", out, "--json"]
                return subprocess.run(asked, cwd=root, capture_output=True, text=True, check=False)

            done = export("set.jsonl")
            self.assertEqual((done.returncode, json.loads(done.stdout)["rows"]), (0, 3), done.stderr)
            found = load_dataset(str(root / "data"), cache_dir=str(root / "cache"))
            self.assertEqual({name: one["id"] for name, one in found.items()}, {"train": ["two", "level1/19"], "validation": ["three"]})
            two, relu = found["train"]
            self.assertEqual({name: two[name] for name in made}, made)
            self.assertEqual({name: relu[name] for name in known}, known)
            self.assertEqual((relu["ops"], relu["data_source"]), ([], "set"))
            card = (root / "data" / "README.md").read_text()
            self.assertIn("Kernel tasks of set.jsonl", card)
            # What was written is a set again, and so is a folder of modules.
            (root / "modules").mkdir()
            (root / "modules" / "Twice.py").write_text(TASK)
            again = export("data/data/train-00000-of-00001.parquet", "modules", out="again")
            self.assertEqual((again.returncode, json.loads(again.stdout)["rows"]), (0, 3), again.stderr)
            ids = load_dataset(str(root / "again"), split="train", cache_dir=str(root / "cache"))["id"]
            self.assertEqual(list(ids), ["two", "level1/19", "Twice"])
            for sources in (("set.jsonl", "set.jsonl"), ("none",), ("data",)):
                with self.subTest(sources):
                    refused = export(*sources, out="refused")
                    self.assertEqual(refused.returncode, 2, refused.stdout)
                    self.assertTrue(json.loads(refused.stdout)["failure"]["message"])
                    self.assertFalse((root / "refused").exists())


if __name__ == "__main__":
    unittest.main()
