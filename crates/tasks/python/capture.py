"""Captures what modules compute as operator graphs, one after another.

Each line on stdin is a request: `{"model": TEXT, "smaller": TEXT or null}`, where `smaller` is the module with smaller constants.
Each gets one line on stdout: `{"graph": ...}`, `{"failed": {"stage", "message", "operator", "line"}}`, or `{"error": TEXT}` where
nothing is known about the module, as when memory runs out.

`torch.export` traces the module under fake tensors (`tracer.py`). Its ATen graph is then written in PyTorch's functional names with
every default filled in (`translate.py`). Before anyone relies on a graph, it is interpreted by functional forms alone
(`functional.py`) and compared with the module on real inputs (`compare.py`).

Tasks are trusted: this process runs the task's own code. What a task leaves behind must still not change the next one's graph:
settings are reset, and a process whose PyTorch a task has altered ends after its answer.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import threading
import warnings

import torch
import torch._dynamo

from compare import captured_and_compared
from functional import CaptureError

# Imports what `torch.export` imports when it is first used.
FIRST = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.rand(2)]
"""


class Settings:
    """Of the process and of PyTorch, as they were before any task."""

    def __init__(self) -> None:
        self.threads, self.folder = torch.get_num_threads(), os.getcwd()
        self.variables, self.path, self.arguments = dict(os.environ), list(sys.path), list(sys.argv)
        self.spaces = {space: dict(vars(space)) for space in patchable()}

    def reset(self) -> None:
        sys.modules.pop("model", None)
        sys.path[:], sys.argv[:] = self.path, self.arguments
        os.chdir(self.folder)
        if dict(os.environ) != self.variables:
            os.environ.clear()
            os.environ.update(self.variables)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        warnings.resetwarnings()
        warnings.filterwarnings("ignore")
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
        torch.set_num_threads(self.threads)
        torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(False)
        torch.set_flush_denormal(False)
        torch.set_autocast_enabled("cpu", False)
        torch.compiler.reset()
        torch._subclasses.FakeTensorMode.cache_clear()
        torch.manual_seed(0)
        random.seed(0)
        gc.collect()

    def altered(self) -> bool:
        """Whether something is left that `reset` does not undo."""
        modes = torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()
        closed = sys.__stdout__.closed or sys.__stderr__.closed
        patched = any(differs(vars(space), before) for space, before in self.spaces.items())
        return modes > 0 or closed or patched or threading.active_count() > 1


def patchable() -> list:
    """Where assignments to PyTorch's own names would change other modules."""
    spaces = [torch, torch.nn, torch.nn.functional, torch.nn.init, torch.special, torch.linalg, torch.Tensor]
    return spaces + [one for one in vars(torch.nn).values() if isinstance(one, type)]


def differs(now, before: dict) -> bool:
    # Names that only appear are modules that were imported later, or caches.
    return any(now.get(name) is not value for name, value in before.items())


def answered(request: dict) -> dict:
    try:
        return {"graph": captured_and_compared(request["model"], request["smaller"])}
    except CaptureError as error:
        return {"failed": error.reply}
    # A module may call `sys.exit`.
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}"[:600]}


def main() -> None:
    # Requests and answers have descriptors of their own. What tasks and libraries print goes to stderr, and they read nothing.
    requests, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    answered({"model": FIRST, "smaller": None})
    settings = Settings()
    # PyTorch's own objects are never garbage: without them a collection takes milliseconds, and one after each task is enough.
    gc.collect()
    gc.freeze()
    gc.disable()
    settings.reset()
    for line in requests:
        answers.write(json.dumps(answered(json.loads(line))) + "\n")
        answers.flush()
        settings.reset()
        if settings.altered():
            break


if __name__ == "__main__":
    main()
