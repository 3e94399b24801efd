"""A whole episode by OpenEnv's own client: `openenv_client.py URL FOLDER`, the folder being a solution of `softmax`."""

import json
import pathlib
import sys

from openenv.core.generic_client import GenericEnvClient


def refused(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it was not refused")


def main(url, folder):
    files = {"model_new.py": (folder / "model_new.py").read_text()}
    for path in sorted((folder / "kernels").glob("*.cpp")):
        files[f"kernels/{path.name}"] = path.read_text()
    seen = {}
    # A first judgement may make a Python environment and measure baselines.
    with GenericEnvClient(base_url=url, message_timeout_s=1200).sync() as env:
        seen["too_early"] = refused(lambda: env.step({"files": files}))
        begun = env.reset(task="softmax", episode_id="mine")
        seen["begun"] = {"task": begun.observation["task"]["name"], "reward": begun.reward, "done": begun.done}
        broken = env.step({"files": {"model_new.py": "x ="}})
        seen["broken"] = {"status": broken.observation["verdict"]["status"], "reward": broken.reward, "done": broken.done}
        seen["outside"] = refused(lambda: env.step({"files": {"../x": ""}}))
        good = env.step({"files": files, "done": True})
        seen["good"] = {"status": good.observation["verdict"]["status"], "done": good.done, "paid": good.reward >= 1}
        seen["state"] = env.state()
        seen["too_late"] = refused(lambda: env.step({"files": files}))
        seen["no_task"] = refused(lambda: env.reset(task="no such task"))
    print(json.dumps(seen))


main(sys.argv[1], pathlib.Path(sys.argv[2]))
