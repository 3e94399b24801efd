"""The taskset for verifiers 0.2 and later, run by the real package's own evaluation with a model that answers from a script."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import verifiers.v1 as vf
import warpsmith
from tests.cases import FILES, TASK, WRONG, judge, reply
from verifiers.v1.utils.loaders import load_taskset, taskset_config_type


def said(text, call=None):
    message = {"role": "assistant", "content": text}
    if call is not None:
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": {"name": "submit", "arguments": json.dumps({"reply": call})}}]
    return message


class Model:
    """An OpenAI endpoint. What it says depends on what it was asked before."""

    def __init__(self, answer):
        asked = self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append(body)
                message = answer(body["messages"])
                done = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
                usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
                calls = [{"index": 0, **call} for call in message.get("tool_calls", [])]
                delta = {"index": 0, "delta": {**message, **({"tool_calls": calls} if calls else {})}, "finish_reason": done["finish_reason"]}
                head = {"id": "1", "created": 0, "model": "script"}
                whole = {**head, "object": "chat.completion", "choices": [done], "usage": usage}
                pieces = [{**head, "object": "chat.completion.chunk", "choices": [delta]}, {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}]
                streams = body.get("stream")
                text = "".join(f"data: {json.dumps(one)}\n\n" for one in pieces) + "data: [DONE]\n\n" if streams else json.dumps(whole)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream" if streams else "application/json")
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}/v1"


def evaluated(answer, task=TASK, **settings):
    """The traces of one rollout by `vf-eval`, and what the model was asked."""
    model = Model(answer)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "task.py")
        source.write_text(task)
        flags = {"task.target": "cpu", "tasks": str(source), "task.server": judge().url} | settings
        asked = ["warpsmith-taskset", "-m", "script", "--client.base-url", model.url, "--client.api-key-var", "SCRIPT_KEY", "--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess"]
        asked += [word for name, value in flags.items() for word in (f"--env.taskset.{name}", value)]
        environment = {**os.environ, "WARPSMITH_TOKEN": judge().token, "SCRIPT_KEY": "none"}
        evaluation = [sys.executable, "-c", "from verifiers.v1.cli.eval.main import main; main()", *asked]
        done = subprocess.run([*evaluation, "--no-push", "-o", folder], env=environment, cwd=folder, capture_output=True, text=True, check=False)
        found = list(Path(folder).rglob("traces.jsonl"))
        assert found, done.stdout + done.stderr
        return [json.loads(line) for line in found[0].read_text().splitlines()], model.asked


def trace(found):
    """An evaluation's line is a trace, or an episode of one."""
    return found.get("traces", [found])[0]


class Taskset(unittest.TestCase):
    def test_a_reply_has_its_verdicts_reward(self):
        for solution, status, reward in ((reply(FILES), "passed", 1.0), (reply(WRONG), "mismatch", -1.0), ("nothing", "rejected", -1.0)):
            with self.subTest(status):
                (found,), asked = evaluated(lambda _, solution=solution: said(solution))
                self.assertEqual(trace(found)["rewards"]["warpsmith"]["score"], reward, found)
                self.assertEqual(trace(found)["info"]["warpsmith"]["status"], status)
                self.assertIn("class Model(nn.Module)", json.dumps(asked[0]["messages"]))

    def test_the_tool_says_the_verdict(self):
        def answer(messages):
            return said(reply(FILES)) if any(one["role"] == "tool" for one in messages) else said("", reply(WRONG))

        (found,), asked = evaluated(answer, **{"task.mode": "tools"})
        self.assertEqual(trace(found)["rewards"]["warpsmith"]["score"], 1.0, found)
        self.assertEqual([tool["function"]["name"] for tool in asked[0]["tools"]], ["submit"])
        told = [one for one in asked[-1]["messages"] if one["role"] == "tool"]
        self.assertIn("mismatch", json.dumps(told))

    def test_a_failure_is_an_error_and_no_reward(self):
        (found,), _ = evaluated(lambda _: said(reply(FILES)), TASK.replace("torch.relu(x) * 2.0", "torch.rand_like(x)"))
        self.assertFalse(trace(found)["ok"])
        self.assertIsNone(trace(found)["rewards"]["warpsmith"])
        self.assertIn("cannot be judged", json.dumps(trace(found)["errors"]))

    def test_prime_rl_loads_it_by_its_id(self):
        made = taskset_config_type("warpsmith-taskset").model_validate({"id": "warpsmith-taskset", "tasks": [TASK], "task": {"target": "cpu"}})
        (task,) = load_taskset(made)
        self.assertIsInstance(task, vf.Task)
        self.assertEqual(type(task.data).model_validate(task.data.model_dump()).source, TASK)

    def test_wrong_arguments_say_the_next_step(self):
        config = taskset_config_type("warpsmith-taskset")
        for tasks in ([], ["missing/"]):
            with self.assertRaises(warpsmith.UnknownTaskError) as raised:
                list(load_taskset(config(id="warpsmith-taskset", tasks=tasks)))
            self.assertTrue(raised.exception.hint)
        with self.assertRaisesRegex(warpsmith.UsageError, "warpsmith-taskset"):
            warpsmith.verifiers.load_environment([TASK])


if __name__ == "__main__":
    unittest.main()
