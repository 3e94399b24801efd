"""An exported evaluation, run by the real Inspect with a model that answers from a script."""

import importlib.util
import subprocess
import tempfile
import unittest
from pathlib import Path

import warpsmith
from inspect_ai import eval as run
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from tests.cases import FILES, TASK, WRONG, judge, reply
from warpsmith import command
from warpsmith.inspect_ai import evaluation


def exported(root, source):
    (root / "tasks").mkdir()
    (root / "tasks" / "twice.py").write_text(source)
    done = subprocess.run([command.find(), "export", "tasks", "--format", "inspect", "--target", "cpu", "--out", "data"], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return root / "data"


def said(text):
    output = ModelOutput.from_content("mockllm/model", text)
    # Else it is counted with a tokenizer that is fetched.
    output.usage = ModelUsage()
    return output


def evaluated(folder, answers, **options):
    model = get_model("mockllm/model", custom_outputs=[said(one) for one in answers])
    made = evaluation(folder / "tasks.jsonl", judge=judge(), **options)
    return run(made, model=model, epochs=len(answers), display="none", log_dir=str(folder / "logs"), fail_on_error=False)[0]


class Inspect(unittest.TestCase):
    def test_replies_are_scored_by_their_verdicts(self):
        with tempfile.TemporaryDirectory() as folder:
            data = exported(Path(folder), TASK)
            log = evaluated(data, [reply(FILES), reply(WRONG), "nothing"])
            self.assertEqual(log.status, "success", log.error)
            scores = [sample.scores["warpsmith_robust"] for sample in log.samples]
            self.assertEqual(sorted((one.answer, one.value) for one in scores), [("mismatch", -1.0), ("passed", 1.0), ("rejected", -1.0)])
            self.assertIn("class Model(nn.Module)", log.samples[0].messages[1].text)
            spec = importlib.util.spec_from_file_location("task", data / "task.py")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self.assertEqual(len(module.kernels(reward="ladder", target="cpu").dataset), 1)

    def test_what_cannot_be_judged_has_no_score(self):
        with tempfile.TemporaryDirectory() as folder:
            data = exported(Path(folder), TASK.replace("torch.relu(x) * 2.0", "torch.rand_like(x)"))
            log = evaluated(data, [reply(FILES)])
            self.assertIn("cannot be judged", log.samples[0].error.message)
            self.assertFalse(log.samples[0].scores)

    def test_wrong_arguments_say_the_next_step(self):
        with self.assertRaises(warpsmith.UnknownTaskError):
            evaluation("missing.jsonl")
        with self.assertRaises(warpsmith.UsageError):
            warpsmith.inspect_ai.scorer("most")


if __name__ == "__main__":
    unittest.main()
