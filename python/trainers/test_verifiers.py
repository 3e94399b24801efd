"""The environment of the real verifiers, asked by a model that answers from a script."""

import asyncio
import unittest

import verifiers as vf
import warpsmith
from tests.cases import FILES, TASK, judge, reply


def options():
    return {"url": judge().url, "token": judge().token}


def score(env, completion, source=TASK):
    """One rollout's state, scored as verifiers scores it."""
    state = {"prompt": [], "completion": completion, "answer": "", "info": {"source": source}, "task": "default", "trajectory": []}
    asyncio.run(env.rubric.score_rollout(state))
    return state["reward"]


class Verifiers(unittest.TestCase):
    def test_a_reply_is_scored(self):
        env = warpsmith.verifiers.load_environment([TASK], target="cpu", **options())
        self.assertIsInstance(env, vf.SingleTurnEnv)
        row = env.get_dataset()[0]
        self.assertIn("class Model(nn.Module)", row["prompt"][-1]["content"])
        self.assertEqual(score(env, [{"role": "assistant", "content": reply(FILES)}]), 1.0)
        self.assertEqual(score(env, [{"role": "assistant", "content": "nothing"}]), -1.0)

    def test_a_failure_is_no_zero(self):
        env = warpsmith.verifiers.load_environment([TASK], target="cpu", **options())
        random = TASK.replace("torch.relu(x) * 2.0", "torch.rand_like(x)")
        with self.assertRaisesRegex(vf.Error, "cannot be judged"):
            score(env, [{"role": "assistant", "content": reply(FILES)}], random)

    def test_the_tool_says_the_verdict(self):
        env = warpsmith.verifiers.load_environment([TASK], mode="tools", target="cpu", **options())
        self.assertIsInstance(env, vf.StatefulToolEnv)
        state = {"info": {"source": TASK}}
        arguments = env.update_tool_args("submit", {"reply": reply(FILES)}, [], state)
        said = asyncio.run(env.call_tool("submit", arguments, "1"))
        text = said["content"] if isinstance(said, dict) else said.content
        self.assertIn("passed", text)

    def test_wrong_arguments_say_the_next_step(self):
        for wrong in ({"tasks": "missing/"}, {"tasks": [TASK], "mode": "chat"}, {"tasks": [TASK], "reward": "most"}):
            with self.subTest(wrong), self.assertRaises(warpsmith.UsageError) as raised:
                warpsmith.verifiers.load_environment(**wrong)
            self.assertTrue(raised.exception.hint)


if __name__ == "__main__":
    unittest.main()
