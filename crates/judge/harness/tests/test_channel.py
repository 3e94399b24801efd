"""Frames, descriptors and values on the wire."""

from __future__ import annotations

import math
import os
import socket
import struct
import sys
import unittest
from collections import namedtuple
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import values
from channel import Channel, ProtocolError


class ChannelTest(unittest.TestCase):
    def pair(self) -> tuple[Channel, Channel]:
        sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        here, there = (Channel(end.detach()) for end in sockets)
        self.addCleanup(here.close)
        self.addCleanup(there.close)
        return here, there

    def receiver(self, sent: bytes) -> Channel:
        """A channel whose peer sent these bytes and left."""
        first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        first.sendall(sent)
        first.close()
        channel = Channel(second.detach())
        self.addCleanup(channel.close)
        return channel

    def test_frames_keep_their_borders_and_descriptors(self) -> None:
        here, there = self.pair()
        read, write = os.pipe()
        here.send({"a": 1})
        here.send({"b": [1, 2]}, [write])
        here.send({"c": "ü" * 1000})
        self.assertEqual(there.recv(), ({"a": 1}, []))
        body, fds = there.recv()
        self.assertEqual((body, len(fds)), ({"b": [1, 2]}, 1))
        os.write(fds[0], b"x")
        self.assertEqual(os.read(read, 1), b"x")
        self.assertFalse(os.get_inheritable(fds[0]))
        self.assertEqual(there.recv()[0], {"c": "ü" * 1000})
        for fd in (read, write, fds[0]):
            os.close(fd)

    def test_a_closed_peer_is_the_end_even_inside_a_frame(self) -> None:
        for sent in (b"", b"\x05\x00", struct.pack("<I", 100) + b"{"):
            with self.assertRaises(EOFError):
                self.receiver(sent).recv()

    def test_oversized_and_malformed_frames_are_refused(self) -> None:
        for sent in (struct.pack("<I", (64 << 20) + 1), struct.pack("<I", 2) + b"{]"):
            with self.assertRaises(ProtocolError):
                self.receiver(sent).recv()

    def test_not_a_number_never_travels_bare(self) -> None:
        here, _ = self.pair()
        with self.assertRaises(ValueError):
            here.send({"x": math.nan})


class Lazy(torch.Tensor):
    pass


Pair = namedtuple("Pair", "left right")


def place(tensor: torch.Tensor) -> dict:
    return values.describe(tensor, 256)


class ValuesTest(unittest.TestCase):
    def test_trees_survive_the_round_trip(self) -> None:
        tree = {"a": [1, True, None, "x"], "b": (0.1, math.inf), 3: torch.float16, "d": torch.device("cpu"), "e": []}
        wire = values.encode(tree, place)
        self.assertEqual(values.decode(wire, lambda raw: raw), tree)
        self.assertTrue(math.isnan(values.decode(values.encode(math.nan, place), lambda raw: raw)))

    def test_named_tuples_and_parameters_are_plain(self) -> None:
        wire = values.encode(Pair(torch.nn.Parameter(torch.zeros(2)), 1), place)
        spec = {"dtype": "float32", "shape": [2], "stride": [1], "offset": 256}
        self.assertEqual(wire, {"tuple": [{"tensor": spec}, 1]})

    def test_what_could_lie_is_refused(self) -> None:
        deep: object = 1
        for _ in range(20):
            deep = [deep]
        refused = [Lazy(), torch.zeros(2, dtype=torch.complex64), torch.zeros(2, 2).to_sparse(), object(), deep, [0] * 5000,
                   {1.5: 2}, 1 << 80, type("F", (float,), {})(1.0)]
        for value in refused:
            with self.subTest(type(value)), self.assertRaises(values.ValueRefused):
                values.encode(value, place)

    def test_hostile_places_are_refused(self) -> None:
        region = torch.zeros(1024, dtype=torch.uint8)
        good = {"dtype": "float32", "shape": [4, 2], "stride": [2, 1], "offset": 8}
        self.assertEqual(values.view(region, good).shape, (4, 2))
        for change in (
            {"offset": -4}, {"offset": 2}, {"offset": 1 << 62}, {"offset": "0"}, {"offset": 1000}, {"shape": [-1, 2]},
            {"shape": [1 << 40, 1 << 40]}, {"stride": [2]}, {"stride": [-2, 1]}, {"stride": [1 << 61, 1]}, {"dtype": "float8"},
            {"shape": [True, 2]}, {"shape": None}, {"shape": [1.0, 2]},
        ):
            with self.subTest(change), self.assertRaises(values.ValueRefused):
                values.view(region, good | change)
        for wire in ({"list": 3}, {"float": 1.5}, {"float": "x"}, {"dict": [[1]]}, {"a": 1, "b": 2}, [1], 1.5, {"tensor": 1}):
            with self.subTest(wire), self.assertRaises(values.ValueRefused):
                values.decode(wire, values.parse_spec)

    def test_empty_and_expanded_tensors_have_a_place(self) -> None:
        region = torch.arange(64, dtype=torch.uint8)
        empty = {"dtype": "float32", "shape": [0, 3], "stride": [3, 1], "offset": 0}
        self.assertEqual(values.view(region, empty).shape, (0, 3))
        spread = {"dtype": "uint8", "shape": [2, 3], "stride": [0, 1], "offset": 1}
        self.assertEqual(values.view(region, spread).tolist(), [[1, 2, 3], [1, 2, 3]])


if __name__ == "__main__":
    unittest.main()
