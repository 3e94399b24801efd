"""What trainers have in common: a task and a reply in, one number out, and an exception where there is none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from .errors import UsageError
from .judging import Judge, warm
from .schema import Verdict
from .sources import Reply

RewardKind = Literal["robust", "raw", "composite", "ladder"]
KINDS = ("robust", "raw", "composite", "ladder")
# Where a server is that all processes of a run share.
SERVER = "WARPSMITH_SERVER"


def judge_of(judge: Judge | None = None, **options: Any) -> Judge:
    """The judge that was given, else that of the server named by `$WARPSMITH_SERVER`, else one that this process keeps."""
    if judge is not None:
        if options:
            raise UsageError("a judge that is given has its settings", f"leave out {', '.join(options)}")
        return judge
    if (url := os.environ.get(SERVER)) and "url" not in options:
        return warm(url=url, **options)
    return warm(**options)


def reward_of(verdict: Verdict, kind: RewardKind = "robust") -> float:
    return float(getattr(verdict.reward, check(kind)))


def check(kind: str) -> str:
    if kind not in KINDS:
        raise UsageError(f"there is no reward `{kind}`", f"rewards are {', '.join(KINDS)}")
    return kind


def reply_of(completion: Any) -> Reply:
    """A reply as trainers have it: text, or messages of which the assistant's last counts."""
    if isinstance(completion, str):
        return Reply(completion)
    for message in reversed(list(completion)):
        role = message.get("role") if isinstance(message, Mapping) else getattr(message, "role", None)
        content = message.get("content") if isinstance(message, Mapping) else getattr(message, "content", None)
        if role in (None, "assistant"):
            if isinstance(content, str) or content is None:
                return Reply(content or "")
            parts = [one.get("text", "") if isinstance(one, Mapping) else getattr(one, "text", "") for one in content]
            return Reply("".join(part or "" for part in parts))
    return Reply("")
