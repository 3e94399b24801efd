"""What other trainers send, as their clients send it, to the real server."""

import importlib.util
import inspect
import subprocess
import sys
import threading
import time
import unittest

import warpsmith
from warpsmith import verl

from .cases import FILES, TASK, WRONG, judge, reply

GOOD, BAD, NOTHING = reply(FILES), reply(WRONG), "I would fuse both loops."
# On a CPU it is refused by name.
TRITON = """import torch
import triton
import triton.language as tl


class NetNew(torch.nn.Module):
    def forward(self, x):
        return x
"""


def ask(method, path, body=None):
    return judge()._connection.ask(method, path, body, 600)[:2]


class Wire(unittest.TestCase):
    def test_slime_gets_a_number(self):
        status, _, text = raw("/slime", {"prompt": "…", "response": GOOD, "label": TASK})
        self.assertEqual((status, float(text)), (200, 1.0))
        self.assertEqual(float(raw("/slime?reward=ladder", {"prompt": "…", "response": NOTHING, "label": TASK})[2]), -1.0)
        status, answer = ask("POST", "/slime", {"response": GOOD, "label": "no such task"})
        self.assertEqual((status, answer["failure"]["code"]), (404, "unknown_task"))
        status, answer = ask("POST", "/slime?reward=most", {"response": GOOD, "label": TASK})
        self.assertEqual((status, answer["failure"]["kind"]), (400, "config"))

    def test_a_task_that_cannot_be_judged_is_no_number(self):
        random = TASK.replace("torch.relu(x) * 2.0", "torch.rand_like(x)")
        status, answer = ask("POST", "/slime", {"response": GOOD, "label": random})
        self.assertEqual((status, answer["failure"]["code"]), (422, "random"))
        status, answer = ask("POST", "/openrlhf", {"query": [GOOD, GOOD], "prompts": ["", ""], "labels": [TASK, random]})
        self.assertEqual((status, answer["failure"]["kind"]), (422, "task"))

    def test_openrlhf_gets_a_batch(self):
        prompts = ["Q1: ", "Q2: ", "Q3: "]
        query = [prompt + text for prompt, text in zip(prompts, [GOOD, BAD, NOTHING], strict=True)]
        for path in ("/openrlhf", "/get_reward"):
            status, answer = ask("POST", path, {"query": query, "prompts": prompts, "labels": [TASK] * 3})
            self.assertEqual(status, 200, answer)
            self.assertEqual((answer["rewards"], answer["scores"]), ([1.0, -1.0, -1.0], [1.0, 0.0, 0.0]))
            self.assertEqual(answer["extra_logs"]["compiled"], [1.0, 1.0, 0.0])
        self.assertEqual(ask("POST", "/openrlhf", {"query": query, "prompts": prompts, "labels": [TASK]})[0], 400)

    def test_nemo_gym_verifies_a_response(self):
        self.assertEqual(ask("POST", "/seed_session", {}), (200, {}))
        message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": GOOD, "annotations": []}]}
        request = {
            "responses_create_params": {"input": [{"role": "user", "content": "…"}]},
            "response": {"id": "r", "object": "response", "output": [message]},
            "verifier_metadata": {"task": TASK},
        }
        status, answer = ask("POST", "/verify", request)
        self.assertEqual((status, answer["reward"], answer["mask_sample"]), (200, 1.0, False), answer)
        self.assertEqual(answer["verdict"]["status"], "passed")
        self.assertEqual({name: answer[name] for name in request}, request)
        status, answer = ask("POST", "/verify", {**request, "verifier_metadata": {}})
        self.assertEqual((status, answer["failure"]["kind"]), (400, "config"))

    def test_kernelgym_hands_in_looks_and_fetches(self):
        reference = TASK.replace("class Model(", "class Net(")
        asked = {"task_id": "rl_1", "reference_code": reference, "kernel_code": TRITON, "backend": "triton", "entry_point": "Net", "timeout": 300}
        status, answer = ask("POST", "/evaluate", asked)
        self.assertEqual((status, answer["task_id"]), (200, "rl_1"), answer)
        until = time.monotonic() + 600
        while ask("GET", "/status/rl_1")[1]["status"] != "completed":
            self.assertLess(time.monotonic(), until)
            time.sleep(0.2)
        status, answer = ask("GET", "/results/rl_1")
        self.assertEqual(status, 200)
        self.assertEqual(
            {name: answer[name] for name in ("status", "compiled", "correctness", "decoy_kernel", "speedup", "error_code")},
            {"status": "completed", "compiled": False, "correctness": False, "decoy_kernel": False, "speedup": 0.0, "error_code": "rejected"},
            answer,
        )
        self.assertIn("reference_runtime", answer)
        self.assertIn("kernel_runtime", answer)
        self.assertEqual(ask("GET", "/status/other")[0], 404)
        self.assertEqual(ask("POST", "/evaluate", {**asked, "entry_point": "x; y"})[0], 400)

    def test_verls_file_scores_one_reply(self):
        options = {"url": judge().url, "token": judge().token}
        found = verl.compute_score("kernels", GOOD, TASK, {"index": 3}, **options)
        self.assertEqual(found, {"score": 1.0, "compiled": True, "passed": True, "status": "passed"})
        self.assertEqual(verl.compute_score("kernels", BAD, TASK, reward="ladder", **options)["status"], "mismatch")
        # A reward model that is served beside it is not for this.
        beside = {"reward_router_address": "127.0.0.1:1", "reward_model_tokenizer": None}
        self.assertEqual(verl.compute_score("kernels", GOOD, TASK, **beside, **options)["score"], 1.0)
        with self.assertRaises(warpsmith.UnknownTaskError):
            verl.compute_score("kernels", GOOD, "no such task", **options)

    def test_verl_loads_it_as_a_file(self):
        done = subprocess.run([sys.executable, "-m", "warpsmith.verl"], capture_output=True, text=True, check=True)
        self.assertEqual(done.stderr, "")
        spec = importlib.util.spec_from_file_location("custom_module", done.stdout.strip())
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.assertEqual(list(inspect.signature(module.compute_score).parameters)[:4], ["data_source", "solution_str", "ground_truth", "extra_info"])

    def test_more_requests_than_there_are_places_are_held(self):
        """The queue takes 256; those that come later wait for a place instead of being sent away."""
        found = []

        def one():
            found.append(raw("/slime", {"response": NOTHING, "label": TASK})[0])

        threads = [threading.Thread(target=one) for _ in range(320)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, [200] * 320)


def raw(path, body):
    """An answer that is no object."""
    import http.client
    import json
    import urllib.parse

    place = urllib.parse.urlsplit(judge().url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=600)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", "Authorization": f"Bearer {judge().token}"})
    answer = connection.getresponse()
    found = answer.status, answer.getheaders(), answer.read()
    connection.close()
    return found


if __name__ == "__main__":
    unittest.main()
