"""What a language model is asked, for trainers that bring no prompt of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from .errors import UnknownTaskError
from .sources import MODEL_NEW, is_source

TEXT = """\
Write `ModelNew` for the PyTorch module below: the same constructor, parameters and results, computed by kernels of your own in {language}.
Reply with whole files, each as a line `write PATH` and a fenced block: `model_new.py` and `kernels/*.{ending}`.
Launchers are `extern "C"`, return int, and are called as `kernels.name(...)` after `from warpsmith_kernels import kernels`: tensors become
pointers, ints `int64_t`, floats `double`{stream}. `forward` only allocates, views and calls them.

```python
{source}```
"""


def prompt(source: str, target: str = "cuda") -> str:
    """The question about one task."""
    cuda = target == "cuda"
    return TEXT.format(
        language="CUDA C++" if cuda else "C++ for a CPU",
        ending="cu" if cuda else "cpp",
        stream=", and a last argument `cudaStream_t stream` is added" if cuda else "",
        source=source if source.endswith("\n") else source + "\n",
    )


def sources(tasks: Iterable[str | os.PathLike[str]] | str | os.PathLike[str]) -> list[str]:
    """The sources of tasks given as text, as `.py` files, as folders of them, or as JSONL with a column `code`."""
    if isinstance(tasks, (str, os.PathLike)):
        tasks = [tasks]
    found: list[str] = []
    for one in tasks:
        if isinstance(one, str) and is_source(one):
            found.append(one)
            continue
        path = Path(one)
        if os.path.isdir(path):
            model = path / "model.py"
            # A solution may lie beside its task.
            files = [model] if model.exists() else [file for file in sorted(path.rglob("*.py")) if file.name != MODEL_NEW]
            found += [file.read_text() for file in files]
        elif path.suffix == ".jsonl" and os.path.exists(path):
            found += [json.loads(line)["code"] for line in path.read_text().splitlines() if line.strip()]
        elif os.path.exists(path):
            found.append(path.read_text())
        else:
            raise UnknownTaskError(f"there is no `{one}`", "give source, `.py` files, folders of them, or JSONL with a column `code`")
    if not found:
        raise UnknownTaskError("there are no tasks", "give at least one")
    return found
