"""The Unix socket beside a run: a line of JSON in, a line out, for the same user and root.

One thread reads all clients at once, none longer than :data:`LINE_S`, and answers them one after the other. Nothing of
it is on the way of a frame.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import selectors
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from edgert import limits
from edgert.control.request import Request, line_of, refusal, request_of
from edgert.errors import DeviceError, EdgertError, StageError
from edgert.runtime.announce import peer_of

Answer = Callable[[Request, str], dict[str, Any]]
"""Makes the answer to a request; the second argument says who asks."""
_LOG = logging.getLogger(__name__)
_LOOK_S = 0.5
_MOST_PATH = 107  # sun_path of unix(7), without its NUL


def socket_folder() -> Path:
    """Return the folder of this user's sockets: ``$XDG_RUNTIME_DIR/edgert``, or one in /tmp."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "edgert" if base else Path(f"/tmp/edgert-{os.geteuid()}")  # noqa: S108 - checked before use


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
        answer: called for one request at a time.

    Attributes:
        path: of the socket; None while it is closed.
    """

    def __init__(self, name: str, answer: Answer) -> None:
        self._name, self._answer = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:64].lstrip(".") or "pipeline", answer
        self.path: Path | None = None
        self._server: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def open(self) -> Path:
        """Begin to answer; return the path of the socket.

        Raises:
            DeviceError: the folder is another user's, cannot be written, its path is too long; or no thread can start.
        """
        folder = socket_folder()
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
        """Stop answering, end the thread, and remove the socket. Twice is once."""
        server, self._server = self._server, None
        if server is None:
            return
        self._over.set()
        if self.path is not None:
            self.path.unlink(missing_ok=True)  # while it is answered, no other run takes the path
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)  # wakes the thread
        if self._thread is not None:
            self._thread.join()
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
            while not self._over.is_set():
                has_room = len(clients) < limits.CONTROL_CLIENTS
                if has_room != (server in ready.get_map()):
                    _ = ready.register(server, selectors.EVENT_READ) if has_room else ready.unregister(server)
                for key, _ in ready.select(_LOOK_S):
                    if key.fileobj is server:
                        if (client := self._accepted(server)) is not None:
                            clients[client.socket] = client
                            ready.register(client.socket, selectors.EVENT_READ)
                        continue
                    client = clients[key.fileobj]  # type: ignore[index]
                    if self._is_done(client):
                        client.deadline_s = 0.0
                for client in [one for one in clients.values() if one.deadline_s < time.monotonic()]:
                    if client.deadline_s:
                        fix = f"one line within {limits.CONTROL_LINE_S:g} s"
                        client.send(refusal(StageError("the request did not end", fix=fix)))
                    ready.unregister(client.socket)
                    del clients[client.socket]
                    client.socket.close()
        for client in clients.values():
            client.socket.close()

    def _accepted(self, server: socket.socket) -> _Client | None:
        try:
            own, _ = server.accept()
        except OSError as error:
            _LOG.debug("nobody is accepted: %s", error)
            self._over.wait(0.0 if isinstance(error, BlockingIOError) else _LOOK_S / 5)  # no descriptor is free, say
            return None
        return _Client(own)

    def _is_done(self, client: _Client) -> bool:
        """Read what has come, and answer a whole line; return whether the client is to leave."""
        try:
            line = client.line()
        except EdgertError as error:
            client.send(refusal(error))
            return True
        if line is None:
            return client.has_left
        try:
            request = request_of(line)
        except EdgertError as error:
            client.send(refusal(error))
            return True
        try:
            answer = self._answer(request, client.who)
        except Exception:  # noqa: BLE001 - an error in one answer must not end the thread
            _LOG.exception("a request failed")
            answer = refusal(StageError("the request failed", why="this is a bug in edgert; its log has more"))
        client.send(answer)
        return True


class _Client:
    """A connection: one line of request, one line of answer."""

    def __init__(self, own: socket.socket) -> None:
        self.socket, self.has_left, self._text = own, False, bytearray()
        self.deadline_s = time.monotonic() + limits.CONTROL_LINE_S
        pid, self._user = peer_of(own)
        self.who = f"user {self._user}, process {pid}"
        own.setblocking(False)

    def line(self) -> bytes | None:
        """Return the line once it is whole. Raises StageError for another user, and a line that is too long."""
        if self._user not in (os.geteuid(), 0):
            raise StageError("this pipeline is another user's", fix="run edgert ctl as the user of the run, or as root")
        try:
            more = self.socket.recv(1 << 16)
        except BlockingIOError:
            return None
        except OSError:
            more = b""
        self.has_left = not more
        self._text += more
        line, end, _ = self._text.partition(b"\n")
        if len(line) > limits.CONTROL_LINE_BYTES:
            raise StageError(f"the request has more than {limits.CONTROL_LINE_BYTES} bytes")
        return bytes(line) if end else None

    def send(self, answer: dict[str, Any]) -> None:
        """Send the answer; a client that does not take it within a second gets a part."""
        with suppress(OSError):
            self.socket.settimeout(1.0)
            self.socket.sendall(line_of(answer))


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
    """Have no other run choose a path meanwhile."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


@contextmanager
def listening(name: str, answer: Answer) -> Iterator[Path | None]:
    """Answer requests until the block ends. Where there can be no socket, that is logged, and there is none."""
    own = ControlSocket(name, answer)
    path: Path | None = None
    try:
        path = own.open()
    except DeviceError as error:
        _LOG.warning("edgert ctl cannot reach this run: %s", f"{error.what}: {error.why}" if error.why else error.what)
    try:
        yield path
    finally:
        own.close()
