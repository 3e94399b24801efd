"""The reward for verl: `reward.custom_reward_function.path` is this file, which `python -m warpsmith.verl` names.

A row's `ground_truth` is its task: a path, an id, or source. `$WARPSMITH_SERVER` names a server that all workers share; else each
process keeps a judge. `$WARPSMITH_REWARD` chooses the reward.
"""

from __future__ import annotations

import os
from typing import Any

# By full names: verl loads this as a file of its own.
from warpsmith.rewards import judge_of, reply_of, reward_of

# What verl adds where it serves a reward model too.
FOREIGN = ("reward_router_address", "reward_model_tokenizer")


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """The reward of one reply, with what metrics are made of. No reward is an exception."""
    for name in FOREIGN:
        options.pop(name, None)
    kind: Any = options.pop("reward", None) or os.environ.get("WARPSMITH_REWARD") or "robust"
    task = (extra_info or {}).get("task") or ground_truth
    verdict = judge_of(**options).judge(task, reply_of(solution_str))
    return {
        "score": reward_of(verdict, kind),
        "compiled": verdict.compiled,
        "passed": verdict.passed,
        "status": verdict.status,
    }


if __name__ == "__main__":
    print(os.path.abspath(__file__))
