"""A taskset for verifiers 0.2 and later, and so for prime-rl: its id is `warpsmith-taskset`.

Each rollout's last reply is judged. A failure of ours raises, which verifiers records as the trace's error, and which is no reward.
"""

from typing import Literal, Union

import verifiers.v1 as vf

from .prompts import prompt, sources
from .rewards import SERVER, RewardKind, judge_of, reply_of, reward_of
from .sources import Reply
from .told import told

Target = Literal["auto", "cuda", "cpu"]


class KernelToolsConfig(vf.ToolsetConfig):
    target: Target = "auto"
    server: Union[str, None] = None


class KernelTaskConfig(vf.TaskConfig):
    """`--env.taskset.task.*`"""

    mode: Literal["single", "tools"] = "single"
    """With `tools` the model has a tool `submit`, which says the verdict on what it is given."""
    reward: RewardKind = "robust"
    target: Target = "auto"
    server: Union[str, None] = None
    """The address of a `warpsmith serve`; else `$WARPSMITH_SERVER`, else a judge of each process. Its token is `$WARPSMITH_TOKEN`."""
    tools: KernelToolsConfig = KernelToolsConfig()


class KernelTasksetConfig(vf.TasksetConfig):
    tasks: Union[str, list[str]] = []
    """Source, `.py` files, folders of them, or JSONL with a column `code`."""
    task: KernelTaskConfig = KernelTaskConfig()


class KernelData(vf.TaskData):
    source: str


class KernelTools(vf.Toolset[KernelToolsConfig, vf.State]):
    TOOL_PREFIX = None

    async def setup_task(self, task: KernelData) -> None:
        self.source = task.source

    @vf.tool
    async def submit(self, reply: str) -> str:
        """Compile, verify and time a solution: files, each a line with its path and a fenced block."""
        return told(await judge_of(**_options(self.config.target, self.config.server)).judge_async(self.source, Reply(reply)))


class KernelTask(vf.Task[KernelData, vf.State, KernelTaskConfig]):
    @vf.reward
    async def warpsmith(self, trace: vf.Trace) -> float:
        options = _options(self.config.target, self.config.server)
        verdict = await judge_of(**options).judge_async(self.data.source, reply_of(trace.last_reply))
        trace.info["warpsmith"] = {"status": verdict.status, "rule": verdict.rule, "reason": verdict.reason, "device": verdict.device}
        trace.record_metrics({"compiled": verdict.compiled, "passed": verdict.passed})
        return reward_of(verdict, self.config.reward)

    @classmethod
    def toolsets(cls, config: KernelTaskConfig) -> list[vf.Toolset]:
        if config.mode == "single":
            return []
        return [KernelTools(config.tools.model_copy(update={"target": config.target, "server": config.server}))]


class KernelTaskset(vf.Taskset[KernelTask, KernelTasksetConfig]):
    def load(self) -> list[KernelTask]:
        target = "cpu" if self.config.task.target == "cpu" else "cuda"
        made = [KernelData(prompt=prompt(source, target), source=source) for source in sources(self.config.tasks)]
        return [KernelTask(data, self.config.task) for data in made]


def _options(target: str, server: Union[str, None]) -> dict[str, str]:
    import os

    if server is not None:
        return {"url": server}
    return {} if SERVER in os.environ else {"target": target}


if __name__ == "__main__":
    # How verifiers starts a tool server.
    KernelTools.run()
