"""Warpsmith: judge GPU kernels, write them, and train those who write them.

    verdict = warpsmith.judge("softmax", "my_solution/")
    faster = warpsmith.optimize(module, inputs).module
"""

from importlib import metadata as _metadata

from . import inspect_ai, trl, verifiers, verl
from .errors import (
    CancelledError,
    CommandNotFoundError,
    InfrastructureError,
    JudgeTimeoutError,
    QueueFullError,
    ServerError,
    SolutionError,
    TaskError,
    UnknownTaskError,
    UsageError,
    WarpsmithError,
)
from .judging import Judge, judge
from .optimizing import Optimized, optimize, optimized
from .schema import Failure, Reward, Verdict
from .sources import Reply, Task

try:
    __version__ = _metadata.version("warpsmith")
except _metadata.PackageNotFoundError:
    __version__ = "0"

__all__ = [
    "CancelledError",
    "CommandNotFoundError",
    "Failure",
    "InfrastructureError",
    "Judge",
    "JudgeTimeoutError",
    "Optimized",
    "QueueFullError",
    "Reply",
    "Reward",
    "ServerError",
    "SolutionError",
    "Task",
    "TaskError",
    "UnknownTaskError",
    "UsageError",
    "Verdict",
    "WarpsmithError",
    "inspect_ai",
    "judge",
    "optimize",
    "optimized",
    "trl",
    "verifiers",
    "verl",
]
