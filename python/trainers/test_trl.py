"""Two steps of TRL's own GRPO with a tiny model of random weights on the CPU, rewarded by the judge."""

import json
import tempfile
import unittest

import torch
import warpsmith
from datasets import Dataset
from tests.cases import FILES, TASK, judge, reply
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template
from warpsmith.prompts import prompt

from .tokens import tokenizer


def random_model(kind=Qwen2ForCausalLM):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer()), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=8192, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    return kind(config)


class Caller(Qwen2ForCausalLM):
    """Has random weights, but says what a model would that calls the tool and then stops."""

    def generate(self, input_ids, **_):
        call = json.dumps({"name": "submit", "arguments": {"reply": reply(FILES)}})
        texts = ["Done." if "<tool_response>" in one else f"<tool_call>\n{call}\n</tool_call>" for one in tokenizer().batch_decode(input_ids)]
        said = [tokenizer()(text + "<|im_end|>")["input_ids"] for text in texts]
        longest = max(map(len, said))
        return torch.cat([input_ids, torch.tensor([one + [0] * (longest - len(one)) for one in said])], dim=1)


class Trl(unittest.TestCase):
    def test_two_steps_of_grpo(self):
        model = random_model()
        before = {name: one.detach().clone() for name, one in model.named_parameters()}
        rows = Dataset.from_list([{"prompt": prompt(TASK, "cpu"), "task": TASK}] * 4)
        with tempfile.TemporaryDirectory() as folder:
            settings = GRPOConfig(
                output_dir=folder, max_steps=2, per_device_train_batch_size=2, num_generations=2, max_completion_length=16, learning_rate=1e-2,
                logging_steps=1, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, bf16=False,
            )  # fmt: skip
            seen = []
            score = warpsmith.trl.reward("ladder", judge=judge())

            def noise(completions, **_):
                # Random weights earn the same everywhere, and from what makes no difference nothing is learned.
                seen.extend(completions)
                return [sum(map(ord, one)) % 97 / 97 for one in completions]

            trainer = GRPOTrainer(model=model, reward_funcs=[score, noise], args=settings, train_dataset=rows, processing_class=tokenizer())
            trainer.train()
        logs = [one for one in trainer.state.log_history if "rewards/warpsmith_ladder/mean" in one]
        self.assertEqual(len(logs), 2)
        # What random weights say holds no solution.
        self.assertEqual([one["rewards/warpsmith_ladder/mean"] for one in logs], [-1.0, -1.0])
        self.assertEqual(len(seen), 4)
        changed = [name for name, one in model.named_parameters() if not torch.equal(one, before[name])]
        self.assertTrue(changed)

    def test_a_good_reply_is_rewarded_and_a_broken_task_raises(self):
        score = warpsmith.trl.reward(judge=judge())
        chat = [{"role": "assistant", "content": reply(FILES)}]
        self.assertEqual(score(prompts=["", ""], completions=[chat, "nothing"], task=[TASK, TASK]), [1.0, -1.0])
        with self.assertRaises(warpsmith.UnknownTaskError):
            score(prompts=[""], completions=[chat], task=["no such task"])
        with self.assertRaises(warpsmith.UsageError):
            score(prompts=[""], completions=[chat])
        with self.assertRaises(warpsmith.UsageError):
            warpsmith.trl.reward("most")

    def test_a_step_of_grpo_with_the_environment(self):
        words = tokenizer()
        words.chat_template = qwen3_chat_template
        rows = Dataset.from_list([{"prompt": [{"role": "user", "content": prompt(TASK, "cpu")}], "task": TASK}] * 2)
        with tempfile.TemporaryDirectory() as folder:
            settings = GRPOConfig(
                output_dir=folder, max_steps=1, per_device_train_batch_size=2, num_generations=2, max_completion_length=4096,
                logging_steps=1, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, bf16=False,
            )  # fmt: skip
            trainer = GRPOTrainer(
                model=random_model(Caller), reward_funcs=warpsmith.trl.environment_reward, environment_factory=warpsmith.trl.environment(judge=judge()),
                args=settings, train_dataset=rows, processing_class=words,
            )  # fmt: skip
            trainer.train()
        (log,) = [one for one in trainer.state.log_history if "tools/call_frequency" in one]
        self.assertEqual((log["rewards/environment_reward/mean"], log["tools/call_frequency"], log["tools/failure_frequency"]), (1.0, 1.0, 0.0))

    def test_an_environment_keeps_the_best_of_its_submissions(self):
        made = warpsmith.trl.environment("ladder", attempts=2, judge=judge())()
        made.reset(task=TASK)
        self.assertIn("passed", made.submit(reply(FILES)))
        self.assertIn("rejected (form)", made.submit("nothing"))
        self.assertEqual(made.submit(reply(FILES)), "no submissions are left")
        self.assertEqual(warpsmith.trl.environment_reward([made]), [1.0])


if __name__ == "__main__":
    unittest.main()
