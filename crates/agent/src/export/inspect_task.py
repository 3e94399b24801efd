"""Run it with `inspect eval task.py --model …`, where the package `warpsmith` is installed.

`WARPSMITH_SERVER` and `WARPSMITH_TOKEN` name a server that judges; without them one is started here.
"""

from pathlib import Path

from inspect_ai import Task, task
from warpsmith.inspect_ai import evaluation


@task
def kernels(reward: str = "robust", target: str = {target}) -> Task:
    return evaluation(Path(__file__).with_name("tasks.jsonl"), reward=reward, target=target)
