"""A `warpsmith serve`: one of our own on a loopback port, which ends with this process, or somebody else's."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import threading
import urllib.parse
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from . import command
from .errors import ServerError, UsageError, of_answer, of_failure
from .schema import Failure

# Weights are not loaded, so a server that is not there by then is not coming.
START_SECONDS = 60.0
# How long a connection is held beyond what the server was asked to wait.
GRACE_SECONDS = 30.0


class Stop:
    """Whether anybody still wants the answer. Setting it breaks off what is being waited for."""

    def __init__(self) -> None:
        self._event, self._lock = threading.Event(), threading.Lock()
        self._held: set[socket.socket] = set()
        self.is_set, self.wait = self._event.is_set, self._event.wait

    def set(self) -> None:
        self._event.set()
        with self._lock:
            for one in self._held:
                # The connection's own, below TLS, which another thread is reading.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(one, socket.SHUT_RDWR)

    @contextlib.contextmanager
    def breaks(self, held: socket.socket) -> Iterator[None]:
        with self._lock:
            self._held.add(held)
        try:
            if self.is_set():
                raise ConnectionAbortedError("nobody waits for the answer")
            yield
        finally:
            with self._lock:
                self._held.discard(held)


class Connection:
    """Where a server is and what it wants to be shown."""

    def __init__(self, url: str, token: str | None) -> None:
        try:
            found = urllib.parse.urlsplit(url)
            port = found.port
        except ValueError:
            found, port = urllib.parse.urlsplit(""), None
        if found.scheme not in ("http", "https") or not found.hostname:
            raise UsageError(f"`{url}` is no address of a server", "give one such as http://127.0.0.1:8000")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise UsageError("the token has letters that no header can have", "give the server's token as it stands in its file")
        self.url, self.token = url.rstrip("/"), token
        self._https, self._host, self._port = found.scheme == "https", found.hostname, port
        self._path = found.path.rstrip("/")
        # Kept open by the thread that uses it.
        self._local = threading.local()

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, wait: float = 0.0, stop: Stop | None = None
    ) -> tuple[int, dict[str, Any], float | None]:
        """Status, the object, and the seconds after which to come again if the server says so."""
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        stop = stop or Stop()
        headers = {} if data is None else {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        for last in (False, True):
            fresh = self._kept() is None
            connection = self._kept() or self._open()
            try:
                connection.timeout = wait + GRACE_SECONDS
                if connection.sock is None:
                    connection.connect()
                connection.sock.settimeout(wait + GRACE_SECONDS)
                with stop.breaks(connection.sock):
                    connection.request(method, self._path + path, data, headers)
                    answer = connection.getresponse()
                    text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.forget()
                # A connection that was idle may have been closed before it heard of this.
                if not (last or fresh or stop.is_set()) and isinstance(error, (ConnectionError, http.client.RemoteDisconnected)):
                    continue
                message = f"no answer from {self.url}: {error or type(error).__name__}"
                raise ServerError(message, "is the server running and reachable?", "no_answer") from error
            except BaseException:
                # Ctrl-C leaves an answer in it that nobody takes.
                self.forget()
                raise
            try:
                found = json.loads(text)
            except ValueError:
                found = None
            if not isinstance(found, dict):
                raise ServerError(f"{self.url} answered {answer.status} and no object", "is this address a `warpsmith serve`?")
            again = answer.getheader("Retry-After")
            return answer.status, found, float(again) if again and again.isdigit() else None
        raise AssertionError("unreachable")

    def get(self, path: str) -> dict[str, Any]:
        status, answer, _ = self.ask("GET", path)
        if status != 200:
            raise of_answer(status, answer)
        return answer

    def target(self) -> str:
        """What kernels are judged on there, which decides which of a folder's are sent."""
        try:
            return str(self.ask("GET", "/healthz")[1].get("target", "cpu"))
        except ServerError:
            # A proxy need not let it through.
            return "cpu"

    def _kept(self) -> http.client.HTTPConnection | None:
        # A connection is not shared with a process that was forked.
        kept = getattr(self._local, "kept", None)
        return kept[1] if kept and kept[0] == os.getpid() else None

    def _open(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        opened = kind(self._host, self._port, timeout=GRACE_SECONDS)
        self._local.kept = (os.getpid(), opened)
        return opened

    def forget(self) -> None:
        if kept := self._kept():
            kept.close()
        self._local.kept = None


class Server:
    """A server of our own: a loopback port, a token that nobody else knows, and an end with this process however that comes."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.token = secrets.token_urlsafe(24)
        self._owner = os.getpid()
        self._log: IO[bytes] = tempfile.TemporaryFile(prefix="warpsmith-serve-")
        asked = [command.find(), "serve", "--port", "0", "--until-stdin-closes", "--json", "-q", *arguments]
        environment = {**os.environ, "WARPSMITH_TOKEN": self.token, "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            asked,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            # Ctrl-C is for this program, which ends the server when it is done with it.
            start_new_session=True,
        )
        _servers.add(self)
        self.connection = Connection(self._said()["url"], self.token)

    def _said(self) -> dict[str, Any]:
        """What the server says once it listens, or why it does not."""
        text = b""
        late = threading.Timer(START_SECONDS, self.process.kill)
        late.start()
        try:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                text += line
                if line.rstrip() == b"}":
                    break
        finally:
            late.cancel()
        try:
            said = json.loads(text)
        except ValueError:
            raise ServerError(f"the judge's server did not start: {self.told()}", "`warpsmith doctor` says what is missing") from None
        if said.get("failure"):
            raise of_failure(Failure.from_json(said["failure"]))
        return said

    def told(self) -> str:
        """The end of what it said on stderr."""
        with contextlib.suppress(OSError, ValueError):
            self._log.seek(0, os.SEEK_END)
            self._log.seek(max(0, self._log.tell() - 2000))
            return self._log.read().decode(errors="replace").strip()
        return ""

    def ended(self, within: float = 0.0) -> str | None:
        """Why it is not there any more, if so."""
        # Only its parent can know.
        if os.getpid() != self._owner:
            return None
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            return None
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        return f"the judge's server {how}: {self.told() or 'it said nothing'}"

    def close(self) -> None:
        # A forked child has no part in it.
        if os.getpid() != self._owner:
            return
        self.connection.forget() if hasattr(self, "connection") else None
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(ProcessLookupError):
            # At once: SIGTERM would end what is being judged first.
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """A forked child that lives longer would keep the servers from seeing that their owner is gone."""
    for one in list(_servers):
        if one.process.stdin:
            one.process.stdin.close()


os.register_at_fork(after_in_child=_leave_to_the_parent)
