"""The `warpsmith` command that came with this package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import CommandNotFoundError, InfrastructureError, of_failure
from .schema import Failure

# Where the command is, for who has built it by hand.
VARIABLE = "WARPSMITH_COMMAND"


def find() -> str:
    """The command's path: `$WARPSMITH_COMMAND`, else beside this Python, else on the PATH."""
    if given := os.environ.get(VARIABLE):
        if found := shutil.which(given):
            return found
        raise CommandNotFoundError(f"`{given}` is no program", f"{VARIABLE} names it; leave it out to use the command of this package")
    user = f"{os.name}_user"
    schemes = [None, *([user] if user in sysconfig.get_scheme_names() else [])]
    folders = [sysconfig.get_path("scripts", scheme) if scheme else sysconfig.get_path("scripts") for scheme in schemes]
    # `pip install --target` and tools that run from an archive put it beside the package.
    folders.append(str(Path(__file__).parent.parent / "bin"))
    for folder in folders:
        if found := shutil.which("warpsmith", path=folder):
            return found
    if found := shutil.which("warpsmith"):
        return found
    raise CommandNotFoundError(
        "the `warpsmith` command was not found beside this Python or on the PATH",
        f"install the wheel (`pip install warpsmith`), or set {VARIABLE} to a built binary",
    )


def run(arguments: Sequence[str], *, show: bool = False) -> dict[str, Any]:
    """Runs a verb with `--json` and gives its object. With `show` what it tells a person goes to stderr."""
    asked = [find(), *arguments, "--json", *([] if show else ["-q"])]
    done = subprocess.run(
        asked, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=None if show else subprocess.PIPE, check=False
    )
    try:
        found = json.loads(done.stdout)
    except ValueError:
        said = (done.stderr or b"").decode(errors="replace").strip()
        message = f"`warpsmith {arguments[0]}` ended with {done.returncode} and no answer: {said[-2000:]}"
        raise InfrastructureError(message, "`warpsmith doctor` says what is missing") from None
    if "failure" in found and found.get("failure"):
        raise of_failure(Failure.from_json(found["failure"]))
    return found
