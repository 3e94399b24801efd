"""Prints the table of `run`: each arm over torch.compile, with intervals where the finish measured them."""

import json
import math
import sys
from pathlib import Path

ARMS = ("compiler", "samples", "tuning", "search")


def speedup(report: dict) -> tuple[float, float, float] | None:
    """Mean, lower and upper end over torch.compile."""
    best = report.get("best")
    if best and best["speedup_compile"]:
        interval = best["speedup_compile"]
        return tuple(float(interval[end]) for end in ("mean", "low", "high"))
    matched = (report.get("verdict") or {}).get("matched_precision")
    if matched and matched["speedup"]["compile"] is not None:
        value = float(matched["speedup"]["compile"])
        return value, value, value
    return None


def main() -> None:
    out, tasks = Path(sys.argv[1]), Path(sys.argv[2]).read_text().split()
    found: dict[str, list[float]] = {arm: [] for arm in ARMS}
    ahead = {arm: 0 for arm in ARMS}
    print("| task | " + " | ".join(ARMS) + " |\n|---|" + "---|" * len(ARMS))
    for task in tasks:
        cells, of_task = [], {}
        for arm in ARMS:
            path = out / f"{task.replace('/', '-')}-{arm}.json"
            of_task[arm] = speedup(json.loads(path.read_text())) if path.exists() else None
            value = of_task[arm]
            cells.append("-" if value is None else "{:.3f} ({:.3f} to {:.3f})".format(*value))
            # Where nothing is faster the original is kept: it counts as 1.
            found[arm].append(max(value[0], 1.0) if value else 1.0)
        search = of_task["search"]
        for arm in ARMS:
            other = of_task[arm]
            ahead[arm] += bool(search and (other is None or search[1] > other[2]))
        print(f"| {task} | " + " | ".join(cells) + " |")
    mean = {arm: math.exp(sum(map(math.log, values)) / len(values)) for arm, values in found.items()}
    print("| geometric mean | " + " | ".join(f"{mean[arm]:.3f}" for arm in ARMS) + " |")
    for arm in ARMS[:-1]:
        print(f"search ahead of {arm} by more than the intervals: {ahead[arm]} of {len(tasks)}")


main()
