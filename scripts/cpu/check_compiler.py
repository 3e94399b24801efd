#!/usr/bin/env python3
"""Whether what the compiler covers is right: its solutions against the modules, on this CPU, without a judge.

    scripts/cpu/check_compiler.py TASKS [--target cuda|cpu] [--scale N] [--dtype bfloat16] [--only fused,tuned] [--out FOLDER]

TASKS is a JSONL with `code` or `model` in each line, or a folder of modules. `--scale` divides their large constants, as
`warpsmith bench --scale` does. `--dtype` rewrites modules and inputs to another type of elements. Solutions for `cuda` run thread by
thread on the CPU (`crates/compiler/python/emulated_cuda.h`), which shows whether they are right, not how fast they are. PYTHON names a
Python with torch (default: the one that runs this). Prints what is not captured, not covered or wrong, and counts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coverage import modules

ROOT = Path(__file__).resolve().parents[2]
# Smaller numbers are kernels, groups and channels. As in crates/tasks/src/scale.rs.
SCALED_FROM, SCALED_MINIMUM = 256, 64


def scaled(text: str, by: int) -> str:
    def line(found: re.Match[str]) -> str:
        is_batch = "batch" in found[1]

        def number(digits: re.Match[str]) -> str:
            value = int(digits[0])
            if value >= SCALED_FROM:
                return str(min(value, max(SCALED_MINIMUM, value // by)))
            return str(max(1, value // by)) if is_batch else digits[0]

        return found[1] + re.sub(r"\d+", number, found[2]) + (found[3] or "")

    return re.sub(r"^([A-Za-z_][\w]*(?: *= *[A-Za-z_]\w*)* *= *)([\d *(),\[\]]+)(#.*)?$", line, text, flags=re.MULTILINE)


def retyped(text: str, dtype: str) -> str:
    """The module with parameters and inputs of another type. The constructor says so, because a solution takes it over."""
    class_at = text.index("class Model(")
    forward = text.index("    def forward(", class_at)
    convert = f"        self.to(torch.{dtype})\n\n"
    if "def __init__(" not in text[class_at:forward]:
        convert = f"    def __init__(self):\n        super().__init__()\n{convert}"
    text = f"{text[:forward].rstrip()}\n{convert}{text[forward:]}"
    return text + f"""

_float_inputs = get_inputs


def get_inputs():
    return [one.to(torch.{dtype}) if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in _float_inputs()]
"""


def captured(python: str, tasks: list[tuple[str, str]]) -> list[dict]:
    """One process captures task after task; one that ends is replaced."""
    process, found = None, []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "crates/schema/python")}
    for name, text in tasks:
        if process is None or process.poll() is not None:
            process = subprocess.Popen([python, "-B", "capture.py"], cwd=ROOT / "crates/tasks/python", stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        process.stdin.write(json.dumps({"model": text, "smaller": None}) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        found.append(json.loads(answer) if answer else {"error": "the process ended"})
    if process is not None:
        process.kill()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--dtype")
    parser.add_argument("--only", default="fused,tuned")
    parser.add_argument("--match", default="", help="of the tasks' names, a regular expression")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    python = os.environ.get("PYTHON", sys.executable)
    tasks = []
    for name, _, text in modules(arguments.tasks):
        if not re.search(arguments.match, name):
            continue
        text = scaled(text, arguments.scale) if arguments.scale > 1 else text
        tasks.append((name, retyped(text, arguments.dtype) if arguments.dtype else text))
    half = (len(tasks) + 1) // 2
    with ThreadPoolExecutor(2) as pool:
        answers = [one for part in pool.map(lambda part: captured(python, part), (tasks[:half], tasks[half:])) for one in part]
    out = arguments.out or Path(tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    graphs, refused = out / "tasks.jsonl", 0
    with graphs.open("w") as file:
        for (name, text), answer in zip(tasks, answers, strict=True):
            if "graph" in answer:
                task = {"id": name, "name": name, "source": text, "level": None, "problem_id": None, "origin": "", "graph": answer["graph"]}
                file.write(json.dumps(task) + "\n")
            else:
                refused += 1
                print(f"{name}  not captured: {answer.get('error') or answer['failed']}")
    print(f"{len(tasks) - refused} of {len(tasks)} captured", flush=True)
    solutions = os.environ.get("SOLUTIONS", str(ROOT / "target/release/examples/solutions"))
    if not Path(solutions).is_file():
        sys.exit(f"{solutions} is not there: cargo build --release -p warpsmith-compiler --example solutions, or set SOLUTIONS")
    subprocess.run([solutions, str(graphs), arguments.target, str(out / "solutions")], check=True)
    check = [python, str(ROOT / "crates/compiler/python/check_solutions.py"), str(out / "solutions"), "--only", arguments.only]
    sys.exit(subprocess.run(check, check=False).returncode)


if __name__ == "__main__":
    main()
