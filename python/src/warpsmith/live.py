"""The source of live objects: a class or function with everything that it uses, as one file that stands alone.

Names are followed from the code to what they mean now, so it works for a class of a file and for one of a notebook's cells. What
a module brings is imported; classes and functions of the user's own travel with their text; numbers, strings and their
containers by value. Nothing of a file that is not used is run.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import re
import sys
import textwrap
import types
from collections.abc import Iterable
from typing import Any

from .errors import UsageError

PLAIN = (int, float, str, bool, bytes, complex, type(None))


class SourceError(UsageError):
    """The text of a live object cannot be had."""

    code = "no_source"


def text_of(thing: Any) -> str:
    """The text of a class or function, also where it was written in a notebook."""
    try:
        return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        pass
    # Classes of a notebook have no file, but their methods do.
    for method in vars(thing).values() if isinstance(thing, type) else ():
        method = getattr(method, "__func__", method)
        code = getattr(method, "__code__", None)
        lines = linecache.getlines(code.co_filename) if code else []
        found = _definition("".join(lines), thing.__qualname__) if lines else None
        if found:
            return found
    message = f"the source of `{getattr(thing, '__qualname__', thing)}` cannot be found"
    raise SourceError(message, "define it in a file or a notebook's cell, or give the source as text or as a path")


def _definition(text: str, qualname: str) -> str | None:
    try:
        body: list[ast.stmt] = ast.parse(text).body
    except SyntaxError:
        return None
    node: ast.ClassDef | ast.FunctionDef | None = None
    for name in qualname.split("."):
        if name == "<locals>":
            continue
        found = [one for part in body for one in ast.walk(part) if isinstance(one, (ast.ClassDef, ast.FunctionDef)) and one.name == name]
        if not found:
            return None
        # Of a cell that defines it twice the later counts.
        node = found[-1]
        body = node.body
    if node is None:
        return None
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno]) + "\n")


class Writer:
    """Gathers definitions in the order in which they can be run."""

    def __init__(self, drops: Iterable[str] = ()) -> None:
        self.imports: dict[str, str] = {}
        self.parts: list[str] = []
        self.known: dict[str, Any] = {}
        # Decorators that are not wanted in the text.
        self.drops = frozenset(drops)

    def text(self) -> str:
        # `from __future__` was said at the top of a file, and annotations may rest on it.
        head = ["from __future__ import annotations", *sorted(self.imports.values())]
        return "\n".join(head) + "\n\n\n" + "\n\n\n".join(part.strip("\n") for part in self.parts) + "\n"

    def add(self, thing: Any, name: str) -> None:
        """A class or function of the user's own, and what it uses, under the name by which it is known."""
        if name in self.known:
            if self.known[name] is not thing:
                raise SourceError(f"two different things are called `{name}`", "give the source as text or as a path")
            return
        self.known[name] = thing
        text = self._without_decorators(text_of(thing))
        tree = ast.parse(text)
        outer = _globals_of(thing)
        for used in _free_names(tree):
            # Builtins, and names that are bound somewhere inside.
            if used in outer and used not in (name, thing.__name__):
                self.use(used, outer[used])
        own = thing.__name__
        if own != name:
            # By the name that is looked for, and by its own, which `super(Own, self)` may say.
            text = re.sub(rf"^(class|def)\s+{own}\b", rf"\1 {name}", text, count=1, flags=re.MULTILINE)
            text += f"\n\n{own} = {name}\n"
        self.parts.append(text)

    def use(self, name: str, value: Any) -> None:
        """Makes a name mean what it means to the one who uses it."""
        if name in self.known or name in self.imports:
            return
        if isinstance(value, types.ModuleType):
            self.imports[name] = f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}"
        elif isinstance(value, (type, types.FunctionType)) and _is_own(value):
            self.add(value, name)
        elif type(value).__module__ == "torch" and repr(value).startswith("torch."):
            # A dtype, a layout.
            self.imports.setdefault("torch", "import torch")
            self.known[name] = value
            self.parts.append(f"{name} = {value!r}")
        elif _is_plain(value):
            self.known[name] = value
            self.parts.append(f"{name} = {value!r}")
        else:
            self.imports[name] = _import_of(name, value)

    def _without_decorators(self, text: str) -> str:
        tree = ast.parse(text)
        node = tree.body[0]
        lines = text.splitlines()
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            for one in reversed(node.decorator_list):
                call = one.func if isinstance(one, ast.Call) else one
                last = call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "")
                if last in self.drops:
                    del lines[one.lineno - 1 : one.end_lineno]
        return "\n".join(lines) + "\n"


def _globals_of(thing: Any) -> dict[str, Any]:
    if isinstance(thing, types.FunctionType):
        cells = inspect.getclosurevars(thing).nonlocals
        return {**thing.__globals__, **cells}
    found: dict[str, Any] = dict(vars(sys.modules.get(thing.__module__, builtins)))
    for one in vars(thing).values():
        one = getattr(one, "__func__", one.fget if isinstance(one, property) else one)
        if isinstance(one, types.FunctionType):
            found |= one.__globals__ | {name: value for name, value in inspect.getclosurevars(one).nonlocals.items()}
    return found


def _free_names(tree: ast.AST) -> list[str]:
    """Every name that is read, in order. One that is also bound somewhere inside is harmless: it is looked up and not found."""
    bound = {one.arg for one in ast.walk(tree) if isinstance(one, ast.arg)}
    bound |= {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    found: dict[str, None] = {}
    for one in ast.walk(tree):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load) and one.id not in bound:
            found[one.id] = None
    return list(found)


def _is_own(value: Any) -> bool:
    """Whether its text travels: what is installed is imported instead."""
    module = sys.modules.get(value.__module__)
    if module is None or value.__module__ in sys.stdlib_module_names or value.__module__ == "builtins":
        return False
    path = getattr(module, "__file__", None)
    return value.__module__ == "__main__" or path is None or not any(part in path for part in ("site-packages", "dist-packages"))


def _is_plain(value: Any) -> bool:
    if isinstance(value, PLAIN):
        return type(value) in PLAIN and value == value and value not in (float("inf"), float("-inf"))
    if type(value) in (list, tuple, set):
        return all(map(_is_plain, value))
    return type(value) is dict and all(_is_plain(one) for pair in value.items() for one in pair)


def _import_of(name: str, value: Any) -> str:
    """How something of an installed module comes by that name."""
    module = getattr(value, "__module__", None)
    own = getattr(value, "__qualname__", None)
    if module and own and "." not in own:
        for place in dict.fromkeys([module, module.split(".")[0]]):
            if getattr(sys.modules.get(place), own, None) is value:
                return f"from {place} import {own}" + ("" if own == name else f" as {name}")
    # What does not know where it is from, such as `math.pi` or `typing.Optional`.
    for place in ("math", "typing"):
        if value is not None and getattr(sys.modules.get(place), name, None) is value:
            return f"from {place} import {name}"
    raise SourceError(
        f"`{name}` is a {type(value).__name__}, which cannot be written into a file", "give the source as text or as a path instead"
    )
