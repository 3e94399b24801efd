"""Solutions in, verdicts out."""

from __future__ import annotations

import asyncio
import atexit
import os
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, overload

from .errors import InfrastructureError, JudgeTimeoutError, QueueFullError, ServerError, UsageError, WarpsmithError, of_answer, of_failure
from .progress import Bar
from .schema import Failure, Profile, Rules, Verdict
from .server import Connection, Server, Stop
from .sources import SolutionLike, TaskLike, solution_on_the_wire, task_on_the_wire

TargetChoice = Literal["auto", "cuda", "cpu"]
# A server holds an answer back as long as this; then it is asked again, so that no connection idles for longer.
HELD_SECONDS = 60
# What another try may well bring: the machine was busy, not the solution wrong.
PASSING = frozenset({"noisy_machine", "device_busy", "stale_baseline", "memory_shortage", "lease", "no_answer"})
# A server of our own that has closed its connections has ended by then.
END_SECONDS = 2.0


class Judge:
    """A warm judge, for use with `with` or until `close()`.

    Without `url` it starts `warpsmith serve` on a port of this machine, with a token of its own, and ends it. With `url` it asks
    a server that is there; what that server was started with counts.

    `timeout` is how long one judgement may take, waiting for a place included, before `JudgeTimeoutError` or `QueueFullError`.
    `retries` is how often a failure that may pass (a noisy machine, a busy device, a lost connection) is tried again.
    """

    def __init__(
        self,
        target: TargetChoice = "auto",
        profile: Profile = "rl",
        *,
        rules: Rules = "own",
        device: int = 0,
        judges: int | None = None,
        compile_baseline: bool = True,
        python: str | os.PathLike[str] | None = None,
        tasks: str | os.PathLike[str] | None = None,
        url: str | None = None,
        token: str | None = None,
        timeout: float = 1800.0,
        retries: int = 2,
    ) -> None:
        self.timeout, self.retries = timeout, retries
        self._server: Server | None = None
        self._closed = False
        # By process: threads are not there after a fork.
        self._executors: dict[int, ThreadPoolExecutor] = {}
        if url is not None:
            if (target, profile, rules, device, judges, compile_baseline, python, tasks) != ("auto", "rl", "own", 0, None, True, None, None):
                raise UsageError(f"the server at {url} judges as it was started", "leave out everything but `url`, `token`, `timeout` and `retries`")
            self._connection = Connection(url, token if token is not None else os.environ.get("WARPSMITH_TOKEN"))
            self._connection.get("/v1/jobs?limit=1")
            self._target = self._connection.target()
            return
        if token is not None:
            raise UsageError("a server of our own makes its token itself", "give `token` together with `url`")
        arguments = ["--client-tasks", "--target", target, "--profile", profile, "--rules", rules, "--device", str(device)]
        arguments += [] if judges is None else ["--judges", str(judges)]
        arguments += [] if compile_baseline else ["--no-compile"]
        arguments += [] if python is None else ["--python", os.fspath(python)]
        arguments += [] if tasks is None else ["--tasks", os.fspath(tasks)]
        self._server = Server(arguments)
        self._connection = self._server.connection
        self._target = self._connection.target()
        # Where nobody closes it.
        self._end = weakref.finalize(self, Server.close, self._server)

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._connection.url

    @property
    def token(self) -> str | None:
        """What it wants to be shown."""
        return self._connection.token

    def judge(self, task: TaskLike, solution: SolutionLike, *, timeout: float | None = None) -> Verdict:
        """One verdict. Whatever else happens raises, and is no reward."""
        request = {"task": task_on_the_wire(task), **solution_on_the_wire(solution, self._target)}
        return self._judged(request, timeout, Stop())

    async def judge_async(self, task: TaskLike, solution: SolutionLike, *, timeout: float | None = None) -> Verdict:
        """The same for a program with an event loop. If it is cancelled, a submission that still waits is taken back."""
        request = {"task": task_on_the_wire(task), **solution_on_the_wire(solution, self._target)}
        stop = Stop()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor(256), self._judged, request, timeout, stop)
        except asyncio.CancelledError:
            stop.set()
            raise

    @overload
    def judge_many(
        self,
        submissions: Iterable[tuple[TaskLike, SolutionLike]],
        *,
        concurrency: int = ...,
        progress: bool | None = ...,
        timeout: float | None = ...,
        return_exceptions: Literal[False] = ...,
    ) -> Iterator[Verdict]: ...

    @overload
    def judge_many(
        self,
        submissions: Iterable[tuple[TaskLike, SolutionLike]],
        *,
        concurrency: int = ...,
        progress: bool | None = ...,
        timeout: float | None = ...,
        return_exceptions: Literal[True],
    ) -> Iterator[Verdict | WarpsmithError]: ...

    def judge_many(
        self,
        submissions: Iterable[tuple[TaskLike, SolutionLike]],
        *,
        concurrency: int = 64,
        progress: bool | None = None,
        timeout: float | None = None,
        return_exceptions: bool = False,
    ) -> Iterator[Verdict | WarpsmithError]:
        """Verdicts in the order of the submissions, which are pairs of task and solution.

        At most `concurrency` are under way; further ones are drawn as results are taken. `progress` shows a bar on stderr: by
        default where that is a terminal. An error ends it, unless `return_exceptions` puts it in its place.
        """
        if concurrency < 1:
            raise UsageError("`concurrency` is at least 1", "leave it out for 64")
        total = len(submissions) if isinstance(submissions, Sized) else None
        return self._many(iter(submissions), total, concurrency, progress, timeout, return_exceptions)

    def _many(
        self,
        submissions: Iterator[tuple[TaskLike, SolutionLike]],
        total: int | None,
        concurrency: int,
        progress: bool | None,
        timeout: float | None,
        return_exceptions: bool,
    ) -> Iterator[Verdict | WarpsmithError]:
        bar, lock, stop = Bar(total, progress), threading.Lock(), Stop()

        def one(task: TaskLike, solution: SolutionLike) -> Verdict:
            passed = None
            try:
                request = {"task": task_on_the_wire(task), **solution_on_the_wire(solution, self._target)}
                verdict = self._judged(request, timeout, stop)
                passed = verdict.passed
                return verdict
            finally:
                with lock:
                    bar.add(passed)

        pending: deque[Future[Verdict]] = deque()
        pool = ThreadPoolExecutor(concurrency, thread_name_prefix="warpsmith")
        try:
            more = True
            while more or pending:
                # As many again wait behind a slow one, so that the judges have something to do.
                while more and len(pending) < 2 * concurrency:
                    try:
                        pair = next(submissions)
                    except StopIteration:
                        more = False
                        break
                    if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                        raise UsageError(f"a {type(pair).__name__} is no submission", "give pairs of a task and a solution")
                    task, solution = pair
                    pending.append(pool.submit(one, task, solution))
                if not pending:
                    break
                try:
                    yield pending.popleft().result()
                except WarpsmithError as error:
                    if not return_exceptions:
                        raise
                    yield error
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
            bar.end()

    def _executor(self, threads: int) -> ThreadPoolExecutor:
        found = self._executors.get(os.getpid())
        # One that loses a race has no threads yet.
        return found or self._executors.setdefault(os.getpid(), ThreadPoolExecutor(threads, thread_name_prefix="warpsmith"))

    def _judged(self, request: dict[str, Any], timeout: float | None, stop: Stop) -> Verdict:
        limit = self.timeout if timeout is None else timeout
        if not 0 <= limit < float("inf"):
            raise UsageError(f"`timeout` is {limit}", "give seconds from 0 on; leave it out for half an hour")
        until = time.monotonic() + limit
        tries = 0
        while True:
            try:
                job = self._over(request, until, stop)
                if job["status"] == "judged":
                    return Verdict.from_json(job["verdict"])
                failure = job.get("failure") or {"kind": "infrastructure", "code": "cancelled", "message": "the submission was taken back", "hint": "send it again"}
                error = of_failure(Failure.from_json(failure))
            except ServerError as lost:
                error = lost
            if error.code not in PASSING or tries >= self.retries:
                raise error
            tries += 1
            self._pause(until, 5.0 * tries, stop, error)

    def _over(self, request: dict[str, Any], until: float, stop: Stop) -> dict[str, Any]:
        """The job of a submission, once it is over."""
        id = None
        while True:
            left = until - time.monotonic()
            wait = max(0, min(HELD_SECONDS, int(left)))
            if id is not None and (left <= 0 or stop.is_set()):
                self._take_back(id)
                raise JudgeTimeoutError("there was no verdict in time", "give a longer `timeout`, or more `judges`")
            try:
                if id is None:
                    status, answer, again = self._ask("POST", f"/v1/judge?wait={wait}", request, wait, stop)
                else:
                    status, answer, again = self._ask("GET", f"/v1/jobs/{id}?wait={wait}", None, wait, stop)
            except BaseException as error:
                # Broken off by us or by Ctrl-C; one whose id is not known yet is taken back by the server itself.
                if id is not None and (stop.is_set() or not isinstance(error, Exception)):
                    self._take_back(id)
                raise
            if status in (200, 202):
                id = answer["id"]
                if answer["status"] in ("judged", "failed", "cancelled"):
                    return answer
            elif status in (429, 503):
                # Not at once and all together again.
                self._pause(until, (again or 5.0) * random.uniform(0.5, 1.0), stop, of_answer(status, answer))
            else:
                raise of_answer(status, answer)

    def _ask(self, method: str, path: str, body: Any, wait: float, stop: Stop) -> tuple[int, dict[str, Any], float | None]:
        if self._closed:
            raise UsageError("this judge is closed", "judge inside its `with` block")
        try:
            return self._connection.ask(method, path, body, wait, stop)
        except ServerError as error:
            ended = self._server.ended(END_SECONDS) if self._server and not stop.is_set() else None
            if ended is None:
                raise
            raise ServerError(ended, "start another `Judge`; `warpsmith doctor` says what is missing") from error

    @staticmethod
    def _pause(until: float, seconds: float, stop: Stop, error: WarpsmithError) -> None:
        if time.monotonic() + seconds >= until or stop.wait(seconds):
            if isinstance(error, (QueueFullError, InfrastructureError)):
                raise error
            raise QueueFullError(error.message, error.hint)

    def _take_back(self, id: str) -> None:
        try:
            self._connection.ask("DELETE", f"/v1/jobs/{id}")
        except ServerError:
            pass

    def close(self) -> None:
        """Ends the server, if it is our own."""
        self._closed = True
        if executor := self._executors.get(os.getpid()):
            executor.shutdown(wait=False, cancel_futures=True)
        if self._server is not None:
            self._end()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_warm: dict[tuple[Any, ...], Judge] = {}
_warm_lock = threading.Lock()


def judge(task: TaskLike, solution: SolutionLike, target: TargetChoice = "auto", profile: Profile = "rl", **options: Any) -> Verdict:
    """One verdict, by a judge that stays warm for the next call with the same settings and ends with this program.

    `options` are those of `Judge`. Many solutions at a time are for `Judge.judge_many`.
    """
    return warm(target, profile, **options).judge(task, solution)


def warm(target: TargetChoice = "auto", profile: Profile = "rl", **options: Any) -> Judge:
    """The judge of these settings that this process keeps."""
    key = (os.getpid(), target, profile, *sorted(options.items()))
    with _warm_lock:
        found = _warm.get(key)
        if found is not None and found._server is not None and found._server.ended() is not None:
            found.close()
            found = None
        if found is None:
            found = _warm[key] = Judge(target, profile, **options)
        return found


@atexit.register
def _close_all() -> None:
    for one in _warm.values():
        one.close()


def _unlock() -> None:
    """In a forked child, whose parent had another thread that held it."""
    global _warm_lock
    _warm_lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)
