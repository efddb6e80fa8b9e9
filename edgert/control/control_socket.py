"""The Unix socket beside a run, for the same user and root: a request is a line of JSON, and so is its answer.

Changes are made one at a time, each in its client's thread. No frame waits for them.
"""

import fcntl
import logging
import os
import re
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any

from edgert import limits
from edgert.control.request import VERBS, Request, answer_to, parse_request, refusal
from edgert.errors import DeviceError, EdgertError, StageError, cause

Perform = Callable[[Request, str], Any]
_LOG = logging.getLogger(__name__)
_WAIT_S, _CLOSING_S = 0.1, 5.0
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
    """A server of requests on a socket, from :meth:`open` to :meth:`close`, with a thread for each client.

    ``perform`` gets one change at a time; requests that only read may come meanwhile. A second run of a name adds its
    process number to the socket. ``path`` is None while it is closed.
    """

    def __init__(self, name: str, perform: Perform) -> None:
        self._name, self._perform = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:64].lstrip(".") or "pipeline", perform
        self.path: Path | None = None
        self._server: socket.socket | None = None
        self._threads: dict[threading.Thread, socket.socket] = {}
        self._room, self._changing = threading.Semaphore(limits.CONTROL_CLIENTS), threading.Lock()

    def open(self) -> Path:
        """Create the socket, start to answer, and return its path. Raises DeviceError."""
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
        except BaseException as error:
            server.close()
            if isinstance(error, OSError):
                raise DeviceError(f"cannot create a socket in {folder}", why=cause(error)) from error
            raise
        self._server, self.path = server, path
        try:
            self._start("edgert:control", self._serve, server)
        except RuntimeError as error:
            self.close()
            raise DeviceError("cannot serve the control socket", why=str(error)) from error
        return path

    def close(self) -> None:
        """Stop answering, end the threads, and remove the socket. Further calls do nothing."""
        server, self._server = self._server, None
        if server is None or self.path is None:
            return
        self.path.unlink(missing_ok=True)  # while the socket is still answered, so no other run uses the path
        until_s = time.monotonic() + _CLOSING_S
        while self._threads and time.monotonic() < until_s:  # again for a client that was accepted meanwhile
            for thread, own in [*self._threads.items()]:
                with suppress(OSError):
                    own.shutdown(socket.SHUT_RD)  # ends its wait, for a client or for a request
                thread.join(max(until_s - time.monotonic(), 0.0))
        server.close()
        self.path = None

    def _paths(self, folder: Path) -> Iterator[Path]:
        yield folder / f"{self._name}.sock"
        yield folder / f"{self._name}-{os.getpid()}.sock"
        for number in count(2):  # several pipelines of one program
            yield folder / f"{self._name}-{os.getpid()}-{number}.sock"

    def _start(self, name: str, work: Callable[[socket.socket], None], own: socket.socket) -> None:
        """Call a function with a socket in a thread. Raises RuntimeError: no further thread can start."""

        def run() -> None:
            try:
                work(own)
            finally:
                self._threads.pop(thread, None)

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads[thread] = own
        try:
            thread.start()
        except RuntimeError:
            del self._threads[thread]
            raise

    def _serve(self, server: socket.socket) -> None:
        while self._server is server:
            if not self._room.acquire(timeout=_WAIT_S):
                continue
            try:
                own, _ = server.accept()
            except OSError as error:
                self._room.release()
                _LOG.debug("no client was accepted: %s", error)
                time.sleep(_WAIT_S if self._server is server else 0.0)  # no descriptor may be free
                continue
            try:
                self._start("edgert:control client", self._serve_client, own)
            except RuntimeError as error:
                self._room.release()
                with own, suppress(OSError):
                    own.sendall(refusal(StageError("the request failed", why=str(error), fix="try again")))

    def _serve_client(self, own: socket.socket) -> None:
        """Answer one request of a client. It may take :data:`limits.CONTROL_LINE_S` to send it, and to read."""
        try:
            with own, suppress(OSError):
                if (answer := self._answer(own)) is not None:
                    own.settimeout(limits.CONTROL_LINE_S)
                    own.sendall(answer)
        finally:
            self._room.release()

    def _answer(self, own: socket.socket) -> bytes | None:
        try:
            pid, user = peer_of(own)
            if user not in (os.geteuid(), 0):
                fix = "run edgert ctl as the user of the run, or as root"
                raise StageError("this pipeline is another user's", fix=fix)
            if (line := _receive_line(own)) is None:
                return None
            request = parse_request(line)
        except EdgertError as error:
            return refusal(error)
        verb = VERBS[request.verb]
        with nullcontext() if verb.is_reading or verb.is_long else self._changing:
            return answer_to(lambda: self._perform(request, f"user {user}, process {pid}"))


def _receive_line(own: socket.socket) -> bytes | None:
    """Return a client's line; None where it left. Raises StageError: the line is too long or takes too long."""
    text, until_s = bytearray(), time.monotonic() + limits.CONTROL_LINE_S
    while b"\n" not in text and len(text) <= limits.CONTROL_LINE_BYTES:
        own.settimeout(max(until_s - time.monotonic(), 1e-3))
        try:
            more = own.recv(1 << 16)
        except TimeoutError as error:
            fix = f"send one line within {limits.CONTROL_LINE_S:g} s"
            raise StageError("the request is not complete", fix=fix) from error
        if not more:
            return None
        text += more
    line = bytes(text.partition(b"\n")[0])
    if len(line) > limits.CONTROL_LINE_BYTES:
        raise StageError(f"the request has more than {limits.CONTROL_LINE_BYTES} bytes")
    return line


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
