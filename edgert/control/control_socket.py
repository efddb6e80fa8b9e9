"""The Unix socket beside a run: a line of JSON in, a line out, for the same user and root.

One thread reads and writes all clients at once, none longer than :data:`edgert.limits.CONTROL_LINE_S`. Another one
makes the changes, one after the other. Nothing of it is on the way of a frame.
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
from pathlib import Path
from typing import Any

from edgert import limits
from edgert.control.request import VERBS, Request, line_of, refusal, request_of
from edgert.errors import DeviceError, EdgertError, StageError
from edgert.runtime.worker import PassingWorker, Worker

Answer = Callable[[Request, str], dict[str, Any]]
"""Makes the answer to a request; the second argument says who asks."""
_LOG = logging.getLogger(__name__)
_LOOK_S, _CLOSING_S = 0.5, 5.0
_MOST_PATH = 107  # sun_path of unix(7), without its NUL


def socket_folders() -> tuple[Path, ...]:
    """Return the folders of this user's sockets: ``$XDG_RUNTIME_DIR/edgert`` and one in /tmp.

    A run uses the first. A service of the same user may have been started without the variable.
    """
    base, shared = os.environ.get("XDG_RUNTIME_DIR"), Path(f"/tmp/edgert-{os.geteuid()}")  # noqa: S108 - checked
    with suppress(OSError):
        if base and Path(base).stat().st_uid == os.geteuid():  # as `sudo -E` keeps another user's
            return Path(base) / "edgert", shared
    return (shared,)


def check_folder(folder: Path) -> None:
    """Raise DeviceError unless a folder is this user's, and no one else may enter it."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        why = "another user may have made it, or can enter it"
        raise DeviceError(f"{folder} is no folder for sockets", why=why, fix=f"remove it, or chmod 700 {folder}")


class ControlSocket:
    """Answers requests on a socket from :meth:`open` to :meth:`close`.

    Args:
        name: of the pipeline. Where a run of that name has a socket already, this one's has the process number, too.
        answer: called for one request at a time; but those that only read are answered while a change is under way.

    Attributes:
        path: of the socket; None while it is closed.
    """

    def __init__(self, name: str, answer: Answer) -> None:
        self._name, self._answer = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:64].lstrip(".") or "pipeline", answer
        self.path: Path | None = None
        self._server: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._changes: Worker | None = None  # made with the first
        self._waker, self._woken = socket.socketpair()
        self._over = threading.Event()

    def open(self) -> Path:
        """Begin to answer; return the path of the socket.

        Raises:
            DeviceError: the folder is another user's, cannot be written, its path is too long; or no thread can start.
        """
        folder = socket_folders()[0]
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_folder(folder)
            with _locked(folder):
                path = next(path for path in self._paths(folder) if not is_answered(path))
                if len(os.fsencode(path)) > _MOST_PATH:
                    why, fix = f"{path} has more than {_MOST_PATH} bytes", "give the pipeline a shorter name:"
                    raise DeviceError("there can be no control socket", why=why, fix=fix)
                path.unlink(missing_ok=True)  # of a run that was killed
                server.bind(str(path))
                path.chmod(0o600)
                server.listen(limits.CONTROL_CLIENTS)
            server.setblocking(False)
        except OSError as error:
            server.close()
            raise DeviceError(f"no control socket in {folder}", why=error.strerror or str(error)) from error
        except BaseException:
            server.close()
            raise
        self._server, self.path = server, path
        thread = threading.Thread(target=self._serve, args=(server,), name="edgert:control", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit of threads, or of memory
            self.close()
            raise DeviceError("there can be no control socket", why=str(error)) from error
        self._thread = thread
        return path

    def close(self) -> None:
        """Stop answering, end the threads, and remove the socket. Twice is once."""
        server, self._server = self._server, None
        if server is None:
            return
        self._over.set()
        if self.path is not None:
            self.path.unlink(missing_ok=True)  # while it is answered, no other run takes the path
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
        number = 1
        while True:  # several pipelines of one program
            number += 1
            yield folder / f"{self._name}-{os.getpid()}-{number}.sock"

    def _serve(self, server: socket.socket) -> None:
        """Read and answer clients until it is closed."""
        clients: dict[socket.socket, _Client] = {}
        with selectors.DefaultSelector() as ready:
            ready.register(self._woken, selectors.EVENT_READ)
            while not self._over.is_set():
                _listen(ready, server, selectors.EVENT_READ if len(clients) < limits.CONTROL_CLIENTS else 0)
                for key, _ in ready.select(_LOOK_S if clients else None):  # whose time may end
                    if key.fileobj is server:
                        if (client := self._accepted(server)) is not None:
                            clients[client.socket] = client
                    elif key.fileobj is self._woken:
                        self._woken.recv(1 << 12)
                    else:
                        self._advance(clients[key.fileobj])  # type: ignore[index]
                for client in [*clients.values()]:
                    client.keep_time()
                    _listen(ready, client.socket, client.events)
                    if client.is_done:
                        clients.pop(client.socket).socket.close()
        for client in clients.values():
            client.socket.close()
        self._woken.close()

    def _wake(self) -> None:
        with suppress(OSError):  # it is closed, or has enough to wake up by
            self._waker.send(b"!", socket.MSG_DONTWAIT)

    def _accepted(self, server: socket.socket) -> _Client | None:
        try:
            own, _ = server.accept()
        except OSError as error:
            _LOG.debug("nobody is accepted: %s", error)
            self._over.wait(0.0 if isinstance(error, BlockingIOError) else _LOOK_S / 5)  # no descriptor is free, say
            return None
        return _Client(own)

    def _advance(self, client: _Client) -> None:
        """Read what has come, and have a complete request answered; or send more of an answer."""
        if client.answer is not None:
            client.write()
            return
        try:
            line = client.line()
            if line is None:
                return
            request = request_of(line)
        except EdgertError as error:
            client.send(refusal(error))
            return
        if VERBS[request.verb].is_reading:
            client.send(self._answered(request, client.who))
            return
        try:
            client.waits_for = self._worker(request).submit(partial(self._answered, request, client.who))
        except RuntimeError as error:
            client.send(refusal(StageError("the request failed", why=str(error), fix="try again")))
            return
        client.waits_for.add_done_callback(lambda _: self._wake())

    def _worker(self, request: Request) -> Worker:
        """Return a thread for a request that takes a while: one for all changes, and one each for what changes nothing.

        Raises:
            RuntimeError: there can be no more threads.
        """
        if VERBS[request.verb].is_long:
            return PassingWorker(f"edgert:{request.verb}")
        if self._changes is None:
            worker = Worker("edgert:changes")
            worker.start()
            self._changes = worker
        return self._changes

    def _answered(self, request: Request, who: str) -> dict[str, Any]:
        try:
            return self._answer(request, who)
        except Exception:  # noqa: BLE001 - an error in one answer must not end the thread
            _LOG.exception("a request failed")
            return refusal(StageError("the request failed", why="this is a bug in edgert; its log has more"))


class _Client:
    """A connection: one line of request, one line of answer. Nothing of it waits.

    Attributes:
        who: process and user, for the log.
        waits_for: its answer, while a change is made.
        answer: bytes of the answer that are not sent yet; None before there is one.
    """

    def __init__(self, own: socket.socket) -> None:
        self.socket, self._text = own, bytearray()
        self.waits_for: Future[dict[str, Any]] | None = None
        self.answer: memoryview | None = None
        self.is_done = False
        self._deadline_s = time.monotonic() + limits.CONTROL_LINE_S
        pid, self._user = peer_of(own)
        self.who = f"user {self._user}, process {pid}"
        own.setblocking(False)

    @property
    def events(self) -> int:
        """What it waits for, of its socket; 0 for nothing."""
        if self.is_done or (self.waits_for is not None and self.answer is None):
            return 0
        return selectors.EVENT_READ if self.answer is None else selectors.EVENT_WRITE

    def line(self) -> bytes | None:
        """Return the line once it is complete.

        Raises:
            StageError: it is another user's, or the line is too long.
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

    def send(self, answer: dict[str, Any]) -> None:
        """Begin to send the answer; a client that does not take it within :data:`limits.CONTROL_LINE_S` gets a part."""
        self.answer, self._deadline_s = memoryview(line_of(answer)), time.monotonic() + limits.CONTROL_LINE_S
        self.write()

    def write(self) -> None:
        """Send as much of the answer as fits."""
        assert self.answer is not None
        try:
            self.answer = self.answer[self.socket.send(self.answer) :]
        except BlockingIOError:
            return
        except OSError:
            self.is_done = True
        self.is_done = self.is_done or not self.answer

    def keep_time(self) -> None:
        """Begin to send an answer that was waited for, and end what takes too long."""
        if self.waits_for is not None and self.answer is None:
            if self.waits_for.done():
                self.send(self.waits_for.result())
        elif self._deadline_s < time.monotonic():
            if self.answer is not None:
                self.is_done = True
                return
            fix = f"one line within {limits.CONTROL_LINE_S:g} s"
            self.send(refusal(StageError("the request did not end", fix=fix)))


def _listen(ready: selectors.BaseSelector, own: socket.socket, events: int) -> None:
    """Set the events of a socket that a selector waits for; 0: none."""
    known = ready.get_map().get(own)
    if known is None:
        if events:
            ready.register(own, events)
    elif not events:
        ready.unregister(own)
    elif known.events != events:
        ready.modify(own, events)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end (SO_PEERCRED of unix(7)); of a server, those that began to listen."""
    size = struct.calcsize("iII")
    pid, user, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, user


def is_answered(path: Path) -> bool:
    """Return whether a process listens on a socket; False for one that a killed process left, and for none."""
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
def _locked(folder: Path) -> Iterator[None]:
    """Lock the choice of a path against other runs."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)
