"""GRPO with TRL, rewarded by the judge: `python trl_grpo.py MODEL TASK.py…`.

On one machine the judge wants a device of its own: start `warpsmith serve --client-tasks --profile rl` where the kernels run and
set WARPSMITH_SERVER and WARPSMITH_TOKEN here.
"""

import sys

import warpsmith
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from warpsmith.prompts import prompt, sources


def main(model: str, *tasks: str) -> None:
    rows = Dataset.from_list([{"prompt": prompt(source), "task": source} for source in sources(tasks)])
    GRPOTrainer(
        model=model,
        reward_funcs=warpsmith.trl.reward("robust", progress=True),
        args=GRPOConfig(output_dir="grpo", num_generations=8, max_completion_length=4096),
        train_dataset=rows,
    ).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
