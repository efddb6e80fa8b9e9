"""The Unix socket beside a run, for the same user and root: a request is a line of JSON, and so is its answer.

One thread serves all clients, none longer than :data:`edgert.limits.CONTROL_LINE_S`. Another thread makes the changes,
one at a time. No frame waits for either.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import selectors
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from edgert import limits
from edgert.control.request import VERBS, Request, answer_to, parse_request, refusal
from edgert.errors import DeviceError, EdgertError, StageError, cause
from edgert.runtime.worker import OneJobWorker, Worker

Perform = Callable[[Request, str], Any]
"""A function that performs a request, given its sender in words for the log, and returns the result."""
_LOG = logging.getLogger(__name__)
_SELECT_S, _CLOSING_S = 0.5, 5.0
_LONGEST_PATH = 107  # sun_path of unix(7), without its NUL


def socket_folders() -> tuple[Path, ...]:
    """Return the folders of this user's sockets: ``$XDG_RUNTIME_DIR/edgert``, and one in /tmp.

    A run uses the first. A client searches both, because a service may have been started without the variable.
    """
    base, shared = os.environ.get("XDG_RUNTIME_DIR"), Path(f"/tmp/edgert-{os.geteuid()}")  # noqa: S108 - checked
    with suppress(OSError):
        if base and Path(base).stat().st_uid == os.geteuid():  # `sudo -E` keeps the folder of another user
            return Path(base) / "edgert", shared
    return (shared,)


def check_folder(folder: Path) -> None:
    """Check a folder of sockets. Raises DeviceError: it belongs to another user, or others can enter it."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        why = "it belongs to another user, or other users can enter it"
        raise DeviceError(f"{folder} cannot hold sockets", why=why, fix=f"remove it, or chmod 700 {folder}")


class ControlSocket:
    """A server of requests on a socket, from :meth:`open` to :meth:`close`.

    Args:
        name: name of the pipeline and the socket; a second run of that name adds its process number.
        perform: function that performs requests, one change at a time; requests that only read may come meanwhile.

    Attributes:
        path: path of the socket; None while it is closed.
    """

    def __init__(self, name: str, perform: Perform) -> None:
        self._name, self._perform = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:64].lstrip(".") or "pipeline", perform
        self.path: Path | None = None
        self._server: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._changes: Worker | None = None  # started for the first change
        self._waker, self._woken = socket.socketpair()
        self._over = threading.Event()

    def open(self) -> Path:
        """Create the socket, start to answer, and return its path.

        Raises:
            DeviceError: the folder belongs to another user or cannot be written, the path is too long, or no thread can
                start.
        """
        folder = socket_folders()[0]
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_folder(folder)
            with _lock_folder(folder):
                for left in folder.glob("*.sock"):
                    with suppress(OSError):
                        if not is_answered(left):  # its run was killed
                            left.unlink()
                path = next(path for path in self._paths(folder) if not path.exists())
                if len(os.fsencode(path)) > _LONGEST_PATH:
                    why, fix = f"{path} has more than {_LONGEST_PATH} bytes", "give the pipeline a shorter name:"
                    raise DeviceError("cannot create the control socket", why=why, fix=fix)
                server.bind(str(path))
                path.chmod(0o600)
                server.listen(limits.CONTROL_CLIENTS)
            server.setblocking(False)
        except BaseException as error:
            server.close()
            if isinstance(error, OSError):
                raise DeviceError(f"cannot create a socket in {folder}", why=cause(error)) from error
            raise
        self._server, self.path = server, path
        thread = threading.Thread(target=self._serve, args=(server,), name="edgert:control", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no further thread can start
            self.close()
            raise DeviceError("cannot serve the control socket", why=str(error)) from error
        self._thread = thread
        return path

    def close(self) -> None:
        """Stop answering, end the threads, and remove the socket. Further calls do nothing."""
        server, self._server = self._server, None
        if server is None:
            return
        self._over.set()
        if self.path is not None:
            self.path.unlink(missing_ok=True)  # while the socket is still answered, so no other run uses the path
        self._wake()
        if self._thread is not None:
            self._thread.join()
        if self._changes is not None:
            self._changes.stop()
            self._changes.join(_CLOSING_S)
        server.close()
        self.path = None

    def _paths(self, folder: Path) -> Iterator[Path]:
        yield folder / f"{self._name}.sock"
        yield folder / f"{self._name}-{os.getpid()}.sock"
        for number in count(2):  # several pipelines of one program
            yield folder / f"{self._name}-{os.getpid()}-{number}.sock"

    def _serve(self, server: socket.socket) -> None:
        """Serve clients until the socket is closed."""
        clients: dict[socket.socket, _Client] = {}
        with selectors.DefaultSelector() as ready:
            ready.register(self._woken, selectors.EVENT_READ)
            while not self._over.is_set():
                _set_events(ready, server, selectors.EVENT_READ if len(clients) < limits.CONTROL_CLIENTS else 0)
                for key, _ in ready.select(_SELECT_S if clients else None):  # clients may time out
                    if key.fileobj is server:
                        if (client := self._accept(server)) is not None:
                            clients[client.socket] = client
                    elif key.fileobj is self._woken:
                        self._woken.recv(1 << 12)
                    else:
                        self._advance(clients[key.fileobj])  # type: ignore[index]
                for client in [*clients.values()]:
                    client.check_time()
                    _set_events(ready, client.socket, client.events)
                    if client.is_done:
                        clients.pop(client.socket).socket.close()
        for client in clients.values():
            client.socket.close()
        self._woken.close()

    def _wake(self) -> None:
        with suppress(OSError):  # closed, or its buffer is full and wakes the thread already
            self._waker.send(b"!", socket.MSG_DONTWAIT)

    def _accept(self, server: socket.socket) -> _Client | None:
        try:
            own, _ = server.accept()
        except OSError as error:
            _LOG.debug("no client was accepted: %s", error)
            self._over.wait(0.0 if isinstance(error, BlockingIOError) else _SELECT_S / 5)  # no descriptor may be free
            return None
        return _Client(own)

    def _advance(self, client: _Client) -> None:
        """Receive from a client, and answer a complete request; or send more of an answer."""
        if client.answer is not None:
            client.write()
            return
        try:
            if (line := client.line()) is None:
                return
            request = parse_request(line)
            answer = partial(answer_to, partial(self._perform, request, client.who))
            if VERBS[request.verb].is_reading:
                client.send(answer())
                return
            client.pending = self._worker(request).submit(answer)
            client.pending.add_done_callback(lambda _: self._wake())
        except EdgertError as error:
            client.send(refusal(error))
        except RuntimeError as error:  # no thread can start
            client.send(refusal(StageError("the request failed", why=str(error), fix="try again")))

    def _worker(self, request: Request) -> Worker:
        """Return the worker for a request: one for all changes, and a new one for each long request without changes.

        Raises:
            RuntimeError: no further thread can start.
        """
        if VERBS[request.verb].is_long:
            return OneJobWorker(f"edgert:{request.verb}")
        if self._changes is None:
            worker = Worker("edgert:changes")
            worker.start()
            self._changes = worker
        return self._changes


class _Client:
    """A connection of a client, with one request and one answer; its methods never block.

    Attributes:
        socket: socket of the connection.
        who: user and process of the client, for the log.
        pending: future answer, while a change is made.
        answer: bytes of the answer that are not sent yet; None before there is an answer.
        is_done: whether the connection can be closed.
    """

    def __init__(self, own: socket.socket) -> None:
        self.socket, self._text = own, bytearray()
        self.pending: Future[bytes] | None = None
        self.answer: memoryview | None = None
        self.is_done = False
        self._deadline_s = time.monotonic() + limits.CONTROL_LINE_S
        pid, self._user = peer_of(own)
        self.who = f"user {self._user}, process {pid}"
        own.setblocking(False)

    @property
    def events(self) -> int:
        """Selector events of the socket that are waited for; 0 for none."""
        if self.is_done or (self.pending is not None and self.answer is None):
            return 0
        return selectors.EVENT_READ if self.answer is None else selectors.EVENT_WRITE

    def line(self) -> bytes | None:
        """Receive, and return the request's line once it is complete; else None.

        Raises:
            StageError: the client is another user, or the line is too long.
        """
        if self._user not in (os.geteuid(), 0):
            raise StageError("this pipeline is another user's", fix="run edgert ctl as the user of the run, or as root")
        try:
            more = self.socket.recv(1 << 16)
        except BlockingIOError:
            return None
        except OSError:
            more = b""
        self._text += more
        line, end, _ = self._text.partition(b"\n")
        if len(line) > limits.CONTROL_LINE_BYTES:
            raise StageError(f"the request has more than {limits.CONTROL_LINE_BYTES} bytes")
        self.is_done = not more and not end
        return bytes(line) if end else None

    def send(self, answer: bytes) -> None:
        """Begin to send an answer; after :data:`limits.CONTROL_LINE_S` the connection is closed."""
        self.answer, self._deadline_s = memoryview(answer), time.monotonic() + limits.CONTROL_LINE_S
        self.write()

    def write(self) -> None:
        """Send as much of the answer as the socket accepts."""
        assert self.answer is not None
        try:
            self.answer = self.answer[self.socket.send(self.answer) :]
        except BlockingIOError:
            return
        except OSError:
            self.is_done = True
        self.is_done = self.is_done or not self.answer

    def check_time(self) -> None:
        """Begin to send a pending answer that is ready, and end a connection that takes too long."""
        if self.pending is not None and self.answer is None:
            if self.pending.done():
                self.send(self.pending.result())
        elif self._deadline_s < time.monotonic():
            if self.answer is not None:
                self.is_done = True
                return
            fix = f"send one line within {limits.CONTROL_LINE_S:g} s"
            self.send(refusal(StageError("the request is not complete", fix=fix)))


def _set_events(ready: selectors.BaseSelector, own: socket.socket, events: int) -> None:
    """Set the events of a socket that a selector waits for; 0 for none."""
    known = ready.get_map().get(own)
    if known is None:
        if events:
            ready.register(own, events)
    elif not events:
        ready.unregister(own)
    elif known.events != events:
        ready.modify(own, events)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end of a connection (SO_PEERCRED of unix(7))."""
    size = struct.calcsize("iII")
    pid, user, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, user


def is_answered(path: Path) -> bool:
    """Return whether a process listens on a socket; False for a missing socket and one that a killed process left."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return path.exists()
        return True


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, so that only one run at a time chooses a path in it."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)
