"""Has a solution judged by the server at $WARPSMITH_SERVER: `verify.py MODEL.py SOLUTION_DIR LOG_DIR` writes LOG_DIR/reward.json.

A solution is judged as its files, whatever else happened here. Exit code 3: there is no verdict, and so no reward.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

HELD_SECONDS = 60
PATIENCE_SECONDS = 3000
# What another try may well bring.
PASSING = {"noisy_machine", "device_busy", "stale_baseline", "memory_shortage", "lease", "draining", "cancelled"}
# As many and as large as the server takes.
MOST_FILES, MOST_BYTES = 256, 2 << 20


def files_of(folder):
    """Regular files of a solution: links lead elsewhere and are left out."""
    found = {}
    paths = [folder / "model_new.py", *sorted((folder / "kernels").rglob("*"))]
    for path in paths:
        inside = [one for one in (path, *path.parents) if one != folder and folder in one.parents]
        if path.is_file() and not any(one.is_symlink() for one in inside) and path.stat().st_size <= MOST_BYTES:
            found[path.relative_to(folder).as_posix()] = path.read_text(errors="replace")
    return dict(list(found.items())[:MOST_FILES])


def ask(method, path, body=None):
    """Status and object; a server that cannot be reached is asked again."""
    headers = {"Content-Type": "application/json"}
    if os.environ.get("WARPSMITH_TOKEN"):
        headers["Authorization"] = "Bearer " + os.environ["WARPSMITH_TOKEN"]
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ["WARPSMITH_SERVER"].rstrip("/") + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=HELD_SECONDS + 30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            try:
                return error.code, json.load(error)
            except ValueError:
                return error.code, {}
    except (OSError, ValueError) as error:
        return 503, {"failure": {"code": "server", "message": str(error)}}


def verdict_of(request):
    until, id, failure = time.monotonic() + PATIENCE_SECONDS, None, {}
    while time.monotonic() < until:
        if id is None:
            status, answer = ask("POST", f"/v1/judge?wait={HELD_SECONDS}", request)
        else:
            status, answer = ask("GET", f"/v1/jobs/{id}?wait={HELD_SECONDS}")
        if answer.get("status") == "judged":
            return answer["verdict"]
        failure = answer.get("failure") or answer.get("error") or {}
        if status in (200, 202) and answer.get("status") in ("waiting", "judging"):
            id = answer["id"]
        elif status in (429, 503) or failure.get("code") in PASSING or answer.get("status") == "cancelled":
            id = None
            time.sleep(5)
        else:
            break
    print(f"no verdict: {failure.get('message', 'none in time')}", file=sys.stderr)
    sys.exit(3)


def main():
    model, solution, logs = map(Path, sys.argv[1:4])
    if not os.environ.get("WARPSMITH_SERVER"):
        print("WARPSMITH_SERVER names no server: start `warpsmith serve --client-tasks` and give its address", file=sys.stderr)
        sys.exit(3)
    files = files_of(solution)
    # Nothing written is a submission too: the judge rejects it by the rule `form`.
    submitted = {"files": files} if files else {"reply": "no file was written"}
    verdict = verdict_of({"task": {"source": model.read_text()}, **submitted})
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "verdict.json").write_text(json.dumps(verdict, indent=1))
    reward = verdict["reward"]
    speedup = ((verdict.get("matched_precision") or {}).get("speedup") or {}).get("eager")
    rewards = {"reward": reward["robust"], "passed": int(verdict["status"] == "passed"), "ladder": reward["ladder"]}
    if isinstance(speedup, (int, float)):
        rewards["speedup"] = speedup
    (logs / "reward.json").write_text(json.dumps(rewards))
    print(verdict["status"], verdict.get("reason") or "", rewards)


main()
