"""Discovery of running pipelines for ``edgert top``: each serves its state to processes of the same user.

A pipeline listens on an abstract Unix socket (unix(7)). Such a socket has no file, so it needs no writable
folder. A killed process leaves nothing behind, and no later process can be mistaken for it. The kernel tells each side
which user the other is (SO_PEERCRED, socket(7)). Until a client connects, it costs one sleeping thread.
"""

import json
import logging
import os
import re
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgert import limits
from edgert.errors import EdgertError
from edgert.runtime.json_form import plain

_LOG = logging.getLogger(__name__)
_NAME = "edgert/pipeline"
_LISTENING = re.compile(rf"^\S+ \S+ \S+ 00010000 .* @({_NAME}/[0-9a-f-]+)$", re.MULTILINE)
"""Of a line of /proc/net/unix: flag __SO_ACCEPTCON, and an abstract name, whose first NUL is shown as @."""
_WAITING = 8  # connections that wait at once
_TIMEOUT_S = 1.0
_PAUSE_S = 0.1
MOST_BYTES = limits.STATE_BYTES
"""Most that is read of an answer."""
STRANGE = "does not answer like a pipeline of edgert"

State = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunningPipeline:
    """A running pipeline.

    Attributes:
        key: identifies it as long as it runs.
        pid: its process, from the kernel; 0 for one in a container whose processes are not seen from here.
        state: what it reports of itself; or why that is not known.
    """

    key: str
    pid: int
    state: State | str


class Beacon:
    """Server that makes a pipeline visible to :func:`running_pipelines`, from :meth:`open` to :meth:`close`.

    Args:
        state: called in a thread of its own for each connection; its result must have a plain form
            (:func:`edgert.runtime.json_form.plain`) and hold no secrets.
    """

    def __init__(self, state: Callable[[], State]) -> None:
        self._state = state
        self._server: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Begin to answer. Where the system has no such sockets, log that; the pipeline runs without."""
        if sys.platform != "linux":
            _LOG.info("edgert top will not see this pipeline: only Linux has sockets without a file")
            return
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.bind(f"\0{_NAME}/{os.getpid():x}-{secrets.token_hex(4)}")
            server.listen(_WAITING)
        except OSError as error:
            server.close()
            _LOG.info("edgert top will not see this pipeline: %s", error.strerror or error)
            return
        thread = threading.Thread(target=self._answer, args=(server,), name="edgert:beacon", daemon=True)
        self._server = server
        try:
            thread.start()
        except RuntimeError as error:  # a limit of threads, or of memory
            self._server = None
            server.close()
            _LOG.info("edgert top will not see this pipeline: %s", error)
            return
        self._thread = thread

    def close(self) -> None:
        """Stop answering and end the thread. May be called when it never opened, and more than once."""
        server, self._server = self._server, None
        if server is None or self._thread is None:
            return
        server.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closing alone would not
        self._thread.join()
        server.close()

    def _answer(self, server: socket.socket) -> None:
        while self._server is server:
            try:
                client, _ = server.accept()
            except OSError as error:
                _LOG.debug("nobody is accepted: %s", error)
                if self._server is server:  # no descriptor is free, say, which passes
                    time.sleep(_PAUSE_S)
                continue
            with client:
                try:
                    client.settimeout(_TIMEOUT_S)
                    if peer_of(client)[1] == os.geteuid():
                        text = json.dumps(plain(self._state()), allow_nan=False, separators=(",", ":"))
                        client.sendall(text.encode())
                except EdgertError as error:
                    _LOG.warning("edgert top gets no answer: %s", error)
                except OSError as error:  # whoever asked has left, or does not read
                    _LOG.debug("nobody took the answer: %s", error)


def running_pipelines(root: Path = Path("/")) -> tuple[RunningPipeline, ...]:
    """All running pipelines of this user in this network namespace, by process; those that end meanwhile are left out.

    Waits up to a second for each that does not answer.
    """
    try:
        text = (root / "proc/net/unix").read_text(errors="replace")  # names may be any bytes
    except OSError as error:
        _LOG.debug("no list of sockets: %s", error)
        return ()
    found = map(_query, sorted(set(_LISTENING.findall(text))))
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.pid))


def _query(name: str) -> RunningPipeline | None:
    """Return the pipeline behind a socket; None for another user's, and for one that is gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_TIMEOUT_S)
        try:
            client.connect(f"\0{name}")
            pid, user = peer_of(client)
            return RunningPipeline(name.rpartition("/")[2], pid, _read(client)) if user == os.geteuid() else None
        except OSError as error:
            _LOG.debug("%s: %s", name, error)
            return None


def _read(client: socket.socket) -> State | str:
    text = bytearray()
    try:
        while len(text) <= MOST_BYTES and (more := client.recv(1 << 16)):
            text += more
        state = json.loads(text)
    except TimeoutError:
        return "does not answer"
    except (ValueError, RecursionError):
        return STRANGE
    return state if isinstance(state, dict) else STRANGE


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end; of a server, those that began to listen."""
    size = struct.calcsize("iII")
    pid, user, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, user
