"""Rewards for TRL: `GRPOTrainer(reward_funcs=warpsmith.trl.reward(), …)` with a column `task` in the data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .errors import UsageError, WarpsmithError
from .judging import Judge
from .rewards import RewardKind, check, judge_of, reply_of, reward_of
from .told import told


def reward(
    kind: RewardKind = "robust", *, column: str = "task", concurrency: int = 64, progress: bool = False, judge: Judge | None = None, **options: Any
) -> Callable[..., list[float]]:
    """A reward function. `column` of the data set holds each prompt's task: a path, an id, or source.

    A reply without a solution gets what a failed one gets. What fails for reasons of ours is judged again, and then raised: earlier
    versions of TRL would take `None` for a zero.
    """
    check(kind)

    def warpsmith_reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        if column not in columns:
            raise UsageError(f"the data set has no column `{column}`", "name the column that holds the tasks: `warpsmith.trl.reward(column=…)`")
        asked = judge_of(judge, **options)
        pairs = [(task, reply_of(one)) for task, one in zip(columns[column], completions, strict=True)]
        return [reward_of(verdict, kind) for verdict in asked.judge_many(pairs, concurrency=concurrency, progress=progress)]

    # What logs call it.
    warpsmith_reward.__name__ = f"warpsmith_{kind}"
    return warpsmith_reward


def environment(kind: RewardKind = "robust", *, attempts: int = 4, judge: Judge | None = None, **options: Any) -> type:
    """A class for `GRPOTrainer(environment_factory=…)`: the model submits, is told the verdict, and submits again.

    Use it with `reward_funcs=warpsmith.trl.environment_reward`.
    """
    check(kind)

    class KernelEnvironment:
        def __init__(self) -> None:
            self.reset()

        def reset(self, task: str | None = None, **_: Any) -> str | None:
            self.task = task
            self.left = attempts
            self.reward = float(getattr(_Nothing, kind))
            self.failure: WarpsmithError | None = None
            return None

        def submit(self, reply: str) -> str:
            """
            Compile, verify and time a solution, and say what became of it.

            Args:
                reply: The files of the solution, each a line with its path and a fenced block; or one module with `ModelNew`.

            Returns:
                The verdict.
            """
            if self.task is None:
                raise UsageError("there is no task yet", "the data set has a column `task`")
            if self.left == 0:
                return "no submissions are left"
            self.left -= 1
            try:
                verdict = judge_of(judge, **options).judge(self.task, reply_of(reply))
            except WarpsmithError as error:
                # TRL makes of it a text for the model.
                self.failure = error
                raise
            self.reward = max(self.reward, reward_of(verdict, kind))
            return f"{told(verdict)}\n{self.left} submissions are left"

    return KernelEnvironment


class _Nothing:
    """What a run is worth that submitted nothing: as much as one that failed."""

    robust, raw, composite, ladder = -1.0, 0.0, 0.0, -1.0


def environment_reward(environments: Sequence[Any], **_: Any) -> list[float]:
    """The best of what each environment has seen. Where a submission had no verdict, that is raised."""
    for one in environments:
        if one.failure is not None:
            raise one.failure
    return [one.reward for one in environments]
