"""Evaluations with Inspect: what `warpsmith export TASKS --format inspect` writes uses these."""

from __future__ import annotations

import os
from typing import Any, Literal

from .errors import UnknownTaskError, UsageError
from .rewards import SERVER, RewardKind, check, judge_of, reply_of, reward_of


def scorer(reward: RewardKind = "robust", target: Literal["auto", "cuda", "cpu"] = "auto", **options: Any) -> Any:
    """Scores a reply to the module in the sample's `metadata["source"]` with one of its verdict's rewards.

    `options` are those of `warpsmith.Judge`, or `judge=`. A failure of ours raises, which is an error of the sample and no score.
    """
    try:
        from inspect_ai.scorer import Score, Target, mean, stderr
        from inspect_ai.scorer import scorer as registered
        from inspect_ai.solver import TaskState
    except ImportError as error:
        raise UsageError("Inspect is not installed here", "pip install inspect-ai") from error
    check(reward)
    served = SERVER in os.environ or "url" in options or "judge" in options
    settings = options if served else {"target": target, **options}

    @registered(metrics=[mean(), stderr()], name=f"warpsmith_{reward}")
    def judged() -> Any:
        async def score(state: TaskState, target: Target) -> Score:
            source = (state.metadata or {}).get("source")
            if not isinstance(source, str):
                raise UsageError("the sample has no `source` among its metadata", "`warpsmith export TASKS --format inspect` writes such")
            verdict = await judge_of(**settings).judge_async(source, reply_of(state.output.completion))
            found = {"status": verdict.status, "passed": verdict.passed, "rule": verdict.rule, "device": verdict.device}
            return Score(value=reward_of(verdict, reward), answer=verdict.status, explanation=verdict.reason, metadata=found)

        return score

    return judged()


def evaluation(tasks: str | os.PathLike[str], reward: RewardKind = "robust", target: Literal["auto", "cuda", "cpu"] = "auto", **options: Any) -> Any:
    """A task of Inspect: one reply to each row of a JSONL with `id`, `input` and `metadata.source`."""
    try:
        from inspect_ai import Task
        from inspect_ai.dataset import json_dataset
        from inspect_ai.solver import generate
    except ImportError as error:
        raise UsageError("Inspect is not installed here", "pip install inspect-ai") from error
    if not os.path.exists(tasks):
        raise UnknownTaskError(f"there is no `{os.fspath(tasks)}`", "`warpsmith export TASKS --format inspect` writes it")
    return Task(dataset=json_dataset(os.fspath(tasks)), solver=generate(), scorer=scorer(reward, target, **options))
