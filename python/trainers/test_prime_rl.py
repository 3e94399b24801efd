"""What prime-rl does with the example: it reads it, serves its environment, and has an episode run there for each task."""

import asyncio
import importlib.util
import multiprocessing
import os
import tomllib
import unittest
from pathlib import Path
from unittest import mock

import verifiers.v1 as vf
from tests.cases import FILES, TASK, WRONG, judge, reply
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.serve import EnvClient, env_config_data, serve_env
from verifiers.v1.utils.loaders import resolve_env_config

from .test_taskset import Model, said

EXAMPLE = Path(__file__).parents[1] / "examples/prime_rl.toml"


def environment():
    """The example's, on this machine."""
    (source,) = tomllib.loads(EXAMPLE.read_text())["orchestrator"]["train"]["source"]
    taskset = source["env"]["taskset"]
    taskset |= {"tasks": [TASK], "task": taskset["task"] | {"server": judge().url, "target": "cpu"}}
    return resolve_env_config(source["env"])


async def episode(config, address, url):
    """As the orchestrator asks for it, which has the tasks and sends one along."""
    (task,) = vf.load_taskset(config.taskset)
    client = EnvClient(address=address)
    try:
        await client.wait_for_server_startup()
        asked = EvalClientConfig(base_url=url, api_key_var="SCRIPT_KEY")
        return await client.run(task_data=task.data.model_dump(mode="json"), client=asked, model="script", sampling=vf.SamplingConfig(temperature=1.0))
    finally:
        await client.close()


class PrimeRl(unittest.TestCase):
    def test_an_episode_of_its_environment_server(self):
        with mock.patch.dict(os.environ, {"WARPSMITH_TOKEN": judge().token, "SCRIPT_KEY": "none"}):
            config, spawn = environment(), multiprocessing.get_context("spawn")
            address = spawn.Queue()
            settings = {"max_workers": 1, "address": "tcp://127.0.0.1:0", "address_queue": address, "config_data": env_config_data(config)}
            server = spawn.Process(target=serve_env, kwargs=settings)
            server.start()
            try:
                # It imports torch and verifiers first, which takes minutes where others use the machine too.
                place = address.get(timeout=600)
                for files, status, reward in ((FILES, "passed", 1.0), (WRONG, "mismatch", -1.0)):
                    found = asyncio.run(episode(config, place, Model(lambda _, files=files: said(reply(files))).url))
                    self.assertTrue(found.ok, found)
                    (trace,) = found.traces
                    self.assertEqual((trace.reward, trace.info["warpsmith"]["status"]), (reward, status))
            finally:
                server.terminate()
                server.join()

    @unittest.skipUnless(importlib.util.find_spec("prime_rl"), "prime-rl's configs are not in this Python: PRIME_RL names a checkout")
    def test_its_own_settings_take_the_example(self):
        from prime_rl.configs.rl import RLConfig
        from prime_rl.utils.config import cli
        from warpsmith.taskset import KernelTasksetConfig

        read = cli(RLConfig, args=["@", str(EXAMPLE)])
        (source,) = read.orchestrator.train.source
        self.assertIsInstance(source.env.taskset, KernelTasksetConfig)
        self.assertEqual((source.group_size, source.env.taskset.task.server), (8, "http://127.0.0.1:8000"))


if __name__ == "__main__":
    unittest.main()
