"""Real judgements, by a server of the installed command."""

import asyncio
import contextlib
import http.server
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import warpsmith
from warpsmith.progress import Bar

from .cases import FILES, TASK, WRONG, judge, reply


class Judging(unittest.TestCase):
    def test_verdicts(self):
        passed = judge().judge(TASK, FILES)
        self.assertTrue(passed.passed, passed.reason)
        self.assertEqual((passed.target, passed.profile, passed.correct), ("cpu", "verify", True))
        wrong = judge().judge(TASK, WRONG)
        self.assertEqual((wrong.status, wrong.reward.robust), ("mismatch", -1.0))
        broken = judge().judge(TASK, {**FILES, "kernels/twice_relu.cpp": "no C++"})
        self.assertEqual(broken.status, "compile_failed")

    def test_a_reply_is_read_by_the_server(self):
        self.assertTrue(judge().judge(TASK, warpsmith.Reply(reply(FILES))).passed)
        nothing = judge().judge(TASK, warpsmith.Reply("I would fuse both loops."))
        self.assertEqual((nothing.status, nothing.rule, nothing.reason), ("rejected", "form", "the reply has no fenced block"))
        self.assertEqual(nothing.reward.robust, -1.0)

    def test_many_in_order_with_a_bar(self):
        many = [(TASK, FILES), (TASK, WRONG)] * 4
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            found = list(judge().judge_many(many, concurrency=3, progress=True))
        self.assertEqual([one.passed for one in found], [True, False] * 4)
        self.assertRegex(told.getvalue(), r"judged 8/8, 4 passed")

    def test_a_notebook_shows_the_bar_too(self):
        told = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
        with contextlib.redirect_stderr(told):
            bar = Bar(30, None)
            for _ in range(30):
                bar.last -= 1.0
                bar.add(True)
            bar.end()
        lines, seen = told.getvalue().rstrip("\n").split("\r"), ""
        self.assertIn("judged 1/30, 1 passed", lines[1])
        for line in lines:
            # What it is drawn over stays beyond its end.
            seen = line + seen[len(line) :]
        self.assertRegex(seen, r"^\[#{20}\] judged 30/30, 30 passed, \d+ a minute *$")

    def test_one_that_cannot_be_judged_is_no_reward(self):
        many = [(TASK, FILES), ("no such task", FILES), (TASK, "nothing")]
        with self.assertRaises(warpsmith.UnknownTaskError):
            list(judge().judge_many(many, progress=False))
        found = list(judge().judge_many(many, progress=False, return_exceptions=True))
        self.assertEqual([type(one) for one in found], [warpsmith.Verdict, warpsmith.UnknownTaskError, warpsmith.SolutionError])

    def test_from_an_event_loop(self):
        async def both():
            return await asyncio.gather(judge().judge_async(TASK, FILES), judge().judge_async(TASK, WRONG))

        self.assertEqual([one.passed for one in asyncio.run(both())], [True, False])

    def test_a_broken_task_is_the_tasks_fault(self):
        random = TASK.replace("torch.relu(x) * 2.0", "torch.rand_like(x)")
        with self.assertRaises(warpsmith.TaskError) as raised:
            judge().judge(random, FILES)
        self.assertEqual(raised.exception.code, "random")
        self.assertTrue(raised.exception.hint)

    def test_another_process_may_use_it(self):
        with warpsmith.Judge(url=judge().url, token=judge().token) as other:
            self.assertTrue(other.judge(TASK, FILES).passed)
        # Closed is only the other end.
        self.assertTrue(judge().judge(TASK, FILES).passed)
        with self.assertRaises(warpsmith.UsageError) as raised:
            warpsmith.Judge(url=judge().url, token="wrong")
        self.assertEqual(raised.exception.code, "token")


class Failing(unittest.TestCase):
    """None of these is a verdict."""

    def test_a_server_that_is_not_there(self):
        with self.assertRaises(warpsmith.ServerError) as raised:
            warpsmith.Judge(url="http://127.0.0.1:9")
        self.assertIn("is the server running", raised.exception.hint)
        for wrong in ({"url": "not an address"}, {"url": "http://127.0.0.1:99999"}, {"url": "http://127.0.0.1:9", "token": "a\nb"}):
            with self.subTest(wrong), self.assertRaises(warpsmith.UsageError) as raised:
                warpsmith.Judge(**wrong)
            self.assertTrue(raised.exception.hint)

    def test_a_server_that_died(self):
        with warpsmith.Judge(target="cpu", profile="verify") as one:
            one._server.process.kill()
            one._server.process.wait()
            with self.assertRaises(warpsmith.ServerError) as raised:
                one.judge(TASK, FILES)
            self.assertIn("killed by signal 9", str(raised.exception))
        with self.assertRaises(warpsmith.UsageError):
            one.judge(TASK, FILES)

    def test_settings_that_cannot_be(self):
        with self.assertRaises(warpsmith.UsageError) as raised:
            warpsmith.Judge(target="cpu", profile="verify", tasks="no/such/folder")
        self.assertEqual(raised.exception.code, "no_task")
        with self.assertRaises(warpsmith.UsageError):
            warpsmith.Judge(url="http://127.0.0.1:9", profile="full")

    def test_calls_that_cannot_be(self):
        for wrong in (
            lambda: judge().judge(TASK, FILES, timeout=float("nan")),
            lambda: judge().judge(TASK, FILES, timeout=-1),
            lambda: list(judge().judge_many([TASK])),
            lambda: judge().judge(TASK, {**FILES, **{f"kernels/{number}.h": "x" * (2 << 20) for number in range(5)}}),
        ):
            with self.assertRaises(warpsmith.UsageError) as raised:
                wrong()
            self.assertTrue(raised.exception.hint)

    def test_a_full_queue_and_a_failure_that_passes(self):
        """By a server of our own, since the real queue takes 256 submissions to fill."""
        answers = [
            (429, {"format": 1, "failure": {"kind": "infrastructure", "code": "queue_full", "message": "full", "hint": "later"}}),
            (200, {"id": "1", "status": "failed", "failure": {"kind": "infrastructure", "code": "noisy_machine", "message": "noisy", "hint": "calm"}}),
        ]
        seen = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                seen.append(self.path)
                self.answer(*(answers[0] if full else answers[1]))

            def do_GET(self):
                self.answer(200, {})

            def answer(self, status, body):
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Retry-After", "1")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            full = True
            with warpsmith.Judge(url=url, timeout=3.0) as one, self.assertRaises(warpsmith.QueueFullError) as raised:
                one.judge(TASK, FILES)
            self.assertGreater(len(seen), 1, "it did not try again")
            self.assertEqual(raised.exception.hint, "later")
            full = False
            seen.clear()
            with warpsmith.Judge(url=url, timeout=60.0, retries=1) as one, self.assertRaises(warpsmith.InfrastructureError) as raised:
                one.judge(TASK, FILES)
            self.assertEqual((len(seen), raised.exception.code), (2, "noisy_machine"))
        finally:
            server.shutdown()

    def test_no_verdict_in_time(self):
        with self.assertRaises(warpsmith.JudgeTimeoutError):
            judge().judge(TASK, {**FILES, "kernels/other.cpp": "// new"}, timeout=0.0)

    def test_a_command_that_is_not_there(self):
        program = "import warpsmith\ntry: warpsmith.Judge()\nexcept warpsmith.CommandNotFoundError as error: print(error.code, bool(error.hint))"
        environment = {**os.environ, "WARPSMITH_COMMAND": "/no/such/program"}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.split(), ["no_command", "True"])

    def test_nothing_outlives_a_program_that_is_killed(self):
        program = "import warpsmith, time\nj = warpsmith.Judge(target='cpu', profile='verify')\nprint(j._server.process.pid, flush=True)\ntime.sleep(600)"
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as victim:
            server = int(victim.stdout.readline())
            os.kill(server, 0)
            victim.send_signal(signal.SIGKILL)
        until = time.monotonic() + 20
        while time.monotonic() < until and is_running(server):
            time.sleep(0.05)
        self.assertFalse(is_running(server))


def is_running(pid):
    """A process that has ended may not have been waited for yet, in a container whose first process waits for nobody."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    unittest.main()
