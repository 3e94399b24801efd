"""The real verl: its configuration with the example's settings, its loader and its reward manager."""

import os
import shlex
import unittest
from pathlib import Path
from unittest import mock

import numpy
import torch
from hydra import compose, initialize_config_module
from tests.cases import FILES, TASK, WRONG, judge, reply
from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager
from warpsmith import verl as ours

from .tokens import tokenizer

EXAMPLE = Path(__file__).parents[1] / "examples/verl_run.sh"


def settings():
    """What the trainer makes of the words behind its name in `verl_run.sh`."""
    command = EXAMPLE.read_text().partition("python -m verl.trainer.main_ppo")[2].replace("\\\n", " ")
    for name, value in {"$(python -m warpsmith.verl)": ours.__file__, "$1": "model", "$2": "train.parquet", "$3": "validation.parquet"}.items():
        command = command.replace(name, value)
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=shlex.split(command))


def sample(text):
    """One reply to a prompt of two tokens, padded as verl has it."""
    said = tokenizer()(text.rstrip() + "<|im_end|>")["input_ids"]
    tensors = {"prompts": [1, 1], "responses": [*said, 0, 0], "attention_mask": [1, 1, *(1 for _ in said), 0, 0]}
    rows = {"data_source": "kernels", "reward_model": {"style": "rule", "ground_truth": TASK}, "extra_info": {"index": 0}}
    objects = {name: numpy.array([value], dtype=object) for name, value in rows.items()}
    return DataProto.from_single_dict({**{name: torch.tensor([value]) for name, value in tensors.items()}, **objects})


class Verl(unittest.TestCase):
    def test_its_reward_manager_asks_the_judge(self):
        manager = load_reward_manager(settings(), tokenizer())
        with mock.patch.dict(os.environ, {"WARPSMITH_SERVER": judge().url, "WARPSMITH_TOKEN": judge().token}):
            for files, status, reward in ((FILES, "passed", 1.0), (WRONG, "mismatch", -1.0)):
                found = manager.loop.run_until_complete(manager.run_single(sample(reply(files))))
                self.assertEqual((found["reward_score"], found["reward_extra_info"]["status"]), (reward, status), found)


if __name__ == "__main__":
    unittest.main()
