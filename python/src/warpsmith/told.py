"""A verdict for a model that may try again."""

from __future__ import annotations

from .schema import Verdict


def told(verdict: Verdict) -> str:
    """A few lines."""
    lines = [verdict.status + (f" ({verdict.rule})" if verdict.rule else "")]
    if verdict.reason:
        lines.append(verdict.reason[:4000])
    if verdict.matched_precision is not None:
        over = verdict.matched_precision.speedup
        lines.append(f"{over.eager:.2f}x over eager" + (f", {over.compile:.2f}x over torch.compile" if over.compile is not None else ""))
    return "\n".join(lines)
