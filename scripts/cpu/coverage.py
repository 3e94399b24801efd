#!/usr/bin/env python3
"""Which modules can be captured, and which of these the compiler covers: a table by level, and what refuses the others.

    scripts/cpu/coverage.py TASKS [--target cuda|cpu] [--jobs N] [--out FILE]

TASKS is a JSONL with `code` or `model` in each line (KernelBench's, or a task set's), or a folder of modules. A module is covered
if `warpsmith explain` has a kernel for all of it; `library only` counts those in which every kernel is a call of a library. WARPSMITH
names the binary. `--out` keeps what was found for each task, a line of JSON each. Nothing is judged here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

LIBRARY = {"gemm", "conv", "convolution", "library"}


@dataclass(frozen=True)
class Coverage:
    task: str
    level: str
    captured: bool
    covered: bool
    library_only: bool
    reasons: list[str]


def modules(source: Path) -> list[tuple[str, str, str]]:
    """Name, level and text of each."""
    if source.is_dir():
        files = sorted(source.rglob("*.py"))
        return [(str(file.relative_to(source)), file.parent.name, file.read_text()) for file in files if "class Model" in file.read_text()]
    found = []
    for number, line in enumerate(filter(str.strip, source.read_text().splitlines())):
        row = json.loads(line)
        level = f"level{row['level']}" if "level" in row else "-"
        name = f"{level}/{row['problem_id']}" if "problem_id" in row else str(row.get("id", row.get("name", number)))
        found.append((name, level, next(row[key] for key in ("code", "model", "source") if key in row)))
    return found


def coverage(binary: str, target: str, module: tuple[str, str, str]) -> Coverage:
    name, level, text = module
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(text)
        file.flush()
        answer = subprocess.run([binary, "explain", file.name, "--target", target, "--json"], capture_output=True, text=True, check=False)
    try:
        reply = json.loads(answer.stdout)
    except ValueError:
        return Coverage(name, level, False, False, False, [answer.stderr.strip()[-300:]])
    if "failure" in reply:
        return Coverage(name, level, False, False, False, [reply["failure"]["message"]])
    reasons = [gap.get("reason") or gap.get("what") or json.dumps(gap) for gap in reply["not_covered"]]
    only = all(kernel["kind"] in LIBRARY for kernel in reply["kernels"])
    return Coverage(name, level, True, not reasons, not reasons and only, reasons)


def print_table(found: list[Coverage]) -> None:
    print(f"{'level':<12}{'tasks':>8}{'captured':>10}{'covered':>9}{'library only':>14}")
    for level in [*sorted({one.level for one in found}), "all"]:
        of = [one for one in found if level in (one.level, "all")]
        counts = [len(of)] + [sum(map(pick, of)) for pick in (lambda one: one.captured, lambda one: one.covered, lambda one: one.library_only)]
        print(f"{level:<12}{counts[0]:>8}{counts[1]:>10}{counts[2]:>9}{counts[3]:>14}")
    refusals = Counter((one.captured, re.sub(r"\d+", "N", reason)[:110]) for one in found for reason in set(one.reasons))
    for title, captured in (("not captured", False), ("not covered", True)):
        of = [(reason, count) for (stage, reason), count in refusals.most_common() if stage == captured]
        if of:
            print(f"\n{title}")
            print("\n".join(f"{count:>6}  {reason}" for reason, count in of))
    missing = [one.task for one in found if not one.covered]
    if missing:
        print("\nwithout a solution of the compiler:", " ".join(missing))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    binary = os.environ.get("WARPSMITH", "target/release/warpsmith")
    if not Path(binary).is_file():
        sys.exit(f"error: {binary} is not there; build it with `cargo build --release`, or set WARPSMITH")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        found = list(pool.map(lambda module: coverage(binary, arguments.target, module), modules(arguments.tasks)))
    if arguments.out:
        arguments.out.write_text("".join(json.dumps(asdict(one)) + "\n" for one in found))
    print_table(found)


if __name__ == "__main__":
    main()
