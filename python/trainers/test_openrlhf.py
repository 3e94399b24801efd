"""What the real OpenRLHF sends for a reply and makes of the answer."""

import asyncio
import types
import unittest
from importlib.metadata import files

from openrlhf.utils.agent import SingleTurnAgentExecutor
from tests.cases import FILES, TASK, WRONG, reply
from warpsmith.prompts import prompt

from .open_server import open_server
from .tokens import tokenizer


class Engine:
    """Says what it is given, and that its turn ends."""

    def __init__(self, text):
        self.tokens = tokenizer()(text.rstrip() + "<|im_end|>")["input_ids"]

    async def generate(self, *_, **__):
        return types.SimpleNamespace(outputs=[types.SimpleNamespace(token_ids=self.tokens, finish_reason="stop", logprobs=None)])


class OpenRlhf(unittest.TestCase):
    def test_a_reply_has_its_verdicts_reward(self):
        sampling = types.SimpleNamespace(max_tokens=4096, logprobs=None)
        with open_server() as url:
            executor = SingleTurnAgentExecutor([f"{url}/openrlhf"])
            for text, reward in ((reply(FILES), 1.0), (reply(WRONG), -1.0), ("nothing", -1.0)):
                found = asyncio.run(executor.execute(prompt(TASK, "cpu"), TASK, sampling, 16384, tokenizer(), Engine(text)))
                passed = [float(reward > 0)]
                self.assertEqual((found["reward"], found["scores"], found["extra_logs"]["passed"]), ([reward], passed, passed))

    def test_its_options_have_the_names_that_the_guide_gives(self):
        # The command itself wants a GPU.
        (command,) = [one for one in files("openrlhf") if str(one).endswith("cli/train_ppo_ray.py")]
        for option in ("--reward.remote_url", "--data.label_key"):
            self.assertIn(f'"{option}"', command.read_text())


if __name__ == "__main__":
    unittest.main()
