"""Warpsmith: judge GPU kernels, write them, and train those who write them.

    verdict = warpsmith.judge("softmax", "my_solution/")
    faster = warpsmith.optimize(module, inputs).module
"""

from importlib import import_module as _import_module
from importlib import metadata as _metadata
from types import ModuleType as _ModuleType

from . import inspect_ai, trl, verifiers
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


def __getattr__(name: str) -> _ModuleType:
    # Only where it is used: `python -m warpsmith.verl` would else find it imported already, and say so.
    if name == "verl":
        return _import_module(".verl", __name__)
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")


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
