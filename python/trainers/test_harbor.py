"""Exported task folders, read by the real Harbor, whose verifier's script is run against a real server."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

from harbor.models.task.task import Task
from harbor.models.trial.paths import TrialPaths
from harbor.verifier.verifier import Verifier
from tests.cases import FILES, TASK, WRONG, judge
from warpsmith import command


def exported(root, source=TASK):
    (root / "tasks").mkdir()
    (root / "tasks" / "Twice.py").write_text(source)
    done = subprocess.run([command.find(), "export", "tasks", "--format", "harbor", "--target", "cpu", "--out", "data"], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next((root / "data").iterdir())


def verified(root, task, files, **more):
    """The verifier's script as Harbor runs it, here instead of in a container, and Harbor's own reading of what it left."""
    solution, trial = root / "solution", TrialPaths(root / "trial")
    trial.mkdir()
    for path, text in files.items():
        (solution / path).parent.mkdir(parents=True, exist_ok=True)
        (solution / path).write_text(text)
    solution.mkdir(exist_ok=True)
    environment = {**os.environ, "WARPSMITH_SERVER": judge().url, "WARPSMITH_TOKEN": judge().token or ""}
    environment |= {"SOLUTION_DIR": str(solution), "VERIFIER_DIR": str(trial.verifier_dir), **more}
    done = subprocess.run(["sh", str(task.paths.discovered_test_path_for(task.config.environment.os))], env=environment, capture_output=True, text=True, check=False)
    reader = Verifier(task=task, trial_paths=trial, environment=SimpleNamespace())
    return done, (reader._parse_reward_json() if trial.reward_json_path.exists() else None)


class Harbor(unittest.TestCase):
    def test_a_task_folder_is_one_of_harbors(self):
        with tempfile.TemporaryDirectory() as folder:
            place = exported(Path(folder))
            self.assertTrue(Task.is_valid_dir(place))
            task = Task(place)
            self.assertIn("/app/solution/model_new.py", task.instruction)
            self.assertEqual(set(task.config.verifier.env), {"WARPSMITH_SERVER", "WARPSMITH_TOKEN"})
            self.assertEqual(task.config.environment.gpus, 0)
            self.assertFalse(task.config.environment.env)
            self.assertEqual((place / "environment" / "model.py").read_text(), TASK)

    def test_a_solution_has_its_verdicts_reward(self):
        for files, status, reward in ((FILES, "passed", 1.0), (WRONG, "mismatch", -1.0), ({}, "rejected", -1.0)):
            with self.subTest(status), tempfile.TemporaryDirectory() as folder:
                task = Task(exported(Path(folder)))
                done, rewards = verified(Path(folder), task, files)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual((rewards["reward"], rewards["passed"]), (reward, int(status == "passed")))
                self.assertIn(status, done.stdout)

    def test_a_link_leads_nowhere(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            task = Task(exported(root))
            (root / "elsewhere.py").write_text(FILES["model_new.py"])
            (root / "solution").mkdir()
            (root / "solution" / "model_new.py").symlink_to(root / "elsewhere.py")
            done, rewards = verified(root, task, {})
            self.assertEqual((done.returncode, rewards["reward"]), (0, -1.0), done.stderr)

    def test_without_a_verdict_there_is_no_reward(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            task = Task(exported(root, TASK.replace("torch.relu(x) * 2.0", "torch.rand_like(x)")))
            done, rewards = verified(root, task, FILES)
            self.assertEqual((done.returncode, rewards), (3, None), done.stderr)
        with tempfile.TemporaryDirectory() as folder:
            done, rewards = verified(Path(folder), Task(exported(Path(folder))), FILES, WARPSMITH_SERVER="")
            self.assertEqual((done.returncode, rewards), (3, None), done.stderr)


if __name__ == "__main__":
    unittest.main()
