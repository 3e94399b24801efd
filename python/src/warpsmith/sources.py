"""Tasks and solutions as they are given, and as they travel to the judge."""

from __future__ import annotations

import inspect
import linecache
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from .errors import SolutionError, TaskError, UnknownTaskError
from .live import Writer

MODEL_NEW = "model_new.py"
KERNELS = "kernels"
# A folder may have both.
KERNELS_CUDA = "kernels_cuda"
# As the judge has them.
MAX_FILES, MAX_BYTES = 256, 2 << 20
MAX_REPLY_BYTES = 1 << 20
PATH = re.compile(r"model_new\.py|kernels(/[A-Za-z0-9_][A-Za-z0-9_.-]*){1,8}")


class Reply(str):
    """What a language model said. Which of its blocks are the solution is for the judge to find; one that holds none is a verdict
    against it, not an error."""


@dataclass(frozen=True)
class Task:
    """A task made of a live module: a class with what its constructor takes, and example inputs or a function that draws them."""

    module: type
    inputs: Sequence[Any] | Callable[[], Sequence[Any]]
    init_inputs: Sequence[Any] = ()
    name: str | None = None

    def source(self) -> str:
        from .tasks import source_of

        return source_of(self)


TaskLike = Union[str, "os.PathLike[str]", Task, type]
SolutionLike = Union[str, "os.PathLike[str]", Mapping[str, str], type]


def is_source(text: str) -> bool:
    """Whether a string is code and not a path or a name."""
    return "\n" in text.strip() or text.lstrip().startswith(("import ", "from ", "class "))


def _sendable(text: Any) -> bool:
    """Half of a pair of UTF-16 is no text, though Python holds it."""
    try:
        text.encode()
    except (AttributeError, UnicodeEncodeError):
        return False
    return True


def task_on_the_wire(task: TaskLike) -> dict[str, str]:
    found = _task_on_the_wire(task)
    if not all(map(_sendable, found.values())):
        raise TaskError("the task's text cannot be encoded as UTF-8", "a lone surrogate stands in it: read files as UTF-8")
    if len(found.get("source", "").encode()) > MAX_BYTES:
        raise TaskError(f"the task's source is larger than {MAX_BYTES} bytes", "draw large constants in `get_inputs()` instead of writing them down")
    return found


def _task_on_the_wire(task: TaskLike) -> dict[str, str]:
    if isinstance(task, Task):
        return {"source": task.source(), "name": task.name or task.module.__name__}
    if isinstance(task, type):
        return {"source": _source_of_task_class(task), "name": task.__name__}
    if isinstance(task, str) and is_source(task):
        if not re.search(r"\bclass\s+Model\b|\bModel\s*=", task):
            raise TaskError(
                "the task's source defines no class `Model`",
                "a task is a file with `class Model(torch.nn.Module)`, `get_inputs()` and `get_init_inputs()`",
            )
        return {"source": task, "name": "task"}
    if not isinstance(task, (str, os.PathLike)):
        raise UnknownTaskError(
            f"a {type(task).__name__} is no task", "give a path, a task's id, source, a class, or `warpsmith.Task(module, inputs)`"
        )
    spec = os.fspath(task)
    path, mark, rest = spec.partition("#")
    if os.path.exists(path):
        return {"path": os.path.abspath(path) + mark + rest}
    if isinstance(task, os.PathLike) or mark or (os.sep in spec and spec.endswith((".py", ".jsonl", ".parquet"))):
        raise UnknownTaskError(f"there is no `{path}`", "a path is looked for from the folder in which this program runs")
    return {"id": spec}


def _source_of_task_class(module: type) -> str:
    place = sys.modules.get(module.__module__)
    drawn = getattr(place, "get_inputs", None)
    if drawn is None:
        raise TaskError(
            f"nobody says what `{module.__qualname__}` is called with",
            "give `warpsmith.Task(module, inputs=[…])`, or define `get_inputs()` beside it",
        )
    writer = Writer()
    writer.add(module, "Model")
    for name in ("get_inputs", "get_init_inputs", "get_inputs_variants"):
        if (found := getattr(place, name, None)) is not None:
            writer.add(found, name)
    return writer.text()


def solution_on_the_wire(solution: SolutionLike, target: str = "cpu") -> dict[str, Any]:
    if isinstance(solution, Reply):
        # What cannot be encoded is the model's mistake, as everything in it is. Of one without an end so much is sent that it is seen.
        text = str(solution)[: MAX_REPLY_BYTES + 1].encode(errors="replace")
        return {"reply": text[: MAX_REPLY_BYTES + 4].decode(errors="ignore")}
    found = _files_on_the_wire(solution, target)
    for path, text in found["files"].items():
        if not isinstance(path, str) or not PATH.fullmatch(path):
            raise SolutionError(f"`{path}` is no file of a solution", f"files are `{MODEL_NEW}` and `{KERNELS}/…` of letters, digits, `_`, `-` and `.`")
        if not _sendable(text) or not isinstance(text, str):
            raise SolutionError(f"`{path}` is no text that UTF-8 can hold", "give each file as a string")
        if len(text.encode()) > MAX_BYTES:
            raise SolutionError(f"`{path}` is larger than {MAX_BYTES} bytes", "leave out what is not source")
    return found


def _files_on_the_wire(solution: SolutionLike, target: str) -> dict[str, Any]:
    if isinstance(solution, Mapping):
        if MODEL_NEW not in solution:
            raise SolutionError(f"the files hold no `{MODEL_NEW}`", f"give a mapping of `{MODEL_NEW}` and `{KERNELS}/…` to text")
        return {"files": dict(solution)}
    if isinstance(solution, type):
        return {"files": {MODEL_NEW: _whole_source(solution)}}
    if isinstance(solution, str) and is_source(solution):
        if "ModelNew" not in solution:
            raise SolutionError(
                "the source defines no `ModelNew`",
                "if it is what a language model said, give `warpsmith.Reply(text)`: what is wrong with it is then a verdict",
            )
        return {"files": {MODEL_NEW: solution}}
    if isinstance(solution, str) and not solution.strip():
        raise SolutionError("the solution is empty", "if it is what a language model said, give `warpsmith.Reply(text)`: it is then a verdict")
    if not isinstance(solution, (str, os.PathLike)):
        raise SolutionError(f"a {type(solution).__name__} is no solution", "give a path, source, a mapping of files, a class, or a `Reply`")
    path = Path(solution)
    # Unlike `Path`'s own, these take whatever is no path for one that does not exist.
    if os.path.isdir(path):
        return {"files": _folder(path, target)}
    if path.suffix == ".py" and os.path.exists(path):
        return {"files": {MODEL_NEW: _text(path)}}
    raise SolutionError(
        f"`{_short(str(solution))}` is neither code nor a folder or `.py` file that exists",
        "a solution is a path, source with a class `ModelNew`, a mapping of files, or `warpsmith.Reply(text)`",
    )


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}…"


def _folder(path: Path, target: str) -> dict[str, str]:
    model = path / MODEL_NEW
    if not model.exists():
        raise SolutionError(f"`{path}` has no `{MODEL_NEW}`", f"a solution's folder has `{MODEL_NEW}` and `{KERNELS}/`")
    files = {MODEL_NEW: _text(model)}
    kernels = path / (KERNELS_CUDA if target == "cuda" and (path / KERNELS_CUDA).is_dir() else KERNELS)
    for folder, folders, names in os.walk(kernels):
        for name in [*folders, *names]:
            if os.path.islink(os.path.join(folder, name)):
                raise SolutionError(f"`{folder}/{name}` is a link", "copy the file: links are not followed")
        folders.sort()
        for name in sorted(names):
            if len(files) == MAX_FILES:
                raise SolutionError(f"`{path}` has more than {MAX_FILES} files", "leave out what the kernels do not need")
            found = Path(folder, name)
            files[f"{KERNELS}/{found.relative_to(kernels).as_posix()}"] = _text(found)
    return files


def _text(path: Path) -> str:
    try:
        # What is opened is what is looked at, and a pipe blocks nobody.
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SolutionError(f"`{path}` is no plain file", "a solution holds plain files")
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise SolutionError(f"`{path}` is larger than {MAX_BYTES} bytes", "leave out what is not source")
        return content.decode()
    except UnicodeDecodeError:
        raise SolutionError(f"`{path}` is not UTF-8", "a solution holds text only") from None
    except OSError as error:
        raise SolutionError(f"`{path}` cannot be read: {error.strerror}", "check the path and its permissions; links are not followed") from None


def _whole_source(module: type) -> str:
    """The file, or the notebook's cell, that defines a class: a solution is not run here, so all of it may travel."""
    path = None
    for method in vars(module).values():
        if code := getattr(getattr(method, "__func__", method), "__code__", None):
            path = code.co_filename
    try:
        path = path or inspect.getsourcefile(module)
    except TypeError:
        path = None
    text = "".join(linecache.getlines(path)) if path else ""
    if not text:
        raise SolutionError(f"the source of `{module.__qualname__}` cannot be found", "give it as text or as a path")
    return text if module.__name__ == "ModelNew" else f"{text}\n\nModelNew = {module.__name__}\n"
