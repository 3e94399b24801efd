"""A faster module for a live one: written by the compiler or a policy, judged, and swapped in."""

from __future__ import annotations

import hashlib
import html
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import command
from .errors import InfrastructureError, UsageError, WarpsmithError
from .judging import PASSING
from .schema import Verdict

if TYPE_CHECKING:
    import torch

M = TypeVar("M", bound="type[torch.nn.Module]")
MISSING_TORCH = "install torch into this Python, or use `warpsmith optimize` in a shell"


@dataclass(frozen=True)
class Optimized:
    """What became of a module. `module` is ready to call, whether it is faster or still the original."""

    module: torch.nn.Module
    improved: bool
    verdict: Verdict | None
    author: str | None
    reason: str | None
    """Why there is no verdict."""
    kernels: dict[str, str]
    """The solution's files."""
    result: Path
    """A folder with the original, the solution and, if it is faster, a package to install."""
    run: Path

    @property
    def speedup(self) -> float | None:
        """Over eager PyTorch, in the solution's own precision class."""
        matched = self.verdict.matched_precision if self.verdict else None
        return matched.speedup.eager if matched else None

    def _rows(self) -> list[tuple[str, str, str]]:
        times = self.verdict.times_us if self.verdict else None
        if times is None:
            return []
        all = [("eager", times.eager), ("torch.compile", times.compile), ("ours", times.candidate)]
        return [(name, _time(us), f"{us / times.candidate:.2f}x") for name, us in all if us is not None]

    def report(self) -> str:
        """A table: times, how much slower each is than ours, who wrote it, where it lies."""
        lines = [f"{name:<14} {time:>10}  {over:>7}" for name, time, over in self._rows()]
        if self.improved:
            lines.append(f"written by     {self.author}")
        elif self.verdict is not None:
            lines.append("result         no faster than the original, which is kept")
        else:
            lines.append(f"result         the original is kept: {self.reason or 'nothing passed'}")
        return "\n".join([*lines, f"folder         {self.result}"])

    def __str__(self) -> str:
        return self.report()

    def _repr_html_(self) -> str:
        cells = "".join(f"<tr><td>{html.escape(name)}</td><td>{time}</td><td>{over}</td></tr>" for name, time, over in self._rows())
        table = f"<table><tr><th></th><th>time of a call</th><th>over ours</th></tr>{cells}</table>" if cells else ""
        told = html.escape(self.report().splitlines()[-2])
        sources = "".join(
            f"<details><summary><code>{html.escape(path)}</code></summary><pre>{html.escape(text)}</pre></details>" for path, text in sorted(self.kernels.items())
        )
        return f"<div>{table}<p>{told}</p>{sources}</div>"


def _time(us: float) -> str:
    return f"{us:.1f} us" if us < 1000 else f"{us / 1000:.2f} ms"


def optimize(
    module: torch.nn.Module,
    inputs: Any,
    *,
    shapes: Sequence[Any] = (),
    init_inputs: Sequence[Any] | None = None,
    target: str = "auto",
    policy: str = "teacher",
    samples: int = 1,
    profile: str = "rl",
    out: str | os.PathLike[str] | None = None,
    show: bool | None = None,
    retries: int = 2,
    options: Sequence[str] = (),
) -> Optimized:
    """Writes kernels for a module and these inputs, judges them, and gives a module that calls them where they fit.

    `inputs` is a tensor or a list of arguments; `shapes` are further ones to write kernels for. `policy` is who tries to be faster
    than the compiler: by default nobody (`teacher`), else as in `warpsmith optimize --policy`. `init_inputs` is what the module's
    constructor was given, where that cannot be seen. `out` is the run's folder; without it the result is kept in the cache, and
    the same module with the same inputs is not judged again. `show` tells on stderr what happens, by default in a terminal;
    `retries` is how often it is tried again where the machine was too busy to time anything, `options` are further flags.
    """
    try:
        import torch
    except ImportError as error:
        raise UsageError("`optimize` needs torch in this Python", MISSING_TORCH) from error
    from .making import made
    from .swap import Kernels, swapped

    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"a {type(module).__name__} is no module", "give an instance of `torch.nn.Module`, not its class")
    given = _arguments(inputs)
    how = made(module, given, [_arguments(one) for one in shapes], init_inputs)
    flags = ["--target", target, "--policy", policy, "--samples", str(samples), "--profile", profile, "--guard", *options]
    found = _run(type(module).__name__, how.source, flags, out, sys.stderr.isatty() if show is None else show, retries)
    result, package = Path(found["result"]), _package(Path(found["result"]))
    faster: torch.nn.Module = module
    if found["improved"] and package is not None:
        try:
            faster = swapped(module, Kernels(package, result / "package", how.init_inputs, how.prefix))
        except (ImportError, OSError, RuntimeError) as error:
            raise InfrastructureError(f"the kernels cannot be loaded here: {error}", "`warpsmith doctor` says what is missing", "load") from error
    start = found.get("start") or {}
    files = [path for path in sorted(result.rglob("*")) if path.is_file() and path.relative_to(result).parts[0] in ("model_new.py", "kernels")]
    return Optimized(
        module=faster,
        improved=found["improved"],
        verdict=Verdict.from_json(found["verdict"]) if found["verdict"] else None,
        author=found["author"],
        reason=start.get("reason"),
        kernels={path.relative_to(result).as_posix(): path.read_text(errors="replace") for path in files},
        result=result,
        run=Path(found["run"]),
    )


def _arguments(inputs: Any) -> list[Any]:
    return list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]


def _package(result: Path) -> str | None:
    found = [path.parent.name for path in result.glob("package/*/__init__.py")]
    return found[0] if found else None


def _run(name: str, source: str, flags: Sequence[str], out: str | os.PathLike[str] | None, show: bool, retries: int) -> dict[str, Any]:
    """The command's object; one that is kept, where nothing that decides it has changed."""
    key = _key(source, flags)
    folder = Path(out) if out is not None else _cache() / "optimized" / f"{name}-{key}"
    kept = folder / "python.json"
    if kept.exists():
        found = json.loads(kept.read_text())
        if found.pop("key", None) == key and Path(found["result"]).is_dir():
            return found
    folder.mkdir(parents=True, exist_ok=True)
    # Its name is that of the package, of which a process can have one.
    task = folder / "task" / f"{name}_{key}.py"
    task.parent.mkdir(exist_ok=True)
    task.write_text(source)
    for left in reversed(range(retries + 1)):
        try:
            # The same folder resumes: what was judged is not judged again.
            found = command.run(["optimize", str(task), "--out", str(folder / "run"), *flags], show=show)
            break
        except InfrastructureError as error:
            if error.code not in PASSING or not left:
                raise
            time.sleep(5.0)
    for place in ("result", "run"):
        found[place] = str(Path(found[place]).absolute())
    unfinished = kept.with_suffix(".part")
    unfinished.write_text(json.dumps({"key": key, **found}))
    unfinished.replace(kept)
    return found


def _key(source: str, flags: Sequence[str]) -> str:
    """Everything that decides a result."""
    import torch

    from . import __version__

    return hashlib.sha256(json.dumps([source, list(flags), torch.__version__, __version__]).encode()).hexdigest()[:12]


def _cache() -> Path:
    if given := os.environ.get("WARPSMITH_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warpsmith"


@overload
def optimized(module: M, /) -> M: ...
@overload
def optimized(**options: Any) -> Callable[[M], M]: ...
def optimized(module: Any = None, /, **options: Any) -> Any:
    """A class of modules whose instances get kernels with their first call in `eval()` without gradients.

    That call takes as long as `optimize` does, unless the result is in the cache. The kernels compute inputs of these shapes and
    types; all others, training and calls with gradients are the original's. Where no kernels can be had, a warning says why.
    `options` are those of `optimize`.
    """
    return _decorated(module, options) if module is not None else lambda module: _decorated(module, options)


def _decorated(given: Any, options: dict[str, Any]) -> Any:
    import functools
    import inspect

    import torch

    from .making import MADE_WITH
    from .swap import PLACE, call

    if not (isinstance(given, type) and issubclass(given, torch.nn.Module)):
        raise UsageError(f"`{given!r}` is no class of modules", "`@warpsmith.optimized` stands before a class derived from `torch.nn.Module`")
    kind: Any = given
    init, original = kind.__init__, kind.forward
    signature = inspect.signature(init)

    @functools.wraps(init)
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        # Where a derived class was made, it knows what it was given.
        if type(self) is kind:
            self.__dict__[MADE_WITH] = dict(list(bound.arguments.items())[1:])

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        eligible = not (self.training or kwargs or torch.is_grad_enabled() or torch.compiler.is_compiling())
        if type(self) is kind and PLACE not in self.__dict__ and eligible:
            # Not again, whatever comes of it.
            self.__dict__[PLACE] = None
            try:
                found = optimize(self, args, **options)
                self.__dict__[PLACE] = found.module.__dict__.get(PLACE)
                if not found.improved:
                    warnings.warn(f"`{kind.__name__}` stays as it is: {found.report()}", stacklevel=3)
            except WarpsmithError as error:
                warnings.warn(f"`{kind.__name__}` stays as it is: {error}", stacklevel=3)
        return call(self, original, args, kwargs)

    forward.__warpsmith_original__ = original  # type: ignore[attr-defined]
    kind.__init__, kind.forward = noted, forward
    return kind
