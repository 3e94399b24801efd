"""A bar on stderr."""

from __future__ import annotations

import os
import sys
import time


class Bar:
    """How many of how many, how fast and how long still. Nothing is shown where stderr is no terminal, unless asked for."""

    def __init__(self, total: int | None, shown: bool | None, what: str = "judged") -> None:
        # A notebook's stderr is drawn over as a terminal is.
        is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" or type(sys.stderr).__module__.startswith("ipykernel.")
        self.shown = is_terminal if shown is None else shown
        # What is no terminal gets a line now and then.
        self.rewrites = is_terminal
        self.total, self.what = total, what
        self.done = self.passed = self.failed = 0
        self.begun = time.monotonic()
        self.last = -60.0
        self.width = 0

    def add(self, passed: bool | None) -> None:
        """One more: passed, not passed, or `None` for no answer."""
        self.done += 1
        self.passed += passed is True
        self.failed += passed is None
        self.draw()

    def draw(self, last: bool = False) -> None:
        now = time.monotonic()
        if not self.shown or (not last and now - self.last < (0.1 if self.rewrites else 10.0)):
            return
        self.last = now
        line = self.line(now - self.begun)
        ending = "" if self.rewrites and not last else "\n"
        print(("\r" + line.ljust(self.width) if self.rewrites else line), end=ending, file=sys.stderr, flush=True)
        self.width = len(line)

    def line(self, seconds: float) -> str:
        of = "" if self.total is None else f"/{self.total}"
        parts = [f"{self.what} {self.done}{of}", f"{self.passed} passed"]
        if self.failed:
            parts.append(f"{self.failed} without a verdict")
        if self.done and seconds > 0:
            parts.append(f"{60 * self.done / seconds:.0f} a minute")
            if self.total is not None and self.done < self.total:
                left = seconds / self.done * (self.total - self.done)
                parts.append(f"{left / 60:.0f} min left" if left >= 90 else f"{left:.0f} s left")
        bar = ""
        if self.total:
            filled = 20 * self.done // self.total
            bar = "[" + "#" * filled + "." * (20 - filled) + "] "
        return bar + ", ".join(parts)

    def end(self) -> None:
        if self.done:
            self.draw(last=True)
