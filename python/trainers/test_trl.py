"""Two steps of TRL's own GRPO with a tiny model of random weights on the CPU, rewarded by the judge."""

import tempfile
import unittest

import torch
import warpsmith
from datasets import Dataset
from tests.cases import FILES, TASK, judge, reply
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from warpsmith.prompts import prompt


def model_and_tokenizer():
    """Bytes as tokens: nothing is fetched."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: number for number, letter in enumerate(["<pad>", "<eos>", *alphabet])}
    made = Tokenizer(models.BPE(vocab=words, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=2048, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    return Qwen2ForCausalLM(config), tokenizer


class Trl(unittest.TestCase):
    def test_two_steps_of_grpo(self):
        model, tokenizer = model_and_tokenizer()
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

            trainer = GRPOTrainer(model=model, reward_funcs=[score, noise], args=settings, train_dataset=rows, processing_class=tokenizer)
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

    def test_an_environment_keeps_the_best_of_its_submissions(self):
        made = warpsmith.trl.environment("ladder", attempts=2, judge=judge())()
        made.reset(task=TASK)
        self.assertIn("passed", made.submit(reply(FILES)))
        self.assertIn("rejected (form)", made.submit("nothing"))
        self.assertEqual(made.submit(reply(FILES)), "no submissions are left")
        self.assertEqual(warpsmith.trl.environment_reward([made]), [1.0])


if __name__ == "__main__":
    unittest.main()
