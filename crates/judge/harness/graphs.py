"""Interprets a task's graph: every value by PyTorch's functional forms alone.

Graphs of one task share most of their values. A value is known by what it is computed from, so that of a mutant only what
follows its mistake is computed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import torch

import graph_forms

Key = bytes


class NoGraph(Exception):
    """The graph does not say what it says it does."""


class Graph:
    """A graph with a key for each value."""

    def __init__(self, told: dict[str, Any], stale: tuple[str, ...] = ()) -> None:
        self.values, self.returns, self.stale = told["values"], told["returns"], frozenset(stale)
        self.keys: list[Key] = []
        for value in self.values:
            self.keys.append(self._key(value))

    def _key(self, value: dict[str, Any]) -> Key:
        source = dict(value["from"])
        inputs = [None if place is None else self.keys[place].hex() for place in source.pop("inputs", [])]
        old = source["kind"] == "state" and source["name"] in self.stale
        text = json.dumps([value["dtype"], value["shape"], source, inputs, old], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def operands(self, place: int) -> list[int]:
        return [one for one in self.values[place]["from"].get("inputs", []) if one is not None]


@dataclass
class Draw:
    """What a graph is computed on, and the values of the original that are kept."""

    inputs: list[Any]
    state: dict[str, torch.Tensor]
    stale: dict[str, torch.Tensor]
    device: str
    room: int  # bytes that may still be kept
    kept: dict[Key, torch.Tensor] = field(default_factory=dict)

    def outputs(self, graph: Graph, keep: bool = False) -> list[torch.Tensor]:
        """What the graph returns; with `keep` its values are there for other graphs."""
        wanted = self._wanted(graph)
        uses = dict.fromkeys(wanted, 0)
        computed = [place for place in sorted(wanted) if graph.keys[place] not in self.kept]
        for place in computed:
            for operand in graph.operands(place):
                uses[operand] += 1
        for place in graph.returns:
            uses[place] += 1
        made: dict[int, torch.Tensor] = {}
        pending = set(computed)
        with torch.device(self.device):
            for place in sorted(wanted):
                made[place] = self._value(graph, place, made)
                if keep:
                    self._keep(graph.keys[place], made[place])
                for operand in graph.operands(place) if place in pending else ():
                    uses[operand] -= 1
                    if uses[operand] == 0:
                        made.pop(operand, None)
        return [made[place] for place in graph.returns]

    def _wanted(self, graph: Graph) -> set[int]:
        found: set[int] = set()
        ahead = list(graph.returns)
        while ahead:
            place = ahead.pop()
            if place not in found:
                found.add(place)
                ahead += graph.operands(place) if graph.keys[place] not in self.kept else []
        return found

    def _keep(self, key: Key, tensor: torch.Tensor) -> None:
        if tensor.nbytes <= self.room and key not in self.kept:
            self.room -= tensor.nbytes
            self.kept[key] = tensor

    def _value(self, graph: Graph, place: int, made: dict[int, torch.Tensor]) -> torch.Tensor:
        known = self.kept.get(graph.keys[place])
        if known is not None:
            return known
        value = graph.values[place]
        source = value["from"]
        found = self._computed(graph, value, made)
        same_type = source["kind"] == "scalar" or str(found.dtype) == f"torch.{value['dtype']}"
        if list(found.shape) != value["shape"] or not same_type:
            what = source.get("op", source["kind"])
            raise NoGraph(f"value {place} ({what}) is {list(found.shape)} {found.dtype}, the graph says {value['shape']} {value['dtype']}")
        return found

    def _computed(self, graph: Graph, value: dict[str, Any], made: dict[int, torch.Tensor]) -> torch.Tensor:
        source = value["from"]
        match source["kind"]:
            case "input" | "scalar":
                given = self.inputs[source["position"]]
                return given if isinstance(given, torch.Tensor) else torch.tensor(given, dtype=getattr(torch, value["dtype"]))
            case "state":
                return (self.stale if source["name"] in graph.stale else self.state)[source["name"]]
            case "constant":
                data = [graph_forms.revived(one) for one in source["data"]]
                return torch.tensor(data, dtype=getattr(torch, value["dtype"])).reshape(value["shape"])
            case "applied":
                operands = [None if one is None else made[one] for one in source["inputs"]]
                found = graph_forms.apply(source["op"], operands, source["arguments"])
                return found[source["result"]] if isinstance(found, (tuple, list)) else found
        raise NoGraph(f"a value from {source['kind']}")
