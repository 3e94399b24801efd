"""Why there is no answer. None of these is a verdict, and none a reward.

`TaskError` and `UsageError` are for the caller to mend; `InfrastructureError` says nothing about the solution: try again, here
or elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .schema import Failure


class WarpsmithError(Exception):
    """A failure with what to do about it: `code` is a stable word, `hint` the next step."""

    code = "failed"

    def __init__(self, message: str, hint: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Others are made of other arguments than those that `Exception` keeps.
        return _remade, (type(self), self.__dict__)


def _remade(kind: type[WarpsmithError], state: dict[str, Any]) -> WarpsmithError:
    error = kind.__new__(kind, state["message"])
    error.__dict__.update(state)
    return error


class TaskError(WarpsmithError):
    """The task cannot be judged: it is broken, random or constant."""

    code = "not_a_task"


class UsageError(WarpsmithError):
    """What was asked cannot be: mend the call."""

    code = "usage"


class SolutionError(UsageError):
    """What was given as a solution is none: not a path, not a module, no code."""

    code = "no_solution"


class UnknownTaskError(UsageError):
    """There is no such task."""

    code = "no_task"


class InfrastructureError(WarpsmithError):
    """This machine or this program failed. It says nothing about the solution."""

    code = "infrastructure"


class CommandNotFoundError(InfrastructureError):
    """The `warpsmith` command is not where this package looks."""

    code = "no_command"


class ServerError(InfrastructureError):
    """The judge's server is gone, cannot be reached, or does not answer as it should."""

    code = "server"


class QueueFullError(InfrastructureError):
    """The server had no place for as long as was waited."""

    code = "queue_full"


class JudgeTimeoutError(InfrastructureError):
    """There was no verdict within the time given."""

    code = "timeout"


class CancelledError(InfrastructureError):
    """The submission was taken back before a judge began with it."""

    code = "cancelled"


_BY_CODE: dict[str, type[WarpsmithError]] = {
    "queue_full": QueueFullError,
    "too_often": QueueFullError,
    "no_solution": SolutionError,
    "bad_solution": SolutionError,
    "no_task": UnknownTaskError,
    "unknown_task": UnknownTaskError,
    "no_example": UnknownTaskError,
    "cancelled": CancelledError,
}
_BY_KIND: dict[str, type[WarpsmithError]] = {"task": TaskError, "config": UsageError, "infrastructure": InfrastructureError}


def of_failure(failure: Failure) -> WarpsmithError:
    """The exception for what the command or its server calls a failure."""
    kind = _BY_CODE.get(failure.code) or _BY_KIND.get(failure.kind, InfrastructureError)
    hint = failure.hint or ("mend what it names, and ask again" if kind in (TaskError, UsageError) else None)
    return kind(failure.message, hint, failure.code)


def of_answer(status: int, answer: Mapping[str, Any]) -> WarpsmithError:
    """The exception for an answer of the server that is no result."""
    if isinstance(answer.get("failure"), Mapping):
        return of_failure(Failure.from_json(answer["failure"]))
    found = answer.get("error")
    message = found.get("message") if isinstance(found, Mapping) else None
    if status == 413:
        return UsageError("the request is larger than a server takes", "a task and its solution have at most 8 MiB together", "too_large")
    if status in (401, 403):
        return UsageError(message or "the server refuses the request", "give the server's token: `Judge(url=…, token=…)`", "token")
    return ServerError(f"the server answered {status}: {message or dict(answer)}", "is this address a `warpsmith serve` of this version?")
