#!/usr/bin/env python3
"""Writes `src/warpsmith/schema.py`: dataclasses of the documents that the command prints, from its own JSON Schemas.

    python generate.py [--check] [--warpsmith PATH] [--to FILE]

`--check` writes nothing and exits with 1 if the file differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

DOCUMENTS = ["verdict", "failure"]
TO = Path(__file__).parent / "src" / "warpsmith" / "schema.py"
# What a document of that kind can be asked beside its fields.
METHODS = {
    "Verdict": '''
    @property
    def passed(self) -> bool:
        """Compiled, correct in every check, and timed unless the profile times nothing."""
        return self.status == "passed"
''',
}
HEAD = '''"""What the judge says, typed. Written by `python/generate.py` from `warpsmith schema`; change that instead.

Fields are only added within a format, so unknown ones are left out, and one that an older command does not know is `None`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

T = TypeVar("T")


def _number(value: Any) -> float:
    """Numbers that are not finite travel as strings."""
    return float(value)


def _optional(read: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else read(value)

'''


def schema(command: str, name: str) -> dict[str, Any]:
    return json.loads(subprocess.run([command, "schema", name], check=True, capture_output=True).stdout)


class Writer:
    def __init__(self) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}
        self.text = HEAD

    def add(self, document: dict[str, Any]) -> None:
        self.definitions |= document.get("$defs", {}) | {document["title"]: document}

    def all(self) -> str:
        for name in sorted(self.definitions):
            definition = self.definitions[name]
            if words := words_of(definition):
                self.text += f"\n{name} = Literal[{', '.join(json.dumps(word) for word in words)}]\n"
        for name in sorted(self.definitions):
            definition = self.definitions[name]
            if definition.get("type") == "object" and "properties" in definition:
                self.dataclass(name, definition)
        names = sorted(self.definitions.keys() - {"Number"})
        self.text += "\n\n__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]\n"
        return self.text

    def dataclass(self, name: str, definition: dict[str, Any]) -> None:
        self.text += f"\n\n@dataclass(frozen=True, kw_only=True)\nclass {name}:\n"
        if about := definition.get("description"):
            self.text += f'    """{about}"""\n\n'
        fields = sorted(definition["properties"].items())
        required = definition.get("required", [])
        for field, found in fields:
            kind, _ = self.kind(found, field in required)
            self.text += f"    {field}: {kind}\n"
            if about := found.get("description"):
                self.text += f'    """{about}"""\n'
        self.text += METHODS.get(name, "")
        self.text += f"\n    @classmethod\n    def from_json(cls, found: Mapping[str, Any]) -> {name}:\n        return cls(\n"
        for field, inner in fields:
            _, read = self.kind(inner, field in required)
            value = f'found["{field}"]' if field in required else f'found.get("{field}")'
            self.text += f"            {field}={read(value)},\n"
        self.text += "        )\n"

    def kind(self, found: dict[str, Any], required: bool) -> tuple[str, Any]:
        """The annotation, and how a value is read given the expression that has it."""
        # With a description of its own a reference is wrapped.
        kinds = found.get("anyOf") or [found]
        names = found.get("type")
        if isinstance(names, list):
            kinds = [found | {"type": one} for one in names]
        rest = [one for one in kinds if one.get("type") != "null"]
        optional = len(rest) < len(kinds) or not required
        assert len(rest) == 1, f"no type for {found}"
        kind, read = self.one(rest[0])
        if not optional:
            return kind, lambda value: f"{read}({value})" if read else value
        return f"{kind} | None", lambda value: f"_optional({read}, {value})" if read else value

    def one(self, found: dict[str, Any]) -> tuple[str, str | None]:
        if reference := found.get("$ref"):
            name = reference.split("/")[-1]
            if name == "Number":
                return "float", "_number"
            definition = self.definitions[name]
            if words_of(definition):
                return name, None
            if "properties" in definition:
                return name, f"{name}.from_json"
            return self.one(definition)
        match found.get("type"):
            case "string":
                return "str", None
            case "boolean":
                return "bool", None
            case "integer":
                return "int", None
            case "number":
                return "float", "float"
            case "array":
                kind, read = self.one(found["items"])
                return f"tuple[{kind}, ...]", f"(lambda all: tuple(map({read}, all)))" if read else "tuple"
            case "object":
                kind, read = self.one(found["additionalProperties"])
                assert read is None
                return f"dict[str, {kind}]", "dict"
        raise AssertionError(f"no type for {found}")


def words_of(definition: dict[str, Any]) -> list[str]:
    """The strings of an enumeration, each with or without a description of its own."""
    if definition.get("type") == "string":
        return definition.get("enum", [])
    found = []
    for one in definition.get("oneOf", []):
        found += one.get("enum", [one.get("const")])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--warpsmith", default="warpsmith")
    parser.add_argument("--to", type=Path, default=TO)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    writer = Writer()
    for name in DOCUMENTS:
        writer.add(schema(asked.warpsmith, name))
    text = writer.all()
    if not asked.check:
        asked.to.write_text(text)
        return 0
    if asked.to.exists() and asked.to.read_text() == text:
        return 0
    print(f"{asked.to} is not what the schemas say; run python/generate.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
