"""Frames of JSON over a stream socket, with descriptors on a frame's first byte.

Both ends of a channel may be hostile to each other: a frame is bounded before it is read, and a peer that goes away in
the middle of one is reported as `EOFError`, never as a short frame.
"""

from __future__ import annotations

import array
import json
import os
import socket
import time
import struct
from typing import Any, Sequence

FRAME_LIMIT = 64 << 20
DESCRIPTOR_LIMIT = 16
_HEADER = struct.Struct("<I")


class ProtocolError(Exception):
    """The peer broke the framing rules."""


class Channel:
    """One end of a socket pair. Not safe to share between threads."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self.spin_seconds = 0.0

    def _await(self) -> None:
        """Polls for a while before sleeping: a core that went idle is slow for hundreds of microseconds after it wakes,
        and that would be counted as the module's time. Only where cores are not what is being measured."""
        deadline = time.monotonic() + self.spin_seconds
        while time.monotonic() < deadline:
            try:
                self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
                return
            except BlockingIOError:
                continue

    def send(self, obj: Any, fds: Sequence[int] = ()) -> None:
        body = json.dumps(obj, allow_nan=False, separators=(",", ":")).encode()
        if len(body) > FRAME_LIMIT:
            raise ProtocolError(f"a frame of {len(body)} bytes is over the limit of {FRAME_LIMIT}")
        frame = _HEADER.pack(len(body)) + body
        sent = socket.send_fds(self._socket, [frame], list(fds)) if fds else 0
        self._socket.sendall(frame[sent:])

    def recv(self) -> tuple[Any, list[int]]:
        header, fds = self._header()
        try:
            (length,) = _HEADER.unpack(header)
            if length > FRAME_LIMIT:
                raise ProtocolError(f"a frame of {length} bytes is over the limit of {FRAME_LIMIT}")
            body = self._exactly(length)
            try:
                return json.loads(body), fds
            except ValueError as error:
                raise ProtocolError(f"a frame is not JSON: {error}") from None
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise

    def close(self) -> None:
        self._socket.close()

    def _header(self) -> tuple[bytes, list[int]]:
        """The length, and the descriptors: only the header is read with room for them, since they ride on its first byte."""
        if self.spin_seconds:
            self._await()
        header, fds = b"", array.array("i")
        room = socket.CMSG_LEN(DESCRIPTOR_LIMIT * fds.itemsize)
        while len(header) < _HEADER.size:
            # Not socket.recv_fds: it drops the flag that keeps descriptors from our children.
            part, ancillary, flags, _ = self._socket.recvmsg(_HEADER.size - len(header), room, socket.MSG_CMSG_CLOEXEC)
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
            if flags & socket.MSG_CTRUNC or not part:
                for fd in fds:
                    os.close(fd)
                if part:
                    raise ProtocolError("descriptors were cut off")
                raise EOFError("the peer closed the channel")
            header += part
        return header, list(fds)

    def _exactly(self, length: int) -> bytearray:
        body = bytearray(length)
        view = memoryview(body)
        filled = 0
        while filled < length:
            got = self._socket.recv_into(view[filled:])
            if got == 0:
                raise EOFError("the peer closed the channel inside a frame")
            filled += got
        return body
