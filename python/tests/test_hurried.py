"""What happens around a training run: servers die, programs are interrupted, forked and cancelled, models do not come to an end."""

import asyncio
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import warpsmith

from .cases import FILES, TASK, judge

NOTHING = warpsmith.Reply("I would fuse both loops.")


def fresh(number):
    """A solution that is compiled and judged anew."""
    return {**FILES, "kernels/twice_relu.cpp": f"// {number}\n{FILES['kernels/twice_relu.cpp']}"}


def waiting():
    """How many submissions have not been begun with."""
    return judge()._connection.get("/v1/jobs?limit=1")["waiting"]


def soon(what, seconds=10.0):
    until = time.monotonic() + seconds
    while not what() and time.monotonic() < until:
        time.sleep(0.05)
    return what()


class Hurried(unittest.TestCase):
    def test_a_server_that_dies_with_many_in_flight(self):
        with warpsmith.Judge(target="cpu", profile="verify") as one:
            one.judge(TASK, NOTHING)
            threading.Timer(1.0, one._server.process.kill).start()
            found = list(one.judge_many([(TASK, fresh(number)) for number in range(200)], concurrency=100, progress=False, return_exceptions=True))
        lost = [one for one in found if not isinstance(one, warpsmith.Verdict)]
        self.assertGreater(len(lost), 100)
        self.assertEqual({(type(one), "killed by signal 9" in str(one), bool(one.hint)) for one in lost}, {(warpsmith.ServerError, True, True)})

    def test_a_server_that_comes_back_is_asked_again(self):
        """A connection that is lost says nothing about the solution."""
        with warpsmith.Judge(url=judge().url, token=judge().token) as one:
            real, lost = one._connection._open, []

            def refused():
                lost.append(True)
                raise ConnectionRefusedError("refused")

            def opened():
                found = real()
                if not lost:
                    found.connect = refused
                return found

            one._connection.forget()
            one._connection._open = opened
            self.assertTrue(one.judge(TASK, FILES).passed)
            self.assertTrue(lost)

    def test_a_failure_in_an_environment_is_no_reward(self):
        """Trainers make a text for the model of what a tool raises."""
        made = warpsmith.trl.environment(judge=judge())()
        made.reset(task="no such task")
        with self.assertRaises(warpsmith.UnknownTaskError):
            made.submit("nothing")
        with self.assertRaises(warpsmith.UnknownTaskError):
            warpsmith.trl.environment_reward([made])
        made.reset(task=TASK)
        self.assertIn("rejected (form)", made.submit("nothing"))
        self.assertEqual(warpsmith.trl.environment_reward([made]), [-1.0])

    def test_an_interrupted_call_leaves_nothing_behind(self):
        with warpsmith.Judge(url=judge().url, token=judge().token, retries=0) as one:
            with mock.patch.object(http.client.HTTPConnection, "getresponse", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
                one.judge(TASK, fresh(3000))
            self.assertEqual(one.judge(TASK, NOTHING).rule, "form")

    def test_an_interrupt_ends_it_at_once(self):
        program = (
            "import sys, warpsmith\nfrom tests.test_hurried import TASK, fresh\n"
            "with warpsmith.Judge(url=sys.argv[1], token=sys.argv[2]) as one:\n"
            "    print('begun', flush=True)\n"
            "    list(one.judge_many([(TASK, fresh(1000 + number)) for number in range(200)], concurrency=50, progress=False))\n"
        )
        with subprocess.Popen([sys.executable, "-c", program, judge().url, judge().token], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            self.assertEqual(run.stdout.readline(), "begun\n")
            self.assertTrue(soon(lambda: waiting() >= 40))
            begun = time.monotonic()
            run.send_signal(signal.SIGINT)
            _, told = run.communicate(timeout=60)
        self.assertLess(time.monotonic() - begun, 5.0)
        self.assertIn("KeyboardInterrupt", told)
        # What no judge had begun with is not judged in vain.
        self.assertTrue(soon(lambda: waiting() == 0), waiting())

    def test_what_is_cancelled_is_taken_back(self):
        async def cancelled():
            many = [asyncio.ensure_future(judge().judge_async(TASK, fresh(2000 + number))) for number in range(50)]
            while await asyncio.to_thread(waiting) < 40:
                await asyncio.sleep(0.05)
            for one in many:
                one.cancel()
            return await asyncio.gather(*many, return_exceptions=True)

        found = asyncio.run(cancelled())
        self.assertGreater(sum(isinstance(one, asyncio.CancelledError) for one in found), 40)
        self.assertTrue(soon(lambda: waiting() == 0), waiting())

    def test_a_forked_child_judges_too(self):
        """Threads, locks and connections of the parent are not the child's."""
        asyncio.run(judge().judge_async(TASK, NOTHING))
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            same = judge().judge(TASK, FILES).passed and asyncio.run(judge().judge_async(TASK, NOTHING)).rule == "form"
            os._exit(0 if same else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue(judge().judge(TASK, FILES).passed)

    def test_a_child_that_lives_longer_keeps_no_server(self):
        program = (
            "import os, time, warpsmith\none = warpsmith.Judge(target='cpu', profile='verify')\n"
            "child = os.fork()\nif child == 0: time.sleep(600)\nprint(one._server.process.pid, child, flush=True)\ntime.sleep(600)"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as run:
            server, child = map(int, run.stdout.readline().split())
            run.kill()
        try:
            self.assertTrue(soon(lambda: not os.path.exists(f"/proc/{server}") or "\nState:\tZ" in open(f"/proc/{server}/status").read(), 20.0))
        finally:
            os.kill(child, signal.SIGKILL)

    def test_a_reply_without_an_end_is_a_verdict(self):
        for text in ("x" * (10 << 20), "é\n" * (3 << 20), "\0" * (10 << 20), "\ud800" * (2 << 20)):
            verdict = judge().judge(TASK, warpsmith.Reply(text))
            self.assertEqual((verdict.status, verdict.rule, verdict.reward.robust), ("rejected", "form", -1.0))
            self.assertIn("longer than", verdict.reason)


if __name__ == "__main__":
    unittest.main()
