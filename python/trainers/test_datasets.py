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


if __name__ == "__main__":
    unittest.main()
