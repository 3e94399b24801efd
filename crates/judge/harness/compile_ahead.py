"""Compiles a reference with `torch.compile` so that the compiler's cache knows it when the baseline process asks.

Importing the compiler and a first compilation take longer than all the rest of judging a new task. This process does both
beside the candidate's build and its checks; nothing is timed here, and whatever fails here fails again, and is told, there.
"""

from __future__ import annotations

import gc
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # an isolated interpreter does not look beside its script

import torch  # noqa: E402
import torch._inductor.compile_fx  # noqa: E402

import task  # noqa: E402
import vector_isas  # noqa: E402
from channel import Channel  # noqa: E402


def compile_once(source: str, target: str, mode: str, tf32: bool) -> None:
    module = task.execute(source)
    # Built as the baseline process builds it, else the cache would not know it again.
    model = module.Model(*task.init_inputs(module)).eval().to(target)
    arguments = task.inputs(module, 0, target, 0)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    compiled = torch.compile(model, mode=mode, dynamic=False)
    with torch.no_grad():
        compiled(*arguments)
    if target == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    vector_isas.load_without_import()
    channel = Channel(3)
    channel.recv()
    channel.send({"ok": {"protocol": 1}})
    while True:
        try:
            request, _ = channel.recv()
        except EOFError:
            return
        try:
            torch._dynamo.reset()
            compile_once(request["source"], request["target"], request["mode"], request["tf32"])
            reply = {"ok": {}}
        except Exception as error:
            reply = {"error": {"kind": "harness", "code": type(error).__name__, "message": str(error)[:2000]}}
        gc.collect()
        if torch.cuda.is_initialized():  # the device is somebody else's now
            torch.cuda.empty_cache()
        channel.send(reply)


if __name__ == "__main__":
    main()
