"""An environment for verifiers and prime-rl: `load_environment(tasks=…)`, with one reply or with tools.

For verifiers below 0.2, whose environments are made by `load_environment`; `taskset` is for later ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Literal

from .errors import UsageError, WarpsmithError
from .prompts import prompt, sources
from .rewards import RewardKind, check, judge_of, reply_of, reward_of
from .told import told


def load_environment(
    tasks: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
    mode: Literal["single", "tools"] = "single",
    reward: RewardKind = "robust",
    target: Literal["auto", "cuda", "cpu"] = "auto",
    max_turns: int = 8,
    **options: Any,
) -> Any:
    """Tasks as `warpsmith.prompts.sources` takes them. With `mode="tools"` the model has a tool `submit`, and the last reply counts.

    A failure of ours ends the evaluation: verifiers would count an exception of a reward as a zero.
    """
    try:
        import verifiers as vf
    except ImportError as error:
        raise UsageError("verifiers is not installed here", 'pip install "verifiers<0.2"') from error
    if not hasattr(vf, "SingleTurnEnv"):
        raise UsageError("this verifiers has no `SingleTurnEnv`", "name the taskset `warpsmith-taskset`, as its `eval` and prime-rl want one", "verifiers_version")
    from datasets import Dataset

    check(reward)
    if mode not in ("single", "tools"):
        raise UsageError(f"there is no mode `{mode}`", "modes are single, tools")
    asked = "cpu" if target == "cpu" else "cuda"
    rows = [{"prompt": [{"role": "user", "content": prompt(source, asked)}], "answer": "", "info": {"source": source}} for source in sources(tasks)]

    async def warpsmith_reward(completion: Any, info: dict[str, Any]) -> float:
        judge = judge_of(**_options(target, options))
        return reward_of(await judge.judge_async(info["source"], reply_of(completion)), reward)

    class RaisingRubric(vf.Rubric):
        async def _call_individual_reward_func(self, func: Any, state: Any) -> float:
            if func is not warpsmith_reward:
                return await super()._call_individual_reward_func(func, state)
            try:
                return await warpsmith_reward(state["completion"], state["info"])
            except WarpsmithError as error:
                raise vf.Error(str(error)) from error

    rubric = RaisingRubric(funcs=[warpsmith_reward])
    if mode == "single":
        return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=rubric)

    class KernelEnv(vf.StatefulToolEnv):
        def update_tool_args(self, tool_name: str, tool_args: dict[str, Any], messages: Any, state: Any, **_: Any) -> dict[str, Any]:
            return {**tool_args, "source": state["info"]["source"]}

    async def submit(reply: str, source: str) -> str:
        """Compile, verify and time a solution: files, each a line with its path and a fenced block."""
        return told(await judge_of(**_options(target, options)).judge_async(source, reply_of(reply)))

    made = KernelEnv(dataset=Dataset.from_list(rows), rubric=rubric, max_turns=max_turns)
    made.add_tool(submit, args_to_skip=["source"])
    return made


def _options(target: str, options: dict[str, Any]) -> dict[str, Any]:
    from .rewards import SERVER

    served = SERVER in os.environ or "url" in options or "judge" in options
    return options if served else {"target": target, **options}
